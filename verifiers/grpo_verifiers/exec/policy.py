"""Verdicts from outcomes: the effect of a failure on its completions, and the failures that end the run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.errors.messages import readable
from grpo_verifiers.exec.outcome import InvalidRow, Outcome
from grpo_verifiers.exec.printed import LABEL
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.registry import source_of
from grpo_verifiers.verdict import MAX_DETAIL, Status, Verdict, blamed, excused

HOPELESS = 32
"""Consecutive failures from which the verifier counts as broken, not the completions."""
BATCH_FAILURE = 8
"""Limit of failures for one failed call of a batch function: one bad completion may fail the batch."""

_log = get_logger("grpo_verifiers")


@dataclass
class Policy:
    """The policy of one verifier, with its consecutive failures across steps.

    Attributes:
        fn: the check, for messages; None: one of this package, whose source is no help to users.
        on_error: the setting of the user; None: score 0, but stop if the check always fails.
        batch: one call judges many completions.
        failures: consecutive failures so far, for `HOPELESS`.
        late: consecutive completions with a timeout.
    """

    label: str
    fn: Callable[..., Any] | None
    on_error: Literal["null", "zero", "raise"] | None
    timeout: float | None
    batch: bool
    failures: int = 0
    late: int = 0
    _warned: set[str] = field(default_factory=set)

    def verdicts(self, outcome: Outcome, rows: int) -> list[Verdict]:
        """The verdicts of one outcome on ``rows`` completions.

        VerifierFailedError if the check cannot work, always fails, or ``on_error`` is ``"raise"``.
        """
        if outcome.kind == "value":
            self.failures = self.late = 0
            self._log_output_once(outcome)
            return [self._row(verdict) for verdict in outcome.verdicts]
        if outcome.kind == "timeout":
            return self._timeouts(outcome, rows)
        if outcome.kind == "broken":
            raise VerifierFailedError(self._message("cannot run", outcome))
        self._warn(outcome)
        if outcome.kind != "died" and self.on_error == "raise":
            raise VerifierFailedError(self._message("failed, and on_error is 'raise'", outcome))
        self.failures += min(rows, BATCH_FAILURE) if self.batch else 1
        if self.failures >= HOPELESS and self.on_error != "zero":
            counted, self.failures = self.failures, 0
            problem = f"failed on all of the last {counted} completions; repair it, or set on_error: zero"
            raise VerifierFailedError(self._message(problem, outcome))
        if outcome.kind == "outside":
            return [excused(outcome.message)] * rows
        return [blamed(outcome.message) if outcome.kind == "died" else self.failed(outcome.message)] * rows

    def failed(self, reason: str) -> Verdict:
        """The verdict on a completion that the check failed on."""
        if self.on_error == "raise":
            raise VerifierFailedError(f"verifier {self.label!r} failed, and on_error is 'raise': {reason}")
        return excused(reason) if self.on_error == "null" else blamed(reason)

    def unreadable(self, why: str) -> None:
        """Log the first completion without a readable answer: it has no vote."""
        if "stated" not in self._warned:
            self._warned.add("stated")
            _log.warning("verifier %r: stated %s; expected a text or None. Such samples have no vote.", self.label, why)

    def _timeouts(self, outcome: Outcome, rows: int) -> list[Verdict]:
        self.late += rows
        if self.late >= HOPELESS and "late" not in self._warned:
            self._warned.add("late")
            text = "was too late on %d completions in a row, each scored 0: is it stuck, or its timeout (%g s) short?"
            _log.warning(f"verifier %r {text}", self.label, self.late, self.timeout)
        return [blamed(outcome.message, Status.TIMEOUT)] * rows

    def _row(self, verdict: Verdict | InvalidRow) -> Verdict:
        if isinstance(verdict, Verdict):
            return verdict
        self._warn(Outcome("raised", message=verdict.reason))
        return self.failed(verdict.reason)

    def _log_output_once(self, outcome: Outcome) -> None:
        first = outcome.verdicts[0] if outcome.verdicts else None
        if "printed" not in self._warned and isinstance(first, Verdict) and LABEL in first.detail:
            self._warned.add("printed")
            text = readable(first.detail[first.detail.index(LABEL) :], MAX_DETAIL)
            where = "Its output follows the reasons of verdicts, in the record and in `grpo-plus verify --show all`."
            _log.warning("verifier %r %s. %s", self.label, text, where)

    def _warn(self, outcome: Outcome) -> None:
        if "failed" not in self._warned:
            self._warned.add("failed")
            _log.warning("%s", self._message("failed on a completion", outcome))

    def _message(self, problem: str, outcome: Outcome) -> str:
        where = "" if self.fn is None else f" ({source_of(self.fn)})"
        trace = f"\n{outcome.trace.rstrip()}" if outcome.trace and where else ""
        return f"verifier {self.label!r}{where} {problem}: {readable(outcome.message, MAX_DETAIL)}{trace}"
