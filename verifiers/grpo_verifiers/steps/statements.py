"""Steps of a program: its statements at the left edge, of the last fenced block."""

import re

from grpo_verifiers.code import languages
from grpo_verifiers.reading.fences import MARK, after_string, language_blocks
from grpo_verifiers.steps.segments import Span, first_visible, tile

PYTHON = languages.PYTHON.names
_CONTINUES = re.compile(r"(?:else|elif|except|finally)\b")
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")


def statements(text: str) -> list[Span]:
    r"""Each statement at the left edge of the last Python block is a step; comments and decorators belong to the next.

    The block of a completion that was cut off need not be closed. Text outside of it belongs to no step. Brackets,
    strings and continued lines are followed without parsing, so that half a program has steps as well.

    Use it when a completion is a program: ``code_steps`` has these steps.

    >>> from grpo_verifiers.steps import segment
    >>> segment("```python\na = 1\nb = 2\n```", "statements")
    [(10, 16), (16, 22)]
    """
    blocks = language_blocks(text, PYTHON, unclosed=True)
    if not blocks:
        return []
    begin, end, indent, *_ = blocks[-1]
    starts: list[int] = []
    attached = False  # the current step still needs its statement: it has a comment or decorator only
    for at in _logical_lines(text, begin, end):
        edge = at + len(indent) if text.startswith(indent, at, end) else at
        if edge >= end or text[edge].isspace():
            continue
        first = text[edge]
        if first not in ")]}" and not _CONTINUES.match(text, edge, end) and not attached:
            starts.append(edge)
        attached = (attached or first not in ")]}") and first in "#@"
    visible = first_visible(text, begin, end)
    if starts and visible < starts[0]:  # the block begins with an indented line: a mistake, which belongs to a step
        starts[0] = visible
    return tile(starts or ([visible] if visible < end else []), end)


def _logical_lines(text: str, at: int, end: int) -> list[int]:
    """Offsets of the lines that lie in no bracket or string and continue no other, in one pass."""
    starts = [at] if at < end else []
    depth = 0
    while (match := MARK.search(text, at, end)) is not None:
        mark = match.group()
        at = match.end()
        if mark == "#":
            stop = text.find("\n", at, end)
            at = end if stop < 0 else stop
        elif mark == "\\":
            at += 1 + (text.startswith("\r\n", at))  # the escaped character: mostly a line end
        elif mark[0] in "\"'":
            at = after_string(text, at, end, mark)
        elif mark == "\n":
            if depth == 0 and at < end:
                starts.append(at)
        else:
            depth = depth + 1 if mark in _OPEN else max(0, depth - 1)
    return starts
