"""The pages of docs/parts, written from the docstrings: ``python -m grpo_plus.cli._part_pages docs/parts``."""

# ruff: noqa: RUF001 - formulas

import html
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from grpo_plus.cli._part_text import SOURCES
from grpo_plus.cli._parts import Kind, kinds
from grpo_plus.cli._reference import Reference
from grpo_verifiers.docstrings import LABELS

COMMAND = "python -m grpo_plus.cli._part_pages docs/parts"
TITLES = {
    "advantages": "Advantage estimators",
    "objectives": "Objectives and their pieces",
    "selection": "Selections and dead groups",
    "verifiers": "Verifiers, compositions and segmenters",
    "tools": "Tools and environments",
}
INTRODUCTIONS = {
    "advantages": """\
One number for each completion, step or token of a group. Keywords stand in `advantage_kwargs`. Definitions with golden
numbers are in [formulas.md](../formulas.md#advantage-estimators).""",
    "objectives": """\
A preset is a composition of a ratio, a surrogate, a KL term and a reduction, each of which a config may exchange:
`objective_kwargs: {ratio: sequence, reduce: token_mean}`. All objectives take `ratio`, `surrogate`, `kl`, `reduce`,
`stop_fraction`, `stop_rise` and `skip_settled` there, too. Definitions with golden numbers are in
[formulas.md](../formulas.md#objectives).""",
    "selection": """\
Which prompts are drawn, and what becomes of groups that teach nothing. What they cost and when to take what:
[drawing.md](../drawing.md). Definitions: [formulas.md](../formulas.md#selections).""",
    "verifiers": """\
A verifier scores a completion from its text and from columns of the row. Columns that are filled for it need not be in
the dataset; `columns: {parameter: column}` maps a parameter to a column of another name. An entry of `verifiers` has
the keys `name`, `label`, `weight`, `kwargs`, `columns`, `timeout`, `on_error` and `isolation`; the keywords below stand
in `kwargs`.""",
    "tools": """\
What a model may call between its turns. Turns, limits and environments: [turns.md](../turns.md).""",
}
OWN = """\
## Your own parts

`grpo-plus plugins NAME` prints all of this in a terminal (`--json` for programs), and does so for parts of yours as
well: `grpo-plus plugins ./my_parts.py NAME` for what the file registers, `grpo-plus plugins ./my_parts.py:function` for
a reference. Without a docstring it shows what the signature says: keywords with their types, ranges and defaults, and a
verifier's columns. With one it shows what stands there, in the layout of the built-in parts:

```python
# my_parts.py
from typing import Annotated

from grpo_plus.advantages import RewardTable, register_advantage
from grpo_verifiers.options import Range


@register_advantage("halfway")
def halfway(table: RewardTable, *, gain: Annotated[float, Range(0, finite=True)] = 1.0):
    \"\"\"gain · (R − ½).

    Use it when rewards are 0 or 1 and half of the completions should be right.

    Paper: where it comes from; arXiv:2402.03300 becomes a link.

    Assumes rewards from 0 to 1.

    Degenerate case: it compares nothing within a group; groups without contrast get 0 all the same.

    Args:
        table: the rewards.
        gain: the factor.

    Config:
        advantage: halfway
        advantage_kwargs: {gain: 2.0}
    \"\"\"
    return gain * (table.totals() - 0.5)
```

Lines of a Python prompt are the example. A verifier says `Scores: …` besides. Each part of it may be left out.
"""
_CODE = re.compile(r"(`[^`]*`)")
_STAR = re.compile(r"(?<!\w)\*(?!\w+\*)|(?<=\w)\*(?=\w)")
_ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")
_URL = re.compile(r"(?<![(<])(https?://[^\s,;]+[^\s,;.])")


def pages() -> dict[str, str]:
    """The text of each page, by its name in the folder."""
    by_page: dict[str, list[Kind]] = {}
    for kind in kinds():
        by_page.setdefault(kind.page, []).append(kind)
    found = {f"{page}.md": "\n".join(_page(page, of_page)) for page, of_page in by_page.items()}
    return {"index.md": "\n".join(_index(by_page)), **found}


