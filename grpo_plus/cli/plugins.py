"""``grpo-plus plugins``: all parts that a config can name, and their sources; tools and environments in detail."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser
from grpo_verifiers.errors import VerifierError

if TYPE_CHECKING:
    from rich.console import Console

    from grpo_verifiers.registry import Registry


def run(arguments: Sequence[str]) -> int:
    """Print the registries as tables."""
    parser = Parser(prog="grpo-plus plugins", description=__doc__)
    parser.add_argument(
        "plugins",
        nargs="*",
        help="modules or ./files.py to import first; a tool or environment, by name or reference, is shown",
    )
    options = parser.parse_args(arguments)
    from rich.console import Console
    from rich.table import Table

    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives, piece_registries
    from grpo_plus.selection import selections
    from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS
    from grpo_verifiers.verifying import REGISTRY

    try:
        shown = _loaded(options.plugins)
        console = Console()
        if shown:
            for name in shown:
                _show(console, name)
            return 0
        width = max(console.width, 100) if not console.is_terminal else None
        registries: list[Registry[Any]] = [advantages, objectives, *piece_registries.values(), selections, REGISTRY]
        registries += [TOOLS, ENVIRONMENTS]
        for registry in registries:
            table = Table("name", "way", "where from", title=f"{registry.kind}s", title_justify="left")
            for entry in registry.entries():
                table.add_row(entry.name, entry.way, entry.source)
            console.print(table, width=width)
    except VerifierError as error:
        raise UserError(str(error)) from error
    return 0


def _loaded(given: Sequence[str]) -> list[str]:
    """Import the modules among the arguments; what remains are names and references of parts to show."""
    from grpo_verifiers.registry import is_reference
    from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS
    from grpo_verifiers.verifying import load_plugins

    load_plugins([each for each in given if not is_reference(each) and "." in each])
    rest = [each for each in given if is_reference(each) or "." not in each]
    shown = [each for each in rest if is_reference(each) or each in TOOLS or each in ENVIRONMENTS]
    load_plugins([each for each in rest if each not in shown])
    return shown


def _show(console: "Console", name: str) -> None:
    from rich.markup import escape

    from grpo_verifiers.tools.registry import show_part

    part = show_part(name)
    lines = [
        f"[bold]{part.kind} {escape(part.name)}[/bold], from {escape(part.source)}",
        f"a call may take {part.timeout:g} s",
    ]
    lines += ["keywords:"] if part.keywords else ["no keywords"]
    lines += [f"  {escape(key)}: {escape(values)}" for key, values in part.keywords.items()]
    lines += ["the model may call:"] if part.methods else []
    lines += [escape(json.dumps(method.schema["function"], indent=2, ensure_ascii=False)) for method in part.methods]
    lines += [f"cannot be used: {escape(problem)}" for problem in part.problems]
    console.print("\n".join(lines), soft_wrap=True, highlight=False)
