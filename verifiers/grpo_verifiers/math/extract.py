"""The final answer of a completion, or what stands in the way of one.

Forms of a statement, strongest first: boxes and ``<answer>`` tags, ``####`` lines, "the answer is ...", and only if
asked for, the last number.
"""

import re
from dataclasses import dataclass

from grpo_verifiers.math.attached import attached
from grpo_verifiers.math.options import Options
from grpo_verifiers.reading.boxes import stated_boxes
from grpo_verifiers.reading.phrases import hashed, last_number, phrases, retracted
from grpo_verifiers.reading.tags import answer_tags
from grpo_verifiers.reading.thinking import answer_part

MAX_STATEMENTS = 64
_STRUCK = re.compile(r"\**(?:~~|<(?:s|del|strike)>)", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """What a completion states.

    Attributes:
        answers: the statements that count, distinct, in order.
        asides: weaker statements of the same text; one of them that says something else is a contradiction.
        problem: why there is no answer to judge.
    """

    answers: tuple[str, ...] = ()
    asides: tuple[str, ...] = ()
    problem: str = ""


def extract(completion: str, options: Options) -> Found:
    """Find the final answer of a completion."""
    text = answer_part(completion, options.think)
    strict = options.conflicts == "reject"
    boxes, problem = stated_boxes(text, last_only=not strict)
    if problem:
        return Found(problem=problem)
    tags = answer_tags(text)
    strong = [box.content for box in boxes] + [tag.content.strip() for tag in tags]
    if any(_STRUCK.match(part) for part in strong):
        return Found(problem="the answer is struck out")
    if strong:
        start, end = (boxes[-1].start, boxes[-1].end) if boxes else (tags[-1].start, tags[-1].end)
        if attached(text, start, end):
            return Found(problem="the answer is a part of a formula, or is denied")
        if strict and retracted(text[end:], strong[-1]):
            return Found(problem="the boxed answer is taken back")
        asides = [*hashed(text), *(value for value, _ in phrases(text))] if strict else []
        return _chosen(strong, asides, options)
    lines = hashed(text)
    if lines:
        return _chosen(lines, [value for value, _ in phrases(text)] if strict else [], options)
    stated = phrases(text)
    if stated:
        if strict and retracted(text[stated[-1][1] :], stated[-1][0]):
            return Found(problem="the answer is taken back")
        return _chosen([value for value, _ in stated], [], options)
    if options.last_number and (number := last_number(text)) is not None:
        return Found((number,))
    return Found(problem="no answer found" if text.strip() else "nothing outside the thinking section")


def _chosen(strong: list[str], weak: list[str], options: Options) -> Found:
    distinct = list(dict.fromkeys(strong))
    if options.conflicts == "last":
        distinct = strong[-1:]
    if len(distinct) > MAX_STATEMENTS:
        return Found(problem=f"more than {MAX_STATEMENTS} different answers")
    return Found(tuple(distinct), tuple(dict.fromkeys(part for part in weak if part not in distinct)))