def write(folder: Path) -> None:
    """Write all pages."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


def built_in(kind: Kind) -> list[Reference]:
    """The parts of a kind that come with this package."""
    return [kind.reference(entry.name) for entry in kind.registry.entries() if entry.way == "built-in"]


def _generated() -> str:
    return f"<!-- Written from the docstrings by `{COMMAND}`: change those, and run it again. -->"


def _index(by_page: dict[str, list[Kind]]) -> Iterator[str]:
    yield from ("# Every part", "", _generated(), "")
    yield "Whatever a config can name, with its formula, paper, when to use it, keywords and an example."
    yield "These pages are written from the docstrings of the code, so they say what runs."
    yield from ("", "| page | parts |", "|---|---|")
    for page, of_page in by_page.items():
        links = []
        for kind in of_page:
            parts = [f"[`{part.name}`]({page}.md#{_anchor(kind, part.name)})" for part in built_in(kind)]
            links += [f"{kind.plural}: {', '.join(parts)}"] if parts else []
        yield f"| [{TITLES[page]}]({page}.md) | {'<br>'.join(links)} |"
    yield from ("", OWN)


def _page(page: str, of_page: list[Kind]) -> Iterator[str]:
    yield from (f"# {TITLES[page]}", "", _generated(), "", INTRODUCTIONS[page], "")
    for kind in of_page:
        parts = built_in(kind)
        title = kind.plural[0].upper() + kind.plural[1:]
        if title != TITLES[page]:  # a page of one kind needs no second heading of these words
            yield from (f"## {title}", "")
        if not parts:
            yield from (
                f"None is built in: {kind.plural} are yours, registered or referred to by `./file.py:name`.",
                "",
            )
            continue
        yield from _overview(kind, parts)
        for part in parts:
            yield from _part(kind, part)


def _overview(kind: Kind, parts: list[Reference]) -> Iterator[str]:
    """A table of all parts of a kind; of verifiers with their columns and steps."""
    checks = kind.words == "verifier"
    yield from ("| name | | columns | steps |", "|---|---|---|---|") if checks else ("| name | |", "|---|---|")
    for part in parts:
        row = f"| [`{part.name}`](#{_anchor(kind, part.name)}) | {_cell(part.summary)} |"
        needed = [f"`{each.name}`" for each in part.columns if each.source == "required"]
        needed += [f"`{each.name}`, if there" for each in part.columns if each.source == "optional"]
        yield f"{row} {', '.join(needed)} | {part.facts['gives steps'].replace('no', '')} |" if checks else row
    yield ""


def _heading(kind: Kind, name: str) -> str:
    """Its name; with the kind where a page has other kinds before, so that no two headings are alike."""
    main = ("advantage estimator", "objective", "selection", "verifier", "tool", "environment")
    words = {"way with dead groups": "dead_groups", "composition of verifiers": "composition"}
    return name if kind.words in main else f"{words.get(kind.words, kind.words)} {name}"


def _anchor(kind: Kind, name: str) -> str:
    return re.sub(r"[^\w\- ]", "", _heading(kind, name).lower()).replace(" ", "-")


def _part(kind: Kind, part: Reference) -> Iterator[str]:
    yield from (f"### {_heading(kind, part.name)}", "", f"{_text(part.summary)}.", "")
    if part.formula and part.formula != part.summary:
        yield from ("```text", part.formula, "```", "")
    if part.facts:
        yield from (" · ".join(f"{key}: **{_text(value)}**" for key, value in part.facts.items()), "")
    for paragraph in part.prose:
        yield from (f"```text\n{paragraph}\n```" if "\n" in paragraph else _text(paragraph), "")
    for key, text in part.labelled.items():
        label = LABELS[key]
        yield from (f"**{label}** {_text(text.removeprefix(label).strip())}", "")
    if part.columns:
        yield from ("| column | | what it holds |", "|---|---|---|")
        yield from (f"| `{each.name}` | {SOURCES[each.source]} | {_cell(each.meaning)} |" for each in part.columns)
        yield ""
    if part.options:
        yield from ("| keyword | default | values | |", "|---|---|---|---|")
        for each in part.options:
            default = "required" if each.default is None else _code(each.default)
            yield f"| `{each.name}` | {default} | {_cell(each.values)} | {_cell(each.meaning)} |"
        yield ""
    if part.config:
        yield from ("```yaml", part.config, "```", "")
    if part.example:
        yield from ("```pycon", part.example, "```", "")
    for schema in part.calls:
        text = json.dumps(schema, indent=2, ensure_ascii=False)
        yield from ("What the model sees:", "", "```json", text, "```", "")


def _text(text: str) -> str:
    """A text of a docstring as Markdown: marks outside of backticks mean nothing, papers are links."""
    return "".join(each if each.startswith("`") else _plain(each) for each in _CODE.split(text))


def _plain(text: str) -> str:
    escaped = _STAR.sub(r"\\*", text).replace("<", "&lt;")
    return _ARXIV.sub(r"[arXiv:\1](https://arxiv.org/abs/\1)", _URL.sub(r"<\1>", escaped))


def _cell(text: str) -> str:
    """A text as a cell of a table; a bar in backticks has no way of writing that all readers of Markdown share."""
    pieces = (_code(each[1:-1]) if each.startswith("`") else _plain(each) for each in _CODE.split(text))
    return "".join(piece.replace("|", r"\|") for piece in pieces)


def _code(text: str) -> str:
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def main(arguments: Iterable[str]) -> int:
    """Write the pages into the folder that is given."""
    given = list(arguments)
    if len(given) != 1:
        print(f"expected one folder: {COMMAND}", file=sys.stderr)
        return 2
    write(Path(given[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
