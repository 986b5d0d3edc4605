"""The options of ``eval`` and ``verify`` that name verifiers, and the verifiers that they make."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from grpo_verifiers import Verifier


def add_verifier_options(group: "argparse._ActionsContainer") -> None:
    """Declare the options of a verifier beside ``--verifier``."""
    group.add_argument("--column", action="append", default=[], metavar="PARAMETER=COLUMN", help="where a value stands")
    group.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="keyword of the verifier")
    group.add_argument("--plugin", "--plugins", action="append", default=[], help="module or ./file.py to import first")
    group.add_argument("--timeout", type=float, help="seconds for one completion")


def make_verifiers(names: Iterable[str], options: argparse.Namespace) -> "list[Verifier]":
    """The verifiers of these names with the options of the command line.

    Raises:
        UserError: an option cannot be read, belongs to one of several verifiers, or does not fit its verifier.
    """
    import yaml

    from grpo_verifiers import get_verifier
    from grpo_verifiers.verifying import load_plugins

    plugins = load_plugins(options.plugin)
    columns = dict(_pair(text, "--column") for text in options.column)
    keywords = {key: yaml.safe_load(value) for key, value in (_pair(text, "--option") for text in options.option)}
    names = list(dict.fromkeys(names))
    if len(names) > 1 and (columns or keywords):
        raise UserError("--column and --option belong to one verifier: give one --verifier with them.")
    verifiers = [
        get_verifier(name, columns=columns, plugins=plugins, timeout=options.timeout, **keywords) for name in names
    ]
    problems = [problem for verifier in verifiers for problem in verifier.check()]
    if problems:
        raise UserError(" ".join(problems))
    return verifiers


def missing_columns(needed: Mapping[str, str], columns: Sequence[str]) -> list[str]:
    """A sentence for each parameter whose column the data lacks."""
    return [
        f"{parameter}: {unknown('column', column, columns)}"
        for parameter, column in needed.items()
        if column not in columns
    ]


def _pair(text: str, flag: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"{flag} is {text!r}, expected KEY=VALUE.")
    return key, value
