"""The weight of the outcome beside the steps: every reward with a weight is trained on, or refused.

A step estimator reads step scores; rewards reach it through ``outcome_weight`` alone. Unset, it is 1 if a reward other
than that of the steps' source has a weight, else 0. It is 0 too if another part of a mix reads the rewards.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.advantages import Estimator, get_advantage, parameters_of
from grpo_plus.recipe.recipe import Chosen


@dataclass(frozen=True)
class Reward:
    """One reward of a run.

    Attributes:
        gives_steps: whether its verdicts have steps; None where only running it can tell.
        owned: an environment's own, whose weight is 1 and cannot be set.
    """

    label: str
    weight: float = 1.0
    gives_steps: bool | None = False
    owned: bool = False

    def __str__(self) -> str:
        return f"{self.label!r} (weight {self.weight:g})"


@dataclass(frozen=True)
class _Part:
    """An estimator alone, or as a part of a mix with its weight."""

    name: str
    estimator: Estimator
    keywords: Mapping[str, Any]
    weight: float = 1.0

    @property
    def outcome_weight(self) -> float | None:
        """The value that is set, or the default of a plug-in's estimator."""
        given: float | None = self.keywords.get("outcome_weight")
        if given is None and self.estimator.per == "step":
            given = parameters_of(self.estimator)["outcome_weight"].default
        return given

    @property
    def reads_rewards(self) -> bool:
        """Whether rewards count here."""
        return self.weight != 0 and (self.estimator.per != "step" or bool(self.outcome_weight))


def source_of(rewards: Sequence[Reward], named: str | None = None) -> str | None:
    """The label of the reward whose verifier gives the steps; None if none does or only the run can tell."""
    if named is not None:
        return named
    sure = [reward.label for reward in rewards if reward.gives_steps]
    possible = sure or [reward.label for reward in rewards if reward.gives_steps is None]
    return possible[0] if len(possible) == 1 else None


def with_outcome_weight(chosen: Chosen, rewards: Sequence[Reward], source: str | None) -> Chosen:
    """The estimator with a number for an unset ``outcome_weight``.

    ``source`` is what `source_of` gave; None with a step scorer, which rewards nothing.
    """
    estimator, keywords = chosen
    parts = _parts(chosen)
    number = 0.0 if any(part.reads_rewards for part in parts) or not _outcomes(rewards, source) else 1.0
    resolved = dict(keywords)
    for part in parts:
        if part.estimator.per == "step" and part.outcome_weight is None:
            filled = {**part.keywords, "outcome_weight": number}
            resolved = {**resolved, part.name: filled} if estimator.per == "parts" else filled
    return Chosen(estimator, resolved)


def outcome_problems(
    chosen: Chosen, rewards: Sequence[Reward], source: str | None, *, complete: bool = True
) -> list[str]:
    """Reward weights that nothing would read, with keywords as they are set and the source that `source_of` gave.

    The list of rewards is not ``complete`` while a trainer may get more.
    """
    parts = _parts(chosen)
    stepwise = [part for part in parts if part.estimator.per == "step"]
    if complete and rewards and not any(reward.weight != 0 for reward in rewards):
        listed = ", ".join(reward.label for reward in rewards)
        return [
            f"outcome_weight of the advantage estimator {part.name!r} is {part.keywords['outcome_weight']!r}, but no "
            f"reward has a weight ({listed}), so there is no outcome: give one a weight, or remove outcome_weight."
            for part in stepwise
            if part.keywords.get("outcome_weight")
        ]
    if not stepwise or any(part.reads_rewards for part in parts):
        return []
    # An environment's own reward has no weight to set: an outcome_weight of 0 is the way to leave it out.
    outcomes = [reward for reward in _outcomes(rewards, source) if not reward.owned]
    unclear = [reward for reward in outcomes if source is None and reward.gives_steps is None]
    if len(unclear) == 1:  # it may turn out to be the source
        outcomes.remove(unclear[0])
    name = chosen[0].name
    if outcomes:
        refused = [part.name for part in parts if part.outcome_weight == 0 and part.weight != 0]
        return [
            f"outcome_weight of the advantage estimator {part!r} is 0, and so the reward{'s' * (len(outcomes) > 1)} "
            f"{', '.join(map(str, outcomes))} would be ignored. Remove outcome_weight (they then count once) or set "
            "another one; what should only be logged has weight 0."
            for part in refused
        ]
    # A weight of 1 may be written as well as left out; another one was meant to do something.
    return [
        f"the reward {reward} gives the steps, of which the advantage estimator {name!r} takes z-scores whatever its "
        "weight. Set weight: 0, or outcome_weight: 1 to add the z-score of the reward itself."
        for reward in rewards
        if complete and reward.label == source and reward.weight not in (0, 1)
    ]


def _parts(chosen: Chosen) -> list[_Part]:
    estimator, keywords = chosen
    if estimator.per != "parts":
        return [_Part(estimator.name, estimator, keywords)]
    weights: Mapping[str, float] = keywords.get("parts", {})
    return [_Part(name, get_advantage(name), keywords.get(name) or {}, weight) for name, weight in weights.items()]


def _outcomes(rewards: Iterable[Reward], source: str | None) -> list[Reward]:
    return [reward for reward in rewards if reward.label != source and reward.weight != 0]
