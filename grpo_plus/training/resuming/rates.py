"""Options of the optimizer and the schedule of a run whose config differs from its checkpoint's.

Torch's optimizers and schedules load the options that they were saved with: a new learning rate would play no part.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

_OPTIONS = ("initial_lr", "weight_decay", "betas", "eps")


@contextmanager
def own_rates(optimizer: Any, schedule: Any) -> Iterator[None]:
    """Around the loading of a checkpoint's optimizer and schedule: options stay as this run has set them.

    The learning rate becomes that of the new schedule at the checkpoint's step. A schedule that follows a metric keeps
    the rate that it has reached.
    """
    fresh = [{key: group[key] for key in _OPTIONS if key in group} for group in optimizer.param_groups]
    yield
    for group, options in zip(optimizer.param_groups, fresh, strict=True):
        group.update(options)
    if not isinstance(schedule, LambdaLR):
        return
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    rates = [base * at(schedule.last_epoch) for base, at in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates  # noqa: SLF001 - what torch's own `get_last_lr` gives
