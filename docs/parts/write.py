"""Write the pages of docs/parts from the docstrings: python docs/parts/write.py."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from grpo_plus.cli.plugins import SUMMARIES, PartKind, Reference, blocks, kinds, summary

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


def summaries() -> str:
    """The lines of all built-in parts for the list of `grpo-plus plugins`, as JSON."""
    names = [(kind, [each.name for each in kind.registry.entries() if each.way == "built-in"]) for kind in kinds()]
    lines = {kind.words: {name: summary(kind, name) for name in of_kind} for kind, of_kind in names}
    return json.dumps(lines, ensure_ascii=False, indent=1) + "\n"


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
    return [kind.reference(entry.name) for entry in kind.registry.entries() if entry.way == "built-in"]


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
    SUMMARIES.write_text(summaries(), encoding="utf-8")
