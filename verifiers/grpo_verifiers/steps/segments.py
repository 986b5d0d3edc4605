"""The steps of a text by name: character spans, in order, disjoint, in range.

A span runs from a step's first visible character to the start of the next step, so that its end (a blank line, a full
stop) belongs to it. White space before the first step belongs to none. Special tokens count as white space. A
text of more than `MAX_STEPS` steps has its last ones joined.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo_verifiers.errors import VerifierError
from grpo_verifiers.registry import Registry, is_reference
from grpo_verifiers.verdict import MAX_STEPS

Span = tuple[int, int]
Segmenter = Callable[[str], Sequence[Span]]

_NAMES = ("blank_line", "newline", "numbered", "tags")
SEGMENTERS: Registry[Segmenter] = Registry(
    "segmenter",
    builtins={
        **{name: f"grpo_verifiers.steps.lines:{name}" for name in _NAMES},
        "turn": "grpo_verifiers.steps.segments:one_turn",
    },
)
"""Segmenters by name; a reference (``package.module:function``, ``./file.py:function``) is one, too."""

_SPECIAL = re.compile(
    r"<\|[^\s<>|]{1,64}\|>|<｜[^\s<>｜]{1,64}｜>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]"
)


def without_specials(text: str) -> str:
    """The text with special tokens (``<|im_end|>``, ``</s>`` and the like) blanked out; offsets do not change."""
    return _SPECIAL.sub(lambda match: " " * len(match.group()), text)


def one_turn(text: str) -> list[Span]:
    """The text of the model between results of tools, a turn, is one step. Without tools everything is one step.

    Use it when the model calls tools and each of its turns should answer for itself.

    >>> segment("add <result> 4", "turn", turn_spans=[(0, 4), (13, 14)])
    [(0, 4), (13, 14)]
    """
    start = len(text) - len(text.lstrip())
    return [(start, len(text))] if start < len(text) else []


def own_text(text: str, turn_spans: Sequence[Span] | None) -> str:
    """The text with everything outside of the model's turns blanked out: results of tools are no steps.

    >>> own_text("2+2?<tool>5", [(0, 4)])
    '2+2?       '
    """
    if turn_spans is None:
        return text
    pieces, at = [], 0
    for start, end in turn_spans:
        pieces += [_blank(text[at:start]), text[start:end]]
        at = end
    return "".join([*pieces, _blank(text[at:])])


def _blank(text: str) -> str:
    return re.sub(r"\S", " ", text)


def segment(text: str, by: str = "newline", turn_spans: Sequence[Span] | None = None) -> list[Span]:
    r"""The steps of a text.

    >>> segment("2 + 2 is 4.\nSo it is 4.", "newline")
    [(0, 12), (12, 23)]

    Args:
        text: a completion, with special tokens or without.
        by: the name of a segmenter or a reference to a function from a text to spans; such a function gets the text as
            it is, special tokens included.
        turn_spans: the spans of the model's own turns, if there are tools. With ``turn`` they are the steps; with any
            other the text is to be `own_text`, and its steps end where a turn ends.

    Raises:
        UnknownNameError: no segmenter has that name.
        VerifierError: the function did not return a list of spans in order, disjoint and in range.
    """
    segmenter = SEGMENTERS.get(by)
    if turn_spans is not None and by == "turn":
        return list(turn_spans)
    spans = (
        _check_spans(by, segmenter(text), len(text)) if is_reference(by) else list(segmenter(without_specials(text)))
    )
    if turn_spans is not None:
        cut = ((max(start, first), min(end, last)) for start, end in spans for first, last in turn_spans)
        spans = [(start, end) for start, end in cut if start < end]
    if len(spans) > MAX_STEPS:
        spans[MAX_STEPS - 1 :] = [(spans[MAX_STEPS - 1][0], spans[-1][1])]
    return spans


def segmenter_problems(steps: Any, **_: Any) -> list[str]:
    """The problems with the name of a segmenter."""
    try:
        segmenter = SEGMENTERS.get(steps)
    except VerifierError as error:
        return [str(error)]
    kind = type(segmenter).__name__
    return [] if callable(segmenter) else [f"the segmenter {steps!r} is {kind}, expected a function."]


def _check_spans(by: str, spans: Any, length: int) -> list[Span]:
    checked: list[Span] = []
    last = 0
    for span in spans if isinstance(spans, Sequence) and not isinstance(spans, str) else [spans]:
        good = isinstance(span, Sequence) and len(span) == 2 and all(type(edge) is int for edge in span)
        if not good or not last <= span[0] <= span[1] <= length:
            raise VerifierError(
                f"the segmenter {by!r} gave {span!r:.80}, expected (start, end) offsets of characters, each step at or "
                f"after the end of the one before ({last}) and inside the text ({length} characters)."
            )
        checked.append((span[0], span[1]))
        last = span[1]
    return checked


def tile(starts: Sequence[int], end: int) -> list[Span]:
    """Spans from each start to the next one, the last up to ``end``."""
    return list(zip(starts, [*starts[1:], end], strict=True)) if starts else []
