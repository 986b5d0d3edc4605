"""One group with tokens coloured as in the report, for the terminal with rich."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from grpo_plus.report.shape import shape_group

if TYPE_CHECKING:
    from rich.console import Group

BAR = 24
_PLUS = ("", "#cfe2f2", "#a3c9e8", "#74abdb", "#4791cd")
_MINUS = ("", "#fadccb", "#f4ba9b", "#ec966a", "#e2733b")
_INK = "#1c1e21"


def group_text(record: Mapping[str, Any]) -> "Group":
    """A recorded group for ``rich.print``: rewards as bars around the mean, then each completion's tokens coloured."""
    from rich.console import Group
    from rich.text import Text

    group = shape_group(record)
    rows: list[Any] = [Text(group["prompt"])] if group["prompt"] else []
    for at, one in enumerate(group["completions"]):
        row = Text(f"{at + 1:>3} ")
        row.append_text(_bar(one["total"], group))
        row.append(f" {_number(one['total']):>8}  A {_signed(one['advantage']):>7}  ")
        for verdict in one["verdicts"]:
            row.append(f"{verdict['verifier']}: {verdict['status']} ", style="dim")
        rows.append(row)
        if any(one["pieces"]):
            body = Text("    ")
            for piece, level, mark in _tokens(one):
                if mark:
                    body.append(f"[{mark}]", style="bold")
                body.append(piece.replace("\n", "\n    "), style=_style(level))
            rows.append(body)
    return Group(*rows)


def _tokens(one: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """The text and level of each token, and the mark of a step that begins there."""
    marks = {first: f"{place}: {_number(score)}" for place, (first, _, score) in enumerate(one.get("steps", ()), 1)}
    at = 0
    for count, level, _ in one["shades"]:
        for _ in range(count):
            yield one["pieces"][at], level, marks.get(at, "")
            at += 1


def _bar(total: float | None, group: Mapping[str, Any]) -> "Any":
    """A bar from the mean to the reward."""
    from rich.text import Text

    cells = [("·", "dim")] * (BAR + 1)
    if total is not None and group["spread"]:
        low, high = group["spread"]
        width = high - low

        def place(value: float) -> int:
            return round(BAR * (value - low) / width) if width > 0 else BAR // 2

        centre, end = place(group["mean"]), place(total)
        colour = "#4f93c8" if total >= group["mean"] else "#dd6f3a"
        for cell in range(min(centre, end), max(centre, end) + 1):
            cells[cell] = ("━", colour)
        cells[centre] = ("┃", "bold")
    return Text.assemble(*cells)


def _style(level: int) -> str:
    shade = _PLUS[level] if level > 0 else _MINUS[-level]
    return f"{_INK} on {shade}" if level else ""


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _signed(value: float | None) -> str:
    return "n/a" if value is None else f"{value:+.3g}" if value else "0"
