"""The keys of ``engine``, ``rollout``, ``report``, ``diagnosis``, ``critic`` and ``reward_model``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from grpo_plus.selection.dead_groups.keep import Keep
from grpo_plus.selection.dead_groups.replay import Replay
from grpo_plus.selection.dead_groups.resample import Resample
from grpo_plus.selection.dead_groups.roulette import Roulette
from grpo_verifiers.options import Range

Most = Annotated[int, Range(1, text="a positive integer")]


@dataclass(frozen=True)
class EngineOptions:
    """The computation of the update.

    Attributes:
        layout: ``auto`` chooses per micro-batch; ``packed``, ``trimmed`` and ``stock`` force it.
        tokens_per_pass: most tokens of one forward and backward pass; None for no bound.
    """

    layout: Literal["auto", "packed", "trimmed", "stock"] = "auto"
    tokens_per_pass: Most | None = None


@dataclass(frozen=True)
class RolloutOptions:
    """The sampling of completions.

    Attributes:
        how: ``stock`` is TRL's own way, ``auto`` reads each prompt once and lets rows leave that have ended, wherever
            that has the same distribution; None: ``auto`` where a part of grpo_plus is set and nothing else samples.
        rows: most rows sampled at once with ``auto``; None for as many as memory allows.
        vllm_sync: how weights go to a vLLM server (``use_vllm: true``, ``vllm_mode: server``): the ``adapter`` alone,
            all as ``files`` in a folder that it sees, or on TRL's own path with ``nccl``; None: the server decides.
    """

    how: Literal["stock", "auto"] | None = None
    rows: Most | None = None
    vllm_sync: Literal["files", "nccl", "adapter"] | None = None


@dataclass(frozen=True)
class ReportOptions:
    """The record of a run, and when it is written as a page.

    Attributes:
        record: metrics and sampled groups, in ``output_dir/grpo_plus``; None: where a part of grpo_plus is set.
            Bounded: at most 50 MB and about 2% of the time.
        every: steps after which ``output_dir/report.html`` is written anew while training; None: at the end only; 0:
            never.
    """

    record: bool | None = None
    every: Annotated[int, Range(0)] | None = None


@dataclass(frozen=True)
class DiagnosisOptions:
    """The judge against reward hacking, and the findings that end a run.

    Attributes:
        judge: looks at samples of the training completions and rewards nothing: an entry of ``verifiers``, or
            ``strict`` for the stricter twin of the verifier that rewards; None: only ``eval_verifiers`` are looked at.
        every: optimizer steps between its checks, at least: they follow a sampling of completions.
        sample: completions of a check, at most.
        against: label of the verifier whose score is watched; None: the one that the judge is a twin of, or the total
            reward.
        stop_on: names of findings that end the run in order as they begin.
    """

    judge: Any = None
    every: Annotated[int, Range(1)] = 10
    sample: Annotated[int, Range(2)] = 32
    against: str | None = None
    stop_on: Sequence[str] = ()


def keys_of(*options: Any) -> list[str]:
    """The keys of these classes of options."""
    return [field.name for each in options for field in fields(each)]


RATES = {"trunk": 1e-4, "adapter": 5e-5, "model": 1e-5}
"""Default learning rates: smaller for more trained weights."""


@dataclass(frozen=True)
class CriticOptions:
    """Options of a critic.

    Attributes:
        on: the trunk of the value head: ``trunk``, the policy's own last hidden states, which are not trained;
            ``adapter``, a separate LoRA adapter on the policy's base; ``model``, a separate model. Unset: adapter if
            the run trains LoRA, else model.
        model: name or folder of its own model; unset: the policy's initial model.
        learning_rate: AdamW's constant learning rate; unset: `RATES`.
        updates: critic updates for each update of the policy, all on the rows of that update.
        warmup_steps: first optimizer steps, which train the critic alone.
        clip: largest change of a value before its gradient ends; null: no limit.
        lam: λ of the critic's returns; that of the advantages is the estimator's.
        freeze: parts of its model or adapter that are not trained.
        lora_r: rank of its adapter; unset: the policy's.
        lora_alpha: scale of its adapter; unset: with the policy's ratio to the rank.
        max_grad_norm: limit of the gradient norm; null: no limit.
        weight_decay: AdamW's weight decay.
    """

    on: Literal["trunk", "adapter", "model"] | None = None
    model: str | None = None
    learning_rate: Annotated[float, Range(0, open_low=True, finite=True)] | None = None
    updates: Annotated[int, Range(1)] = 1
    warmup_steps: Annotated[int, Range(0)] = 0
    clip: Annotated[float, Range(0, open_low=True, finite=True)] | None = 0.2
    lam: Annotated[float, Range(0, 1)] = 1.0
    freeze: list[Literal["attention", "embeddings", "mlp"]] = field(default_factory=list)
    lora_r: Annotated[int, Range(1)] | None = None
    lora_alpha: Annotated[float, Range(0, open_low=True, finite=True)] | None = None
    max_grad_norm: Annotated[float, Range(0, open_low=True, finite=True)] | None = 1.0
    weight_decay: Annotated[float, Range(0, finite=True)] = 0.0

    def kind(self, *, adapted: bool) -> str:
        """Return the trunk of the head in a run that trains LoRA adapters (``adapted``) or all weights."""
        return self.on or ("adapter" if adapted else "model")

    def rate(self, kind: str) -> float:
        """Return the learning rate of a critic of this kind."""
        return RATES[kind] if self.learning_rate is None else self.learning_rate


REWARD_MODEL = "reward_model"
"""The column of the reward table, the folder in ``output_dir``, and the prefix of metrics."""
DEFAULT_WEIGHT = 0.5
GOOD_STEP = 0.5
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


OPTIONS: Mapping[str, Any] = {
    "engine": EngineOptions,
    "rollout": RolloutOptions,
    "report": ReportOptions,
    "diagnosis": DiagnosisOptions,
    "critic": CriticOptions,
    "reward_model": RewardModelOptions,
}
"""The class of each field's options."""
DEAD_GROUPS: Mapping[str, Any] = {"keep": Keep, "resample": Resample, "roulette": Roulette, "replay": Replay}
"""The ways with dead groups, each with the class whose fields are its keywords."""
