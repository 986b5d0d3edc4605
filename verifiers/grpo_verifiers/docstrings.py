"""Docstrings of parts, read into what a reference shows: summary, labelled paragraphs, keywords, config, example.

The layout, of built-in parts and of anybody's:

- The first line is the summary, and paragraphs without a label are prose.
- A paragraph that begins with a label of `LABELS` ("Use it when …", "Paper: …", "Degenerate case: …") belongs to it.
- ``Args:`` (of a dataclass ``Attributes:``) says what each keyword means, as in Google's style.
- ``Config:`` with indented YAML below is the example of a config.
- Lines with ``>>>`` are the example in Python.
"""

import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LABELS: Mapping[str, str] = {
    "use": "Use it when",
    "paper": "Paper:",
    "assumes": "Assumes",
    "degenerate": "Degenerate case:",
    "deviation": "Deviation:",
    "scores": "Scores:",
}
"""How the first line of a labelled paragraph begins. The words are kept where they are the beginning of a sentence."""

_ARGUMENTS = ("Args:", "Arguments:", "Parameters:", "Attributes:")
_LEFT_OUT = ("Returns:", "Raises:", "Yields:")
_HEADINGS = (*_ARGUMENTS, *_LEFT_OUT, "Config:")
_ARGUMENT = re.compile(r"\*{0,2}(\w+)(?: \([^)]*\))?:\s*(.*)")
_PAPER = re.compile(r"arXiv[: ]+(\d{4}\.\d{4,5})")


@dataclass(frozen=True)
class Docs:
    """The parts of a docstring. A paragraph is on one line, a table keeps its lines; ``config`` is YAML."""

    summary: str = ""
    prose: tuple[str, ...] = ()
    labelled: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    example: str = ""


def read_docs(text: str | None) -> Docs:
    """Read one docstring.

    >>> docs = read_docs('''Distance to the middle.
    ...
    ...     Use it when rewards are bounded.
    ...
    ...     Args:
    ...         gain: the factor.
    ...     ''')
    >>> docs.summary, docs.labelled, docs.arguments
    ('Distance to the middle', {'use': 'Use it when rewards are bounded.'}, {'gain': 'the factor.'})
    """
    summary, prose, examples, config = "", [], [], ""
    labelled: dict[str, str] = {}
    arguments: dict[str, str] = {}
    for number, block in enumerate(_blocks(text or "")):
        first, _, rest = block.partition("\n")
        if first in _ARGUMENTS:
            arguments |= _arguments(rest)
        elif first == "Config:":
            config = textwrap.dedent(rest).strip()
        elif first.startswith(">>> "):
            examples.append(block)
        elif (key := _label(first)) is not None:
            found = _one_line(block)
            said = found.removeprefix(LABELS[key]).strip() if LABELS[key].endswith(":") else found
            labelled[key] = f"{labelled[key]} {said}" if key in labelled else said
        elif first in _LEFT_OUT:
            continue
        elif number == 0:
            summary = _one_line(block).rstrip(".")
        else:
            is_table = block.startswith(("===", "+--", "| ", "- ", "* ", "1. "))
            prose.append(block if is_table else _one_line(block))
    return Docs(summary, tuple(prose), labelled, arguments, config, "\n".join(examples))


def docs_of(value: Any) -> Docs:
    """What the docstring of a function or class says; of a class without one, nothing."""
    own = getattr(value, "__doc__", None)
    made = inspect.isclass(value) and isinstance(own, str) and own.startswith(f"{value.__name__}(")
    return Docs() if made or not isinstance(own, str) else read_docs(own)


def file_docs_of(value: Any, name: str) -> Docs:
    """What the file of a part says, where it is the part's own.

    That is a file which has the name of the part or of its function, an underscore before it or not, or whose first
    line has the name in double backticks.
    """
    module = sys.modules.get(str(getattr(inspect.unwrap(value) if callable(value) else value, "__module__", "")))
    text = getattr(module, "__doc__", None)
    if module is None or not isinstance(text, str):
        return Docs()
    own = {name, str(getattr(value, "__name__", name)).lower()}
    first = text.strip().partition("\n")[0]
    file = module.__name__.rpartition(".")[2].lstrip("_")
    return read_docs(text) if file in own or any(f"``{each}``" in first for each in own) else Docs()


def papers(text: str) -> list[str]:
    """The numbers of the papers on arXiv that a text names, each once.

    >>> papers("RLOO, arXiv:2402.14740, and arXiv 2402.14740")
    ['2402.14740']
    """
    return list(dict.fromkeys(_PAPER.findall(text)))


def _blocks(text: str) -> list[str]:
    """Paragraphs; a heading and all that is indented below it are one, blank lines included."""
    blocks: list[list[str]] = []
    fresh = True
    for line in inspect.cleandoc(text).splitlines():
        below = bool(blocks) and blocks[-1][0] in _HEADINGS and (line.startswith(" ") or not line)
        if below:
            blocks[-1].append(line)
        elif line and (fresh or line in _HEADINGS or blocks[-1][0] in _HEADINGS):
            blocks.append([line])
        elif line:
            blocks[-1].append(line)
        fresh = not line
    return ["\n".join(block).rstrip() for block in blocks]


def _arguments(text: str) -> dict[str, str]:
    """Names and meanings of a section with one parameter an entry."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in textwrap.dedent(text).splitlines():
        match = None if line.startswith(" ") else _ARGUMENT.match(line)
        if match is not None:
            name = match[1]
            found[name] = [match[2]]
        elif name:
            found[name].append(line.strip())
    return {name: " ".join(lines).strip() for name, lines in found.items()}


def _label(first: str) -> str | None:
    return next((key for key, label in LABELS.items() if first == label or first.startswith(f"{label} ")), None)


def _one_line(block: str) -> str:
    return " ".join(line.strip() for line in block.splitlines())
