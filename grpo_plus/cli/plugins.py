"""``grpo-plus plugins``: all parts that a config can name, and their sources."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser
from grpo_verifiers.errors import VerifierError

if TYPE_CHECKING:
    from grpo_verifiers.registry import Registry


def run(arguments: Sequence[str]) -> int:
    """Print the registries as tables."""
    parser = Parser(prog="grpo-plus plugins", description=__doc__)
    parser.add_argument("plugins", nargs="*", help="modules or ./files.py to import first")
    options = parser.parse_args(arguments)
    from rich.console import Console
    from rich.table import Table

    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives, piece_registries
    from grpo_plus.selection import selections
    from grpo_verifiers.verifying import REGISTRY, load_plugins

    try:
        load_plugins(options.plugins)
        console = Console()
        width = max(console.width, 100) if not console.is_terminal else None
        registries: list[Registry[Any]] = [advantages, objectives, *piece_registries.values(), selections, REGISTRY]
        for registry in registries:
            table = Table("name", "way", "where from", title=f"{registry.kind}s", title_justify="left")
            for entry in registry.entries():
                table.add_row(entry.name, entry.way, entry.source)
            console.print(table, width=width)
    except VerifierError as error:
        raise UserError(str(error)) from error
    return 0
