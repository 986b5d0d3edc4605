"""A penalty for saying the same thing again and again."""

import re
from collections.abc import Hashable, Sequence
from typing import Annotated, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range
from grpo_verifiers.text._length import token_ids
from grpo_verifiers.verdict import Status, Verdict

# Scripts written without spaces count a character at a time: Thai, Lao, Burmese, Khmer, kana, bopomofo, Han.
_DENSE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_UNITS = re.compile(rf"[{_DENSE}]|[^\W{_DENSE}]+|[^\w\s]")


@Traits(home="inline", pure=True)
def repetition(
    completion: str,
    completion_ids: Sequence[int] | None = None,
    *,
    n: Annotated[int, Range(1, 64)] = 3,
    max_penalty: Annotated[float, Range(high=0, finite=True)] = -1.0,
    unit: Literal["words", "tokens"] = "words",
) -> Verdict:
    """Score ``max_penalty · (1 - distinct n-grams / n-grams)``: 0 without a repeat, towards ``max_penalty`` for a loop.

    >>> repetition("yes yes yes yes yes").score < repetition("one two three four").score
    True

    Texts shorter than one n-gram score 0. Takes linear time and memory for any ``n``.

    Use it when completions fall into loops, or a reward for length is earned by repetition.

    Paper: Yeo et al., Demystifying Long Chain-of-Thought Reasoning in LLMs, arXiv:2502.03373, appendix C.2.

    Scores: 0 correct (no repeat); below 0 partial.

    Args:
        completion: the text to check.
        completion_ids: the sampled tokens, for ``unit="tokens"``.
        n: units that are compared at a time.
        max_penalty: the limit of the score for a text that is one loop.
        unit: ``words`` are compared regardless of case; punctuation marks and single characters of scripts without
            spaces are units, too. ``tokens`` are the sampled ids.

    Config:
        verifiers: [math, {name: repetition, weight: 0.2, n: 4}]
    """
    units: Sequence[Hashable]
    units = token_ids("repetition", completion_ids) if unit == "tokens" else _UNITS.findall(completion.casefold())
    distinct, total = count_ngrams(units, n)
    if distinct == total:
        return Verdict(0.0, Status.CORRECT, f"no repeated {n}-gram among {total}")
    return Verdict(
        max_penalty * (1 - distinct / total), Status.PARTIAL, f"{total - distinct} of {total} {n}-grams repeat"
    )


def count_ngrams(units: Sequence[Hashable], n: int) -> tuple[int, int]:
    """Distinct and all n-grams; overlapping halves are renumbered log2(n) times, so that no n-gram is ever stored."""
    first: dict[Hashable, int] = {}
    names = [first.setdefault(unit, len(first)) for unit in units]
    size = 1
    while size < n:
        step = min(size, n - size)
        numbers: dict[tuple[int, int], int] = {}
        names = [numbers.setdefault(pair, len(numbers)) for pair in zip(names, names[step:], strict=False)]
        size += step
    return len(set(names)), len(names)
