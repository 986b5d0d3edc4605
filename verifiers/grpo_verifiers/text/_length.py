"""Lengths in tokens, the cost of a run; characters would reward other scripts and spacing tricks."""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.options import Range
from grpo_verifiers.verdict import Status, Verdict

_Ids = TypeVar("_Ids")


def token_ids(check: str, completion_ids: Sequence[_Ids] | None) -> Sequence[_Ids]:
    """Return the sampled ids of a completion or a batch; raise VerifierFailedError if the caller has none."""
    if completion_ids is None:
        raise VerifierFailedError(
            f"{check} counts tokens and got no completion_ids: pass the sampled token ids, as GRPO trainers do, "
            "or leave this verifier out where there are only texts."
        )
    return completion_ids


@Traits(home="inline", pure=True)
def length_cosine(
    completion: str,  # noqa: ARG001 - every check takes it
    completion_ids: Sequence[int] | None = None,
    *,
    max_len: Annotated[int, Range(1)],
    shortest: Annotated[float, Range(finite=True)] = 1.0,
    longest: Annotated[float, Range(finite=True)] = 0.0,
) -> Verdict:
    r"""Score ``longest + (shortest - longest) / 2 · (1 + cos(π · min(1, tokens / max_len)))``.

    >>> length_cosine("word", [1, 2], max_len=4).score
    0.5

    The schedule ends at ``max_len`` and stays there: an unclamped cosine climbs again and pays for rambling. With
    ``longest`` above ``shortest`` length is rewarded.

    Alone it is best paid to an empty completion, so let it count for right answers only:
    ``gated(math, length_cosine)``. The paper's rule, where wrong answers are punished less the longer they are, is a
    sum of two: with bounds (c0, c1) for right and (w0, w1) for wrong answers, an ungated one with
    ``shortest=w0, longest=w1`` and a gated one with ``shortest=c0 - w0, longest=c1 - w1``.

    Use it when the length of right answers should be steered smoothly, over all of the way to the limit.

    Paper: Yeo et al., Demystifying Long Chain-of-Thought Reasoning in LLMs, arXiv:2502.03373, appendix C.1, for length
    alone.

    Scores: between ``shortest`` and ``longest``; the status follows the score (1 and more correct, 0 and less wrong).

    Args:
        completion: the text, which is not looked at.
        completion_ids: the sampled tokens, which are counted.
        max_len: tokens at which the score has reached ``longest``.
        shortest: the score of an empty completion.
        longest: the score from ``max_len`` on.

    Config:
        verifiers:
          - name: length_cosine
            weight: 0.2
            max_len: 2048
    """
    length = len(token_ids("length_cosine", completion_ids))
    share = (1.0 + math.cos(math.pi * min(1.0, length / max_len))) / 2.0
    score = longest + (shortest - longest) * share
    low, high = sorted((shortest, longest))
    return Verdict(min(high, max(low, score)), detail=f"{length} of {max_len} tokens")


@Traits(home="inline", pure=True)
def length_kimi(
    completions: Sequence[str],
    prompts: Sequence[Any],
    completion_ids: Sequence[Sequence[int] | None] | None = None,
    *,
    part: Literal["both", "bonus", "penalty"] = "both",
) -> list[Verdict]:
    """Score ``0.5 - (tokens - shortest) / (longest - shortest)`` in each prompt's group: 0.5 down to -0.5.

    >>> [verdict.score for verdict in length_kimi(["short", "longer"], ["q", "q"], [[1], [1, 2, 3]])]
    [0.5, -0.5]

    Completions are grouped by equal prompts, never over the batch; a group that a distributed run splits over ranks
    is scored rank by rank.

    The paper gives right answers the full score and wrong ones only its negative part. That is
    ``gated(math, length_kimi(part="bonus"))`` plus an ungated ``length_kimi(part="penalty")``, added up.

    Use it when completions should become shorter than their prompt's other ones, without a target length.

    Paper: Kimi k1.5, arXiv:2501.12599, section 2.3.3.

    Scores: 0.5 down to -0.5; correct from 0 on, wrong below. A group of one length, or of one completion, scores 0.

    Args:
        completions: the texts, which are not looked at.
        prompts: completions of equal prompts are a group.
        completion_ids: the sampled tokens, which are counted.
        part: ``bonus`` leaves out negative scores, ``penalty`` positive ones.

    Config:
        verifiers: [math, {name: length_kimi, weight: 0.2, part: penalty}]
    """
    rows = token_ids("length_kimi", completion_ids)
    if not len(completions) == len(prompts) == len(rows):
        raise ValueError(
            f"length_kimi: completions ({len(completions)}), prompts ({len(prompts)}) and completion_ids ({len(rows)}) "
            "must have the same length."
        )
    lengths = [len(token_ids("length_kimi", row)) for row in rows]
    groups: defaultdict[str, list[int]] = defaultdict(list)
    keys = [_key(prompt) for prompt in prompts]
    for key, length in zip(keys, lengths, strict=True):
        groups[key].append(length)
    bounds = {key: (min(members), max(members)) for key, members in groups.items()}
    return [_score(length, *bounds[key], part) for key, length in zip(keys, lengths, strict=True)]


def _key(prompt: Any) -> str:
    if isinstance(prompt, str):
        return f"text:{prompt}"
    return "chat:" + json.dumps(prompt, sort_keys=True, default=repr)


def _score(length: int, shortest: int, longest: int, part: str) -> Verdict:
    detail = f"{length} tokens, group {shortest} to {longest}"
    score = 0.0 if longest == shortest else 0.5 - (length - shortest) / (longest - shortest)
    score = max(0.0, score) if part == "bonus" else min(0.0, score) if part == "penalty" else score
    return Verdict(score, Status.WRONG if score < 0 else Status.CORRECT, detail)


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
        max_len: tokens at which the penalty is complete, at most `max_completion_length`.
        cache: tokens before ``max_len`` over which the penalty grows.
        max_penalty: the complete penalty.

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
