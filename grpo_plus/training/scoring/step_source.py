"""Which verifier the steps of completions come from, and the stop of a run that gets none."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_verifiers.errors.messages import readable
from grpo_verifiers.verdict import Status, Verdict

PATIENCE = 32
"""So many judged completions without a step, and never one with, mean that a verifier gives no steps to train on."""
_JUDGED = (Status.CORRECT, Status.WRONG, Status.PARTIAL)


@dataclass(frozen=True)
class StepsSeen:
    """Evidence of steps in one verifier's verdicts on one rank's batch.

    Attributes:
        given: some verdict has a step to train on: it has a score and holds a character of the completion.
        without: completions that were judged and have no such step; what is empty, cannot be read, failed or does not
            apply shows nothing.
        example: what it gave instead.
    """

    given: bool
    without: int
    example: str = ""


def steps_seen(
    verdicts: Sequence[Verdict], completion_ids: Sequence[Sequence[int]], length: Callable[[Sequence[int]], int]
) -> StepsSeen:
    """Evidence of steps in a verifier's verdicts, one for each completion.

    ``length`` gives the number of characters of sampled ids; it is asked only where no scored step starts at the first
    one.
    """
    rows = list(zip(verdicts, completion_ids, strict=False))
    giving = [_teaches(verdict, ids, length) for verdict, ids in rows]
    without = [
        verdict
        for (verdict, ids), gives in zip(rows, giving, strict=True)
        if verdict.status in _JUDGED and len(ids) and not gives
    ]
    return StepsSeen(any(giving), len(without), _shown(without[0]) if without else "")


def _teaches(verdict: Verdict, ids: Sequence[int], length: Callable[[Sequence[int]], int]) -> bool:
    """A step of the verdict has a score and holds a character."""
    starts = [step.start for step in verdict.steps if step.score is not None and step.start < step.end]
    return bool(starts) and len(ids) > 0 and (min(starts) == 0 or min(starts) < length(ids))


def _shown(verdict: Verdict) -> str:
    """The verdict in words, where it has no step to train on."""
    reason = f": {readable(verdict.detail, 80)}" if verdict.detail else ""
    steps = "only steps that have no score or hold no character of the completion, and " if verdict.steps else ""
    score = "None" if verdict.score is None else f"{verdict.score:g}"
    return f"{steps}the score {score} ({verdict.status.value}{reason})"


@dataclass
class StepSource:
    """The source of the steps, batch by batch; every rank sees the same batches, so that all decide alike.

    ``named`` is the label of the verifier that ``steps_from`` names; None: whichever gives steps. ``givers`` has for
    every verifier's label whether it gives steps; None where only running it can tell.
    """

    named: str | None
    givers: Mapping[str, bool | None]
    _giving: set[str] = field(default_factory=set)
    _without: "Counter[str]" = field(default_factory=Counter)
    _examples: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._giving |= {label for label, gives in self.givers.items() if gives}

    def state_dict(self) -> dict[str, Any]:
        """The evidence so far, as JSON values; empty while running has shown nothing."""
        known = {label for label, gives in self.givers.items() if gives}
        state = {"giving": sorted(self._giving - known), "without": dict(self._without), "examples": self._examples}
        return state if any(state.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""
        self._giving |= set(state["giving"])
        self._without, self._examples = Counter(state["without"]), dict(state["examples"])

    def labels(self, ranks: Sequence[Mapping[str, StepsSeen]], *, training: bool) -> list[str]:
        """The one verifier to read steps from, given what every rank's verdicts show; empty while none is known.

        What an evaluation lacks is held against nobody.
        """
        for label, seen in ((label, seen) for rank in ranks for label, seen in rank.items()):
            if seen.given:
                self._giving.add(label)
            if training and seen.without:
                self._without[label] += seen.without
                self._examples.setdefault(label, seen.example)
        if self.named is not None:
            if self.named not in self._giving and self._without[self.named] >= PATIENCE:
                raise ValueError(self._nothing_from(self.named))
            return [self.named]
        if len(self._giving) > 1:
            several = ", ".join(sorted(self._giving))
            raise ValueError(f"several verifiers give steps: {several}. Name one as steps_from of the advantage.")
        possible = sorted(self._giving) or [label for label, gives in self.givers.items() if gives is None]
        if not self._giving and all(self._without[label] >= PATIENCE for label in possible):
            raise ValueError(self._nothing())
        return possible if len(possible) == 1 else []

    def _nothing_from(self, label: str) -> str:
        others = sorted(self._giving)
        other = f"name {others[0]!r}, which gives steps" if others else "name a verifier that scores steps"
        return (
            f"steps_from: the verifier {label!r} gave no step in {self._without[label]} completions, so nothing is "
            f"trained by steps. It gave {self._examples[label]} instead. Return Verdict(…, steps=…) from it, or "
            f"{other} as steps_from of the advantage, such as math_steps with weight 0."
        )

    def _nothing(self) -> str:
        return (
            f"the advantage estimator needs step scores, but no verifier gave any: {', '.join(self.givers)}. "
            "Return Verdict(…, steps=…) from one of them, or add one that scores steps, such as math_steps with "
            "weight 0. One that gives steps to some completions only is named as steps_from of the advantage."
        )
