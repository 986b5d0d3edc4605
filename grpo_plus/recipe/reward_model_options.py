"""Options of a reward model that trains along with the policy: the keywords of the config's ``reward_model``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from grpo_verifiers.options import Range

NAME = "reward_model"
"""The column of the reward table, the folder beside the trained model, and the beginning of metrics."""
WEIGHT = 0.5
GOOD = 0.5
"""The least score of a step that counts as good."""


@dataclass(frozen=True)
class RewardModelOptions:
    """What a reward model is, what it learns from, and what it counts.

    Attributes:
        on: ``adapter`` is a LoRA adapter on the policy's own base, ``model`` a model of its own; None: an adapter where
            the run trains one.
        model: name or folder of the model of its own; None: the policy's start.
        start: folder of a reward model to go on from.
        lora_r: rank of the adapter; its scale is 2 over all ranks.
        head: ``outcome`` scores whole completions and learns from pairs, ``process`` scores steps and learns from the
            labels of steps.
        every: optimizer steps of the policy between two trainings; 0: none by itself.
        epochs: passes over the pairs of a training.
        batch_size: pairs (labelled completions with ``process``) of an update, on each rank.
        learning_rate: of Adam; None: 1e-4 for an adapter, 1e-5 for a model of its own.
        pairs: most pairs of one group, drawn at random among all that its scores order.
        replay: share of earlier pairs in each training.
        history: pairs that are kept to come again, at most.
        held_out: share of prompts whose pairs are only measured on.
        weight: of its reward in the sum; 0: it looks on. None: the last of ``reward_weights``, or 0.5 without any.
        scale: the reward that a score becomes: ``wins`` is the chance to beat the others of its group, ``sigmoid`` is
            σ(score), ``raw`` the score itself.
    """

    on: Literal["adapter", "model"] | None = None
    model: str | None = None
    start: str | None = None
    lora_r: Annotated[int, Range(1)] = 16
    head: Literal["outcome", "process"] = "outcome"
    every: Annotated[int, Range(0)] = 10
    epochs: Annotated[int, Range(1)] = 1
    batch_size: Annotated[int, Range(1)] = 16
    learning_rate: Annotated[float, Range(0, open_low=True, finite=True)] | None = None
    pairs: Annotated[int, Range(1)] = 8
    replay: Annotated[float, Range(0, 1, open_high=True)] = 0.1
    history: Annotated[int, Range(1)] = 2048
    held_out: Annotated[float, Range(0, 1, open_high=True)] = 0.1
    weight: Annotated[float, Range(finite=True)] | None = None
    scale: Literal["wins", "sigmoid", "raw"] | None = None

    @property
    def rewards(self) -> bool:
        """Its scores count as rewards."""
        return self.weight != 0

    @property
    def reward_scale(self) -> str:
        """What a score becomes; the scores of steps are chances by themselves."""
        return self.scale or "wins"
