"""What a run is made of, as its checkpoints keep it: settings, data, rewards, model and adapters, without secrets."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.qlora.model import bits_of, method_of
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.training.pieces import piece
from grpo_plus.training.verification import evenly
from grpo_verifiers.redaction import redact

NO_RESULT: Mapping[str, tuple[str, ...]] = {
    "where a run lies and what it is called": (
        *("output_dir", "run_name", "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    ),
    "what is written down, and when": (
        *("logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter"),
        *("include_num_input_tokens_seen", "log_level", "log_level_replica", "disable_tqdm", "report_to", "debug"),
        *("log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts"),
        *("log_completions_hub_repo", "skip_memory_metrics", "record", "report_steps"),
        *("hacking_monitor", "stop_on"),
        *("save_only_model", "save_strategy", "save_steps", "save_on_each_node", "save_total_limit"),
        *("enable_jit_checkpoint", "push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy"),
        *("hub_always_push", "hub_revision"),
    ),
    "figures of evaluations, and the memory that they take": (
        *("prediction_loss_only", "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps"),
        *("include_for_metrics", "batch_eval_metrics"),
    ),
    "how the run is started": (
        *("resume_from_checkpoint", "restore_callback_states_from_checkpoint", "do_train", "do_eval", "do_predict"),
        *("local_rank", "ddp_timeout", "ddp_backend", "trust_remote_code"),
    ),
    "where the same work is done, and in how much memory": (
        *("dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor"),
        *("dataloader_multiprocessing_context", "torch_empty_cache_steps", "vllm_server_base_url", "vllm_server_host"),
        *("vllm_server_port", "vllm_server_timeout", "vllm_group_port", "vllm_gpu_memory_utilization"),
        *("vllm_enable_sleep_mode", "vllm_sync", "ds3_gather_for_generation"),
    ),
    "it follows from others: the batch size, the number of processes and steps_per_generation": (
        "generation_batch_size",
    ),
    "the old name of another field": (*_trl.OLD_NAMES, *_trl.MIRRORED),
}
"""Fields of the config that cannot change a result, by the reason."""

MOST_ROWS = 64
_MOST_WEIGHTS, _MOST_VALUES = 64, 256
_ADAPTER_LEFT_OUT = (
    *("base_model_name_or_path", "revision", "auto_mapping", "inference_mode", "task_type", "peft_version"),
    *("init_lora_weights", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
)
"""Keys of an adapter's config that count when it is made, or never."""
_MODEL_LEFT_OUT = (
    *("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache"),
    *("quantization_config", "attn_implementation", "_attn_implementation"),
)
"""Keys of a model's config that change no result, or are looked at by themselves."""


def settings_of(args: Any) -> dict[str, Any]:
    """The fields of a config that can change a result."""
    left_out = {name for names in NO_RESULT.values() for name in names}
    values = {name: value for name, value in args.to_dict().items() if name not in left_out}
    # A value that its own conversion makes None of, as that of accelerate's parallelism.
    values |= {name: getattr(args, name, None) for name, value in values.items() if value is None}
    found: dict[str, Any] = plain(redact(values))
    return found


def parts_of(recipe: Recipe) -> dict[str, Any]:
    """The parts of a recipe with all their keywords, those included that the config leaves at their defaults."""
    found: dict[str, Any] = {part.label: part.verifier.describe() for part in recipe.verifiers}
    if recipe.advantage is not None:
        found["advantage"] = [recipe.advantage.estimator.name, recipe.advantage.keywords]
    if recipe.objective is not None:
        found["objective"] = recipe.objective.formula()
    if recipe.selection is not None:
        found["selection"] = [recipe.selection.selection.name, recipe.selection.keywords]
    kept: dict[str, Any] = plain(redact(found))
    return kept


def data_of(data: Any) -> dict[str, Any] | None:
    """The columns, the length and a digest over some rows; of a stream, and of what may not be read twice, no rows."""
    import datasets

    if data is None:
        return None
    if isinstance(data, Mapping):
        return {str(name): data_of(one) for name, one in data.items()}
    columns = getattr(data, "column_names", None)
    found: dict[str, Any] = {"columns": None if columns is None else sorted(columns)}
    if not hasattr(data, "__len__"):
        return found
    found["rows"] = len(data)
    if isinstance(data, datasets.Dataset):  # as stored: a transform of the user's might draw from the random state
        data = data.with_format("arrow")
        rows = (data[place].to_pylist() for place in evenly(range(len(data)), MOST_ROWS))
        found["digest"] = _digest(json.dumps(plain(row), sort_keys=True) for row in rows)
    return found


