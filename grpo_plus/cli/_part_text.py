"""The description of a part as text for a terminal."""

import json
import textwrap
from collections.abc import Iterator

from grpo_plus.cli._reference import Reference
from grpo_verifiers.docstrings import LABELS

SOURCES = {"required": "required column", "optional": "optional column", "given": "filled for it"}


def text_of(part: Reference, width: int = 100) -> str:
    """The description."""
    return "\n".join(_lines(part, max(width, 40)))


def _lines(part: Reference, width: int) -> Iterator[str]:
    yield f"{part.kind} {part.name} ({part.way}), from {part.source}"
    if part.summary:
        yield from textwrap.wrap(f"{part.summary}.", width)
    else:
        yield "It has no docstring; what follows is what its code declares."
    if part.formula and part.formula != part.summary:
        yield from _indented("formula:", part.formula.splitlines())
    for key, value in part.facts.items():
        yield f"{key}: {value}"
    for paragraph in part.prose:
        yield ""
        yield from paragraph.splitlines() if "\n" in paragraph else textwrap.wrap(paragraph, width)
    if part.labelled:
        yield ""
    for key, text in part.labelled.items():
        label = LABELS[key]
        yield from textwrap.wrap(f"{label} {text.removeprefix(label).strip()}", width, subsequent_indent="  ")
    yield from part.links
    if part.columns:
        yield ""
        yield "columns and what else it gets:"
        for column in part.columns:
            yield from _entry(f"{column.name}: {SOURCES[column.source]}", column.meaning, width)
    yield ""
    yield "keywords:" if part.options else "no keywords"
    for option in part.options:
        default = "required" if option.default is None else option.default
        yield from _entry(f"{option.name}: {option.values} ({default})", option.meaning, width)
    if part.config:
        yield from ("", *_indented("config:", part.config.splitlines()))
    if part.example:
        yield from ("", *_indented("example:", part.example.splitlines()))
    if part.calls:
        yield from ("", "the model may call:")
        yield from (json.dumps(schema, indent=2, ensure_ascii=False) for schema in part.calls)
    yield from part.problems


def _entry(head: str, meaning: str, width: int) -> Iterator[str]:
    yield f"  {head}"
    yield from textwrap.wrap(meaning, width, initial_indent="      ", subsequent_indent="      ")


def _indented(heading: str, lines: list[str]) -> list[str]:
    return [heading, *(f"  {line}" for line in lines)]
