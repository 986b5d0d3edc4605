"""The facts of a training run that the engine needs, as plain values."""

from dataclasses import dataclass, field
from typing import Any

from grpo_plus.engine.arrange import block_size
from grpo_plus.engine.forward import Head
from grpo_plus.objectives import Objective
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import adapter_configs, zero_stage

SINGLE, REPLICATED, SHARDED = "single", "replicated", "sharded"
"""Kinds of runs: one process; a copy of the weights in every process (DDP, ZeRO-1 and 2); weights in pieces (FSDP2,
ZeRO-3). `None` means any other."""

_OWN_PASSES = {"SHADOW", "XLORA"}
"""PEFT's types of adapters that run additional layers over a row."""


@dataclass(frozen=True)
class Facts:
    """The settings of a run that exactness depends on.

    Attributes:
        kind: `SINGLE`, `REPLICATED` or `SHARDED`; None for untested distributed set-ups.
        head: how the model scores; None if it is unknown.
        block: micro-batches that share an optimizer step.
        row_loss: the loss is a sum over rows, so their order in micro-batches does not matter.
        kl: a KL term acts on every row, even at zero advantage.
        zero_is_idle: a row with zero driver adds nothing to the objective's gradient.
        driver: the value of the batch that drives the gradient of a row: its advantages, or the signs of its targets.
        entropy_bonus: the entropy is part of the loss.
        entropy_quantile: only the most uncertain tokens of a micro-batch are trained.
        router_loss: a load-balancing loss of a mixture of experts is part of the loss.
        noise: noise is added to the embeddings, which depends on the length of a pass.
        adapter: the effect of an adapter on complete rows, or None for adapters that act on single tokens.
    """

    kind: str | None = SINGLE
    head: Head | None = field(default_factory=Head)
    block: int = 1
    row_loss: bool = True
    kl: bool = False
    zero_is_idle: bool = True
    driver: str = "advantages"
    entropy_bonus: bool = False
    entropy_quantile: bool = False
    router_loss: bool = False
    noise: bool = False
    adapter: str | None = None

    def refusal(self) -> str | None:
        """Return the reason to run TRL's own path unchanged, or None."""
        if self.kind is None:
            return "this kind of distributed run has not been tried with it"
        if self.router_loss:
            return "the router's load-balancing loss is computed over all tokens of a micro-batch"
        if self.noise:
            return "the noise on embeddings (neftune_noise_alpha) depends on the length of a pass"
        return None if self.adapter is None else f"an adapter {self.adapter}"

    def fixed_rows(self) -> str | None:
        """Return the reason to leave rows in TRL's micro-batches, or None."""
        if not self.row_loss:
            return "loss_type='bnpo' divides by the tokens of each micro-batch"
        return self._over_tokens()

    def zero_matters(self) -> str | None:
        """Return the reason to run rows with zero advantage, or None."""
        if self.kl:
            return "the KL term (beta) pulls on every row"
        if not self.zero_is_idle:
            return "the objective gives rows of zero advantage a gradient"
        return self._over_tokens()

    def _over_tokens(self) -> str | None:
        if self.entropy_bonus:
            return "the entropy bonus is a mean over the tokens of a micro-batch"
        if self.entropy_quantile:
            return "top_entropy_quantile compares the tokens of a micro-batch"
        return None


def facts_of(host: Host, objective: Objective | None) -> Facts:
    """Return the current settings of a trainer's run."""
    import trl.trainer.utils as trl_utils

    args = host.args
    fused = hasattr(trl_utils, "add_fused_lm_head")  # since 1.16; before it, models give logits
    over_rows = [_over_rows(adapter) for adapter in adapter_configs(host).values()]
    bonus = bool(host.entropy_coef != 0.0 or host.use_adaptive_entropy)
    driver = "advantages"
    if objective is not None and not objective.kl_in_loss and (objective.makes_targets or objective.pulls_groups):
        driver = "target_sign" if objective.makes_targets else "group_pull"
    return Facts(
        kind=_kind_of_run(host),
        head=Head(fused, host.temperature, bonus) if fused or not args.use_liger_kernel else None,
        block=block_size(args.steps_per_generation, args.gradient_accumulation_steps),
        row_loss=objective is not None or host.loss_type != "bnpo",
        kl=objective is None and host.beta != 0.0,
        zero_is_idle=objective is None or objective.zero_advantage_means_zero_gradient or driver != "advantages",
        driver=driver,
        entropy_bonus=bonus,
        entropy_quantile=host.top_entropy_quantile < 1.0,
        router_loss=bool(host.aux_loss_enabled),
        noise=args.neftune_noise_alpha is not None,
        adapter=next((effect for effect in over_rows if effect is not None), None),
    )


def _over_rows(adapter: Any) -> str | None:
    """Return the effect of a PEFT config on complete rows; a trial misses it, as most new adapters change nothing."""
    if getattr(adapter, "is_prompt_learning", False):
        return "of prompt learning puts virtual tokens before every row"
    if getattr(adapter, "alora_invocation_tokens", None):
        return "starts where a row has its invocation tokens (aLoRA)"
    kind = str(getattr(getattr(adapter, "peft_type", None), "value", None))
    return f"of type {kind} makes passes of its own over a row" if kind in _OWN_PASSES else None


def _kind_of_run(host: Host) -> str | None:
    from accelerate.utils import DistributedType

    accelerator = host.accelerator
    if getattr(accelerator, "parallelism_config", None) is not None or host.args.n_gpu > 1:
        return None
    if accelerator.distributed_type == DistributedType.FSDP:
        return SHARDED if getattr(accelerator, "is_fsdp2", False) else None
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return _kind_under_deepspeed(host)
    if accelerator.distributed_type == DistributedType.NO:
        return SINGLE
    replicated = {DistributedType.MULTI_GPU, DistributedType.MULTI_CPU, DistributedType.MULTI_XPU}
    return REPLICATED if accelerator.distributed_type in replicated else None


def _kind_under_deepspeed(host: Host) -> str | None:
    """Return the kind by the stage of ZeRO, also for one process: DeepSpeed's gradient hooks are active there too."""
    config = host.accelerator.state.deepspeed_plugin.deepspeed_config
    if ((config.get("tensor_parallel") or {}).get("autotp_size") or 0) > 1:
        return None
    return SHARDED if zero_stage(host) == 3 else REPLICATED
