"""Verifiers of one's own, used by verifiers.yaml: the config lists this file under `plugins`."""

import re

from grpo_verifiers import Verdict, gated, get_verifier, verifier


@verifier("near", timeout=2.0)
def near(completion: str, answer: str, *, reach: int = 10) -> Verdict:
    """1 for the number itself, less the further away the last number of the completion is, 0 from `reach` on.

    `answer` is a column of the dataset, `reach` an option that the config may set.
    """
    numbers = re.findall(r"-?\d{1,15}", completion)
    if not numbers:
        return Verdict(0.0, "unparsable", "no number in it")
    distance = abs(int(numbers[-1]) - int(answer))
    return Verdict(max(0.0, 1 - distance / reach), detail=f"off by {distance}")


boxed = get_verifier("regex", label="boxed", mode="search", pattern=r"\\boxed\{-?\d+\}\s*\Z")
"""A built-in verifier with options: the completion ends with its boxed result."""

format_when_right = gated("near", boxed, threshold=0.5, label="format_when_right")
"""The format is paid for only where the answer is about right, so that form without content earns nothing."""
