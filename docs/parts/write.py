"""Write the pages of docs/parts from the docstrings: python docs/parts/write.py."""

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_plus.cli.plugins import PartKind, file_text, formula_of, kinds, own_text
from grpo_plus.objectives import piece_registries
from grpo_plus.objectives.compose import SELECTORS, _kl
from grpo_plus.recipe.forms import PARTS_FILE
from grpo_verifiers.options import keywords_of
from grpo_verifiers.tools.registry import show_part

COMMAND = "python docs/parts/write.py"
GENERATED = f"<!-- Written from the docstrings by `{COMMAND}`: change those, and run it again. -->"
TITLES = {
    "advantages": "Advantage estimators",
    "objectives": "Objectives and their pieces",
    "selection": "Selections and dead groups",
    "verifiers": "Verifiers, compositions and segmenters",
    "tools": "Tools and environments",
}
INTRODUCTIONS = {
    "advantages": """\
One number for each completion, step or token of a group. Keywords stand beside the name:
`advantage: {name: sign, band: 0.25}`. Definitions with golden numbers are in
[formulas.md](../formulas.md#advantage-estimators).""",
    "objectives": """\
A preset is a composition of a ratio, a surrogate, a KL term and a reduction, each of which a config may exchange:
`objective: {name: grpo, ratio: sequence, reduce: token_mean}`. All objectives take `ratio`, `surrogate`, `kl`,
`reduce` and `stop_fraction` there, too. Definitions with golden numbers are in
[formulas.md](../formulas.md#objectives).""",
    "selection": """\
Which prompts are drawn, and what becomes of groups that teach nothing. What they cost and when to take what:
[drawing.md](../drawing.md). Definitions: [formulas.md](../formulas.md#selections).""",
    "verifiers": """\
A verifier scores a completion from its text and from columns of the row. Columns that are filled for it need not be in
the dataset; `columns: {parameter: column}` maps a parameter to a column of another name. An entry of `verifiers` is a
name, or a mapping with the keys `name`, `label`, `weight`, `columns`, `timeout`, `on_error` and `isolation`, beside
which the keywords below stand.""",
    "tools": """\
What a model may call between its turns. Turns, limits and environments: [turns.md](../turns.md).""",
}
RULES = """\
Each row is a rule of the code: a config that breaks it is refused with this reason and a way out; a row of `notes` is
only logged. … stands for a name or a value of the config. A part of yours brings its own: `register_advantage`,
`register_objective` and `register_selection` take `rules=[needs("critic", "why"), excludes("fp16", "why")]`, both from
`grpo_verifiers.rules`."""
OWN = """\
## Your own parts

`grpo-plus plugins NAME` prints all of this in a terminal, for parts of yours as well: `grpo-plus plugins ./my_parts.py
NAME` for what the file registers, `grpo-plus plugins ./my_parts.py:function` for a reference. Without a docstring it
shows what the signature says: keywords with their types, ranges and defaults, and a verifier's columns. The layout of a
docstring is in [CONTRIBUTING.md](../../CONTRIBUTING.md#the-docstring-of-a-part).
"""
_FILLED = re.compile(r"\{c[^}]*\}")
_CODE = re.compile(r"(`[^`]*`)")
_LABEL = re.compile(r"^(Use it when|Paper:|Assumes|Degenerate case:|Deviation:|Scores:)")
_STAR = re.compile(r"(?<!\w)\*(?!\w+\*)|(?<=\w)\*(?=\w)")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_URL = re.compile(r"(?<![(<])(https?://[^\s,;]+[^\s,;.])")


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


def _one_line(block: str) -> str:
    return " ".join(block.split())


@dataclass(frozen=True)
class Reference:
    """All that a page says of one part; ``keywords`` has values and meaning of each column and keyword."""

    kind: str
    name: str
    summary: str
    formula: str
    facts: Mapping[str, str]
    prose: tuple[str, ...]
    keywords: Mapping[str, tuple[str, str]]
    config: str
    example: str
    calls: tuple[Mapping[str, Any], ...]
    problems: tuple[str, ...]


