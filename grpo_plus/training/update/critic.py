"""A critic in a trainer: values for the estimator, returns as targets, and its own updates."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grpo_plus.advantages import RewardTable
from grpo_plus.advantages.gae import generalised
from grpo_plus.advantages.table import token_rewards, values_of
from grpo_plus.engine.architecture import text_config
from grpo_plus.heads.adamw import OwnAdamW
from grpo_plus.heads.adapter import AdapterTrunk
from grpo_plus.heads.losses import explained_variance, value_loss
from grpo_plus.heads.own_model import ModelTrunk, compare_tokenizers
from grpo_plus.heads.passes import Passes, distributed_problems, rows_of
from grpo_plus.heads.scalar import ScalarHead, Stored, load_parts, tensors_of
from grpo_plus.heads.trunk import HeadError, PolicyTrunk, Trunk
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.settings import CriticOptions
from grpo_plus.training.hooks import CRITIC_FEATURES, CRITIC_VALUES, ScoredBatch, Setup, TrainerStage, local_rows
from grpo_plus.training.update.inner import InnerIterations
from grpo_plus.training.update.retry import Retry
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import plain_model, unwrapped_model
from grpo_plus.trl.rollout import mark_optimizer_step
from grpo_verifiers.errors import raise_all

CRITIC_RETURNS = "critic_returns"
"""Key of a generation batch: targets of the critic, (B, T); NaN in rows without a reward."""
ADAPTER = "critic"
"""The name of the critic's adapter."""
_BY = "critic warmup_steps"


class CriticError(RuntimeError):
    """The critic's values or gradient are NaN or infinite."""


