"""What a pass changes can be put back, as often as it fails."""

import random

import numpy as np
import torch

from grpo_plus.memory.snapshot import attributes, gradients, lengths, random_state, together


class Thing:
    pass


def test_everything_is_as_it_was(device):
    thing, whole = Thing(), Thing()
    thing.kept, thing.other, whole.values, whole.sum = 1, 2, [1], torch.ones(2)
    layer = torch.nn.Linear(2, 1, device=device)
    layer.weight.grad = torch.ones_like(layer.weight)
    lists = {"loss": [1.0]}
    kept = attributes(whole), attributes(thing, ["kept", "missing"])
    undo = together(gradients(layer), random_state([device]), lengths(lists), *kept)
    expected = torch.rand(3, device=device), torch.rand(3)
    others = random.random(), np.random.rand()  # noqa: NPY002
    for _ in range(2):
        layer.weight.grad += 1
        layer.bias.grad = torch.ones_like(layer.bias)
        lists["loss"].append(2.0)
        lists["new"] = [3.0]
        thing.kept, thing.other = 5, 6
        whole.values.append(2)
        whole.sum += 1
        undo()
        assert torch.equal(torch.rand(3, device=device), expected[0])
        assert torch.equal(torch.rand(3), expected[1])
        assert (random.random(), np.random.rand()) == others  # noqa: NPY002
        assert (layer.weight.grad == 1).all()
        assert layer.bias.grad is None
        assert lists == {"loss": [1.0]}
        assert (thing.kept, thing.other, whole.values) == (1, 6, [1])
        assert torch.equal(whole.sum, torch.ones(2))
