"""``grpo-plus plugins``: list all parts that a config can name, with their sources, or describe one part."""

import importlib.util
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser
from grpo_verifiers.errors import VerifierError

if TYPE_CHECKING:
    from grpo_plus.cli._parts import Reference


def run(arguments: Sequence[str]) -> int:
    """Print a line for each part, or some of them in full."""
    parser = CommandParser(prog="grpo-plus plugins", description=__doc__)
    parser.add_argument(
        "plugins",
        nargs="*",
        metavar="NAME",
        help="a part to show, by name or reference (./file.py:attr); a module or ./file.py is imported first",
    )
    options = parser.parse_args(arguments)
    try:
        names = _load_modules(options.plugins)
        print(_in_full(names) if names else _list())
    except (VerifierError, TypeError) as error:
        raise UserError(str(error)) from error
    return 0


def _load_modules(words: Sequence[str]) -> list[str]:
    """Import the modules among the arguments, and return the rest: names and references of parts.

    A word without a dot is a part if one has that name, else a module if there is one.
    """
    from grpo_plus.cli._parts import is_part
    from grpo_verifiers.verifying import load_plugins

    files = [each for each in words if "." in each and not is_part(each)]
    load_plugins(files)
    rest = [each for each in words if each not in files]
    modules = [each for each in rest if not is_part(each) and each.isidentifier() and importlib.util.find_spec(each)]
    load_plugins(modules)
    return [each for each in rest if each not in modules]


def _in_full(names: Sequence[str]) -> str:
    from grpo_plus.cli._parts import references

    def wrapped(text: str) -> str:
        return textwrap.fill(text.replace("``", "`"), 100, subsequent_indent="  " * text.startswith("- "))

    parts = [
        [f"{part.kind} {part.name} ({part.way}), from {part.source}", *blocks(part, wrapped), *part.problems]
        for name in names
        for part in references(name)
    ]
    return "\n\n\n".join("\n\n".join(lines) for lines in parts)


def blocks(part: "Reference", text: Callable[[str], str]) -> Iterator[str]:
    """Describe a part in Markdown; ``text`` prepares prose of docstrings."""
    yield text(f"{part.summary}." if part.summary else "It has no docstring; the rest is from its code.")
    if part.formula and part.formula != part.summary:
        yield _fenced("text", part.formula)
    if part.facts:
        yield text(" · ".join(f"{key}: {value}" for key, value in part.facts.items()))
    for paragraph in part.prose:
        yield _fenced("text", paragraph) if "\n" in paragraph else text(paragraph)
    if part.keywords:
        entries = ((f"- `{name}`: {values}.", meaning) for name, (values, meaning) in part.keywords.items())
        yield "\n".join(text(" ".join(filter(None, entry))) for entry in entries)
    if part.config:
        yield _fenced("yaml", part.config)
    if part.example:
        yield _fenced("pycon", part.example)
    for schema in part.calls:
        yield "Schema for the model:"
        yield _fenced("json", json.dumps(schema, indent=2, ensure_ascii=False))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _list() -> str:
    from grpo_plus.cli._parts import kinds

    lines = []
    for kind in kinds():
        entries = kind.registry.entries()
        width = max((len(entry.name) for entry in entries), default=0)
        lines += [kind.plural, *(f"  {entry.name:<{width}}  {entry.way}, {entry.source}" for entry in entries), ""]
    return "\n".join([*lines, "grpo-plus plugins NAME shows a part: formula, paper, keywords, an example."])
