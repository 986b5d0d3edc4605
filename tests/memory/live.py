"""Bytes of the tensors that operations make, while they live."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts them: ``now``, and at most (``peak``)."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.known = set()

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
            if key not in given and key not in self.known and size:
                self.known.add(key)
                self.now += size
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self.drop, key, size)
        return result
