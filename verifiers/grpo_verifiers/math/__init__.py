"""Mathematics: is the final answer of a completion the gold answer?"""

from typing import Any

from grpo_verifiers.verdict import Verdict


def fast(completion: str, answer: str, **options: Any) -> Verdict | None:
    from grpo_verifiers.math.judge import judge
    from grpo_verifiers.math.options import options_of
    return judge(completion, answer, options_of(options))
