"""The mapping ``warm_start`` of a config, and stored warm starts.

Each has a folder, named by a hash of all inputs and written atomically.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypedDict

from filelock import FileLock, Timeout

from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.disk import failed_write
from grpo_plus.checkpoints.folder import read_json
from grpo_plus.recipe.values import checked_mapping
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.files import replaced_folder
from grpo_verifiers.options import Matches, Range
from grpo_verifiers.redaction import redact_text

FILE = "warm_start.json"
VERSION = 1
WAIT = 20.0
"""Seconds that one look at another run's lock may take."""
_ADAPTER = "adapter_config.json"
_FILES = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", _ADAPTER,
}  # fmt: skip
_WEIGHTS = {".safetensors", ".bin", ".gguf", ".model", ".py"}
"""Of weights, of SentencePiece and of a model's own code."""
_READERS = 4


class Archive:
    """The place of one warm start below ``home``; ``settings`` are all that it depends on, as JSON values."""

    def __init__(self, home: Path, settings: Mapping[str, Any]) -> None:
        self.home, self.settings = home, json.loads(json.dumps({"version": VERSION, **settings}))
        self.key = hashlib.sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()[:12]
        self.folder = home / self.key
        self._lock = FileLock(home / f".{self.key}.lock", thread_local=False)

    def facts(self) -> dict[str, Any]:
        """Facts about a stored warm start."""
        facts = read_json(self.folder / FILE).get("facts")
        return facts if isinstance(facts, dict) else {}

    def claim(self) -> tuple[str, str]:
        """``there``, ``claimed`` for this process or ``busy`` with another; and the reason to train it."""
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(NotImplementedError):  # a file system without locks
                self._lock.acquire(timeout=WAIT)
        except Timeout:
            return "busy", ""
        except OSError as error:
            raise ConfigError([f"warm_start: nothing can be written to {self.home}: {error}."]) from error
        if not self.folder.is_dir():
            return "claimed", "none with these settings is there yet"
        if (torn := manifest.problem(self.folder)) is not None:
            return "claimed", f"the one in {self.folder} is torn: {torn}"
        self.release()
        return "there", ""

    def release(self) -> None:
        """Release the lock."""
        self._lock.release()

    def keep(self, save: Callable[[Path], None], facts: Mapping[str, Any], *, alone: bool) -> None:
        """Have ``save`` write into a draft, which then takes the place; ``alone`` removes all earlier ones."""
        try:
            with replaced_folder(self.folder) as draft:
                save(draft)
                content = {"settings": self.settings, "facts": dict(facts)}
                (draft / FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
                manifest.write(draft, int(facts.get("steps", 0)))
        except Exception as error:  # the libraries that write weights have errors of their own
            problem = failed_write(error, self.home)
            if problem is None and not isinstance(error, OSError):
                raise
            why = "no space left on the disk" if problem is not None and problem.full else redact_text(str(error))
            remedy = problem.remedy if problem is not None else "Make it writable"
            place = "or set warm_start: {folder: …} to another place"
            raise ConfigError([f"warm_start: {self.folder} cannot be written: {why}. {remedy}, {place}."]) from error
        for other in [*self.home.glob(f"*/{FILE}")] if alone else ():
            if other.parent != self.folder:
                shutil.rmtree(other.parent, ignore_errors=True)


def identity(model: str, revision: str | None = None, *, above: tuple[Path, ...] = ()) -> str:
    """A model's name on the hub; of a folder, the hash of its model files.

    All of the weights is read, several files at once: a change between the ends of a file is a change, and training
    reads them next. Of an adapter's folder the base counts as well.
    """
    folder = Path(model)
    if not folder.is_dir():
        return f"{model}@{revision}" if revision else model
    if folder.resolve() in above:
        circle = " -> ".join(str(each) for each in above)
        text = f"the adapter in {above[0]} has no model under it: its bases lead back to {model} ({circle})"
        remedy = f"name a model, or an adapter with one, as base_model_name_or_path in {_ADAPTER}"
        raise ConfigError([f"{text}: {remedy}."])
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "training_args.bin")
    paths = [path for path in files if path.name in _FILES or path.suffix in _WEIGHTS]
    with ThreadPoolExecutor(_READERS) as pool:
        digests = {path.name: digest for path, digest in zip(paths, pool.map(_digest, paths), strict=True)}
    base = read_json(folder / _ADAPTER).get("base_model_name_or_path")
    if base and Path(base).resolve() != folder.resolve():
        digests["base"] = identity(base, above=(*above, folder.resolve()))
    digest = hashlib.sha256(json.dumps(digests, sort_keys=True).encode())
    return f"a folder whose files have the hash {digest.hexdigest()[:12]}"


def _digest(path: Path) -> str:
    if path.name == _ADAPTER:  # the base counts by its content, not by its path
        settings = {**read_json(path), "base_model_name_or_path": None}
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_Text = Annotated[str, Matches(r"(?s).*\S.*", "a string")]
_Count = Annotated[int, Range(1, text="a whole number of at least 1")]
_Positive = Annotated[float, Range(0, open_low=True, finite=True, text="a number above 0")]
FULL_RATE = 2e-5
ADAPTER_RATE = 2e-4
"""Learning rates where none is set: TRL's for all weights, and ten times that for an adapter."""


class WarmStartSettings(TypedDict, total=False):
    """The keys of ``warm_start``, and the values that each takes."""

    dataset: _Text
    config: _Text
    split: _Text
    solution: _Text
    steps: _Count
    epochs: _Positive
    learning_rate: _Positive
    batch_size: _Count
    max_length: _Count
    seed: Annotated[int, Range(0, text="a whole number of at least 0")]
    full: bool
    verbatim: bool
    folder: _Text


KEYS = tuple(WarmStartSettings.__annotations__)


def warm_start_problems(settings: Any) -> list[str]:
    """The problems of the mapping."""
    example = "{dataset: ./solutions.jsonl, solution: solution, epochs: 1}"
    values, problems = checked_mapping("warm_start", settings, WarmStartSettings, example)
    if "steps" in values and "epochs" in values:
        problems.append(
            f"warm_start has both steps ({values['steps']!r}) and epochs ({values['epochs']!r}), which both say how "
            "long it trains: keep one."
        )
    if "config" in values and "dataset" not in values:
        problems.append(
            f"warm_start has config: {values['config']!r}, which names a part of its dataset, and no dataset: add it, "
            "or remove config."
        )
    return problems


@dataclass(frozen=True)
class WarmStart:
    """The settings of a warm start, with defaults.

    Attributes:
        steps: optimizer steps.
        batch_size: solutions of an optimizer step, over all processes.
        learning_rate: its peak; it rises for a tenth of the steps, then falls along a cosine.
        seed: of the order of the solutions, and of a new adapter.
        full: all weights are trained, also where the run trains an adapter.
    """

    steps: int
    batch_size: int
    learning_rate: float
    seed: int = 42
    full: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any], rows: int, *, adapter: bool, processes: int = 1) -> Self:
        """Fill in unset keys, for so many usable rows; ``adapter`` is true if the run trains one."""
        batch_size = settings.get("batch_size", 32)
        batch = max(1, min(batch_size, rows) // processes) * processes
        full = bool(settings.get("full", False))
        rate = ADAPTER_RATE if adapter and not full else FULL_RATE
        return cls(
            steps=settings.get("steps") or max(1, round(settings.get("epochs", 1) * (rows // batch))),
            batch_size=batch,
            learning_rate=float(settings.get("learning_rate", rate)),
            seed=settings.get("seed", 42),
            full=full,
        )
