"""A reward model made for a run, and written down so that others load it: as transformers and PEFT save theirs."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.heads import AdapterTrunk, HeadError, ModelTrunk, OwnAdamW, Passes, ScalarHead, distributed_problems
from grpo_plus.reward_model.kind import HEADS, read_kind
from grpo_plus.reward_model.options import RewardModelOptions
from grpo_plus.reward_model.saved import write_whole
from grpo_plus.training.reward_scorer import Scorer
from grpo_verifiers.errors import ConfigError, raise_all

ADAPTER = "reward"
"""The name of the adapter."""
RATES = {"adapter": 1e-4, "model": 1e-5}
"""Learning rates by kind."""
_CLASSES: Mapping[str, Any] = {
    "outcome": AutoModelForSequenceClassification,
    "process": AutoModelForTokenClassification,
}
_PREFIX = "base_model.model."
_INIT = ("trust_remote_code", "revision", "attn_implementation")


def make(host: Host, options: RewardModelOptions, on: str) -> Scorer:
    """The model, its optimizer and its passes.

    Raises:
        ConfigError: it cannot stand on this policy, or be trained in this kind of run.
    """
    raise_all(distributed_problems(host, "reward_model"))
    device = host.accelerator.device
    tokenizer: Any = getattr(host.processing_class, "tokenizer", host.processing_class)
    try:
        trunk = _adapter(host, options) if on == "adapter" else _model(host, options, len(tokenizer))
        head = ScalarHead(trunk.hidden_size).to(device)
        if options.start is not None:
            _load(Path(options.start), options.head, trunk, head)
    except HeadError as error:
        raise ConfigError([f"reward_model: {error}"]) from error
    args: Any = host.args
    passes = Passes.of(host, trunk, head, layout=args.engine, tokens_per_pass=args.engine_tokens_per_pass)
    together = host.accelerator.num_processes > 1
    # Pairs say nothing about a level: its gradient is rounding, which Adam would make whole steps of.
    head.bias.requires_grad_(options.head == "process")
    heads = {f"head.{name}": one for name, one in head.named_parameters() if one.requires_grad}
    optimizer = OwnAdamW(
        trunk.named_parameters() | heads,
        learning_rate=options.learning_rate or RATES[on],
        max_grad_norm=options.max_grad_norm,
        average=(lambda tensor: host.accelerator.reduce(tensor, "mean")) if together else None,
    )
    rows = int(args.per_device_train_batch_size)
    return Scorer(passes, optimizer, pad=int(tokenizer.pad_token_id), rows=rows, device=device)


def _adapter(host: Host, options: RewardModelOptions) -> AdapterTrunk:
    kind = None if options.start is None else read_kind(Path(options.start))
    rank, alpha = (options.lora_r, float(options.lora_alpha)) if kind is None else (kind.rank, kind.alpha)
    return AdapterTrunk(_trl.unwrapped(host), ADAPTER, rank=rank, alpha=alpha, seed=int(host.args.seed))


def _model(host: Host, options: RewardModelOptions, vocabulary: int) -> ModelTrunk:
    args: Any = host.args
    own = str(_trl.plain_model(host, host.model).config._name_or_path)  # noqa: SLF001 - transformers has no other name
    name = options.start or options.model or own
    if not name:
        raise HeadError("the policy was given as an object without a name: set model to a name or a folder.")
    given = args.model_init_kwargs or {}
    keywords = {key: given[key] for key in _INIT if key in given} if name == own else {}
    return ModelTrunk(
        name,
        vocabulary=vocabulary,
        checkpointing=bool(args.gradient_checkpointing),
        device=host.accelerator.device,
        keywords=keywords,
    )


def _load(folder: Path, head_kind: str, trunk: AdapterTrunk | ModelTrunk, head: ScalarHead) -> None:
    """Go on from a saved reward model; a trunk of its own has its weights from there already."""
    if isinstance(trunk, AdapterTrunk):
        saved = {
            name.removeprefix(_PREFIX): one for name, one in load_file(folder / "adapter_model.safetensors").items()
        }
        heads = {name: saved.pop(name) for name in list(saved) if "lora_" not in name}
        renamed = {_PREFIX + _named(name): one.float() for name, one in saved.items()}
        try:
            trunk.load_tensors(renamed)
        except ValueError as error:
            raise HeadError(
                f"start ({folder}) is an adapter on other layers than those of this run's: {error}."
            ) from error
    else:
        model = _CLASSES[head_kind].from_pretrained(folder)
        heads = dict(model.get_submodule(_head_name(model)).state_dict())
    tensors = {name.rpartition(".")[2]: one.detach().float() for name, one in heads.items()}
    weight = tensors["weight"]
    if weight.numel() != trunk.hidden_size:
        raise HeadError(
            f"start ({folder}) has a head of the shape {tuple(weight.shape)}, expected (1, {trunk.hidden_size})."
        )
    bias = tensors.get("bias", torch.zeros(1)).reshape(())
    head.load_tensors({"weight": weight.reshape(-1).cpu(), "bias": bias.cpu()})


def _named(name: str) -> str:
    """A weight of a saved adapter as PEFT names it in a model that has several."""
    stem, _, end = name.rpartition(".")
    return f"{stem}.{ADAPTER}.{end}"


def save(folder: Path, host: Host, scorer: Scorer, options: RewardModelOptions, on: str, *, trainings: int) -> None:
    """Write the model, loadable by its folder as ``reward_model_name_or_path``.

    Raises:
        OSError: it cannot be written.
    """
    about = {"head": options.head, "on": on, "trainings": trainings, "trained_by": "grpo-plus train"}

    def write(draft: Path) -> None:
        trunk, head = scorer.passes.trunk, scorer.passes.head
        config = copy.deepcopy(_trl.plain_model(host, host.model).config if on == "adapter" else trunk.model.config)
        config.num_labels, config.pad_token_id = 1, scorer.pad
        if on == "adapter":
            with torch.device("meta"):
                name = _head_name(_CLASSES[options.head].from_config(config))
            _adapter_config(host, options, name).save_pretrained(draft)
            weights = {key.replace(f".{ADAPTER}.", "."): one.contiguous() for key, one in trunk.tensors().items()}
            heads = {
                f"{_PREFIX}{name}.{key}": one for key, one in _rows_of(head, bias=options.head == "process").items()
            }
            save_file(weights | heads, draft / "adapter_model.safetensors", metadata={"format": "pt"})
        else:
            model = _CLASSES[options.head].from_config(config, dtype=torch.float32)
            model.base_model.load_state_dict(trunk.model.base_model.state_dict())
            linear = model.get_submodule(_head_name(model))
            linear.load_state_dict(_rows_of(head, bias=linear.bias is not None))
            model.save_pretrained(draft)
        host.processing_class.save_pretrained(draft)

    write_whole(folder, write, about)


def _adapter_config(host: Host, options: RewardModelOptions, head: str) -> LoraConfig:
    """That of the policy's adapter with the head among what is saved."""
    adapted: Any = _trl.unwrapped(host)
    config: LoraConfig = copy.deepcopy(adapted.peft_config[adapted.active_adapters[0]])
    kind = None if options.start is None else read_kind(Path(options.start))
    config.r, config.lora_alpha = (options.lora_r, options.lora_alpha) if kind is None else (kind.rank, int(kind.alpha))
    config.task_type = next(task for task, kind in HEADS.items() if kind == options.head)
    config.modules_to_save, config.lora_dropout, config.bias, config.use_dora = [head], 0.0, "none", False
    config.init_lora_weights, config.inference_mode = True, True
    config.rank_pattern, config.alpha_pattern = {}, {}
    return config


def _rows_of(head: ScalarHead, *, bias: bool) -> dict[str, Tensor]:
    """The head as the weights of a linear layer with one output."""
    found = head.tensors()
    rows = {"weight": found["weight"].reshape(1, -1)}
    return rows | {"bias": found["bias"].reshape(1)} if bias else rows


def _head_name(model: nn.Module) -> str:
    """The name of the linear layer behind the base of a model for classification."""
    names = [name for name in ("score", "classifier") if isinstance(getattr(model, name, None), nn.Linear)]
    if not names:
        raise HeadError(f"{type(model).__name__} has no linear head that could be saved or loaded.")
    return names[0]
