"""Judge a checkpoint without a manifest by its files: those of TRL's own trainer, and of older releases.

Weights, optimizer and random state are read as far as they tell whether they were cut off. A byte that has changed
inside a tensor goes unnoticed.
"""

import json
import struct
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from grpo_verifiers.files import open_to_read, read_text

TRAINER_STATE = "trainer_state.json"
_JSON = ("config.json", "adapter_config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = ("model.safetensors", "pytorch_model*.bin", "adapter_model.safetensors", "adapter_model.bin", *_INDEX)
_SHARDED = ("pytorch_model_fsdp_*", "optimizer_*")
"""Folders of FSDP; ``.metadata`` is the last file in each."""
_DEEPSPEED = "global_step*"
_OPTIMIZER = ("optimizer*", "rank*optimizer.pt")
_RANDOM = ("rng_state.pth", "rng_state_*.pth")
_ZIPS = ("*optimizer*.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", *_RANDOM, "training_args.bin")
"""What ``torch.save`` writes, beside weights."""
_NOT_A_ZIP = (ValueError, zipfile.BadZipFile, NotImplementedError, struct.error, EOFError, OverflowError, IndexError)


def problem(folder: Path) -> str | None:
    """The first file that is missing or was cut off, in words; None where the checkpoint looks whole."""
    return next(_problems(folder), None)


def weights_only(folder: Path) -> bool:
    """Whether a checkpoint holds neither optimizer nor schedule nor random state."""
    patterns = (*_OPTIMIZER, *_RANDOM, "scheduler.pt", _DEEPSPEED)
    return not any(_has(folder, pattern) for pattern in patterns)


def _problems(folder: Path) -> Iterator[str]:
    path = folder / TRAINER_STATE
    if path.is_file() or not path.exists():
        state = yield from _json(path)
        if state is not None and not (isinstance(state, dict) and type(state.get("global_step")) is int):
            yield f"{TRAINER_STATE} has no global_step"
    else:
        yield f"{TRAINER_STATE} is no file"
    yield from _weights(folder)
    for name in _JSON:
        if (folder / name).exists():
            yield from _json(folder / name)
    for path in sorted(folder.rglob("*.safetensors")):
        yield from _tensors(path, folder)
    for pattern in (*_ZIPS, "pytorch_model*.bin", "adapter_model.bin", f"{_DEEPSPEED}/*.pt"):
        for path in sorted(folder.glob(pattern)):
            yield from _zip(path, folder)
    yield from _beside_weights(folder)


def _weights(folder: Path) -> Iterator[str]:
    if not any(_has(folder, pattern) for pattern in (*_WEIGHTS, _SHARDED[0], _DEEPSPEED)):
        yield "it holds no weights"
    for name in _INDEX:
        if not (folder / name).exists():
            continue
        index = yield from _json(folder / name)
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(shards, dict):
            yield f"{name} has no weight_map"
            continue
        yield from (f"{shard} is missing" for shard in sorted(set(shards.values())) if not (folder / shard).exists())
    for pattern in _SHARDED:
        for path in sorted(folder.glob(pattern)):
            if path.is_dir() and not (path / ".metadata").exists():
                yield f"{path.name}/.metadata is missing"
    if _has(folder, _DEEPSPEED) and not (folder / "latest").exists():
        yield "latest is missing"


def _beside_weights(folder: Path) -> Iterator[str]:
    """A set of which a part is missing: with ``save_only_model`` there is none of it."""
    deep = _has(folder, _DEEPSPEED)
    there = {
        "optimizer.pt": deep or any(_has(folder, pattern) for pattern in _OPTIMIZER),
        "scheduler.pt": _has(folder, "scheduler.pt"),
        "rng_state.pth": any(_has(folder, pattern) for pattern in _RANDOM),
    }
    if any(there.values()):
        yield from (f"{name} is missing" for name, found in there.items() if not (found or (deep and "sched" in name)))
    ranks = sorted(int(path.stem[10:]) for path in folder.glob("rng_state_*.pth") if path.stem[10:].isdecimal())
    yield from (f"rng_state_{rank}.pth is missing" for rank in range(len(ranks)) if rank not in ranks)


def _has(folder: Path, pattern: str) -> bool:
    return next(folder.glob(pattern), None) is not None


def _json(path: Path) -> Generator[str, None, Any]:
    """Yields a problem, or returns what the file holds."""
    try:
        return json.loads(read_text(path))
    except FileNotFoundError:
        yield f"{path.name} is missing"
    except OSError as error:
        yield f"{path.name} cannot be read: {error.strerror}"
    except (ValueError, RecursionError):
        yield f"{path.name} is broken"
    return None


def _tensors(path: Path, folder: Path) -> Iterator[str]:
    name = path.relative_to(folder).as_posix()
    try:
        open_to_read(path).close()  # the library would wait for a pipe
        with safe_open(path, framework="np") as file:
            file.keys()
    except OSError as error:
        yield f"{name} cannot be read: {error.strerror or error}"
    except (SafetensorError, ValueError) as error:
        yield f"{name} is not complete ({error})"


def _zip(path: Path, folder: Path) -> Iterator[str]:
    name = path.relative_to(folder).as_posix()
    try:
        with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
            first = min((entry.header_offset for entry in archive.infolist()), default=None)
    except OSError as error:
        yield f"{name} cannot be read: {error.strerror}"
    except _NOT_A_ZIP:
        yield f"{name} is not complete"
    else:
        if first != 0:
            yield f"{name} is not complete"
