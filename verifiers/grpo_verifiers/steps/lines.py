"""Steps by lines: at blank lines, at every line, at "Step N:"."""

import re
from collections.abc import Iterator

from grpo_verifiers.steps.segments import Span, first_visible, tiled

# At the start of a line, perhaps behind markdown. "Step 1" without a mark after it, or within a line, refers to a step.
_NUMBERED = re.compile(
    r"^[ \t]*+([*_#>-]{0,6}[ \t]*+[*_]{0,3}step[ \t]*+#?\d{1,6}[*_]{0,3}[ \t]*+[:.)–—-])", re.MULTILINE | re.IGNORECASE
)


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of every line."""
    at = 0
    while at < len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield at, end
        at = end + 1


def newline(text: str) -> list[Span]:
    r"""Each line with something on it is a step.

    Use it when a completion has one statement a line, as models write sums and derivations.

    >>> from grpo_verifiers.steps import segment
    >>> segment("2 + 2 = 4\n\nso 4", "newline")
    [(0, 11), (11, 15)]
    """
    starts = [first_visible(text, start, end) for start, end in _lines(text) if text[start:end].strip()]
    return tiled(starts, len(text))


def blank_line(text: str) -> list[Span]:
    r"""Paragraphs: a step ends where a line with nothing on it does.

    Use it when a process reward model reads paragraphs, as Qwen2.5-Math-PRM does.

    >>> from grpo_verifiers.steps import segment
    >>> segment("first\nline\n\nsecond", "blank_line")
    [(0, 12), (12, 18)]
    """
    starts, fresh = [], True
    for start, end in _lines(text):
        visible = first_visible(text, start, end)
        if visible == end:
            fresh = True
        elif fresh:
            starts.append(visible)
            fresh = False
    return tiled(starts, len(text))


def numbered(text: str) -> list[Span]:
    r"""A step begins at each line that begins with ``Step 1:`` (or ``Step 1.``, ``**Step 1:**``, ``### Step 1 -``).

    What stands before the first such line belongs to no step; a text without one has no steps.

    Use it when the prompt asks for numbered steps, or the model was trained on them (Math-Shepherd).

    >>> from grpo_verifiers.steps import segment
    >>> segment("Plan.\nStep 1: add\nStep 2: halve", "numbered")
    [(6, 18), (18, 31)]
    """
    return tiled([match.start(1) for match in _NUMBERED.finditer(text)], len(text))
