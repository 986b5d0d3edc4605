"""Verifier options of ``eval`` and ``verify``."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_verifiers.errors import raise_all
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

NAMED = "by name, reference or mapping, as in a config: '{name: …, label: …, …}'; repeat it for several"


def add_verifier_options(group: "argparse._ActionsContainer") -> None:
    """Declare the options for verifiers, their columns, keywords, plug-ins and timeout."""
    group.add_argument("--verifier", action="append", default=[], metavar="NAME", help=NAMED)
    group.add_argument(
        "--column", action="append", default=[], metavar="PARAMETER=COLUMN",
        help="column of a value; of one of several verifiers: LABEL.PARAMETER=COLUMN",
    )  # fmt: skip
    group.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE",
        help="keyword of the verifier; of one of several: LABEL.KEY=VALUE",
    )  # fmt: skip
    group.add_argument("--plugin", "--plugins", action="append", default=[], help="module or ./file.py to import first")
    group.add_argument("--timeout", type=float, help="seconds for one completion")


def make_verifiers(options: argparse.Namespace) -> "list[Verifier]":
    """Build the verifiers of a command line, with their options."""
    import yaml

    from grpo_plus.recipe.entries import build_verifiers, read_entries
    from grpo_verifiers.verifying import load_plugins

    plugins = load_plugins(options.plugin)
    items = [_read(text) for text in options.verifier]
    entries, problems = read_entries(items, "--verifier")
    raise_all(problems)
    labels = [entry.label for entry in entries]
    timeout = {} if options.timeout is None else {"timeout": options.timeout}
    changed = {
        entry.label: {**(item if isinstance(item, dict) else {"name": item}), "columns": {**entry.columns}, **timeout}
        for entry, item in zip(entries, items, strict=True)
    }
    for label, key, value in _pairs(options.option, "--option", labels):
        if label is None:
            raise UserError(
                f"--option {key}={value} must name one of {', '.join(labels)}: write --option "
                f"{labels[0]}.{key}={value}."
            )
        changed[label][key] = yaml.safe_load(value)
    plain = None
    for label, key, column in _pairs(options.column, "--column", labels):
        if label is None and plain is None:
            plain, unfit = build_verifiers(entries, plugins)
            raise_all(unfit)
        reading = [label] if label else [part.entry.label for part in plain or () if _reads(part.verifier, key)]
        if not reading:
            raise UserError(f"--column {key}={column}: none of {', '.join(labels)} has a parameter {key!r}.")
        for each in reading:
            changed[each]["columns"][key] = column
    entries, problems = read_entries(changed.values(), "--verifier")
    raise_all(problems)
    parts, unfit = build_verifiers(entries, plugins)
    raise_all(unfit)
    return [part.verifier for part in parts]


def _reads(verifier: "Verifier", parameter: str) -> bool:
    return parameter in verifier.required_columns | verifier.optional_columns | verifier.gold_columns


def _read(text: str) -> Any:
    from grpo_plus.recipe.values import mapping

    if not text.lstrip().startswith("{"):
        return text
    try:
        return mapping("--verifier", text)
    except ValueError as error:
        raise UserError(str(error)) from error


def require_columns(needed: Mapping[str, Mapping[str, str]], columns: Sequence[str], flags: str) -> None:
    """Raise `UserError` if the data lacks columns; ``needed`` maps labels to the columns of the parameters.

    ``flags``: the options that set a column.
    """
    missing = [
        f"{label} needs {parameter}: {unknown('column', column, columns)}"
        for label, of_one in needed.items()
        for parameter, column in of_one.items()
        if column not in columns
    ]
    if missing:
        raise UserError(
            f"the data lacks columns of the verifiers. {' '.join(missing)} Set the column of a value with {flags}."
        )


def _pairs(texts: Iterable[str], flag: str, labels: Sequence[str]) -> "list[tuple[str | None, str, str]]":
    """Parse ``KEY=VALUE`` or ``LABEL.KEY=VALUE``; a single verifier needs no label."""
    pairs: list[tuple[str | None, str, str]] = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError(f"{flag} is {text!r}, expected KEY=VALUE.")
        named = [label for label in labels if key.startswith(f"{label}.") and len(key) > len(label) + 1]
        label = max(named, key=len) if named else labels[0] if len(labels) == 1 else None
        key = key.removeprefix(f"{label}.") if named else key
        if not labels:
            raise UserError(f"{flag} {text} belongs to a verifier: give --verifier.")
        if any((label, key) == before[:2] for before in pairs):
            raise UserError(f"{flag} gives {key} twice: keep one.")
        pairs.append((label, key, value))
    return pairs
