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
from grpo_plus.heads.adamw import OwnAdamW
from grpo_plus.heads.adapter import AdapterTrunk
from grpo_plus.heads.own_model import ModelTrunk, compare_tokenizers
from grpo_plus.heads.passes import Passes, distributed_problems
from grpo_plus.heads.scalar import ScalarHead
from grpo_plus.heads.trunk import HeadError
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.reward_model.kind import HEADS, read_kind
from grpo_plus.reward_model.options import RewardModelOptions
from grpo_plus.reward_model.saved import write_whole
from grpo_plus.training.reward_scorer import Scorer
from grpo_verifiers.errors import ConfigError, raise_all
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

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
    """The model, its optimizer and its passes."""
    raise_all(distributed_problems(host, "reward_model"))
    device = host.accelerator.device
    tokenizer: Any = getattr(host.processing_class, "tokenizer", host.processing_class)
    try:
        trunk = _adapter(host, options) if on == "adapter" else _model(host, options, tokenizer)
        head = ScalarHead(trunk.hidden_size).to(device)
        if options.start is not None:
            _load(host, Path(options.start), options.head, trunk, head)
    except HeadError as error:
        raise ConfigError([f"reward_model: {error}"]) from error
    pad = int(tokenizer.pad_token_id)
    try:
        _blank(_saved_config(host, trunk, pad), options.head)
    except Exception as error:  # noqa: BLE001 - said now, since it would be known when all is trained
        first = str(error).partition("\n")[0]
        logger.warning("reward_model: it will be in checkpoints only, as transformers has no such model: %s", first)
    args: Any = host.args
    engine = recipe_of(args).engine
    passes = Passes.of(host, trunk, head, layout=engine.layout, tokens_per_pass=engine.tokens_per_pass)
    together = host.accelerator.num_processes > 1
    # Pairs say nothing about a level: its gradient is rounding, which Adam would make whole steps of.
    head.bias.requires_grad_(options.head == "process")
    heads = {f"head.{name}": one for name, one in head.named_parameters() if one.requires_grad}
    optimizer = OwnAdamW(
        trunk.named_parameters() | heads,
        learning_rate=options.learning_rate or RATES[on],
        average=(lambda tensor: host.accelerator.reduce(tensor, "mean")) if together else None,
    )
    rows = int(args.per_device_train_batch_size)
    return Scorer(passes, optimizer, pad=pad, rows=rows, device=device)


def _adapter(host: Host, options: RewardModelOptions) -> AdapterTrunk:
    rank, alpha = _rank_and_alpha(host, options)
    return AdapterTrunk(_trl.unwrapped(host), ADAPTER, rank=rank, alpha=alpha, seed=int(host.args.seed))


def _rank_and_alpha(host: Host, options: RewardModelOptions) -> tuple[int, float]:
    """Those of the options, or of the adapter that it starts from: with its scale, whatever the policy's divides by."""
    if options.start is None:
        return options.lora_r, 2.0 * options.lora_r
    kind, policy = read_kind(Path(options.start)), _policy_adapter(host)
    if kind.rslora is bool(policy.use_rslora):
        return kind.rank, kind.alpha
    return kind.rank, kind.alpha * kind.rank ** (0.5 if kind.rslora else -0.5)


def _policy_adapter(host: Host) -> LoraConfig:
    adapted: Any = _trl.unwrapped(host)
    config: LoraConfig = adapted.peft_config[adapted.active_adapters[0]]
    return config


def _model(host: Host, options: RewardModelOptions, tokenizer: Any) -> ModelTrunk:
    args: Any = host.args
    own = str(_trl.plain_model(host, host.model).config._name_or_path)  # noqa: SLF001 - transformers has no other name
    name = options.start or options.model or own
    if not name:
        raise HeadError("the policy was given as an object without a name: set model to a name or a folder.")
    given = args.model_init_kwargs or {}
    keywords = {key: given[key] for key in _INIT if key in given} if name == own else {}
    field = "start" if options.start else "model"
    if name != own:
        compare_tokenizers(name, tokenizer, field=field, may_differ=0.01)
    return ModelTrunk(
        name,
        vocabulary=len(tokenizer),
        checkpointing=bool(args.gradient_checkpointing),
        device=host.accelerator.device,
        keywords=keywords,
        field=field,
    )


def _check_base(host: Host, folder: Path) -> None:
    """Say that a saved adapter stood on another base, by its name."""
    there, here = read_kind(folder).base, str(_trl.plain_model(host, host.model).config._name_or_path)  # noqa: SLF001 - transformers has no other name
    if there and here and Path(there).expanduser().resolve() != Path(here).expanduser().resolve():
        text = "reward_model start (%s) was trained on %s, and stands on %s now: its scores are those of the first."
        logger.warning(text, folder, there, here)


def _load(host: Host, folder: Path, head_kind: str, trunk: AdapterTrunk | ModelTrunk, head: ScalarHead) -> None:
    """Go on from a saved reward model; a trunk of its own has its weights from there already."""
    if isinstance(trunk, AdapterTrunk):
        _check_base(host, folder)
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
    """Write the model, loadable by its folder as ``reward_model_name_or_path``."""
    about = {"head": options.head, "on": on, "trainings": trainings, "trained_by": "grpo-plus train"}

    def write(draft: Path) -> None:
        trunk, head = scorer.passes.trunk, scorer.passes.head
        config = _saved_config(host, trunk, scorer.pad)
        if on == "adapter":
            name = _blank(config, options.head)
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


def _saved_config(host: Host, trunk: Any, pad: int) -> Any:
    """The config that the saved model has, or that a saved adapter's base gets."""
    adapter = isinstance(trunk, AdapterTrunk)
    config = copy.deepcopy(_trl.plain_model(host, host.model).config if adapter else trunk.model.config)
    config.num_labels, config.pad_token_id = 1, pad
    return config


def _blank(config: Any, head: str) -> str:
    """The name of the head of a model for classification, made without weights; a ValueError where there is none."""
    with torch.device("meta"):
        return _head_name(_CLASSES[head].from_config(config))


def _adapter_config(host: Host, options: RewardModelOptions, head: str) -> LoraConfig:
    """That of the policy's adapter with the head among what is saved."""
    config: LoraConfig = copy.deepcopy(_policy_adapter(host))
    config.r, alpha = _rank_and_alpha(host, options)
    config.lora_alpha = int(alpha) if alpha.is_integer() else alpha
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
