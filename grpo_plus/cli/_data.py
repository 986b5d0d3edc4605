"""Dataset and model of a config: a local file or folder, a function by reference, or a name on the hub."""

import codecs
import contextlib
import csv
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from grpo_plus.cli import UserError
from grpo_plus.recipe.values import no_utf8
from grpo_plus.record import runs_near
from grpo_verifiers.errors import PluginError
from grpo_verifiers.errors.messages import cut, short, unknown
from grpo_verifiers.registry import import_reference, is_reference

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
_KINDS = {
    ".jsonl": " as JSON, one object a line",
    ".json": " as JSON, one list of objects or one object a line",
    ".csv": " as CSV in UTF-8, whose first line names the columns",
    ".parquet": " as Parquet",
}
NO_MODEL = "model_name_or_path is missing: name a model on the hub or a folder."


def load_rows(
    name: str,
    config: str | None = None,
    *,
    streaming: bool = False,
    base: Path | None = None,
    field: str = "dataset_name",
) -> Any:
    """Load splits by name from a file, a folder of files, a saved dataset, a function by reference, or the hub."""
    from datasets import DatasetDict, load_dataset, load_from_disk

    if is_reference(name):
        return _from_function(name, base, field)
    path = local_data(name, base, field)
    if path is not None and path.is_file() and path.suffix != ".parquet":
        _check_text(path, field)
    try:
        with _quietly():  # the library logs the failure too, in terms of its own code
            if path is None:
                return load_dataset(name, name=config, streaming=streaming)
            if path.is_file():
                # Words such as NA are text in a table of questions; an empty cell is none.
                more: dict[str, Any] = {"keep_default_na": False, "na_values": [""]} if path.suffix == ".csv" else {}
                splits = load_dataset(READERS[path.suffix], data_files=str(path), streaming=streaming, **more)
                if not streaming:
                    _check_form(path, splits["train"], field)
                    splits["train"] = _with_integers(path, splits["train"]) if more else splits["train"]
                return splits
            if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
                saved = load_from_disk(str(path))
                return saved if isinstance(saved, Mapping) else DatasetDict({"train": saved})
            return load_dataset(str(path), name=config, streaming=streaming)
    except UserError:
        raise
    except Exception as error:
        where = str(path) if path else f"{name!r} on the hub"
        # The reader's errors for an empty file, and for a file with column names only.
        if isinstance(error, StopIteration) or "corresponds to no data" in str(error):
            hint = " Its first line names the columns." if path is not None and path.suffix == ".csv" else ""
            raise UserError(f"the dataset {where} holds no rows.{hint}") from error
        causes: list[BaseException] = [error]
        # The outermost error only reports that something failed.
        while (cause := causes[-1].__cause__) is not None and len(causes) < 5:
            causes.append(cause)
        why = _bad_line(path) if path is not None and path.suffix in (".json", ".jsonl") else ""
        why = why or "; ".join(dict.fromkeys(f"{type(each).__name__}: {each}" for each in causes[-2:]))
        form = _KINDS.get(path.suffix, "") if path is not None else ""
        raise UserError(f"the dataset {where} cannot be loaded{form}: {why}") from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    from datasets.utils import logging as log

    before = log.get_verbosity()
    log.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        log.set_verbosity(before)


def _check_text(path: Path, field: str) -> None:
    """Raise `UserError` if a file is not UTF-8: its reader may accept such a file and fail at a later row."""
    decoder, at = codecs.getincrementaldecoder("utf-8")(), 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                decoder.decode(block)
                at += len(block)
            decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise UserError(f"{field}: {path} cannot be read as text: {no_utf8(path, error, at)}") from error
    except OSError as error:
        raise UserError(f"{field}: {path} cannot be read: {error}.") from error


