"""Length relative to the other completions of the same prompt."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.text._tokens import token_ids
from grpo_verifiers.verdict import Status, Verdict

_PARTS = ("both", "bonus", "penalty")


@Traits(home="inline", pure=True)
def length_kimi(
    completions: Sequence[str],
    prompts: Sequence[Any],
    completion_ids: Sequence[Sequence[int] | None] | None = None,
    *,
    part: Literal["both", "bonus", "penalty"] = "both",
) -> list[Verdict]:
    """Score ``0.5 - (tokens - shortest) / (longest - shortest)`` within each prompt's group: 0.5 down to -0.5.

    >>> [verdict.score for verdict in length_kimi(["short", "longer"], ["q", "q"], [[1], [1, 2, 3]])]
    [0.5, -0.5]

    Completions are grouped by equal prompts, never over the batch; a group that a distributed run splits over ranks
    is scored rank by rank.

    The paper gives right answers the whole of it and wrong ones only its negative part. That is
    ``gated(math, length_kimi(part="bonus"))`` plus an ungated ``length_kimi(part="penalty")``, added up.

    Use it when completions should become shorter than others of their own prompt, without a length to aim at.

    Paper: Kimi k1.5, arXiv:2501.12599, section 2.3.3.

    Scores: 0.5 down to -0.5; correct from 0 on, wrong below. A group of one length, or of one completion, scores 0.

    Args:
        completions: the texts, which are not looked at.
        prompts: completions of equal prompts are a group.
        completion_ids: the sampled tokens, which are counted.
        part: ``bonus`` leaves out what is below 0, ``penalty`` what is above.

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
