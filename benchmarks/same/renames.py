"""The table of names that changed between two trees, which ``--renamed FILE`` reads.

fields: {old_field: new_field, critic.old_key: new_key}   # of configs, and keys of JSON files
merged: {old_kwargs: part, old_rows: part.how.rows, kwargs: verifiers}
    # part: {name: ..., and these keywords}; part: {how: ..., rows: ...}; keywords beside the name of each entry
metrics: {old/metric: new/metric}
files: {grpo_plus/old.jsonl: grpo_plus/new.jsonl}         # the end of a path inside a run's folder
texts: {an old message: the new one}                      # in what is printed and in text files
dropped: {fields: [], metrics: [], files: [], runs: []}   # no longer there
added: {fields: [], metrics: [], files: []}               # new; fields are keys of JSON files
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

PAIRS = ("fields", "merged", "metrics", "files", "texts")
LISTS = {"dropped": ("fields", "metrics", "files", "runs"), "added": ("fields", "metrics", "files")}
EXAMPLE = "fields: {old: new}, metrics: {old: new}, dropped: {metrics: [old]}"
READERS: Mapping[str, Callable[[str], Any]] = {
    ".yaml": yaml.safe_load,
    ".yml": yaml.safe_load,
    ".json": json.loads,
    ".toml": tomllib.loads,
}


class TableError(ValueError):
    """A table that cannot be used."""


class Renames:
    """Old names with their new ones; remembers which rows were of use."""

    def __init__(self, table: Mapping[str, Any] | None = None) -> None:
        table = table or {}
        self.pairs: dict[str, dict[str, str]] = {name: dict(table.get(name) or {}) for name in PAIRS}
        lists = {name: table.get(name) or {} for name in LISTS}
        self.lists = {(name, kind): set(lists[name].get(kind) or ()) for name in LISTS for kind in LISTS[name]}
        self._used: set[tuple[str, str]] = set()

    @classmethod
    def read(cls, path: Path) -> "Renames":
        """The table in a file.

        Raises:
            TableError: there is none, or it is malformed; the message names every fault.
        """
        reader = READERS.get(path.suffix)
        if reader is None:
            raise TableError(f"--renamed {path}: expected a file that ends in {', '.join(READERS)}.")
        try:
            table = reader(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise TableError(f"--renamed {path} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise TableError(f"--renamed {path} is malformed: {error}") from error
        except yaml.YAMLError as error:
            raise TableError(f"--renamed {path} is no valid YAML: {error}") from error
        if faults := _faults(table):
            raise TableError("\n".join(f"--renamed {path}: {fault}" for fault in faults))
        return cls(table)

    def unused(self) -> list[str]:
        """Rows that nothing made use of."""
        rows = [(section, old) for section, pairs in self.pairs.items() for old in pairs]
        rows += [(f"{section}.{kind}", name) for (section, kind), names in self.lists.items() for name in names]
        return [f"{section}: {name}" for section, name in sorted(rows) if (section, name) not in self._used]

    def pair(self, section: str, name: str) -> str:
        """The new name of an old one, which may be the same."""
        if name in self.pairs[section]:
            self._used.add((section, name))
            return self.pairs[section][name]
        return name

    def listed(self, section: str, kind: str, name: str) -> bool:
        """A name is declared as dropped or added."""
        if name in self.lists[section, kind]:
            self._used.add((f"{section}.{kind}", name))
            return True
        return False

    def key(self, name: str) -> str:
        """The new name of a field or metric."""
        return self.pair("metrics", self.pair("fields", name))

    def file(self, path: str) -> str:
        """The new path of an old one: the rows name how paths end."""
        for old, new in self.pairs["files"].items():
            if path == old or path.endswith(f"/{old}"):
                return path.removesuffix(old) + self.pair("files", old) if new else path
        return path

    def file_listed(self, section: str, path: str) -> bool:
        """A path ends in a name that is declared as dropped or added."""
        parts = path.split("/")
        return any(self.listed(section, "files", "/".join(parts[at:])) for at in range(len(parts)))

    def text(self, text: str) -> str:
        """An old text in the new words: whole names of fields and metrics, and the rows of ``texts``."""
        for section in ("texts", "fields", "metrics"):
            for old in self.pairs[section]:
                pattern = re.escape(old) if section == "texts" else rf"(?<![\w/.]){re.escape(old)}(?![\w/])"
                if re.search(pattern, text):
                    new = self.pair(section, old)
                    text = re.sub(pattern, lambda _, new=new: new, text)  # type: ignore[misc]
        return text

    def config(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A config of the old tree in the words of the new one."""
        found = self._fields(config, "")
        for old, target in self.pairs["merged"].items():
            part, _, rest = target.partition(".")
            head, _, key = rest.partition(".")
            entries = found.get(part)
            if isinstance(entries, list):
                found[part] = [self._flat(old, item) if isinstance(item, dict) else item for item in entries]
            if old not in config:
                continue
            self.pair("merged", old)
            value = found.pop(self.pairs["fields"].get(old, old), None)
            keywords = {key: value} if key else value or {}
            word = {} if entries is None else {head or "name": entries}
            if keywords:
                found[part] = {**(entries if isinstance(entries, dict) else word), **keywords}
        return found

    def _flat(self, old: str, entry: dict[str, Any]) -> dict[str, Any]:
        if old in entry:
            self.pair("merged", old)
        return {**{key: value for key, value in entry.items() if key != old}, **entry.get(old, {})}

    def _fields(self, values: Mapping[str, Any], above: str) -> dict[str, Any]:
        found = {}
        for name, value in values.items():
            path = f"{above}{name}"
            if self.listed("dropped", "fields", path):
                continue
            inner = self._fields(value, f"{path}.") if isinstance(value, dict) else value
            found[self.pair("fields", path) if path in self.pairs["fields"] else name] = inner
        return found


def _faults(table: Any) -> list[str]:
    if not isinstance(table, dict):
        return [f"expected a mapping such as {EXAMPLE}, found {type(table).__name__}."]
    faults = []
    for name, rows in table.items():
        if name not in (*PAIRS, *LISTS):
            faults.append(f"unknown section {name!r}. There is: {', '.join((*PAIRS, *LISTS))}.")
        elif not isinstance(rows, dict):
            faults.append(f"{name} is {rows!r}, expected a mapping, as in {EXAMPLE}.")
        elif name in PAIRS:
            wrong = {old: new for old, new in rows.items() if not (isinstance(old, str) and isinstance(new, str))}
            faults += [f"{name}: {old!r} is {new!r}, expected a new name." for old, new in wrong.items()]
            twice = {new for new in rows.values() if list(rows.values()).count(new) > 1 and name != "merged"}
            faults += [f"{name}: two old names become {new!r}." for new in sorted(map(str, twice))]
        else:
            strange = [kind for kind in rows if kind not in LISTS[name]]
            faults += [f"{name}: unknown list {kind!r}. There is: {', '.join(LISTS[name])}." for kind in strange]
            bad = [kind for kind, names in rows.items() if not _texts(names)]
            faults += [f"{name}.{kind} is {rows[kind]!r}, expected a list of names." for kind in bad]
    return faults


def _texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)