def _bad_line(path: Path) -> str:
    """Return the first problem of a JSON file with its line; empty if each value can be read."""
    text = path.read_text(encoding="utf-8-sig")
    values = [text] if text.lstrip().startswith("[") else text.split("\n")
    for number, line in enumerate(values, 1):
        try:
            value = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError as error:
            bad = cut(line.split("\n")[error.lineno - 1], 80)
            return f"line {number + error.lineno - 1}, column {error.colno}: {error.msg}: {bad}"
        if not isinstance(value, dict if len(values) > 1 else list):
            return f"line {number}: {short(value)} is no object."
    return ""


def _check_form(path: Path, rows: Any, field: str) -> None:
    """Raise `UserError` for a file with one column, or one row, by mistake: other separators, rows below a key."""
    first, *more = names = rows.column_names
    mark = next((mark for mark in ";\t|" if mark in first), "")
    if path.suffix == ".csv" and mark and not more:
        code = f"import pandas; pandas.read_csv('{path.name}', sep={mark!r}).to_csv('new.csv', index=False)"
        raise UserError(f'{field}: {path} separates columns by {mark!r}, expected commas: python -c "{code}"')
    below = [name for name in names if name in _CONTAINERS or not more] if len(rows) == 1 else []
    if below and isinstance(rows[0][below[0]], list | dict):
        form = "write the list alone, [{…}, …], or one object a line."
        raise UserError(f"{field}: {path} is one object, with the rows below {below[0]!r}: {form}")


def _with_integers(path: Path, rows: Any) -> Any:
    """Return the rows of a CSV file with integers, of 15 digits at most, that were read as floats for an empty cell."""
    from datasets import Value

    names = {name for name, kind in rows.features.items() if getattr(kind, "dtype", "") == "float64"}
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file) if names else ():
            names -= {name for name in names if not re.fullmatch(r"\s*([+-]?\d{1,15})?\s*", row.get(name) or "")}
    for name in names:
        rows = rows.cast_column(name, Value("int64"))
    return rows


_CONTAINERS = ("data", "train", "rows", "examples", "instances")


def import_function(field: str, reference: str, base: Path | None, expected: str) -> Any:
    """Import the function at ``reference``; raise `UserError` if there is none."""
    try:
        function = import_reference(reference, base)
    except PluginError as error:
        raise UserError(f"{field}: {error}") from error
    if not callable(function):
        raise UserError(f"{field}: {reference!r} is {function!r}, {expected}.")
    return function


def call_reference(field: str, name: str, base: Path | None) -> Any:
    """Call the function at ``name``, on the main process first: the others then reuse its files."""
    from accelerate import PartialState

    function = import_function(field, name, base, "expected a function without arguments")
    with PartialState().main_process_first():
        return function()


def model_path(name: str | None, base: Path, field: str = "model_name_or_path") -> str:
    """Return a model's folder or name on the hub; for a reference, the folder returned by its function."""
    if not name:
        raise UserError(NO_MODEL)
    local_model(name, field)
    if not is_reference(name) or Path(name).expanduser().exists():
        return str(Path(name).expanduser()) if name.startswith("~") else name
    folder = call_reference(field, name, base)
    if not isinstance(folder, str | Path):
        raise UserError(f"{field}: the function {name!r} returned {folder!r}, expected the path of a folder.")
    return str(folder)


def local_model(name: str, field: str = "model_name_or_path", *, functions: bool = True) -> None:
    """Raise `UserError` if a name means a folder on this machine that contains no model.

    With ``functions``, the name may refer to one that builds the model. Imports are light: commands call this before
    torch loads.
    """
    path = Path(name).expanduser()
    if functions and is_reference(name) and not path.exists():
        return
    hint = "Give a folder with a config.json, or a name on the hub."
    if path.is_file():
        raise UserError(f"{field}: {name!r} is a file. {hint}")
    if path.is_dir() and not any((path / file).is_file() for file in ("config.json", "adapter_config.json")):
        raise UserError(f"{field}: the folder {name!r} holds no model: it has no config.json.{runs_near(path)} {hint}")
    if not path.exists():
        on_hub(name, f"{field}: the folder {name!r}", hint)


_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", re.ASCII)
_NOT_ON_HUB = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".yaml", *READERS)


