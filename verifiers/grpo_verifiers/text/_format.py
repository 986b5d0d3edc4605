"""The form of a completion: one thinking section and an answer, or the share of required tags."""

import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Annotated

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range, TagName
from grpo_verifiers.verdict import Verdict

_BLANK = frozenset("\u2800\u3164\u115f\u1160\uffa0")  # letters and symbols that render as nothing


def _section_problems(*, think: str, answer: str | None, **_: int) -> list[str]:
    return [f"answer and think are both {think!r}: two sections need two tags."] if answer == think else []


@Traits(home="inline", pure=True, option_problems=_section_problems)
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

    Each tag must occur exactly once, nothing may precede the first, and both parts must have visible characters:
    an empty section, a second ``</think>``, or spaces that only look like an answer do not pass.

    Use it when the template requires a thinking section, with a small weight next to a check of the answer.

    Scores: 1 correct; 0 wrong.

    Config:
        verifiers: [math, {name: think_format, weight: 0.2, answer: answer}]

    Args:
        completion: the text to check.
        think: name of the thinking tag.
        answer: name of a tag that must wrap the answer ("answer"); then nothing may come between the two sections
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
        before, opened, thinking = thinking.partition(tags[0])
        if not opened:
            return Verdict(0.0, detail=f"{tags[1]} comes before {tags[0]}")
        if before.strip():
            return Verdict(0.0, detail=f"text before {tags[0]}")
    if _ink(thinking, min_think) < min_think:
        return Verdict(0.0, detail=f"the {think} section has fewer than {min_think} visible characters")
    if answer:
        before, opened, rest = rest.partition(tags[2])
        rest, closed, after = rest.partition(tags[3])
        if not opened or not closed:
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
    visible = (not c.isspace() and unicodedata.category(c)[0] not in "CZM" and c not in _BLANK for c in text)
    return sum(islice(filter(None, visible), limit))


def _tag_problems(*, tags: Sequence[str], **_: bool) -> list[str]:
    if not tags:
        return [f"tags is {tags!r}, expected a list of at least one tag's name."]
    if len(set(tags)) < len(tags):
        return [f"tags {list(tags)!r} names a tag twice, and each tag must occur exactly once."]
    return []


@Traits(home="inline", pure=True, option_problems=_tag_problems)
def tag_count(completion: str, *, tags: Sequence[TagName] = ("think", "answer"), prefilled: bool = False) -> Verdict:
    """Score the share of required tags that occur exactly once and in order.

    >>> tag_count("<think>2 + 2</think>4").score
    0.5

    Two tags make four: ``<think>``, ``</think>``, ``<answer>``, ``</answer>``. A repeated tag earns nothing, and of
    those out of order only the longest ordered selection counts. The text between the tags is ignored.

    Use it when a base model has to learn a format at all: every tag pays a little. Later, ``think_format`` also checks
    the text between the tags; keep the weight small.

    Scores: the share of tags, from 0 (wrong) to 1 (correct), partial between.

    Args:
        completion: the text to check.
        tags: names of the tags, in order.
        prefilled: the prompt ends with the first opening tag, so that it is not required.

    Config:
        verifiers: [math, {name: tag_count, weight: 0.2}]
    """
    required = [tag for name in tags for tag in (f"<{name}>", f"</{name}>")][1 if prefilled else 0 :]
    tails: list[int] = []
    for tag in required:
        if completion.count(tag) == 1:
            # Longest increasing selection of positions: tails[k] is the earliest end of an ordered run of k + 1 tags.
            place = completion.find(tag)
            slot = bisect_left(tails, place)
            tails[slot : slot + 1] = [place]
    return Verdict(len(tails) / len(required), detail=f"{len(tails)} of {len(required)} tags once and in order")