def model_of(host: Host) -> dict[str, Any]:
    """Name, class, storage and config of the model, its parameters, and those of them that are trained."""
    model = _trl.plain_model(host, host.model)
    bits, config = bits_of(model), getattr(model, "config", None)
    stored = f"{bits} bits" if bits else method_of(config)
    base = [(name, tensor) for name, tensor in model.named_parameters() if _is_base(host, name)]
    sampled = [base[place] for place in evenly(range(len(base)), _MOST_WEIGHTS)]
    trained = [(name, tensor) for name, tensor in model.named_parameters() if tensor.requires_grad]
    keys = config.to_diff_dict() if config is not None and hasattr(config, "to_diff_dict") else {}
    found: dict[str, Any] = {
        "name": getattr(config, "_name_or_path", ""),
        "class": type(model).__name__,
        "quantisation": stored,
        "dtype": str(getattr(model, "dtype", "")).removeprefix("torch."),
        "parameters": sum(_size(tensor) for _, tensor in base),
        "shapes": _digest(f"{_base_name(name)} {_shape(tensor)}" for name, tensor in base),
        "weights": _digest(_values(tensor) for _, tensor in sampled),
        "trained": sum(_size(tensor) for _, tensor in trained),
        "trained_shapes": _digest(f"{name} {_shape(tensor)}" for name, tensor in trained),
        "config": {key: value for key, value in keys.items() if key not in _MODEL_LEFT_OUT},
    }
    kept: dict[str, Any] = plain(redact(found))
    return kept


def adapters_of(host: Host) -> dict[str, Any]:
    """The configs of the model's adapters by name; the copy that a reference policy is kept in is none of them."""
    found = {name: config.to_dict() for name, config in _trl.adapters_of(host).items() if name != "ref"}
    left_out = _ADAPTER_LEFT_OUT
    return {
        name: plain({key: value for key, value in keys.items() if key not in left_out}) for name, keys in found.items()
    }


def plain(value: Any) -> Any:
    """The value as JSON gives it back: sets sorted, and what JSON lacks by its own text or the name of its type."""
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
    """Whether a parameter is the base model's own, not an adapter's."""
    if not _trl.adapters_of(host):
        return True
    prefix = getattr(getattr(_trl.unwrapped(host), "base_model", None), "prefix", "lora_")
    return prefix not in name and "modules_to_save" not in name


def _base_name(name: str) -> str:
    """The name of a parameter as it was before an adapter wrapped its layer."""
    return name.replace(".base_layer", "").replace(".original_module", "")


def _shape(tensor: Any) -> tuple[int, ...]:
    return tuple(getattr(tensor, "ds_shape", tensor.shape))  # DeepSpeed leaves an empty tensor in place of a shard


def _size(tensor: Any) -> int:
    return int(getattr(tensor, "ds_numel", tensor.numel()))


def _values(tensor: Tensor) -> str:
    """The first values of a tensor, as far as they are on this process."""
    local = piece(tensor)
    return "" if local.is_meta else str(local.detach().flatten()[:_MOST_VALUES].float().cpu().tolist())


def _digest(texts: Any) -> str:
    whole = hashlib.sha256()
    for text in texts:
        whole.update(text.encode() + b"\n")
    return whole.hexdigest()


def differences(then: Any, now: Any, name: str = "") -> list[tuple[str, Any, Any]]:
    """The dotted names of what differs between two plain values, with both of them; unset and missing are one."""
    old = {} if then is None and isinstance(now, dict) else then
    new = {} if now is None and isinstance(then, dict) else now
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [one for key in keys for one in differences(old.get(key), new.get(key), f"{name}.{key}".strip("."))]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now) and then and _deep(then, now):
        return [
            one
            for place, pair in enumerate(zip(then, now, strict=True))
            for one in differences(*pair, f"{name}[{place}]")
        ]
    return [] if then == now or repr(then) == repr(now) else [(name, then, now)]


def _deep(*lists: Sequence[Any]) -> bool:
    """Lists of mappings, which are long; what differs between lists of values shows best where they stand whole."""
    return all(isinstance(item, dict) for one in lists for item in one)
