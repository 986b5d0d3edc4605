"""Batches made on the CPU, on the device that tests train on."""

import dataclasses

import torch

from tests.device import DEVICE


def on_device(batch):
    """The log-probabilities are a leaf there, too."""
    moved = {name: value.detach().to(DEVICE) for name, value in vars(batch).items() if isinstance(value, torch.Tensor)}
    moved["logps"].requires_grad_(batch.logps.requires_grad)
    return dataclasses.replace(batch, **moved)
