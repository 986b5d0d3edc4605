"""The base of every verifier, alone or composed: completions in, verdicts out."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_verifiers.base.golds import GoldReport, GoldReports
from grpo_verifiers.errors.messages import readable
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.verdict import MAX_DETAIL, Verdict, blamed, metrics_of

Rows = Sequence[Any]
"""One value for each completion."""
_NONE: dict[str, str] = {}


class Pending:
    """Verdicts under way; ``result`` waits for them, once."""

    def __init__(self, collect: Callable[[], tuple[list[Verdict], list[float]]]) -> None:
        self._collect: Callable[[], tuple[list[Verdict], list[float]]] | None = collect
        self._result: tuple[list[Verdict], list[float]] = ([], [])
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def result(self) -> list[Verdict]:
        """The verdicts, in the order of the completions.

        Raises:
            VerifierFailedError: the verifier cannot do its work, or its policy is to stop.
        """
        return list(self._wait()[0])

    @property
    def seconds(self) -> list[float]:
        """Seconds that each completion's check ran; waits like ``result``."""
        return list(self._wait()[1])

    def _wait(self) -> tuple[list[Verdict], list[float]]:
        with self._lock:
            if self._collect is not None:
                try:
                    self._result = self._collect()
                except Exception as error:  # noqa: BLE001 - raised again by each later call
                    self._error = error
                self._collect = None
            if self._error is not None:
                raise self._error
            return self._result


class Verifier(ABC):
    """Judges completions; also a TRL reward function, picklable and with a name, its ``label``.

    Columns map a parameter to the dataset column that fills it. Inherited methods delegate to ``parts``.

    Attributes:
        parts: the verifiers of a composition.
        required_columns: columns that it needs.
        optional_columns: columns that it uses if the dataset has them.
        named_columns: mapped by the user: a training set must have them.
        tried_columns: optional columns of its gold check.
        gives_steps: its verdicts have steps (True), never have (False), or only a run can tell (None).
        reader: reads the answer that a completion states, written as a gold answer; None: its samples cannot vote.
    """

    parts: Sequence["Verifier"] = ()
    required_columns: dict[str, str] = _NONE
    optional_columns: dict[str, str] = _NONE
    named_columns: dict[str, str] = _NONE
    tried_columns: dict[str, str] = _NONE
    gives_steps: bool | None = None
    reader: Callable[[str], str | None] | None = None

    def __init__(self, label: str) -> None:
        self.label = label
        self.__name__ = label

    @abstractmethod
    def start(
        self, /, prompts: Rows | None, completions: Rows, completion_ids: Rows | None = None, **columns: Any
    ) -> Pending:
        """Submit everything without waiting, so that all verifiers of a step run at the same time."""

    @property
    def gold_columns(self) -> dict[str, str]:
        """All columns of its gold check, as far as the dataset has them."""
        return merge_columns([self.required_columns, self.tried_columns])

    def failed(self, reason: str) -> Verdict:
        """The verdict on a completion that it failed on: 0 and an error, unless it has a policy of its own."""
        return blamed(reason)

    def check(self) -> list[str]:
        """Problems with its settings."""
        return list(dict.fromkeys(problem for part in self.parts for problem in part.check()))

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Settings for people."""

    def warm(self) -> None:
        """Start its workers without waiting, for example before the first generation."""
        for part in self.parts:
            part.warm()

    def state_dict(self) -> dict[str, Any]:
        """Counts that carry over from batch to batch, as JSON values; empty at the start. Checkpoints keep them."""
        states = [part.state_dict() for part in self.parts]
        return {"parts": states} if any(states) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for part, own in zip(self.parts, state["parts"] if self.parts else (), strict=True):
            if own:
                part.load_state_dict(own)

    def check_golds(self, rows: Any) -> GoldReport | None:
        """Check the gold answers of a dataset, or a mapping of column to values, before a run relies on them.

        None for a verifier without gold answers that it can check.
        """
        present = tuple((part.label, report) for part in self.parts if (report := part.check_golds(rows)) is not None)
        return GoldReports(present) if present else None

    def verify(
        self, /, completion: Any, prompt: Any = None, *, completion_ids: Sequence[int] | None = None, **columns: Any
    ) -> Verdict:
        """Judge one completion; ``columns`` are one row of the dataset."""
        ids = None if completion_ids is None else [completion_ids]
        row = {name: [value] for name, value in columns.items()}
        return self.start([prompt], [completion], ids, **row).result()[0]

    def verify_batch(
        self, /, prompts: Rows | None, completions: Rows, completion_ids: Rows | None = None, **columns: Any
    ) -> list[Verdict]:
        """Judge many; ``columns`` hold one value for each completion."""
        return self.start(prompts, completions, completion_ids, **columns).result()

    def __call__(
        self, /, prompts: Rows | None = None, completions: Rows = (), completion_ids: Rows | None = None, **columns: Any
    ) -> list[float | None]:
        """TRL's reward signature: scores, with the verdicts logged where TRL offers to."""
        pending = self.start(prompts, completions, completion_ids, **columns)
        verdicts = pending.result()
        log_verdicts(self.label, verdicts, pending.seconds, columns.get("log_extra"), columns.get("log_metric"))
        return [verdict.score for verdict in verdicts]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.label!r}>"


def merge_columns(maps: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Columns of several verifiers under their parameters; a parameter that means two columns shows as ``a, b``."""
    by_parameter: dict[str, str] = {}
    for columns in maps:
        for parameter, column in columns.items():
            name = parameter
            while by_parameter.get(name, column) != column:  # keys are for messages only
                name = f"{name}'"
            by_parameter[name] = column
    return by_parameter


def log_verdicts(
    label: str,
    verdicts: Sequence[Verdict],
    seconds: Sequence[float],
    log_extra: Callable[[str, list[Any]], None] | None,
    log_metric: Callable[[str, float], None] | None,
) -> None:
    """Hand the verdicts to TRL: reasons into its completions table, figures into its metrics."""
    if log_extra is not None:
        log_extra(f"{label}_status", [verdict.status.value for verdict in verdicts])
        log_extra(f"{label}_reason", [redact_text(readable(verdict.detail, MAX_DETAIL)) for verdict in verdicts])
    if log_metric is not None:
        for name, value in metrics_of(label, verdicts, seconds).items():
            log_metric(name, value)