def reference(kind: PartKind, name: str) -> Reference:
    """Describe one part from its docstring and that of its file."""
    value, fn = kind.registry.get(name), kind.function(name)
    formula, about = formula_of(name, value), getattr(value, "about", "")
    own, file = (read_docs(about), Docs()) if about else (read_docs(own_text(fn)), read_docs(file_text(fn, name)))
    main, other = (file, own) if file.has_use or not own.summary else (own, file)
    shown = main is file and inspect.isroutine(fn) and other.summary not in ("", formula)
    meanings = {**other.arguments, **main.arguments}
    for each in kind.keywords(value)[1]:
        meanings = {**read_docs(own_text(each)).arguments, **meanings}
    tool = show_part(name) if kind.page == "tools" else None
    return Reference(
        kind=kind.words,
        name=name,
        summary=main.summary or formula.partition("\n")[0],
        formula=formula,
        facts=kind.declared(name),
        prose=tuple(dict.fromkeys((*([f"{other.summary}."] if shown else []), *main.prose, *other.prose))),
        keywords={key: (text, meanings.get(key, FILLED.get(key, ""))) for key, text in kind.values(name).items()},
        config=main.config or other.config or kind.config.format(name),
        example="\n".join(filter(None, (main.example, other.example))),
        calls=() if tool is None else tuple(method.schema["function"] for method in tool.methods),
        problems=() if tool is None else tuple(tool.problems),
    )


FILLED = {
    "prompt": "the prompt from the dataset.",
    "prompts": "the prompts from the dataset.",
    "messages": "the conversation.",
    "completion_ids": "the sampled token ids.",
    "completion_text": "the sampled ids decoded, special tokens included.",
    "turns": "the model's turns between tool calls.",
    "turn_spans": "spans of the model's own turns; None without tools.",
    "solution": "read by the check of the data, if the column exists.",
}


def blocks(part: Reference, text: Callable[[str], str]) -> Iterator[str]:
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


def summaries() -> str:
    """The lines of all built-in parts for the list of `grpo-plus plugins`, and the keywords of many, as JSON."""
    names = [(kind, [each.name for each in kind.registry.entries() if each.way == "built-in"]) for kind in kinds()]
    lines = {kind.words: {name: _line(kind, name) for name in of_kind} for kind, of_kind in names}
    judged = ("advantage estimator", "objective", "ratio", "surrogate", "reduction", "selection", "KL estimator")
    keywords = {
        kind.words: {name: " ".join(_keywords(kind, name)) for name in of_kind}
        for kind, of_kind in names
        if kind.words in judged
    }
    return json.dumps({**lines, "keywords": keywords}, ensure_ascii=False, indent=1) + "\n"


def _keywords(kind: PartKind, name: str) -> list[str]:
    """The keywords of a part that need no look at another part; an objective's with those of its own pieces."""
    if kind.words == "KL estimator":
        return list(keywords_of(_kl))
    value = kind.registry.get(name)
    if kind.words != "objective":
        keywords, (fn, *_) = kind.keywords(value)
        is_open = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(fn).parameters.values())
        return [*keywords, *(["*"] if is_open else [])]
    pieces = [piece_registries[each].get(getattr(value, each)) for each in ("surrogate", "reduce", "ratio")]
    return list(dict.fromkeys([*SELECTORS, *(key for piece in pieces for key in piece.keywords())]))


def _line(kind: PartKind, name: str) -> str:
    return textwrap.shorten(reference(kind, name).summary.replace("`", ""), 100, placeholder=" …")


