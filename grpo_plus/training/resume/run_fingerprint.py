"""The fingerprint of a run in its checkpoints: config, parts, rewards, data, model and processes, without secrets."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grpo_plus.qlora.model import bits_of, method_of
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.trl.fields import MIRRORED_FIELDS, RENAMED_FIELDS
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import adapter_configs, piece, plain_model, unwrapped_model, zero_stage
from grpo_verifiers.redaction import redact
from grpo_verifiers.stats import evenly

FREE = (
    *("output_dir", "run_name", "project", "trackio_", "log_", "logging_", "report", "disable_tqdm"),
    *("num_completions_to_print", "save_", "hub_", "push_to_hub", "diagnosis", "check"),
    *("resume_from_checkpoint", "overwrite_output_dir", "do_", "local_rank", "ddp_timeout", "dataloader_pin_memory"),
    *("vllm_server_", "vllm_group_port", "vllm_gpu_memory_utilization", "generation_batch_size"),
)
"""Prefixes of fields without effect on a result: paths, logging, saving, and derived fields."""
MOST_ROWS = 64
_MOST_WEIGHTS, _MOST_VALUES = 64, 256
_ADAPTER_LEFT_OUT = (
    *("base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "task_type", "peft_version"),
    *("init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
)
"""Keys of an adapter's config without effect after its creation."""
_MODEL_LEFT_OUT = (
    *("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache"),
    *("quantization_config", "attn_implementation", "_attn_implementation"),
)
"""Keys of a model's config that change no result, or are compared separately."""


def fingerprint(host: Host, recipe: Recipe, *, weights: str, optimizer: str | None) -> dict[str, Any]:
    """Return fields of the config by name, and the other parts of the run.

    ``weights`` is the digest of the model before any training; ``optimizer`` one that the config does not name.
    """
    rewards = zip(host.reward_func_names, host.reward_weights.tolist(), strict=True)
    return {
        **fields_of(host.args),
        "processes": host.accelerator.num_processes,
        "sharding": sharding_of(host),
        "optimizer": optimizer,
        "rewards": plain(dict(rewards)),
        "parts": parts_of(recipe),
        "data": data_of(host.train_dataset),
        "eval_data": data_of(host.eval_dataset),
        "model": model_of(host) | {"weights": weights},
        "adapters": adapters_of(host),
    }


def fields_of(args: Any) -> dict[str, Any]:
    """Return the fields of a config that can change a result."""
    left_out = {*RENAMED_FIELDS, *MIRRORED_FIELDS}
    values = {
        name: value for name, value in args.to_dict().items() if name not in left_out and not name.startswith(FREE)
    }
    # Values that their own conversion turns into None, such as accelerate's parallelism.
    values |= {name: getattr(args, name, None) for name, value in values.items() if value is None}
    fields: dict[str, Any] = plain(redact(values))
    return fields


def sharding_of(host: Host) -> str | None:
    """Return the sharding of the weights and the layout of its checkpoints: one kind cannot load the other's."""
    if host.is_deepspeed_enabled:
        return f"DeepSpeed ({'ZeRO-3' if zero_stage(host) == 3 else 'weights whole'})"
    if not host.is_fsdp_enabled:
        return None
    kind = getattr(host.accelerator.state.fsdp_plugin, "state_dict_type", None)
    return f"FSDP ({getattr(kind, 'name', kind)})"


def parts_of(recipe: Recipe) -> dict[str, Any]:
    """Return the parts of a recipe with all keywords and defaults, without paths of files."""
    parts: dict[str, Any] = {part.label: part.verifier.describe() for part in recipe.verifiers}
    if recipe.advantage is not None:
        parts["advantage"] = [recipe.advantage.estimator.name, recipe.advantage.keywords]
    if recipe.objective is not None:
        parts["objective"] = recipe.objective.formula()
    if recipe.selection is not None:
        parts["selection"] = [recipe.selection.selection.name, recipe.selection.keywords]
    return dict(_without_files(plain(redact(parts))))


def _without_files(value: Any) -> Any:
    """Drop sources: folders may be moved, and machines may have different ones."""
    if isinstance(value, dict):
        return {key: _without_files(item) for key, item in value.items() if key != "source"}
    return [_without_files(item) for item in value] if isinstance(value, list) else value


