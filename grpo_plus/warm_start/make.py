"""Make a warm start with TRL's supervised trainer, or find the stored one."""

import gc
import math
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PrinterCallback, TrainerCallback

from grpo_plus.qlora.model import keep_layout
from grpo_plus.qlora.precision import float32_trainables
from grpo_plus.trl.fields import supervised_trainer
from grpo_plus.trl.ranks import broadcast_from_main, preserve_process_state, unwrapped_model
from grpo_plus.warm_start.examples import Examples
from grpo_plus.warm_start.store import Archive, WarmStart, identity
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.redaction import redact

FOLDER = "_warm_start"
"""Inside a run's folder; files with this prefix are not uploaded to the hub."""
_PAUSE = 30.0
"""Seconds between two lines about a long warm start."""
_OF_THE_RUN = (
    "use_cpu", "bf16", "fp16", "tf32", "gradient_checkpointing", "gradient_checkpointing_kwargs", "ddp_backend",
    "ddp_timeout", "ddp_find_unused_parameters", "trust_remote_code",
)  # fmt: skip
"""Settings of the run's config that say how a step is computed."""

_NO_MATTER = (
    "revision",
    "trust_remote_code",
    "attn_implementation",
    "device_map",
    "token",
    "cache_dir",
    "local_files_only",
)
"""Arguments of loading that the result does not depend on, or that the model's identity has."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Base:
    """The start of a warm start, as arguments of TRL; without an ``adapter`` all weights are trained."""

    model: str
    init: Mapping[str, Any] = field(default_factory=dict)
    quantisation: Any = None
    adapter: Any = None
    computing: Mapping[str, Any] = field(default_factory=dict)
    micro_batch: int = 8

    def settings(self) -> dict[str, Any]:
        """All that the result depends on, in words."""
        options = {key: str(redact(value, key)) for key, value in sorted(self.init.items()) if value is not None}
        init = {key: value for key, value in options.items() if key not in _NO_MATTER}
        quantisation = None if self.quantisation is None else str(sorted(self.quantisation.to_dict().items()))
        adapter = None if self.adapter is None else _plain(self.adapter.to_dict())
        named = broadcast_from_main(lambda: identity(self.model, self.init.get("revision")))
        return {"model": named, "loading": init, "quantisation": quantisation, "adapter": adapter}


def computing_of(args: Any) -> dict[str, Any]:
    """The settings of a run's config that say how a step is computed."""
    return {name: getattr(args, name) for name in _OF_THE_RUN if getattr(args, name, None) is not None}


def store_of(home: Path, start: Base, examples: Examples, options: WarmStart) -> Archive:
    """The place of this warm start."""
    settings: dict[str, Any] = {"rows": len(examples), "data": examples.fingerprint}
    settings |= {name: getattr(options, name) for name in ("steps", "batch_size", "learning_rate", "seed")}
    return Archive(home, {**start.settings(), **settings})


def obtain(  # noqa: PLR0917
    store: Archive,
    start: Base,
    examples: Examples,
    options: WarmStart,
    tokenizer: Any,
    tell: Tell,
    *,
    alone: bool = False,
    refused: str | None = None,
) -> Path:
    """The folder of the warm start, which is trained unless it exists. All processes of a run call it.

    ``alone`` removes other warm starts of that home; ``refused`` is the reason why none can be trained here.
    """
    state, why = broadcast_from_main(store.claim)
    if state == "busy":
        tell(f"warm start: another run is making {store.folder}; waiting for it.")
    while state == "busy":  # in turns: no collective may wait as long as another run trains
        state, why = broadcast_from_main(store.claim)
    if state == "there":
        tell(f"warm start: {headline(store.facts())}; reused from {store.folder}.")
        return store.folder
    try:
        if refused is not None:
            raise ConfigError([refused])
        tell(
            f"warm start: supervised training, {options.steps:,} steps of {options.batch_size} of {len(examples):,} "
            f"solutions with {examples.tokens:,} tokens ({why})."
        )
        facts = _make(store, start, examples, options, tokenizer, tell, alone=alone)
        tell(f"warm start: {headline(facts)}, {facts['seconds']:.0f} s; stored in {store.folder}.")
    finally:
        store.release()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return store.folder


