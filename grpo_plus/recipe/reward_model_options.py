"""Options of a reward model that trains along with the policy: the keywords of the config's ``reward_model``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from grpo_verifiers.options import Range

NAME = "reward_model"
"""The column of the reward table, the folder in ``output_dir``, and the prefix of metrics."""
WEIGHT = 0.5
GOOD = 0.5
"""The least score of a good step."""


@dataclass(frozen=True)
class RewardModelOptions:
    """Options of a reward model.

    Attributes:
        on: ``adapter`` is a LoRA adapter on the policy's own base, ``model`` a separate model; None: an adapter if the
            run trains one.
        model: name or folder of the separate model; None: the policy's initial model.
        start: folder of an initial reward model.
        lora_r: rank of the adapter; its scale is 2 for all ranks.
        head: ``outcome`` scores completions and learns from pairs, ``process`` scores steps and learns from the labels
            of steps.
        every: optimizer steps of the policy between two trainings; 0: no automatic training.
        epochs: passes over the pairs of a training.
        batch_size: pairs (labelled completions with ``process``) of an update, on each rank.
        learning_rate: Adam's learning rate; None: 1e-4 for an adapter, 1e-5 for a separate model.
        pairs: most pairs of one group, sampled from all pairs ordered by its scores.
        replay: share of earlier pairs in each training.
        history: most earlier pairs in the replay store.
        held_out: share of prompts whose pairs are for evaluation only.
        weight: weight of its reward in the sum; 0: no reward. None: the last of ``reward_weights``, or 0.5 without any.
        scale: conversion of a score to a reward: ``wins`` is the probability of a win in its group, ``sigmoid`` is
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
        """True if its scores count as rewards."""
        return self.weight != 0

    @property
    def reward_scale(self) -> str:
        """The conversion of a score to a reward; scores of steps already are probabilities."""
        return self.scale or "wins"
