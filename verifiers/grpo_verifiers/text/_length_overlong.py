"""A penalty that sets in before the length limit, so that truncation does not come out of the blue."""

from collections.abc import Sequence
from typing import Annotated

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range
from grpo_verifiers.text._tokens import token_ids
from grpo_verifiers.verdict import Status, Verdict


def _option_problems(*, max_len: int, cache: int, **_: float) -> list[str]:
    if cache <= max_len:
        return []
    return [f"cache ({cache}) must not exceed max_len ({max_len}): the penalty would start below 0 tokens."]


@Traits(home="inline", pure=True, option_problems=_option_problems)
def length_overlong(
    completion: str,  # noqa: ARG001 - every check takes it
    completion_ids: Sequence[int] | None = None,
    *,
    max_len: Annotated[int, Range(1)],
    cache: Annotated[int, Range(0)],
    max_penalty: Annotated[float, Range(high=0, finite=True)] = -1.0,
) -> Verdict:
    """Score 0 up to ``max_len - cache`` tokens, then linearly down to ``max_penalty`` at ``max_len`` and beyond.

    >>> length_overlong("word", [1, 2, 3], max_len=4, cache=2).score
    -0.5

    With ``cache=0`` it is a step right after ``max_len``.

    Use it when completions run into the length limit: the penalty sets in before, so that being cut off is no surprise.

    Paper: DAPO, arXiv:2503.14476, equation 13.

    Scores: 0 correct; between 0 and ``max_penalty`` partial; ``max_penalty`` wrong.

    Args:
        completion: the text, which is not looked at.
        completion_ids: the sampled tokens, which are counted.
        max_len: tokens at which the penalty is whole, at most `max_completion_length`.
        cache: tokens before ``max_len`` over which the penalty grows.
        max_penalty: the whole penalty.

    Config:
        verifiers:
          - math
          - name: length_overlong
            max_len: 2048
            cache: 512
    """
    length = len(token_ids("length_overlong", completion_ids))
    over = length - (max_len - cache)
    share = 0.0 if over <= 0 else 1.0 if over >= cache else over / cache
    status = Status.CORRECT if share == 0 else Status.WRONG if share == 1 else Status.PARTIAL
    return Verdict(
        max_penalty * share if share else 0.0, status, f"{length} of {max_len} tokens, soft from {max_len - cache}"
    )
