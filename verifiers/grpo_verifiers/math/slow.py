"""The full check, in a worker process: what exact arithmetic leaves open is decided at many digits or by algebra."""

from functools import lru_cache
from typing import Any

from grpo_verifiers.math.algebra import equal, unreadable
from grpo_verifiers.math.extract import extract
from grpo_verifiers.math.gold import as_text, gold_of
from grpo_verifiers.math.judge import MAX_DETAIL, combine, decide, decide_with, judge
from grpo_verifiers.math.leaf import Outcome
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.precise import precise
from grpo_verifiers.math.read import same_tokens, undelimited
from grpo_verifiers.verdict import Status, Verdict


def judge_fully(completion: str, answer: Any, options: Options) -> Verdict:
    """The verdict on a completion; never undecided."""
    verdict = judge(completion, answer, options)
    if verdict is not None:
        return verdict
    gold, found = gold_of(as_text(answer)), extract(completion, options)
    if gold.node is None and (problem := unreadable(gold.text)):
        detail = f"the gold answer cannot be read: {gold.problem}; {problem}"
        return Verdict(None, Status.NOT_APPLICABLE, detail[:MAX_DETAIL])
    if found.problem:
        return Verdict(0.0, Status.UNPARSABLE, found.problem)
    # every comparison of decide_fully is decided, so only the type checker can see a None here
    return combine(gold, found, options, decide_fully) or Verdict(0.0, Status.WRONG, "not equal")


@lru_cache(maxsize=2048)
def decide_fully(text: str, gold: str, options: Options) -> Outcome:
    """Compare one stated answer with the gold one by all means."""
    outcome, reason = decide(text, gold, options)
    if outcome is None:
        outcome, reason = decide_with(text, gold, options, precise)
    if outcome is None and same_tokens(text, gold):
        outcome, reason = True, ""
    if outcome is None:
        outcome, reason = equal(undelimited(gold), undelimited(text))
    return outcome, reason
