"""`OnFinding`: a user's callback for findings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from grpo_plus.diagnosis import RULES, Finding
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.redaction import get_logger, redact_text

logger = get_logger("grpo_plus.diagnosis")

LAST_LOG = "train_runtime"
"""Key of the last log entry of a run only."""


class Logged:
    """Metrics as they are logged, by name."""

    def __init__(self) -> None:
        self.series: dict[str, tuple[list[int], list[Any]]] = {}

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Add a log entry."""
        for key, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and key != "step":
                steps, series = self.series.setdefault(key, ([], []))
                steps.append(step)
                series.append(value)

    def load(self, history: Iterable[Mapping[str, Any]]) -> None:
        """Load the entries of a run so far."""
        self.series = {}
        for entry in history:
            if LAST_LOG not in entry:
                self.add(int(entry.get("step", 0)), entry)


class OnFinding(TrainerCallback):
    """Calls a function with every `Finding` of a run of `GRPOPlusTrainer` as it begins, on the main process.

    >>> OnFinding(print, stop_on=["nann"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    grpo_verifiers.errors.ConfigError: stop_on: unknown finding 'nann'. Did you mean 'nan'? ...

    Args:
        call: takes a finding; an error in it is logged as a warning, and the run continues.
        stop_on: names of findings that end training after their step, with a checkpoint. They join the config's
            ``stop_on``.
    """

    def __init__(self, call: Callable[[Finding], object], stop_on: Sequence[str] = ()) -> None:
        stop_on = [stop_on] if isinstance(stop_on, str) else stop_on
        wrong = [f"stop_on: {unknown('finding', name, list(RULES))}" for name in stop_on if name not in RULES]
        if wrong:
            raise ConfigError(wrong)
        self._call = call
        self.stop_on = tuple(stop_on)
        self.reported_by_trainer = False  # by the diagnosis of this trainer

    def report(self, finding: Finding) -> None:
        """Call the function."""
        try:
            self._call(finding)
        except Exception as error:  # noqa: BLE001 - a listener must not end the run
            logger.warning("OnFinding failed on %s: %s", finding.name, redact_text(repr(error)))

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Refuse a trainer without findings."""
        if not self.reported_by_trainer:
            raise ConfigError(["OnFinding needs a GRPOPlusTrainer: of TRL's own runs grpo-plus report tells findings."])


def max_over_ranks(args: Any, number: int) -> int:
    """Return the largest number of any rank; every rank must call it."""
    if args.world_size == 1:
        return number
    import torch

    largest = torch.tensor([number], device=args.device)
    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
    return int(largest.item())