def on_hub(name: str, subject: str, hint: str) -> None:
    """Raise `UserError` if a name without a file or folder is no name on the hub either, or would be a surprise there.

    A folder of this machine as the first part makes it a path, unless the hub's cache has the name.
    """
    cache = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    stored = [Path(cache).expanduser() / f"{kind}--{name.replace('/', '--')}" for kind in ("models", "datasets")]
    near = "/" in name and Path(name.partition("/")[0]).is_dir() and not any(path.is_dir() for path in stored)
    if near or not _HUB_NAME.fullmatch(name) or name.endswith(_NOT_ON_HUB):
        path = Path(name).expanduser()
        where = "" if path.is_absolute() else f": looked in {Path.cwd()}"
        raise UserError(f"{subject} does not exist{where}.{runs_near(path)} {hint}")
    reach_hub()


HUB_WAIT = 10.0
"""Seconds to wait for a connection to the hub."""


@lru_cache
def reach_hub() -> None:
    """Restrict Hugging Face's libraries to local files if the hub cannot be reached: they retry for a minute a file.

    Too late once they are imported. A value of ``HF_HUB_OFFLINE``, 0 included, skips the attempt.
    """
    if os.environ.get("HF_HUB_OFFLINE") or "huggingface_hub" in sys.modules:
        return
    hub = urlsplit(getproxies().get("https") or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    address = hub.hostname, hub.port or (80 if hub.scheme == "http" else 443)
    problems = [f"no answer in {HUB_WAIT:g} s"]

    def connect() -> None:
        try:
            socket.create_connection(address, HUB_WAIT).close()
            problems.clear()
        except OSError as error:
            problems.append(str(error))

    thread = threading.Thread(target=connect, daemon=True)  # the look-up of a name has no limit of its own
    thread.start()
    thread.join(HUB_WAIT)
    if problems:
        os.environ["HF_HUB_OFFLINE"] = "1"
        print(
            f"{hub.hostname} cannot be reached ({problems[-1]}), so only models and data of this machine can be used. "
            "HF_HUB_OFFLINE=0 skips this attempt.",
            file=sys.stderr,
        )


def _from_function(name: str, base: Path | None, field: str) -> Any:
    from datasets import Dataset, IterableDataset

    rows = call_reference(field, name, base)
    origin, splits = f"{field}: the function {name!r} returned", dict[str, Any]()
    for split, values in (rows if isinstance(rows, Mapping) else {"train": rows}).items():
        splits[split] = values
        if isinstance(values, list) and values and all(isinstance(row, Mapping) for row in values):
            try:
                splits[split] = Dataset.from_list(values)
            except (ValueError, TypeError) as error:  # Arrow's errors are both
                raise UserError(f"{origin} rows that do not fit one table: {type(error).__name__}: {error}") from error
        elif not isinstance(values, Dataset | IterableDataset):
            expected = "expected a Dataset, a list of rows (mappings of columns to values), or splits by name"
            raise UserError(f"{origin} {values!r:.80} for the split {split!r}, {expected}.")
    return splits


def local_data(name: str, base: Path | None, field: str = "dataset_name") -> Path | None:
    """Return the local path of a dataset, searched in ``base`` (the config's folder) and in the working directory.

    None for a name on the hub, and for a reference. Imports are light: commands call this before they load torch.
    """
    if is_reference(name):
        return None
    also = f"Looked in {base}, too. " if base not in (None, Path.cwd()) else ""
    for folder in (base, Path.cwd()):
        if folder is not None and (path := (folder / Path(name).expanduser())).exists():
            if path.is_file() and path.suffix not in READERS:
                raise UserError(f"{field} {name!r}: a file must end in {', '.join(READERS)}.")
            return path
    on_hub(name, f"{field}: the dataset {name!r}", f"{also}Give a file or folder, or a name on the hub.")
    return None


def pick_split(splits: Any, split: str, field: str) -> Any:
    """Return one split by name."""
    if split not in splits:
        raise UserError(f"{field}: {unknown('split', split, list(splits))}")
    return splits[split]
