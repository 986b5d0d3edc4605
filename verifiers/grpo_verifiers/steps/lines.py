"""Steps by lines, paragraphs, "Step N:" and tags."""

import re

from grpo_verifiers.reading.boxes import tag_sections
from grpo_verifiers.steps.segments import Span, tile

_VISIBLE_LINE = re.compile(r"^[^\S\n]*+(\S)", re.MULTILINE)
_PARAGRAPH = re.compile(r"(?:\A|\n[^\S\n]*+\n)\s*+(\S)")
# At the start of a line, perhaps after markdown. "Step 1" without a mark after it, or inside a line, refers to a step.
_NUMBERED = re.compile(
    r"^[ \t]*+([*_#>-]{0,6}[ \t]*+[*_]{0,3}step[ \t]*+#?\d{1,6}[*_]{0,3}[ \t]*+[:.)–—-])", re.MULTILINE | re.IGNORECASE
)


def newline(text: str) -> list[Span]:
    r"""Each line with something on it is a step.

    Use it when a completion has one statement a line, as models write sums and derivations.

    >>> from grpo_verifiers.steps import segment
    >>> segment("2 + 2 = 4\n\nso 4", "newline")
    [(0, 11), (11, 15)]
    """
    return tile([match.start(1) for match in _VISIBLE_LINE.finditer(text)], len(text))


def blank_line(text: str) -> list[Span]:
    r"""Paragraphs: a step ends where a line with nothing on it does.

    Use it when a process reward model reads paragraphs, as Qwen2.5-Math-PRM does.

    >>> from grpo_verifiers.steps import segment
    >>> segment("first\nline\n\nsecond", "blank_line")
    [(0, 12), (12, 18)]
    """
    # nothing begins after the last visible character: a long run of line ends there is scanned once
    return tile([match.start(1) for match in _PARAGRAPH.finditer(text.rstrip())], len(text))


def numbered(text: str) -> list[Span]:
    r"""A step begins at each line that begins with ``Step 1:`` (or ``Step 1.``, ``**Step 1:**``, ``### Step 1 -``).

    Text before the first such line belongs to no step; a text without one has no steps.

    Use it when the prompt asks for numbered steps, or the model was trained on them (Math-Shepherd).

    >>> from grpo_verifiers.steps import segment
    >>> segment("Plan.\nStep 1: add\nStep 2: halve", "numbered")
    [(6, 18), (18, 31)]
    """
    return tile([match.start(1) for match in _NUMBERED.finditer(text)], len(text))


def tags(text: str) -> list[Span]:
    """Each ``<step>…</step>`` is a step, its tags included; text outside of them belongs to none.

    A tag that opens inside an open step ends that one. An unclosed step of a cut completion reaches to the end.

    Use it when the prompt asks for ``<step>`` tags, so that the model itself marks its steps.

    >>> from grpo_verifiers.steps import segment
    >>> segment("So: <step>2 + 2</step> then <step>4", "tags")
    [(4, 22), (28, 35)]
    """
    return [(tag.start, tag.end) for tag in tag_sections(text, "step")]
