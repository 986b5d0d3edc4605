"""What is known of a part, and how it is put together from docstrings and a signature."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from grpo_verifiers.docstrings import LABELS, Docs, docs_of, papers
from grpo_verifiers.errors.messages import short
from grpo_verifiers.options import numbers, spell


@dataclass(frozen=True)
class Option:
    """A keyword of a part.

    Attributes:
        values: the values that it takes, in words.
        default: as Python writes it; None: it has to be given.
    """

    name: str
    values: str
    default: str | None = None
    meaning: str = ""


@dataclass(frozen=True)
class Column:
    """A parameter of a verifier that is filled for each completion.

    Attributes:
        source: ``required`` or ``optional``, a column of the dataset; ``given``, filled by whoever asks.
    """

    name: str
    source: str
    meaning: str = ""


@dataclass(frozen=True)
class Reference:
    """All that is known of one part.

    Attributes:
        kind: the kind in words ("advantage estimator").
        way: ``built-in``, ``registered``, ``entry point`` or ``reference``.
        labelled: paragraphs of its docstring by the keys of `grpo_verifiers.docstrings.LABELS`.
        facts: what is declared beside it, each by a word or two.
        calls: schemas of what the model may call.
        problems: why something of it cannot be shown.
    """

    kind: str
    name: str
    way: str = ""
    source: str = ""
    summary: str = ""
    formula: str = ""
    prose: tuple[str, ...] = ()
    labelled: Mapping[str, str] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    options: tuple[Option, ...] = ()
    config: str = ""
    example: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


def described(found: Reference, main: Docs, more: Docs, config: Mapping[str, Any] | None) -> Reference:
    """A description with what two docstrings say; what both say, the first one's. The config is that of a docstring."""
    labelled = {key: main.labelled.get(key) or more.labelled.get(key, "") for key in LABELS}
    labelled = {key: plain(text) for key, text in labelled.items() if text}
    prose = tuple(dict.fromkeys((*main.prose, *more.prose)))
    summary = main.summary or more.summary
    said = " ".join((labelled.get("paper", ""), summary, *prose, *labelled.values()))
    given = {key: value for key, value in (config or {}).items() if value not in ({}, None)}
    return replace(
        found,
        summary=plain(summary) or found.formula.partition("\n")[0],
        prose=tuple(text if "\n" in text else plain(text) for text in prose),  # a table stays in its columns
        labelled=labelled,
        links=tuple(f"https://arxiv.org/abs/{number}" for number in papers(said)),
        config=main.config or more.config or (written(**given) if given else ""),
        example="\n".join(filter(None, (main.example, more.example))),
    )


def options_of(
    parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], documented: Iterable[Any]
) -> tuple[Option, ...]:
    """Keywords with their values, defaults and meanings: the first docstring that has one says it."""
    said: dict[str, str] = {}
    for fn in documented:
        said = {**docs_of(fn).arguments, **said}
    return tuple(
        Option(
            name,
            spell(hints.get(name, Any)).removeprefix("typing."),
            None if each.default is each.empty else yaml_word(each.default),
            plain(said.get(name, "")),
        )
        for name, each in parameters.items()
    )


def defaults(options: Iterable[Option]) -> dict[str, Any]:
    """Keywords of a config at their defaults, to show how they are set; what has none is three dots."""
    found: dict[str, Any] = {}
    for each in options:
        if each.default is None:
            found[each.name] = "…"
            continue
        try:
            value = numbers(yaml.safe_load(each.default))
        except yaml.YAMLError:
            continue
        if isinstance(value, bool | int | float | str) and each.default != "()":
            found[each.name] = value
    return found


def yaml_word(value: Any) -> str:
    """A default as a config writes it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str) and value.isidentifier():
        return value
    return short(value, 60)


_END = "...\n"
"""What YAML puts behind a bare value."""


def written(**config: Any) -> str:
    """A config as YAML: a field a line, its keywords beside it."""
    lines = []
    for key, value in config.items():
        text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=1000, sort_keys=False)
        lines.append(f"{key}: {text.removesuffix(_END).strip()}")
    return "\n".join(lines)


def plain(text: str) -> str:
    """A text with one kind of backticks."""
    return text.replace("``", "`")


def yes(value: bool | None) -> str:
    return "only running it can tell" if value is None else "yes" if value else "no"