class Critic(TrainerStage):
    """Computes values of each generation batch before the advantages, and updates itself after each optimizer step.

    An update is on the rows of that step, over the tokens of all ranks. In the first ``warmup_steps`` optimizer steps
    only the critic learns: the policy, its optimizer and its schedule stay unchanged.

    Memory: a pass has as many rows as the policy's. If it does not fit, the run ends with advice.
    """

    name = "critic"
    trunk: Trunk
    head: ScalarHead
    passes: Passes
    optimizer: OwnAdamW

    def __init__(self, options: CriticOptions, recipe: Recipe, retry: Retry, inner: InnerIterations) -> None:
        self.options = options
        self.updates = 0
        self._recipe = recipe
        reading = [chosen.keywords for chosen in recipe.estimator_parts if chosen.estimator.reads_values]
        self._gamma = float(reading[0].get("gamma", 1.0)) if reading else 1.0
        self._retry = retry
        self._inner = inner
        self._kind = ""
        self._micro: Mapping[str, Any] = {}
        self._rows: list[Mapping[str, Any]] = []
        self._marked = False
        self._warmed = False

    def problems(self, setup: Setup) -> list[str]:
        self._kind, options = self.options.kind(adapted=setup.adapted), self.options
        if self._kind == "adapter" and not setup.adapted:
            return [
                "critic has on: adapter, but the run trains no LoRA adapter: set use_peft (peft_config), or on: model."
            ]
        if options.on is None and self._kind == "adapter" and options.model is not None:
            return [f"critic has model ({options.model!r}), but a run with LoRA has it on an adapter: set on: model."]
        if options.on is None and self._kind == "model" and (options.lora_r or options.lora_alpha):
            return [
                "critic has lora_r or lora_alpha, but the run trains no LoRA adapter: remove them, or set use_peft."
            ]
        return []

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        raise_all(distributed_problems(host, "critic"))
        try:
            self.trunk = self._trunk(plain_model(host, host.model))
        except HeadError as error:
            raise_all([f"critic: {error}"])
        device = host.accelerator.device
        self.head = ScalarHead(self.trunk.hidden_size).to(device)
        recipe, options = self._recipe, self.options
        layout, bound = recipe.engine.layout, recipe.engine.tokens_per_pass
        self.passes = Passes.of(host, self.trunk, self.head, layout=layout, tokens_per_pass=bound)
        average = partial(host.accelerator.reduce, reduction="mean") if host.accelerator.num_processes > 1 else None
        self.optimizer = OwnAdamW(
            _named(self.head.named_parameters(), "head") | _named(self.trunk.named_parameters().items(), "trunk"),
            learning_rate=options.rate(self._kind),
            weight_decay=options.weight_decay,
            max_grad_norm=options.max_grad_norm,
            average=average,
        )

    def _trunk(self, plain: Any) -> Trunk:
        options, host = self.options, self.host
        if text_config(plain.config) is not plain.config:
            raise HeadError(f"{type(plain).__name__} is multimodal, and a critic reads texts alone: remove critic.")
        if self._kind == "trunk":
            return PolicyTrunk(plain)
        if self._kind == "adapter":
            rank, alpha = options.lora_r, options.lora_alpha
            seed = host.args.seed
            return AdapterTrunk(
                unwrapped_model(host), ADAPTER, rank=rank, alpha=alpha, freeze=options.freeze, seed=seed
            )
        name = options.model or getattr(plain.config, "_name_or_path", "")
        if not name:
            raise HeadError("the policy is a model in memory, with no name to load the critic from: set model.")
        keywords = {"attn_implementation": getattr(plain.config, "_attn_implementation", None)}
        init = host.args.model_init_kwargs
        if isinstance(init, dict):
            same = ("trust_remote_code", "revision") if options.model is None else ("trust_remote_code",)
            keywords |= {key: init[key] for key in same if key in init}
        trunk = ModelTrunk(
            name,
            vocabulary=len(host.processing_class),
            freeze=options.freeze,
            checkpointing=bool(host.args.gradient_checkpointing),
            device=host.accelerator.device,
            keywords=keywords,
        )
        if options.model is not None:
            compare_tokenizers(name, host.processing_class)
        return trunk

    def training(self) -> AbstractContextManager[None]:
        self._rows, self._marked = [], False
        return super().training()

    def add_values(self, batch: ScoredBatch) -> ScoredBatch:
        """Add the values of this rank's completions to the batch.

        Raises:
            CriticError: a value is NaN or infinite, on any rank.
        """
        host, output = self.host, batch.output
        training, args = host.model.training, host.args
        size = args.per_device_train_batch_size if training else args.per_device_eval_batch_size
        mask_BT = output["completion_mask"]
        with self._ending("the critic's values were computed"), torch.no_grad(), self.trunk.active():
            if self.trunk.trains or not training:
                values_BT = self.passes.values(*rows_of(output), batch_size=size)
            else:
                values_BT, features = self.passes.features(*rows_of(output), batch_size=size)
                batch = batch.adding(**{CRITIC_FEATURES: features})
        wrong = (~values_BT.isfinite() & mask_BT.bool()).sum()
        counts = host.accelerator.reduce(torch.stack([wrong, mask_BT.sum()]).double(), reduction="sum").tolist()
        if counts[0]:
            raise CriticError(
                f"the critic's values of {counts[0]:.0f} of {counts[1]:.0f} tokens are NaN or infinite, and the policy "
                "was not trained on them: lower critic learning_rate, or check its model."
            )
        return batch.adding(**{CRITIC_VALUES: values_BT})

    def add_returns(self, batch: ScoredBatch, table: RewardTable | None) -> ScoredBatch:
        """Add R_t = Â_t(λ) + V_t to the batch, for the critic's own λ; log values, returns and explained variance."""
        assert table is not None
        trainable_NT = table.trainable()
        values_NT = values_of(table)[:, : table.width]
        advantages_NT = generalised(token_rewards(table), values_NT, trainable_NT, self._gamma, self.options.lam)
        scorable_N1 = table.scorable()[:, None]
        returns_NT = (advantages_NT + values_NT.double() * trainable_NT).masked_fill(~scorable_N1, torch.nan)
        scored_NT = trainable_NT & scorable_N1
        if scored_NT.any():
            values, returns = values_NT[scored_NT].double(), returns_NT[scored_NT]
            metrics = {"critic/value": float(values.mean()), "critic/return": float(returns.mean())}
            if (explained := explained_variance(values, returns)) is not None:
                metrics["critic/explained_variance"] = explained
            log_metrics(self.host, metrics)
        rows, width = batch.output["completion_ids"].shape
        rank = self.host.accelerator.process_index
        return batch.adding(**{CRITIC_RETURNS: local_rows(returns_NT.float(), rank=rank, rows=rows, width=width)})

    def _ending(self, where: str) -> AbstractContextManager[None]:
        return self._retry.ending(where, lambda: _SMALLER)

    @property
    def warming(self) -> bool:
        """True if the present optimizer step trains the critic alone."""
        return bool(self.host.state.global_step < self.options.warmup_steps)

    def take(self, micro: Mapping[str, Any]) -> None:
        """Set the micro-batch that the next step trains on."""
        self._micro = micro

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Around a step: the critic's updates are on the rows of each trained micro-batch."""
        self._warmed = self.warming
        yield
        self._rows.append(self._micro)

    def without_policy(self) -> Tensor | None:
        """Return a zero loss while the critic warms up, when the policy does not run; None after it."""
        if not (self.host.model.training and self.warming):
            return None
        self._inner.leave_out_iteration()
        return torch.zeros((), device=self.host.accelerator.device, requires_grad=True)

    def on_optimizer_step(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        if self._warmed:
            mark_optimizer_step(optimizer, skipped=True, by=_BY)
            self._inner.passed += 1
        elif self._marked and not self._inner.stops:
            mark_optimizer_step(optimizer, skipped=False, by=_BY)
        self._marked = self._warmed

    def on_train_end(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
        if self._marked:
            mark_optimizer_step(optimizer, skipped=False, by=_BY)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        rows, self._rows = self._rows, []
        if self.options.warmup_steps:
            log_metrics(self.host, {"critic/warmup": float(self._warmed)})
        if rows:
            self._learn(rows)

    def _learn(self, rows: Sequence[Mapping[str, Any]]) -> None:
        accelerator = self.host.accelerator
        masks = [_target_mask(micro) for micro in rows]
        tokens = torch.stack([mask_BT.sum() for mask_BT in masks]).sum().double()
        count = float(accelerator.reduce(tokens, reduction="sum"))
        for _ in range(self.options.updates if count else 0):
            sums = torch.zeros(2, dtype=torch.float64, device=accelerator.device)
            with self._ending("the critic was updated"), self.trunk.active():
                for micro, mask_BT in zip(rows, masks, strict=True):
                    values_M, returns_M = self._values(micro, mask_BT), micro[CRITIC_RETURNS][mask_BT]
                    old_M = micro[CRITIC_VALUES][mask_BT]
                    loss_M, clipped_M = value_loss(values_M, returns_M, old_M, self.options.clip)
                    if loss_M.requires_grad:
                        (loss_M.sum() * (accelerator.num_processes / count)).backward()
                    sums += torch.stack([loss_M.detach().double().sum(), clipped_M.double().sum()])
            norm = self.optimizer.step()
            if norm - norm != 0.0:
                raise CriticError(
                    f"the critic's gradient has the norm {norm}: lower critic learning_rate, or check its model."
                )
            self.updates += 1
            loss, clipped = (accelerator.reduce(sums, reduction="sum") / count).tolist()
            log_metrics(self.host, {"critic/loss": loss, "critic/clipped": clipped, "critic/grad_norm": norm})

    def _values(self, micro: Mapping[str, Any], mask_BT: Tensor) -> Tensor:
        """Return the values of the masked tokens, with a gradient into the critic's own weights."""
        if CRITIC_FEATURES in micro:
            features_BTH = micro[CRITIC_FEATURES].to(self.host.accelerator.device)
            values_M: Tensor = self.head(features_BTH[mask_BT])
            return values_M
        return self.passes.values(*rows_of(micro))[mask_BT]

    @property
    def identity(self) -> str:
        return f"a critic on {self._kind}"

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "passed": self._inner.passed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.updates, self._inner.passed = int(state["updates"]), int(state["passed"])

    def tensors(self) -> dict[str, Tensor]:
        """The weights and the optimizer's state; the weights alone with ``save_only_model``."""
        parts = self._parts()
        if self.host.args.save_only_model:
            del parts["adamw"]
        return tensors_of(parts)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        load_parts(self._parts(), tensors)

    def _parts(self) -> dict[str, Stored]:
        return {"head": self.head, "trunk": self.trunk, "adamw": self.optimizer}


_SMALLER = (
    "A pass of the critic has as many tokens as one of the policy: lower per_device_train_batch_size, set "
    "tokens_per_pass of engine, or have the critic on less: critic {on: adapter} or {on: trunk}."
)


def _target_mask(micro: Mapping[str, Any]) -> Tensor:
    """Return the tokens of a micro-batch that the critic learns from: trained ones in rows with a reward."""
    mask_BT: Tensor = micro["completion_mask"].bool()
    if micro.get("tool_mask") is not None:
        mask_BT = mask_BT & micro["tool_mask"].bool()
    rewarded_BT: Tensor = ~micro[CRITIC_RETURNS].isnan()
    return mask_BT & rewarded_BT


def _named(parameters: Any, prefix: str) -> dict[str, Any]:
    return {f"{prefix}/{name}": parameter for name, parameter in parameters}
