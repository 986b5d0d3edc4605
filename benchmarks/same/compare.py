"""What differs between the folders of one run under two trees, the earliest step first."""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.same.renames import Renames

VOLATILE_KEYS = {
    r"time|.*[_/ ]time|time/.*|started|ended|written": "times of day and durations",
    r"(.*[_/])?seconds|.*runtime|.*per_second|.*latency_p\d+": "durations and throughput",
    r"memory/.*|.*rss|.*_gib": "memory of the machine",
    r"pid|.*run\.json host": "the process and its machine",
    r"bytes|sha256": "of files of a manifest: their contents are compared",
}
"""Names of metrics, keys of JSON files, and files with keys, that are not compared, each with its reason."""
VOLATILE_UNITS = ("seconds",)
"""Units of panels and tiles of a report that are not compared: durations."""
VOLATILE_FILES = {
    r"training_args\.bin": "a pickle of the config, which run.json has",
    r"config\.yaml|parts\.py|data\.jsonl|solutions\.jsonl|examples/.*": "what the command itself put there",
    r"(.*/)?__pycache__/.*|(.*/)?\..*|tmp/.*": "caches and locks",
}
"""Paths inside a run's folder that are not compared, each with its reason."""
VOLATILE_TEXT = {
    r"^\{'.*\}\n": ("", "logged metrics: the record and trainer_state.json have them"),
    r"\b\d+(\.\d+)?( ?)(s|ms|µs|min|h)\b(?! of \d)": ("<duration>", "durations"),
    r"\b\d\d\d\d-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?)?": ("<date>", "dates"),
    r"\b\d\d:\d\d(:\d\d)?(\.\d+)?\b": ("<clock>", "times of day"),
    r"\[W\d+ <clock>": ("[W", "dates of warnings of torch"),
    r"(?i)\bpid \d+|process \d+": ("<process>", "process ids"),
    r"\b0x[0-9a-f]{6,}\b": ("<address>", "addresses of objects"),
    r", line \d+": (", line <number>", "lines of code in tracebacks"),
}
"""Patterns that are replaced in text before it is compared, each with its reason."""
_KEYS = re.compile("|".join(VOLATILE_KEYS))
_FILES = re.compile("|".join(f"(.*/)?({pattern})" for pattern in VOLATILE_FILES))
_DATA = re.compile(r'(?<=<script type="application/json" id="data">).*?(?=</script>)', re.DOTALL)
_FIRST = ("prompt", "pieces", "tokens", "rewards", "verdicts", "advantage")
"""Keys of groups in the order in which they come about."""
_LATE = 1 << 60
"""Stands for the step of what has none."""
_SHOWN = 60


@dataclass(frozen=True)
class Difference:
    """A value that two runs do not share.

    Attributes:
        file: path inside the run's folder.
        place: in the file: keys, a metric, or a parameter.
        step: optimizer step; None where it belongs to none.
        far: of tensors: the largest difference.
        diff: of texts: a unified diff.
    """

    file: str
    place: str = ""
    old: str = ""
    new: str = ""
    step: int | None = None
    far: float | None = None
    diff: str = ""

    @property
    def weights(self) -> bool:
        """It is one of a model's or an adapter's weights."""
        return self.file.endswith("model.safetensors") and self.far is not None

    def __str__(self) -> str:
        step = "" if self.step is None else f"step {self.step}: "
        values = f"{self.old} → {self.new}" if self.far is None else f"off by up to {self.far:.3g}"
        return f"{step}{self.place} {values} ({self.file})".replace(":  ", ": ").strip()

    def row(self) -> dict[str, Any]:
        """As a line of JSON holds it."""
        return asdict(self)


def differences(old: Path, new: Path, renames: Renames, places: Mapping[str, str]) -> list[Difference]:
    """All that differs, by step, then prompts and completions, metrics, weights, other files, and what was printed.

    ``places`` are folders of either tree with the words that stand for them in texts.
    """
    comparison = _Comparison(renames, places)
    paths = {side: _paths(folder) for side, folder in (("old", old), ("new", new))}
    match = {renames.file(path): path for path in paths["old"]}
    found: list[Difference] = []
    for path in sorted(match.keys() | set(paths["new"])):
        before = match.get(path)
        if path not in paths["new"]:
            if not renames.file_listed("dropped", str(before)):
                found.append(Difference(path, "the file", "is there", "is not", _step_of(path)))
        elif before is None:
            if not renames.file_listed("added", path):
                found.append(Difference(path, "the file", "is not there", "is", _step_of(path)))
        else:
            found += comparison.files(old / before, new / path, path)
    return sorted(found, key=lambda one: (_LATE if one.step is None else one.step, _rank(one.file)))


