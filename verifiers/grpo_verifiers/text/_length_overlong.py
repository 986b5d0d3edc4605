"""A penalty that sets in before the length limit, so that truncation does not come out of the blue."""

from collections.abc import Sequence

from grpo_verifiers.text._options import integer, number, require
from grpo_verifiers.text._tokens import token_ids
from grpo_verifiers.verdict import Status, Verdict


def length_overlong(
    completion: str,  # noqa: ARG001 - every check takes it
    completion_ids: Sequence[int] | None = None,
    *,
    max_len: int,
    cache: int,
    max_penalty: float = -1.0,
) -> Verdict:
    """Score 0 up to ``max_len - cache`` tokens, then linearly down to ``max_penalty`` at ``max_len`` and beyond.

    Yu et al., "DAPO" (arXiv 2503.14476), equation 13. The penalty never grows past ``max_penalty``, however long the
    completion.

    Args:
        completion: not looked at.
        completion_ids: the sampled tokens.
        max_len: tokens at which the whole penalty is due.
        cache: tokens before ``max_len`` over which it grows; 0 makes it a step right after ``max_len``.
        max_penalty: the lowest score.
    """
    require("length_overlong", check_options(max_len=max_len, cache=cache, max_penalty=max_penalty))
    length = len(token_ids("length_overlong", completion_ids))
    over = length - (max_len - cache)
    share = 0.0 if over <= 0 else 1.0 if over >= cache else over / cache
    status = Status.CORRECT if share == 0 else Status.WRONG if share == 1 else Status.PARTIAL
    return Verdict(
        max_penalty * share if share else 0.0, status, f"{length} of {max_len} tokens, soft from {max_len - cache}"
    )


def check_options(*, max_len: int, cache: int, max_penalty: float) -> list[str]:
    """The problems with these values."""
    problems = integer("max_len", max_len, 1) + integer("cache", cache, 0) + number("max_penalty", max_penalty, high=0)
    if not problems and cache > max_len:
        problems.append(f"cache ({cache}) must not exceed max_len ({max_len}): the penalty would start below 0 tokens.")
    return problems