def _make(  # noqa: PLR0917
    store: Archive, start: Base, examples: Examples, options: WarmStart, tokenizer: Any, tell: Tell, *, alone: bool
) -> dict[str, Any]:
    """Train and store; the memory is free again when this function ends."""
    model, facts = train(start, examples, options, tokenizer, tell)

    def save(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    broadcast_from_main(lambda: store.keep(save, facts, alone=alone))
    return facts


def headline(facts: Mapping[str, Any]) -> str:
    """Loss and length in a few words."""
    first, last = facts.get("first_loss", math.nan), facts.get("last_loss", math.nan)
    return f"loss {first:.3f} → {last:.3f} in {facts.get('steps', 0):,} steps"


def train(
    start: Base, examples: Examples, options: WarmStart, tokenizer: Any, tell: Tell
) -> tuple[Any, dict[str, Any]]:
    """The trained model (around it its adapter) and facts about the training; all processes of a run share it.

    Raises:
        ConfigError: the loss is not finite.
    """
    from accelerate import PartialState
    from datasets import Dataset

    began, share = time.monotonic(), options.batch_size // PartialState().num_processes
    pass_rows = max(size for size in range(1, min(share, start.micro_batch) + 1) if share % size == 0)
    curve = _Curve(options.steps, tell)
    # The run's own config is there already, and may compute on another device.
    with preserve_process_state(), TemporaryDirectory() as folder:
        trainer = supervised_trainer(
            start.model,
            {
                **start.computing,
                "output_dir": folder,
                "max_steps": options.steps,
                "per_device_train_batch_size": pass_rows,
                "gradient_accumulation_steps": share // pass_rows,
                "learning_rate": options.learning_rate,
                "lr_scheduler_type": "cosine",
                "warmup_steps": options.steps // 10,
                "adam_beta2": 0.95,
                "seed": options.seed,
                "dataloader_drop_last": True,
                "completion_only_loss": True,
                "max_length": None,
                "packing": False,
                "model_init_kwargs": dict(start.init),
                "save_strategy": "no",
                "report_to": "none",
                "disable_tqdm": True,
                "logging_strategy": "steps",
                "logging_steps": max(1, options.steps // 50),
                "logging_first_step": True,
                "logging_nan_inf_filter": False,
            },
            Dataset.from_dict({"input_ids": examples.ids, "completion_mask": examples.masks}),
            tokenizer,
            quantization_config=start.quantisation,
            peft_config=deepcopy(start.adapter),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.add_callback(curve)
        if start.quantisation is not None or getattr(trainer.model, "is_quantized", False):
            keep_layout(trainer.model)
            float32_trainables(trainer.model)
        trainer.train()
        curve.check_last(trainer.model)
        facts = {
            "steps": options.steps,
            "rows": len(examples),
            "tokens": examples.tokens,
            "cut": examples.cut,
            "first_loss": curve.losses[0],
            "last_loss": curve.losses[-1],
            "seconds": time.monotonic() - began,
        }
        return unwrapped_model(trainer).eval(), facts


class _Curve(TrainerCallback):
    """Notes the losses, and ends the training where one is not finite."""

    def __init__(self, steps: int, tell: Tell) -> None:
        self.losses: list[float] = []
        self._steps, self._tell, self._last = steps, tell, time.monotonic()

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_: Any) -> None:
        """A loss, the mean since the last one."""
        if "loss" not in (logs or {}):
            return
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise _not_finite(f"the loss is {loss} at step {state.global_step} of {self._steps}")
        self.losses.append(loss)
        if time.monotonic() - self._last > _PAUSE and state.global_step < self._steps:
            self._last = time.monotonic()
            self._tell(f"warm start: step {state.global_step:,} of {self._steps:,}, loss {loss:.3f}")

    @staticmethod
    def check_last(model: torch.nn.Module) -> None:
        """The last steps may not have been logged: look at the weights as well."""
        trained = (weight for weight in model.parameters() if weight.requires_grad)
        if not all(bool(torch.isfinite(weight).all()) for weight in trained):
            raise _not_finite("weights are not finite after the last step")


def _not_finite(problem: str) -> ConfigError:
    return ConfigError([f"warm_start: {problem}; nothing was stored. Lower its learning_rate, or use bf16, not fp16."])


def _plain(values: Mapping[str, Any]) -> dict[str, str]:
    ordered = {key: sorted(value) if isinstance(value, set) else value for key, value in values.items()}
    return {key: str(value) for key, value in sorted(ordered.items()) if value not in (None, {}, [], False)}