def _paths(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    names = (path.relative_to(folder).as_posix() for path in files)
    return sorted(name for name in names if not _FILES.fullmatch(name))


def _step_of(path: str) -> int | None:
    """The step of the checkpoint that a file belongs to."""
    found = re.search(r"checkpoint-(\d+)/", path)
    return None if found is None else int(found[1])


def _rank(path: str) -> int:
    """The order of what differs at the same step."""
    if path.endswith(".jsonl"):
        return 0 if "group" in path else 1
    if path.endswith("trainer_state.json"):
        return 2
    return 3 if path.endswith(".safetensors") else 5 if path.startswith("printed") else 4


@dataclass(frozen=True)
class _At:
    """A place in a file, and its step."""

    file: str
    place: str
    step: int | None

    def within(self, key: str) -> "_At":
        return _At(self.file, self.place + key, self.step)

    def difference(self, old: str, new: str, far: float | None = None) -> Difference:
        return Difference(self.file, self.place.strip(), _short(old), _short(new), self.step, far)


class _Comparison:
    def __init__(self, renames: Renames, places: Mapping[str, str]) -> None:
        self._renames, self._places = renames, places

    def files(self, old: Path, new: Path, name: str) -> Iterator[Difference]:
        """What differs between two files."""
        readers: dict[str, Callable[[Path], Any]] = {
            ".json": lambda path: json.loads(path.read_text()),
            ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
            ".yaml": lambda path: yaml.safe_load(path.read_text()),
            ".html": _page,
            ".safetensors": _tensors,
            ".pt": _pickled,
            ".pth": _pickled,
            ".bin": _pickled,
        }
        same = old.read_bytes() == new.read_bytes()
        reader = readers.get(old.suffix)
        if same and old.suffix not in {".json", ".jsonl"}:  # those mark the rows of the table that are of use
            return
        if reader is None:
            yield from self._texts(old, new, name)
            return
        try:
            values = reader(old), reader(new)
        except Exception as error:  # noqa: BLE001 - whatever cannot be read is compared as bytes
            if not same:
                yield Difference(name, "", f"{old.stat().st_size} bytes", f"other bytes ({type(error).__name__})")
            return
        yield from self._values(*values, _At(name, "", _step_of(name)))

    def _texts(self, old: Path, new: Path, name: str) -> Iterator[Difference]:
        try:
            raw = [path.read_text(encoding="utf-8") for path in (old, new)]
        except UnicodeDecodeError:
            yield Difference(name, "", f"{old.stat().st_size} bytes", "other bytes")
            return
        texts = self._renames.text(self._steady(raw[0])), self._steady(raw[1])
        if texts[0] == texts[1]:
            return
        before, after = (text.splitlines() for text in texts)
        diff = list(difflib.unified_diff(before, after, f"old {name}", f"new {name}", lineterm="", n=2))
        first = {sign: next((line[1:] for line in diff[2:] if line[0] == sign), "") for sign in "-+"}
        yield Difference(name, "", repr(_short(first["-"])), repr(_short(first["+"])), diff="\n".join(diff))

    def _placeless(self, text: str) -> str:
        for place, word in self._places.items():
            text = text.replace(place, word)
        return text

    def _steady(self, text: str) -> str:
        text = self._placeless(text)
        for pattern, (word, _) in VOLATILE_TEXT.items():
            text = re.sub(pattern, word, text, flags=re.MULTILINE)
        return text

    def _values(self, old: Any, new: Any, at: _At) -> Iterator[Difference]:
        if isinstance(old, dict) and isinstance(new, dict):
            yield from self._mappings(old, new, at)
        elif isinstance(old, list | tuple) and isinstance(new, list | tuple):
            if len(old) != len(new):
                yield at.difference(f"{len(old)} items", f"{len(new)}")
            for number, (one, other) in enumerate(zip(old, new, strict=False)):
                yield from self._values(one, other, at.within(f"[{number}]" if at.place else f" line {number + 1}"))
        elif isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            yield from _tensors_differ(old, new, at)
        elif isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
            yield from _tensors_differ(torch.from_numpy(old), torch.from_numpy(new), at)
        elif isinstance(old, str) and isinstance(new, str):
            texts = self._renames.text(self._placeless(old)), self._placeless(new)
            if texts[0] != texts[1]:
                yield at.difference(repr(texts[0]), repr(texts[1]))
        elif type(old) is not type(new) or not (old == new or _both_nan(old, new)):
            yield at.difference(repr(old), repr(new))

    def _mappings(self, old: Mapping[Any, Any], new: Mapping[Any, Any], at: _At) -> Iterator[Difference]:
        if old.get("unit") in VOLATILE_UNITS and new.get("unit") == old["unit"]:
            return
        step = old.get("step")
        if isinstance(step, int) and step == new.get("step"):
            at = _At(at.file, at.place, step)
        match = {self._renames.key(key) if isinstance(key, str) else key: key for key in old}
        for key in sorted(match.keys() | new.keys(), key=_by_cause):
            inner = at.within(f" {key}".removeprefix(" values"))
            if _KEYS.fullmatch(str(key)) or _KEYS.fullmatch(f"{at.file}{inner.place}"):
                continue
            if key not in new:
                if not self._listed("dropped", match[key]):
                    yield inner.difference(repr(old[match[key]]), "is not there")
            elif key not in match:
                if not self._listed("added", key):
                    yield inner.difference("is not there", repr(new[key]))
            else:
                yield from self._values(old[match[key]], new[key], inner)

    def _listed(self, section: str, key: Any) -> bool:
        return any(self._renames.listed(section, kind, str(key)) for kind in ("fields", "metrics"))


def _by_cause(key: Any) -> tuple[int, str]:
    return (_FIRST.index(key) if key in _FIRST else len(_FIRST), str(key))


def _page(path: Path) -> Any:
    """A page and the data in it."""
    page = path.read_text(encoding="utf-8")
    data = _DATA.findall(page)
    return {"data": [json.loads(one) for one in data], "page": _DATA.sub("", page)}


def _tensors(path: Path) -> Any:
    from safetensors.torch import load_file

    return load_file(path)


def _pickled(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=False)


def _tensors_differ(old: torch.Tensor, new: torch.Tensor, at: _At) -> Iterator[Difference]:
    """Bit for bit."""
    if old.dtype != new.dtype or old.shape != new.shape:
        kinds = [f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}" for one in (old, new)]
        yield at.difference(kinds[0], kinds[1])
    elif old.numel() and not torch.equal(*(one.contiguous().reshape(-1).view(torch.uint8) for one in (old, new))):
        yield at.difference("", "", (old.double() - new.double()).abs().max().item())


def _both_nan(old: Any, new: Any) -> bool:
    return isinstance(old, float) and isinstance(new, float) and math.isnan(old) and math.isnan(new)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
