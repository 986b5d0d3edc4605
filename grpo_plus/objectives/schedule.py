"""Schedules of the coefficient of the KL term."""

# ruff: noqa: RUF001 - formulas

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import Range, option_problems

_RATE = Range(
    0,
    5,
    open_low=True,
    open_high=True,
    text="a number of more than 0 and less than 5: from 5 on a step takes beta to 0 or below, which rewards divergence",
)


@dataclass(frozen=True)
class Constant:
    """β is constant.

    Use it when the reference should have the same weight at all times: it is the default.
    """

    def at(self, beta: float, step: int) -> float:  # noqa: ARG002 - the signature of every schedule
        """Return the coefficient after ``step`` optimizer steps that were not skipped."""
        return beta

    def formula(self) -> str:
        """Return the formula, for `check`."""
        return "β"


@dataclass(frozen=True)
class Warmup:
    """β rises linearly from 0 over the first ``steps`` optimizer steps; skipped ones (`stop_fraction`) do not count.

    Use it when the policy should first learn the format without a limit on the divergence.

    Attributes:
        steps: optimizer steps to the full β.

    Config:
        objective: {name: grpo, kl: {schedule: {name: warmup, steps: 100}}}
        beta: 0.04
    """

    steps: Annotated[int, Range(1)]

    def at(self, beta: float, step: int) -> float:
        """Return the coefficient after ``step`` optimizer steps that were not skipped."""
        return beta * min(1.0, step / self.steps)

    def formula(self) -> str:
        """Return the formula, for `check`."""
        return f"β·min(1, step/{self.steps})"


@dataclass(frozen=True)
class Adaptive:
    """β follows the measured KL: β ← β·(1 + rate·clip(KL/target − 1, −0.2, 0.2)).

    Use it when the divergence from the reference should be constant, rather than its coefficient.

    Paper: Ziegler et al., arXiv:1909.08593, section 2.2.

    Degenerate case: a β of 0 stays 0.

    Attributes:
        target: the target of the KL per token, in nats.
        rate: speed of the changes of β.

    Config:
        objective: {name: grpo, kl: {schedule: {name: adaptive, target: 0.01}}}
        beta: 0.04
    """

    target: Annotated[float, Range(0, open_low=True, finite=True)]
    rate: Annotated[float, _RATE] = 0.1

    def at(self, beta: float, step: int) -> float:  # noqa: ARG002 - the signature of every schedule
        """Return ``beta``: only the measured KL changes it."""
        return beta

    def after(self, beta: float, measured: float) -> float:
        """Return the next coefficient."""
        error = min(0.2, max(-0.2, measured / self.target - 1))
        return beta * (1 + self.rate * error)

    def formula(self) -> str:
        """Return the formula, for `check`."""
        return f"β ← β·(1 + {self.rate:g}·clip(KL/{self.target:g} − 1, ±0.2)) after every step"


Schedule = Constant | Warmup | Adaptive
SCHEDULES: Mapping[str, type[Constant] | type[Warmup] | type[Adaptive]] = {
    "constant": Constant,
    "warmup": Warmup,
    "adaptive": Adaptive,
}


def parse_schedule(spec: Any) -> tuple[Schedule, list[str]]:
    """Return the schedule of a name, or of a mapping with its name and keywords, and its problems."""
    keywords = dict(spec) if isinstance(spec, Mapping) else {"name": spec}
    name = keywords.pop("name", None)
    if not isinstance(name, str) or name not in SCHEDULES:
        return Constant(), [f"kl: {unknown('schedule', name, SCHEDULES)}"]
    kind = SCHEDULES[name]
    problems = option_problems(f"the KL schedule {name!r}", kind, keywords, bare=True)
    return (Constant() if problems else kind(**keywords)), problems
