"""Length along half a cosine, from one value for short completions to another for long ones."""

import math
from collections.abc import Sequence
from typing import Annotated

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range
from grpo_verifiers.text._tokens import token_ids
from grpo_verifiers.verdict import Verdict


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
