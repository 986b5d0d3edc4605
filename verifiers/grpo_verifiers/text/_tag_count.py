"""The share of required tags, once each and in order: a gentle slope towards a format."""

from bisect import bisect_left
from collections.abc import Sequence

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import TagName
from grpo_verifiers.verdict import Verdict


def _option_problems(*, tags: Sequence[str], **_: bool) -> list[str]:
    if not tags:
        return [f"tags is {tags!r}, expected a list of at least one tag's name."]
    if len(set(tags)) < len(tags):
        return [f"tags {list(tags)!r} names a tag twice, and each tag must occur exactly once."]
    return []


@Traits(home="inline", pure=True, option_problems=_option_problems)
def tag_count(completion: str, *, tags: Sequence[TagName] = ("think", "answer"), prefilled: bool = False) -> Verdict:
    """Score the share of required tags that occur exactly once and stand in order.

    >>> tag_count("<think>2 + 2</think>4").score
    0.5

    Two tags make four: ``<think>``, ``</think>``, ``<answer>``, ``</answer>``. A repeated tag earns nothing, and of
    those out of order only the longest ordered selection counts. What stands between the tags is not looked at.

    Use it when a base model has to learn a format at all: every tag pays a little. Once it does, ``think_format`` looks
    at what stands between; keep the weight small.

    Scores: the share of tags, from 0 (wrong) to 1 (correct), partial between.

    Args:
        completion: the text to check.
        tags: names of the tags, in order.
        prefilled: the prompt ends with the first opening tag, so that it is not asked for.

    Config:
        verifiers: [math, {name: tag_count, weight: 0.2}]
    """
    wanted = [tag for name in tags for tag in (f"<{name}>", f"</{name}>")][1 if prefilled else 0 :]
    tails: list[int] = []
    for tag in wanted:
        if completion.count(tag) == 1:
            # Longest increasing selection of positions: tails[k] is the earliest end of an ordered run of k + 1 tags.
            place = completion.find(tag)
            slot = bisect_left(tails, place)
            tails[slot : slot + 1] = [place]
    return Verdict(len(tails) / len(wanted), detail=f"{len(tails)} of {len(wanted)} tags once and in order")
