"""Schedules of the coefficient of the KL term."""

# ruff: noqa: RUF001 - formulas

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import option_problems


@dataclass(frozen=True)
class Constant:
    """β stays what it is.

    Use it when the reference should hold the policy alike at all times: it is the rule.
    """

    adapts = False

    def at(self, beta: float, step: int) -> float:  # noqa: ARG002 - every schedule is asked alike
        """The coefficient after ``step`` optimizer steps that were not skipped."""
        return beta

    def formula(self) -> str:
        """For `explain`."""
        return "β"


@dataclass(frozen=True)
class Warmup:
    """β rises linearly from 0 over the first ``steps`` optimizer steps; skipped ones (`stop_fraction`) do not count.

    Use it when the policy should first learn the format freely, and be held later.

    Attributes:
        steps: optimizer steps until β is whole.

    Config:
        objective: {name: grpo, kl: {schedule: {name: warmup, steps: 100}}}
        beta: 0.04
    """

    steps: int
    adapts = False

    def at(self, beta: float, step: int) -> float:
        """The coefficient after ``step`` optimizer steps that were not skipped."""
        return beta * min(1.0, step / self.steps)

    def formula(self) -> str:
        """For `explain`."""
        return f"β·min(1, step/{self.steps})"


@dataclass(frozen=True)
class Adaptive:
    """β follows the measured KL: β ← β·(1 + rate·clip(KL/target − 1, −0.2, 0.2)).

    Use it when the divergence from the reference should be held at a value, rather than its coefficient.

    Paper: Ziegler et al., arXiv:1909.08593, section 2.2.

    Degenerate case: a β of 0 stays 0.

    Attributes:
        target: the KL per token to hold, in nats.
        rate: how fast β follows.

    Config:
        objective: {name: grpo, kl: {schedule: {name: adaptive, target: 0.01}}}
        beta: 0.04
    """

    target: float
    rate: float = 0.1
    adapts = True

    LIMIT = 5.0
    """From this rate on, a KL below its target would take β to 0 or below: a reward for divergence."""

    def at(self, beta: float, step: int) -> float:  # noqa: ARG002 - every schedule is asked alike
        """The coefficient after ``step`` optimizer steps, of which the measured KL is the only thing that counts."""
        return beta

    def after(self, beta: float, measured: float) -> float:
        """The next coefficient."""
        error = min(0.2, max(-0.2, measured / self.target - 1))
        return beta * (1 + self.rate * error)

    def formula(self) -> str:
        """For `explain`."""
        return f"β ← β·(1 + {self.rate:g}·clip(KL/{self.target:g} − 1, ±0.2)) after every step"


Schedule = Constant | Warmup | Adaptive
SCHEDULES: Mapping[str, type[Constant] | type[Warmup] | type[Adaptive]] = {
    "constant": Constant,
    "warmup": Warmup,
    "adaptive": Adaptive,
}


def parse_schedule(spec: Any) -> tuple[Schedule, list[str]]:
    """A schedule from its name or from a mapping with its name and keywords, and what is wrong with it."""
    name, keywords = (
        (spec.get("name"), {k: v for k, v in spec.items() if k != "name"}) if _is_mapping(spec) else (spec, {})
    )
    if not isinstance(name, str) or name not in SCHEDULES:
        return Constant(), [f"kl: {unknown('schedule', name, SCHEDULES)}"]
    made = SCHEDULES[name]
    problems = option_problems(f"the KL schedule {name!r}", made, keywords)
    problems += [
        f"the KL schedule {name!r}: {key} is {value!r}, expected a finite number of more than 0."
        for key, value in keywords.items()
        if isinstance(value, int | float) and not 0 < value < float("inf")
    ]
    if made is Adaptive and not problems and keywords.get("rate", 0) >= Adaptive.LIMIT:
        problems.append(
            f"the KL schedule {name!r}: rate is {keywords['rate']!r}, expected less than {Adaptive.LIMIT:g}: one step "
            "would take beta to 0 or below, which rewards divergence."
        )
    return (Constant() if problems else made(**keywords)), problems


def _is_mapping(spec: Any) -> bool:
    return isinstance(spec, Mapping)
