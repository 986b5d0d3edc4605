"""The keys of ``engine``, ``rollout``, ``report`` and ``diagnosis``."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

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
