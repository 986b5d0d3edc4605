"""What a trainer carries from step to step: every attribute of its hooks and of the host, as comparable values."""

import dataclasses
import enum
import random
import re
import types
from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import numpy as np
import torch

from grpo_plus.training.hooks import Hook
from grpo_plus.trl.rollout import unfinished_batches

PLAIN = (type(None), bool, int, float, complex, str, bytes, Path, enum.Enum, torch.dtype, torch.device)
LIVE = (types.FunctionType, types.MethodType, types.ModuleType, type, torch.nn.Module)
OURS = ("grpo_plus.", "grpo_verifiers.", "transformers.trainer_callback")


def carried(trainer):
    """Path of every attribute that outlives a step, with its value. What is reached twice stands where it is first."""
    found, seen = {}, {id(one): one for one in (trainer, trainer.args, *trainer.pipeline.stages)}  # an id is given anew
    own = {
        name: value
        for name, value in vars(trainer).items()
        if name not in {"hooks", "callback_handler", "args", "generated"}
    }
    _walk(found, "host", own | {"_buffered_inputs": unfinished_batches(trainer)}, seen)  # one that is used up is gone
    for hook in trainer.pipeline.stages:
        _walk(found, f"{type(hook).__name__}", vars(hook), seen)
    for callback in trainer.callback_handler.callbacks:
        if id(callback) not in seen:
            _walk(found, f"{type(callback).__name__}", vars(callback), seen)
    models = {"model": trainer.accelerator.unwrap_model(trainer.model), "ref_model": trainer.ref_model}
    for name, model in models.items():
        if model is not None:
            _walk(found, name, dict(model.named_parameters()), seen)
    _walk(found, "optimizer", trainer.optimizer.state_dict(), seen)
    _walk(found, "scheduler", trainer.lr_scheduler.state_dict(), seen)
    generators = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}  # noqa: NPY002
    _walk(found, "random", generators, seen)
    return found


def _walk(found, path, value, seen):
    """Add ``value`` to ``found``: whole where it is plain, part by part where it is made of parts."""
    if isinstance(value, PLAIN):
        found[path] = repr(value)
        return
    if isinstance(value, torch.Tensor):
        found[path] = (value.dtype, tuple(value.shape), value.detach().cpu().contiguous().view(-1).tolist())
        return
    if isinstance(value, LIVE) or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        found[path] = value.tolist()
    elif isinstance(value, AbstractSet):
        found[path] = sorted(map(repr, value))
    elif isinstance(value, Mapping):
        _parts(found, path, value, seen)
    elif isinstance(value, Sequence | deque) and all(isinstance(item, PLAIN) for item in value):
        found[path] = repr(list(value))
    elif isinstance(value, Sequence | deque):
        _parts(found, path, dict(enumerate(value)), seen)
    elif type(value).__module__.startswith(OURS):
        fields = [field.name for field in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
        _parts(found, path, {name: getattr(value, name) for name in fields} | getattr(value, "__dict__", {}), seen)
    else:
        found[path] = type(value).__name__


def _parts(found, path, parts, seen):
    found[path] = sorted(map(str, parts))
    for key, item in parts.items():
        _walk(found, f"{path}.{key}", item, seen)


def differences(one, other):
    return sorted((path for path in one.keys() | other.keys() if one.get(path) != other.get(path)), key=str)


UNLIKE = {
    r"Recorder\._budget\.(_began|_since|_spent)$|Recorder\._status\.started|Recorder\._reports|StepClock\._since": "times",
    r"Recorder\._budget\._withdrawn|Recorder\._status\.resumed_from": "says that the run was resumed",
    r"\.engine\._models|\.engine\._notes|\.engine\._arranged|\.engine\.metrics|_mixed_mesh_grads|gather_function|_cursor\._order|verifier(\._place)?$": "caches, made anew",
    r"_policy\._warned|LeanRollouts\.rollout\.(_logged|stock)": "said once by each process", r"host\.pipeline\.saving\.": "of a checkpoint under way",
    r"LeanRollouts\._lists|\.verdicts|AllowedTokenScoring\._(turns|sampler|served)": "of a generation batch, until the next",
    r"Verifiers\._rows_checked": "looked at anew",
    r"Retry\._update\._window": "of an accumulation window that is over",
    r"^host\._logs": "of a table that is written only with log_completions",
    r"PromptSampler\._data": "of the checkpoint that it was resumed from", r"DataPosition\._saved": "of the checkpoint that it was resumed from",
    r"DataPosition\._measured": "figures of the last step: what the record says of them is compared",
    r"_total_loss": "the host's mean at the end is over the steps of this process",
    r"InnerIterations\._skipped": "set by every micro-batch", r"GenerationBatch\._warned": "of the last checkpoint, for people",
    r"RunDiagnosis\._logged\.series\.(step_time|time/|rollout/row_steps)": "of each process: a checkpoint has those of the first",
    r"host\.state\.stateful_callbacks": "a copy of what was saved last",
    r"host\.state\.log_history\.\d+\.(step_time|time/)": "times: a checkpoint has those of the first process",
    r"host\._initial_|ServerRollout\._began": "where this process began",
}  # fmt: skip
"""Attributes that need not be those of the uninterrupted run, and why."""


class Look(Hook):
    def __init__(self, at):
        self.at = at
        self.seen = None

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.at and self.seen is None:
            self.seen = carried(self.host)


def unlike(one, other):
    paths = [path for path in differences(one, other) if not any(re.search(known, path) for known in UNLIKE)]
    return [f"{path}: {one.get(path)!r:.80}, resumed {other.get(path)!r:.80}" for path in paths]
