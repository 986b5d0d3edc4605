"""Docstrings of parts, split for the reference: summary, paragraphs, keywords, config and example."""

import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Attributes|Config|Returns|Raises|Yields):\n((?:[ ].*(?:\n|$)|\n)*)", re.MULTILINE
)
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)(?: \([^)]*\))?:(.*\n?(?: .*\n?|\n)*)", re.MULTILINE)
_TABLE = ("===", "+--", "| ", "- ", "* ", "1. ")
USE = "Use it when "


@dataclass(frozen=True)
class Docs:
    """The parts of a docstring. A paragraph is on one line, a table keeps its lines; ``config`` is YAML."""

    summary: str = ""
    prose: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    example: str = ""

    @property
    def has_use(self) -> bool:
        """True if a paragraph begins with "Use it when"."""
        return any(text.startswith(USE) for text in self.prose)


def read_docs(text: str | None) -> Docs:
    """Split one docstring.

    >>> docs = read_docs('''Distance to the middle.
    ...
    ...     Use it when rewards are bounded.
    ...
    ...     Args:
    ...         gain: the factor.
    ...     ''')
    >>> docs.summary, docs.prose, docs.arguments
    ('Distance to the middle', ('Use it when rewards are bounded.',), {'gain': 'the factor.'})
    """
    clean = inspect.cleandoc(text or "")
    arguments: dict[str, str] = {}
    config = ""
    for heading, body in _SECTION.findall(clean):
        if heading == "Config":
            config = textwrap.dedent(body).strip()
        elif heading not in ("Returns", "Raises", "Yields"):
            pairs = _ARGUMENT.findall(textwrap.dedent(body))
            arguments |= {name: _one_line(meaning) for name, meaning in pairs}
    blocks = [block.strip("\n") for block in re.split(r"\n\s*\n", _SECTION.sub("\n", clean)) if block.strip()]
    examples = [block for block in blocks if block.startswith(">>> ")]
    prose = [block if block.startswith(_TABLE) else _one_line(block) for block in blocks if block not in examples]
    return Docs(_one_line("".join(prose[:1])).rstrip("."), tuple(prose[1:]), arguments, config, "\n".join(examples))


def docs_of(value: Any) -> Docs:
    """Return the docstring of a function or class; empty if a dataclass generated it."""
    own = getattr(value, "__doc__", None)
    generated = inspect.isclass(value) and isinstance(own, str) and own.startswith(f"{value.__name__}(")
    return Docs() if generated or not isinstance(own, str) else read_docs(own)


def file_docs_of(value: Any, name: str) -> Docs:
    """Return the docstring of a part's file, if the file belongs to the part.

    Such a file has the name of the part or of its function, with or without an underscore in front, or the name in
    double backticks in its first line.
    """
    module = sys.modules.get(str(getattr(inspect.unwrap(value) if callable(value) else value, "__module__", "")))
    text = getattr(module, "__doc__", None)
    if module is None or not isinstance(text, str):
        return Docs()
    own = {name, str(getattr(value, "__name__", name)).lower()}
    first = text.strip().partition("\n")[0]
    file = module.__name__.rpartition(".")[2].lstrip("_")
    return read_docs(text) if file in own or any(f"``{each}``" in first for each in own) else Docs()


def _one_line(block: str) -> str:
    return " ".join(block.split())
