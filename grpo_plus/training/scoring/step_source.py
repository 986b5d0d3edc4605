"""The verifier that gives the steps of completions; a run without any steps is stopped."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_verifiers.errors.messages import readable
from grpo_verifiers.verdict import Status, Verdict

PATIENCE = 32
"""Judged completions without any step that stop the run."""
_JUDGED = (Status.CORRECT, Status.WRONG, Status.PARTIAL)


@dataclass(frozen=True)
class StepEvidence:
    """Steps in one verifier's verdicts on one rank's batch.

    Attributes:
        any_steps: a verdict has a usable step: it has a score and contains a character of the completion.
        without: number of judged completions without one; empty, unreadable, failed and not applicable ones do not
            count.
        example: the verdict on the first of them, in words.
    """

    any_steps: bool
    without: int
    example: str = ""


def step_evidence(
    verdicts: Sequence[Verdict], completion_ids: Sequence[Sequence[int]], length: Callable[[Sequence[int]], int]
) -> StepEvidence:
    """The steps in a verifier's verdicts, one for each completion.

    ``length`` returns the number of characters of sampled ids; it is called only if no scored step starts at 0.
    """
    any_steps, without = False, []
    for verdict, ids in zip(verdicts, completion_ids, strict=False):
        starts = [step.start for step in verdict.steps if step.score is not None and step.start < step.end]
        if starts and len(ids) > 0 and (min(starts) == 0 or min(starts) < length(ids)):
            any_steps = True
        elif verdict.status in _JUDGED and len(ids):
            without.append(verdict)
    return StepEvidence(any_steps, len(without), _description(without[0]) if without else "")


def _description(verdict: Verdict) -> str:
    """A verdict without a usable step, in words."""
    reason = f": {readable(verdict.detail, 80)}" if verdict.detail else ""
    steps = "only steps that have no score or contain no character of the completion, and " if verdict.steps else ""
    score = "None" if verdict.score is None else f"{verdict.score:g}"
    return f"{steps}the score {score} ({verdict.status.value}{reason})"


@dataclass
class StepSource:
    """The source of the steps, batch by batch; all ranks read the same batches and decide alike.

    ``named`` is the label in ``steps_from``; None: the verifier that gives steps. ``givers`` maps labels to True if the
    verifier gives steps, and to None if only its verdicts can show it.
    """

    named: str | None
    givers: Mapping[str, bool | None]
    _giving: set[str] = field(default_factory=set)
    _without: "Counter[str]" = field(default_factory=Counter)
    _examples: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._giving |= {label for label, gives in self.givers.items() if gives}

    def state_dict(self) -> dict[str, Any]:
        """The evidence so far, as JSON values; empty without any."""
        declared = {label for label, gives in self.givers.items() if gives}
        state = {"giving": sorted(self._giving - declared), "without": dict(self._without), "examples": self._examples}
        return state if any(state.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._giving |= set(state["giving"])
        self._without, self._examples = Counter(state["without"]), dict(state["examples"])

    def labels(self, ranks: Sequence[Mapping[str, StepEvidence]], *, training: bool) -> list[str]:
        """The verifier of the steps, from the evidence of all ranks; empty if it is not certain yet.

        Missing steps in an evaluation do not count.
        """
        for label, evidence in (item for rank in ranks for item in rank.items()):
            if evidence.any_steps:
                self._giving.add(label)
            if training and evidence.without:
                self._without[label] += evidence.without
                self._examples.setdefault(label, evidence.example)
        if self.named is not None:
            if self.named not in self._giving and self._without[self.named] >= PATIENCE:
                giving = sorted(self._giving)
                other = f"name {giving[0]!r}, which gives steps" if giving else "name a verifier that scores steps"
                raise ValueError(
                    f"steps_from: the verifier {self.named!r} gave no step in {self._without[self.named]} completions, "
                    f"so nothing is trained by steps. It gave {self._examples[self.named]} instead. Return "
                    f"Verdict(…, steps=…) from it, or {other} as steps_from of the advantage, such as math_steps with "
                    "weight 0."
                )
            return [self.named]
        if len(self._giving) > 1:
            several = ", ".join(sorted(self._giving))
            raise ValueError(f"several verifiers give steps: {several}. Name one as steps_from of the advantage.")
        possible = sorted(self._giving) or [label for label, gives in self.givers.items() if gives is None]
        if not self._giving and all(self._without[label] >= PATIENCE for label in possible):
            raise ValueError(
                f"the advantage estimator needs step scores, but no verifier gave any: {', '.join(self.givers)}. "
                "Return Verdict(…, steps=…) from one of them, or add one that scores steps, such as math_steps with "
                "weight 0. Set steps_from of the advantage to a verifier that gives steps to some completions only."
            )
        return possible if len(possible) == 1 else []
