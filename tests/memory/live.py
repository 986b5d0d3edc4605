"""Bytes of the tensors that operations make, while they live."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.device import DEVICE, ON_CPU


class Live(TorchDispatchMode):
    """Counts them: ``now``, and at most (``peak``)."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

    def counts(self, storage, given):
        """An operation on storages that are ``given`` has made this one, which counts."""
        return True

    def drop(self, key, size):
        self.known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((arguments, keywords)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key not in given and key not in self.known and size and self.counts(storage, given):
                self.known.add(key)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.drop, key, size)
        return result


class OnDevice(Live):
    """Counts what is on the device; on a CPU as if there were one: ``cpu()``, and what is made of that, is not counted."""

    def __init__(self):
        super().__init__()
        self.main, self.moving = set(), False

    def counts(self, storage, given):
        if not ON_CPU:
            return storage.device.type == DEVICE
        if not self.moving and given.isdisjoint(self.main):
            return True
        self.main.add(storage._cdata)
        weakref.finalize(storage, self.main.discard, storage._cdata)
        return False

    def in_main_memory(self, tensor):
        return tensor.untyped_storage()._cdata in self.main if ON_CPU else not tensor.is_cuda

    def __enter__(self):
        self.real = torch.Tensor.cpu
        if ON_CPU:
            torch.Tensor.cpu = self.move
        return super().__enter__()

    def __exit__(self, *error):
        torch.Tensor.cpu = self.real
        return super().__exit__(*error)

    @property
    def move(self):
        def cpu(tensor):
            self.moving = not self.in_main_memory(tensor)
            try:
                return tensor.clone() if self.moving else tensor
            finally:
                self.moving = False

        return cpu