def pages() -> dict[str, str]:
    """The text of each page, by its name in the folder."""
    by_page: dict[str, list[PartKind]] = {}
    for kind in kinds():
        by_page.setdefault(kind.page, []).append(kind)
    found = {f"{page}.md": "\n".join(_page(page, of_page)) for page, of_page in by_page.items()}
    return {"index.md": "\n".join(_index(by_page)), "rules.md": "\n".join(_rules()), **found}


def _rules() -> Iterator[str]:
    """The table of rules."""
    from grpo_plus.objectives.rules import RULES as OF_PIECES
    from grpo_plus.recipe.table import PARTS

    yield from ("# Rules: what needs and excludes what", "", GENERATED, "", RULES, "")
    yield from ("| part | | field or part | why |", "|---|---|---|---|")
    for part in (*PARTS, OF_PIECES):
        for rule in part.rules:
            cells = (part.who, rule.relation, rule.target, rule.why)
            yield (
                "| "
                + " | ".join(_text(_FILLED.sub("…", cell).replace("{{", "{").replace("}}", "}")) for cell in cells)
                + " |"
            )
    yield ""


def built_in(kind: PartKind) -> list[Reference]:
    """The parts of a kind that come with this package."""
    return [reference(kind, entry.name) for entry in kind.registry.entries() if entry.way == "built-in"]


def _index(by_page: dict[str, list[PartKind]]) -> Iterator[str]:
    yield from ("# Every part", "", GENERATED, "")
    yield "Whatever a config can name, with its formula, paper, when to use it, keywords and an example."
    yield "These pages are written from the docstrings of the code, so they say what runs."
    yield from ("", "What excludes what: [rules.md](rules.md).")
    for page, of_page in by_page.items():
        yield from ("", f"## [{TITLES[page]}]({page}.md)", "")
        for kind in of_page:
            links = [f"[`{part.name}`]({page}.md#{_anchor(kind, part.name)})" for part in built_in(kind)]
            if links:
                yield f"- {kind.plural}: {', '.join(links)}"
    yield from ("", OWN)


def _page(page: str, of_page: list[PartKind]) -> Iterator[str]:
    yield from (f"# {TITLES[page]}", "", GENERATED, "", INTRODUCTIONS[page], "")
    for kind in of_page:
        parts = built_in(kind)
        title = kind.plural[0].upper() + kind.plural[1:]
        if title != TITLES[page]:  # a page of one kind needs no second heading of these words
            yield from (f"## {title}", "")
        yield from (f"- [`{part.name}`](#{_anchor(kind, part.name)}): {_text(part.summary)}" for part in parts)
        if not parts:
            yield f"None is built in: {kind.plural} are yours, registered or referred to by `./file.py:name`."
        yield ""
        for part in parts:
            yield from (f"### {_heading(kind, part.name)}", "")
            for block in blocks(part, _text):
                yield from (block, "")


def _heading(kind: PartKind, name: str) -> str:
    """Its name; with the kind where a page has other kinds before, so that no two headings are alike."""
    main = ("advantage estimator", "objective", "selection", "verifier", "tool", "environment")
    words = {"way with dead groups": "dead_groups", "composition of verifiers": "composition"}
    return name if kind.words in main else f"{words.get(kind.words, kind.words)} {name}"


def _anchor(kind: PartKind, name: str) -> str:
    return re.sub(r"[^\w\- ]", "", _heading(kind, name).lower()).replace(" ", "-")


def _text(text: str) -> str:
    """A text of a docstring as Markdown: marks outside of backticks mean nothing, papers are links."""
    pieces = _CODE.split(text.replace("``", "`"))
    return _LABEL.sub(r"**\1**", "".join(each if each.startswith("`") else _plain(each) for each in pieces))


def _plain(text: str) -> str:
    escaped = _STAR.sub(r"\*", text).replace("<", "&lt;")
    return _ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", _URL.sub(r"<\1>", escaped))


if __name__ == "__main__":
    for name, text in pages().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")
    PARTS_FILE.write_text(summaries(), encoding="utf-8")
