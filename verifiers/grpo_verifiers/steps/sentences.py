"""Steps by sentences."""

import re

from grpo_verifiers.steps.segments import Span, first_visible, tiled

# A mark not preceded by another one: of a run of marks only the first is tried, which keeps hostile runs linear.
_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]*_]*+(?=\s)|[。！？]++[”’」』）]*+|\n")
_SHORT = re.compile(
    r"(?:\b(?:e\.g|i\.e|etc|vs|cf|approx|resp|eq|eqs|fig|mr|mrs|ms|dr|prof|st)|^\W{0,8}(?:\d{1,3}|[a-z]))\Z",
    re.IGNORECASE,
)


def sentence(text: str) -> list[Span]:
    """A step ends with a sentence (``.``, ``!``, ``?``, also ``。``) or with a line.

    Decimal points, common abbreviations ("e.g.", "Dr.") and the number of an item ("2. Add") end nothing.

    Use it when a completion reasons in prose, several sentences a line.

    >>> from grpo_verifiers.steps import segment
    >>> segment("It is 3.5 m, e.g. here. So 7.", "sentence")
    [(0, 24), (24, 29)]
    """
    starts: list[int] = []
    at = line = 0
    for match in _END.finditer(text):
        newline = match.group() == "\n"
        # enough before the mark to know an abbreviation or an item's number by
        before = text[max(line, match.start() - 16) : match.start()]
        if match.group() == "." and _SHORT.search(before if match.start() - line <= 16 else "…………" + before):
            continue
        visible = first_visible(text, at, match.end())
        if visible < match.end():
            starts.append(visible)
        at = match.end()
        line = at if newline else line
    visible = first_visible(text, at, len(text))
    return tiled([*starts, visible] if visible < len(text) else starts, len(text))
