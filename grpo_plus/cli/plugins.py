"""``grpo-plus plugins``: all parts that a config can name, and their sources; with a name, all about that part."""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser
from grpo_verifiers.errors import VerifierError

if TYPE_CHECKING:
    from rich.console import Console


def run(arguments: Sequence[str]) -> int:
    """Print the parts as tables, or some of them in full."""
    parser = Parser(prog="grpo-plus plugins", description=__doc__)
    parser.add_argument(
        "plugins",
        nargs="*",
        metavar="NAME",
        help="a part to show, by name or reference (./file.py:attr); a module or ./file.py is imported first",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a list of parts")
    options = parser.parse_args(arguments)
    from rich.console import Console

    try:
        names = _loaded(options.plugins)
        console = Console(markup=False, highlight=False)
        if options.json:
            print(json.dumps(_described(names) if names else _listed(), indent=2, ensure_ascii=False))
        elif names:
            _show(console, names)
        else:
            _list(console)
    except (VerifierError, TypeError) as error:
        raise UserError(str(error)) from error
    return 0


def _loaded(given: Sequence[str]) -> list[str]:
    """Import the modules among the arguments; what remains are names and references of parts.

    A word without a dot is a part where there is one of that name, else a module where there is one.
    """
    from grpo_plus.cli._parts import is_part
    from grpo_verifiers.verifying import load_plugins

    files = [each for each in given if "." in each and not is_part(each)]
    load_plugins(files)
    rest = [each for each in given if each not in files]
    modules = [each for each in rest if not is_part(each) and each.isidentifier() and importlib.util.find_spec(each)]
    load_plugins(modules)
    return [each for each in rest if each not in modules]


def _described(names: Sequence[str]) -> list[dict[str, object]]:
    from grpo_plus.cli._parts import references

    return [asdict(part) for name in names for part in references(name)]


def _listed() -> list[dict[str, object]]:
    from grpo_plus.cli._parts import kinds

    return [{"kind": kind.words, **asdict(entry)} for kind in kinds() for entry in kind.registry.entries()]


def _show(console: "Console", names: Sequence[str]) -> None:
    from grpo_plus.cli._part_text import text_of
    from grpo_plus.cli._parts import references

    width = console.width if console.is_terminal else 100
    parts = [part for name in names for part in references(name)]
    console.print("\n\n".join(text_of(part, width) for part in parts), soft_wrap=True)


def _list(console: "Console") -> None:
    from rich.table import Table

    from grpo_plus.cli._parts import kinds

    width = max(console.width, 100) if not console.is_terminal else None
    for kind in kinds():
        table = Table("name", "way", "where from", title=kind.plural, title_justify="left")
        for entry in kind.registry.entries():
            table.add_row(entry.name, entry.way, entry.source)
        console.print(table, width=width)
    console.print("grpo-plus plugins NAME shows a part: formula, paper, when to use it, keywords and an example.")
