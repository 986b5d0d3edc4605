"""One thinking section with something in it, then an answer."""

import unicodedata
from typing import Annotated

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range, TagName
from grpo_verifiers.verdict import Verdict

_BLANK = frozenset("\u2800\u3164\u115f\u1160\uffa0")  # letters and symbols that render as nothing


def _option_problems(*, think: str, answer: str | None, **_: int) -> list[str]:
    return [f"answer and think are both {think!r}: two sections need two tags."] if answer == think else []


@Traits(home="inline", pure=True, option_problems=_option_problems)
def think_format(
    completion: str,
    *,
    think: TagName = "think",
    answer: TagName | None = None,
    prefilled: bool = False,
    min_think: Annotated[int, Range(1)] = 1,
) -> Verdict:
    """Score 1 for ``<think>reasoning</think>answer``, 0 for anything else.

    >>> think_format("<think>2 + 2</think>4").score, think_format("4").score
    (1.0, 0.0)

    Each tag must occur exactly once, nothing may stand before the first, and both parts must hold something visible:
    an empty section, a second ``</think>``, or spaces that only look like an answer do not pass.

    Use it when the template asks for a thinking section. Give it a small weight beside an answer's check.

    Scores: 1 correct; 0 wrong.

    Config:
        verifiers: [math, {name: think_format, weight: 0.2, answer: answer}]

    Args:
        completion: the text to check.
        think: name of the thinking tag.
        answer: name of a tag that must wrap the answer ("answer"); then nothing may stand between the two sections
            nor after the last. None takes any text.
        prefilled: the chat template ends the prompt with the opening tag, so that the completion must not repeat it.
        min_think: visible characters that the thinking must have.
    """
    tags = [f"<{think}>", f"</{think}>"] + ([f"<{answer}>", f"</{answer}>"] if answer else [])
    for tag in tags:
        expected = 0 if prefilled and tag == tags[0] else 1
        count = completion.count(tag)
        if count != expected:
            again = "; the prompt has opened it already" if expected == 0 else ""
            return Verdict(0.0, detail=f"{tag} occurs {count} times, expected {expected}{again}")
    thinking, _, rest = completion.partition(tags[1])
    if not prefilled:
        before, found, thinking = thinking.partition(tags[0])
        if not found:
            return Verdict(0.0, detail=f"{tags[1]} comes before {tags[0]}")
        if before.strip():
            return Verdict(0.0, detail=f"text before {tags[0]}")
    if _ink(thinking, min_think) < min_think:
        return Verdict(0.0, detail=f"the {think} section has fewer than {min_think} visible characters")
    if answer:
        before, found, rest = rest.partition(tags[2])
        rest, closed, after = rest.partition(tags[3])
        if not found or not closed:
            return Verdict(0.0, detail=f"{tags[2]}…{tags[3]} does not follow {tags[1]}")
        if before.strip():
            return Verdict(0.0, detail=f"text between {tags[1]} and {tags[2]}")
        if after.strip():
            return Verdict(0.0, detail=f"text after {tags[3]}")
    if not _ink(rest):
        return Verdict(0.0, detail="the answer is empty")
    return Verdict(1.0)


def _ink(text: str, limit: int = 1) -> int:
    """Count visible characters, up to ``limit``: zero-width characters and blanks are no content."""
    count = 0
    for char in text:
        if not char.isspace() and unicodedata.category(char)[0] not in "CZM" and char not in _BLANK:
            count += 1
            if count >= limit:
                break
    return count
