"""The contract kit: checks that every verifier must pass, run on a few completions with expected answers.

::

    from grpo_verifiers.testing import check_verifier

    def test_mine():
        check_verifier("./mine.py:mine", accept=[("so 4", {"answer": "4"})], reject=[("so 5", {"answer": "4"})])
"""

import copy
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_verifiers.base import Verifier
from grpo_verifiers.function import FunctionVerifier
from grpo_verifiers.testing.contract import ContractCheck, as_tests, require
from grpo_verifiers.verdict import MAX_DETAIL, Status, Verdict
from grpo_verifiers.verifying import get_verifier

Case = tuple[Any, Mapping[str, Any]]

JUNK: tuple[str, ...] = (
    "",
    " \n\t",
    "\x00\x01\xff\x1b[31m" * 50,
    "\ud800 half a pair \udfff",
    "\u202e\u200b\u0301" * 200,
    "(" * 20_000,
    "\\boxed{" * 5_000,
    "<think>" * 5_000,
    "9" * 20_000,
    "a" * 1_000_000,
    "x = 1\n" * 100_000,
)
"""Completions that models do produce, and that mean nothing."""
QUICK = 5
"""The first of them are short."""

_NO_COLUMNS = {"prompt", "completion_ids"}

SLACK = 5.0
"""Seconds past its deadline in which a verifier must have answered: the start of a new worker on a busy machine."""


@dataclass(frozen=True)
class Contract:
    """A verifier and the completions that its author vouches for."""

    verifier: Verifier
    accept: tuple[Case, ...]
    reject: tuple[Case, ...]
    threshold: float = 0.0

    @property
    def cases(self) -> tuple[Case, ...]:
        """All completions of the contract."""
        return (*self.accept, *self.reject)

    def batch(self, cases: Sequence[Case]) -> tuple[list[Any], list[Any], dict[str, list[Any]]]:
        """Prompts, completions and columns of several cases; a column that one of them lacks is None there.

        The token ids come among the columns, under the name that verifiers take them by.
        """
        names = dict.fromkeys(name for _, columns in cases for name in columns if name != "prompt")
        columns = {name: [copy.deepcopy(own.get(name)) for _, own in cases] for name in names}
        return [own.get("prompt") for _, own in cases], [copy.deepcopy(text) for text, _ in cases], columns

    def run(self, cases: Sequence[Case]) -> list[Verdict]:
        """Verdicts on the cases as one batch."""
        prompts, completions, columns = self.batch(cases)
        return self.verifier.verify_batch(prompts, completions, **columns)


def check_verdicts(contract: Contract) -> None:
    """It accepts and rejects the completions that it must: above the threshold, and at most the threshold."""
    bound = contract.threshold
    for (completion, columns), verdict in zip(contract.cases, contract.run(contract.cases), strict=True):
        good = (completion, columns) in contract.accept
        judged = verdict.score is not None and (verdict.score > bound) is good
        assert judged, (
            f"{completion!r:.200} with {dict(columns)!r:.200} must be {'accepted' if good else 'rejected'}: {verdict}"
        )


def check_statuses(contract: Contract) -> None:
    """A verdict's status agrees with its score: no accepted completion is called wrong, no rejected one correct."""
    for case, verdict in zip(contract.cases, contract.run(contract.cases), strict=True):
        opposite = Status.WRONG if case in contract.accept else Status.CORRECT
        assert verdict.status is not opposite, f"{case[0]!r:.200} is called {opposite.value}: {verdict}"


def check_rejects_something(contract: Contract) -> None:
    """It rejects something: without a completion to reject, meaningless ones are tried."""
    if contract.reject:
        return
    verdicts = contract.run([(completion, contract.cases[0][1]) for completion in JUNK[:5]])
    accepted = [verdict.score is not None and verdict.score > contract.threshold for verdict in verdicts]
    assert not all(accepted), "it accepts every completion that was tried: name one that it must reject"


def check_types(contract: Contract) -> None:
    """Scores are finite numbers or None, statuses fit them, details are short, steps lie in order."""
    for verdict in contract.run(contract.cases):
        assert isinstance(verdict, Verdict), f"{verdict!r} is not a Verdict"
        assert verdict.score is None or math.isfinite(verdict.score), f"the score of {verdict} is not a finite number"
        assert verdict.status is not Status.ERROR, f"failed: {verdict.detail}"
        if verdict.status in {Status.CORRECT, Status.WRONG, Status.PARTIAL, Status.TIMEOUT}:
            assert verdict.score is not None, f"{verdict} judges without a score"
        if verdict.status is Status.NOT_APPLICABLE:
            assert verdict.score is None, f"{verdict} does not apply, and yet has a score"
        assert len(verdict.detail) <= MAX_DETAIL, f"a detail of {len(verdict.detail)} characters"
        ends = [0, *(step.end for step in verdict.steps)]
        assert all(step.start >= end for step, end in zip(verdict.steps, ends, strict=False)), "steps overlap"


