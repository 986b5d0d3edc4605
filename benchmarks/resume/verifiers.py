"""Checks that run in worker processes."""

from grpo_verifiers import Step, Verdict, verifier


@verifier("vowels", isolation="process")
def vowels(completion: str) -> float:
    """The share of vowels."""
    return sum(letter in "aeiou" for letter in completion) / max(1, len(completion))


@verifier("halves", isolation="process")
def halves(completion: str, completion_text: str) -> Verdict:
    """Two steps, judged by the first letter and by the length."""
    middle = len(completion_text) // 2
    steps = (Step(0, middle, float(completion < "m")), Step(middle, len(completion_text), float(middle % 3)))
    return Verdict(0.5, steps=steps)