def data_of(data: Any) -> dict[str, Any] | None:
    """Return the columns, the length and a digest over some rows; no rows of a stream or another iterable."""
    import datasets

    if data is None:
        return None
    if isinstance(data, Mapping):
        return {str(name): data_of(one) for name, one in data.items()}
    columns = getattr(data, "column_names", None)
    facts: dict[str, Any] = {"columns": None if columns is None else sorted(columns)}
    if not hasattr(data, "__len__"):
        return facts
    facts["rows"] = len(data)
    if isinstance(data, datasets.Dataset):  # as stored: a user's transform might change the random state
        data = data.with_format("arrow")
        rows = (data[place].to_pylist() for place in evenly(range(len(data)), MOST_ROWS))
        facts["digest"] = _digest(json.dumps(plain(row), sort_keys=True) for row in rows)
    return facts


def model_of(host: Host) -> dict[str, Any]:
    """Return class, storage and config of the model, and digests of all and of trained parameters."""
    model = plain_model(host, host.model)
    bits, config = bits_of(model), getattr(model, "config", None)
    stored = f"{bits} bits" if bits else method_of(config)
    base = [(name, tensor) for name, tensor in model.named_parameters() if _is_base(host, name)]
    sampled = [base[place] for place in evenly(range(len(base)), _MOST_WEIGHTS)]
    trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    keys = config.to_diff_dict() if config is not None and hasattr(config, "to_diff_dict") else {}
    facts = {
        "class": type(model).__name__,
        "quantisation": stored,
        "dtype": str(getattr(model, "dtype", "")).removeprefix("torch."),
        "shapes": _digest(f"{_base_name(name)} {_shape(tensor)}" for name, tensor in base),
        "weights": _digest(_values(tensor) for _, tensor in sampled),
        "trained_shapes": _digest(f"{name} {_shape(tensor)}" for name, tensor in trained),
        "config": {key: value for key, value in keys.items() if key not in _MODEL_LEFT_OUT},
    }
    values: dict[str, Any] = plain(redact(facts))
    return values


def adapters_of(host: Host) -> dict[str, Any]:
    """Return the configs of the model's adapters by name, without the copy for a reference policy."""
    return {
        name: plain({key: value for key, value in config.to_dict().items() if key not in _ADAPTER_LEFT_OUT})
        for name, config in adapter_configs(host).items()
        if name != "ref"
    }


def plain(value: Any) -> Any:
    """Convert to JSON values: sets sorted, other types by their text or the name of the type."""
    return json.loads(json.dumps(value, default=_text))


def _text(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):  # numpy and torch
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    text = str(getattr(value, "value", value))
    return type(value).__name__ if " at 0x" in text else text


def _is_base(host: Host, name: str) -> bool:
    if not adapter_configs(host):
        return True
    prefix = getattr(getattr(unwrapped_model(host), "base_model", None), "prefix", "lora_")
    return prefix not in name and "modules_to_save" not in name


def _base_name(name: str) -> str:
    """Return the name of a parameter before an adapter wrapped its layer."""
    return name.replace(".base_layer", "").replace(".original_module", "")


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(getattr(tensor, "ds_shape", tensor.shape))  # DeepSpeed replaces a shard by an empty tensor


def _values(tensor: Tensor) -> str:
    """Return the first values of a tensor, or of this process's shard."""
    local = piece(tensor)
    return "" if local.is_meta else str(local.detach().flatten()[:_MOST_VALUES].float().cpu().tolist())


def _digest(texts: Any) -> str:
    return hashlib.sha256(b"".join(text.encode() + b"\n" for text in texts)).hexdigest()


def differences(then: Any, now: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """Return dotted name and both values of each difference of two plain values; unset and missing are equal."""
    old = {} if then is None and isinstance(now, dict) else then
    new = {} if now is None and isinstance(then, dict) else now
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [one for key in keys for one in differences(old.get(key), new.get(key), f"{name}.{key}".strip("."))]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now) and then:
        pairs = list(zip(then, now, strict=True))
        if all(isinstance(item, dict) for pair in pairs for item in pair):  # lists of values are compared as one value
            return [one for place, pair in enumerate(pairs) for one in differences(*pair, f"{name}[{place}]")]
    return [] if then == now or repr(then) == repr(now) else [(name, then, now)]