def check_junk(contract: Contract) -> None:
    """No completion makes it fail, however little it means; none takes longer than the deadline."""
    columns = contract.cases[0][1]
    limit = getattr(contract.verifier, "timeout", None)
    for completion in JUNK:
        started = time.perf_counter()
        verdict = contract.run([(completion, columns)])[0]
        took = time.perf_counter() - started
        assert verdict.status is not Status.ERROR, f"fails on the completion {completion!r:.60}: {verdict.detail}"
        assert took < (limit or 0.0) + SLACK, f"takes {took:.1f} s on the completion {completion!r:.60}"


def check_failures(contract: Contract) -> None:
    """A completion that makes it fail scores 0 (or less), and is not left out: that would pay more than a wrong one."""
    for part in _parts(contract.verifier):
        if getattr(part, "on_error", None) == "raise":
            continue
        score = part.failed("a completion that it failed on").score
        assert score is not None, f"{part.label!r} leaves out completions that it fails on: its on_error is 'null'"
        assert score <= max(0.0, contract.threshold), f"{part.label!r} scores {score:g} for its own failures"
    columns = contract.cases[0][1]
    for completion in JUNK[:QUICK]:
        verdict = contract.run([(completion, columns)])[0]
        if verdict.status in {Status.ERROR, Status.TIMEOUT}:
            assert verdict.score is not None, f"leaves out the completion {completion!r:.60}: {verdict.detail}"


def _parts(verifier: Verifier) -> list[Verifier]:
    """The verifiers of a composition; for any other the verifier itself."""
    return [leaf for part in verifier.parts for leaf in _parts(part)] or [verifier]


def check_missing_values(contract: Contract) -> None:
    """A row with None in its columns does not make it raise; it may return an error with score None."""
    verifier = contract.verifier
    strict = verifier.derive(on_error="raise") if isinstance(verifier, FunctionVerifier) else verifier
    for completion, columns in contract.cases[:2]:
        none = {name: value if name in _NO_COLUMNS else None for name, value in columns.items()}
        replace(contract, verifier=strict).run([(completion, none)])


def check_determinism(contract: Contract) -> None:
    """Equal questions get equal answers."""
    first, second = contract.run(contract.cases), contract.run(contract.cases)
    assert first == second, f"answers differ from run to run: {first} and {second}"


def check_order(contract: Contract) -> None:
    """A verdict does not depend on the order of the batch; nor on the batch, for single checks."""
    forward, backward = contract.run(contract.cases), contract.run(contract.cases[::-1])
    assert forward == backward[::-1], "the order of a batch changes its verdicts"
    form = getattr(contract.verifier, "form", None)
    if form is not None and not form.batch:
        alone = [contract.run([case])[0] for case in contract.cases]
        assert forward == alone, f"verdicts in a batch differ from verdicts alone: {forward} and {alone}"


def check_pickle(contract: Contract) -> None:
    """It survives pickling, as distributed trainers need."""
    twin = pickle.loads(pickle.dumps(contract.verifier))  # noqa: S301 - our own bytes
    assert twin.__name__ == contract.verifier.__name__, "pickling loses its name"
    again = replace(contract, verifier=twin)
    assert again.run(contract.cases) == contract.run(contract.cases), "pickling changes its verdicts"


def check_mutation(contract: Contract) -> None:
    """It does not change its arguments."""
    prompts, completions, columns = contract.batch(contract.cases)
    before = copy.deepcopy((prompts, completions, columns))
    contract.verifier.verify_batch(prompts, completions, **columns)
    assert (prompts, completions, columns) == before, "it changes its arguments"


def check_trl_signature(contract: Contract) -> None:
    """It is a reward function as TRL calls one, on plain text and on chats, and logs what TRL offers to log."""
    prompts, completions, columns = contract.batch(contract.cases)
    ids = columns.pop("completion_ids", [[1, 2, 3] for _ in completions])
    extra: dict[str, list[Any]] = {}
    metrics: dict[str, float] = {}
    chats = [[{"role": "assistant", "content": text}] if isinstance(text, str) else text for text in completions]
    for texts in (completions, chats):
        extra.clear()
        scores = contract.verifier(
            prompts=prompts,
            completions=texts,
            completion_ids=ids,
            trainer_state=object(),
            log_extra=lambda name, values: extra.setdefault(name, []).extend(values),
            log_metric=metrics.__setitem__,
            **columns,
        )
        assert len(scores) == len(texts), f"{len(scores)} scores for {len(texts)} completions"
        assert all(score is None or isinstance(score, float) for score in scores), f"scores are {scores}"
    label = contract.verifier.__name__
    assert {f"{label}_status", f"{label}_reason"} <= set(extra), "it logs no status and reason"
    assert f"verifiers/{label}/status/correct" in metrics, "it logs no share of each status"


