"""Estimators on the device that tests train on, of tables made on the CPU."""

from grpo_plus import advantages
from tests.device import DEVICE


def compute_advantages(estimator, table, **keywords):
    found = advantages.compute_advantages(estimator, table.to(device=DEVICE), **keywords)
    assert found.device.type == DEVICE
    return found.cpu()