def check_settings(contract: Contract) -> None:
    """Its settings are valid, its columns can be listed before a run, and it has a deadline."""
    verifier = contract.verifier
    assert not verifier.check(), f"its settings are wrong: {verifier.check()}"
    names = {name for _, columns in contract.cases for name in columns} - _NO_COLUMNS
    lacking = set(verifier.required_columns.values()) - names
    assert not lacking, f"it needs the columns {sorted(lacking)}, which the cases do not give"
    assert isinstance(verifier.describe(), dict), "describe() gives no dictionary"
    if isinstance(verifier, FunctionVerifier) and verifier.isolation == "process":
        assert verifier.timeout is not None, "nothing ends a call"
        assert 0 < verifier.timeout <= 600, f"a call may take {verifier.timeout} s"


def check_steps(contract: Contract) -> None:
    """It gives scores of steps where it declares them, and none where it declares that it gives none."""
    declared = contract.verifier.gives_steps
    if declared is None:
        return
    has_steps = any(verdict.steps for verdict in contract.run(contract.cases))
    assert has_steps == declared, f"steps is {declared}, and its verdicts have {'some' if has_steps else 'none'}"


def check_stated(contract: Contract) -> None:
    """The answer that it reads from an accepted completion passes as gold; no completion makes the reading fail."""
    verifier = contract.verifier
    if not isinstance(verifier, FunctionVerifier) or verifier.reader is None:
        return
    column = verifier.required_columns["answer"]
    answers = [(text, columns, verifier.stated(text)) for text, columns in contract.accept]
    stated = [(text, {**columns, column: answer}) for text, columns, answer in answers if answer is not None]
    assert stated, "it states no answer for any completion that must be accepted"
    for (text, columns), verdict in zip(stated, contract.run(stated), strict=True):
        accepted = verdict.score is not None and verdict.score > contract.threshold
        assert accepted, f"{text!r:.200} is rejected with its own answer as gold, {columns[column]!r:.80}: {verdict}"
    for completion in JUNK[:QUICK]:
        answer = verifier.stated(completion)
        assert answer is None or isinstance(answer, str), f"states {answer!r:.80} for the completion {completion!r:.60}"


CHECKS: tuple[Callable[[Contract], None], ...] = (
    check_settings,
    check_types,
    check_steps,
    check_stated,
    check_verdicts,
    check_statuses,
    check_rejects_something,
    check_determinism,
    check_order,
    check_mutation,
    check_pickle,
    check_trl_signature,
    check_missing_values,
    check_failures,
    check_junk,
)
_CHECKS = tuple(ContractCheck(check.__name__, check) for check in CHECKS)


def contract_of(verifier: Any, accept: Sequence[Case], reject: Sequence[Case] = (), threshold: float = 0.0) -> Contract:
    """A contract for a verifier, its name, a reference to it, or a function."""
    if not accept:
        raise ValueError("check_verifier needs at least one (completion, columns) pair that must be accepted.")
    return Contract(get_verifier(verifier), tuple(accept), tuple(reject), threshold)


def check_verifier(
    verifier: Any,
    accept: Sequence[Case],
    reject: Sequence[Case] = (),
    *,
    threshold: float = 0.0,
    skip: Sequence[str] = (),
) -> None:
    """Run every check, and raise one ``AssertionError`` that lists all failures.

    Args:
        verifier: a verifier, its name, a reference to it, or a function.
        accept: pairs of a completion and one row of columns that must score above the threshold; a ``prompt`` and
            ``completion_ids`` may be among them.
        reject: pairs that must score the threshold or less.
        threshold: 0, but for penalties, which never score above.
        skip: names of checks that fail on purpose ("check_determinism" for a verifier that calls a model).
    """
    contract = contract_of(verifier, accept, reject, threshold)
    require(f"verifier {contract.verifier.label!r}", contract, _CHECKS, skip)


def parametrize_with_checks(
    contracts: Mapping[str, Contract], *, expected_failures: Mapping[str, Mapping[str, str]] | None = None
) -> Any:
    """A pytest decorator: one test for each verifier and check, with the parameters ``check`` and ``contract``.

    ``contracts`` maps the name in a test's id to its contract. ``expected_failures`` maps that name to
    names of checks and the reason why they fail; such a test must fail.
    """
    import pytest

    tests = as_tests([*contracts.items()], _CHECKS, expected_failures, lambda check, subject: (check.run, subject))
    return pytest.mark.parametrize(("check", "contract"), tests)
