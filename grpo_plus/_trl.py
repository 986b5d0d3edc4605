"""The only file, beside the trainer, that knows TRL: which versions were tested, and which seams are used.

Everything private that the project touches is named here once, so that a new TRL release breaks in one place and says
so. ``python -m grpo_plus._trl`` compares the installed TRL with what is written down.
"""

import ast
import importlib.metadata
import importlib.util
import os
import sys
import warnings
from contextlib import contextmanager
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import torch

    from grpo_plus.engine import Facts

TESTED = ("1.14.2", "1.16.0")
"""TRL releases that the whole test suite was run against, oldest and newest."""

_OLDEST, _UNTESTED, _EXCLUDED = Version("1.14.2"), Version("1.17"), Version("1.15")
OVERRIDE = "GRPO_PLUS_ANY_TRL"
"""Environment variable that turns the version error into nothing, for people who know what they do."""

SEAMS: "Mapping[str, Sequence[str]]" = {
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("self", "model", "inputs"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ),
    "_generate_single_turn": ("self", "prompt_ids"),
    "_log_metric": ("self", "name", "value"),
    "_prepare_inputs": ("self", "generation_batch"),
    "_save_checkpoint": ("self", "model", "trial"),
}
"""Methods of ``GRPOTrainer`` that are overridden or called, and the parameters they must start with."""

STATE = (
    "_buffered_inputs",
    "_current_train_step_time",
    "_entropy_window_stats",
    "_last_loaded_step",
    "_last_world_entropy",
    "_logs",
    "_metrics",
    "_step",
    "entropy_coef",
    "loss_type",
    "max_completion_length",
    "num_generations",
    "num_generations_eval",
    "num_iterations",
    "off_policy_mask_threshold",
    "reward_func_names",
    "reward_funcs",
    "reward_weights",
    "temperature",
    "top_entropy_quantile",
    "use_adaptive_entropy",
    "use_vllm",
    "vllm_generation",
)
"""Attributes that ``GRPOTrainer`` sets on itself and that are read or written."""


STEP_STATE = ("_current_train_step_time", "_entropy_window_stats", "_last_world_entropy", "_step", "entropy_coef")
"""Those of them that a micro-batch changes."""

CONFIG_SOURCES = (
    ("transformers", "training_args.py", "TrainingArguments"),
    ("trl", "trainer/base_config.py", "_BaseConfig"),
    ("trl", "trainer/grpo_config.py", "GRPOConfig"),
)
"""The classes that make up TRL's config, each after those that it inherits from."""

SCRIPT_SOURCES = (
    ("trl", "trainer/model_config.py", "ModelConfig"),
    ("trl", "scripts/utils.py", "ScriptArguments"),
    ("trl", "scripts/utils.py", "DatasetMixtureConfig"),
)
"""What TRL's command lines take beside it: the model and the data."""

OLD_NAMES = {
    "use_transformers_paged": "use_transformers_continuous_batching",
    "vllm_importance_sampling_cap": "vllm_importance_sampling_clip_max",
}
"""Deprecated fields of the host's config, and the fields that replaced them."""
MIRRORED = {
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Old names that have defaults of their own and follow the new name once that is set."""


def under_new_names(
    values: "Mapping[str, Any]", defaults: "Mapping[str, Any]"
) -> "tuple[dict[str, str], dict[str, Any]]":
    """Give what is set by an old name to the new one before anything is checked; the host does so after its checks.

    Args:
        values: of a config or a command line, by field.
        defaults: of the new names, as far as they are known.

    Returns:
        Problems by field, where both names are set and differ; and the values to be set.
    """
    problems, renamed = {}, {}
    for old, new in OLD_NAMES.items():
        given = values.get(old)
        if not given or new not in values:  # an older host knows the old name only
            continue
        if values[new] not in (given, defaults.get(new, given)):
            problems[old] = f"{old} ({given!r}) is the old name of {new} ({values[new]!r}): remove {old}."
        else:
            renamed[new] = given
    renamed |= {old: values[new] for old, new in MIRRORED.items() if values.get(new) is not None}
    return problems, renamed


def other_samplers(values: "Mapping[str, Any]") -> list[str]:
    """The fields, all names counted, that have completions drawn elsewhere than on the plain path."""
    names = ("use_vllm", "use_transformers_continuous_batching", "use_transformers_paged")
    return [name for name in names if values.get(name)]


class UnsupportedTRLError(ImportError):
    """The installed TRL is too old, excluded, or newer than tested and without a seam that is used."""


class UntestedTRLWarning(UserWarning):
    """The installed TRL is newer than any that the test suite ran with."""


def _release(version: str) -> Version:
    return Version(Version(version).base_version)  # 1.17.0.dev0 is what 1.17 will be, not what 1.16 was


def is_supported(version: str) -> bool:
    """A TRL release may be used: tested, or newer than that."""
    release = _release(version)
    return release >= _OLDEST and release.release[:2] != _EXCLUDED.release[:2]


def is_untested(version: str) -> bool:
    """A TRL release is newer than the newest one tested."""
    return _release(version) >= _UNTESTED


def check_version() -> None:
    """Refuse a TRL that cannot work; warn once of one newer than tested, after a look at its seams.

    Raises:
        UnsupportedTRLError: names the installed and the tested versions, what a newer one lacks, and the override.
    """
    try:
        installed = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedTRLError(f"TRL is not installed: pip install 'trl=={TESTED[-1]}'.") from error
    if os.environ.get(OVERRIDE) == "1":
        return
    if is_supported(installed):
        if is_untested(installed):
            _check_untested(installed)
        return
    raise UnsupportedTRLError(
        f"TRL {installed} is installed; this release of grpo_plus is tested with {TESTED[0]} to {TESTED[-1]} (without "
        f"1.15, whose fused head needs Triton even on a CPU). Install one of those: pip install 'trl=={TESTED[-1]}'. "
        f"To try {installed} all the same, set {OVERRIDE}=1."
    )


def _check_untested(installed: str) -> None:
    problems = seam_problems()
    if problems:
        raise UnsupportedTRLError(
            f"TRL {installed} is newer than {TESTED[-1]}, the newest release tested, and changed what grpo_plus builds "
            f"on: {'; '.join(problems)}. Install a tested one: pip install 'trl=={TESTED[-1]}'. To try {installed} all "
            f"the same, set {OVERRIDE}=1."
        )
    warnings.warn(
        f"TRL {installed} is newer than {TESTED[-1]}, the newest release tested. Every seam that grpo_plus uses is "
        f"there; if training behaves oddly, try pip install 'trl=={TESTED[-1]}'. {OVERRIDE}=1 silences this.",
        UntestedTRLWarning,
        stacklevel=2,
    )


def seam_problems(source: str | None = None) -> list[str]:
    """What the installed (or given) source of TRL's trainer lacks of what is relied on; empty when nothing.

    Reads the file's syntax tree, so it neither imports TRL nor needs its dependencies.
    """
    source = _trainer_source() if source is None else source
    trainer = next(
        (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "GRPOTrainer"),
        None,
    )
    if trainer is None:
        return ["the class GRPOTrainer is gone"]
    methods = {node.name: node for node in trainer.body if isinstance(node, ast.FunctionDef)}
    problems = []
    for name, expected in SEAMS.items():
        if name not in methods:
            problems.append(f"the method {name} is gone")
            continue
        signature = methods[name].args
        found = tuple(argument.arg for argument in signature.args)
        passes_on = signature.vararg is not None and signature.kwarg is not None  # (self, model, *args, **kwargs)
        if found[: len(expected)] != tuple(expected)[: len(found) if passes_on else None]:
            problems.append(f"{name} takes ({', '.join(found)}), expected it to start with ({', '.join(expected)})")
    written = {
        node.attr
        for node in ast.walk(trainer)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    problems += [f"the attribute self.{name} is gone" for name in STATE if name not in written]
    return problems


def _trainer_source() -> str:
    return source_file("trl", "trainer/grpo_trainer.py").read_text(encoding="utf-8")


def source_file(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UnsupportedTRLError(f"{package} is not installed: pip install 'trl=={TESTED[-1]}'.")
    return Path(spec.origin).parent / path


class _Single(int):
    """1 in every computation, and not below TRL's least number of generations."""

    def __lt__(self, other: int) -> bool:
        return False


@contextmanager
def single_generation(config: Any) -> "Iterator[None]":
    """Let TRL's config check a single completion a prompt like any other number of them.

    TRL refuses it for the sake of its own advantages; whether those of the config can do with one is decided elsewhere.
    """
    if config.num_generations != 1:
        yield
        return
    config.num_generations = _Single(1)
    try:
        yield
    finally:
        config.num_generations = 1


def metrics_of(trainer: Any) -> "dict[str, list[float]]":
    """TRL's metric lists of the present mode; what is appended is averaged and logged."""
    metrics: dict[str, list[float]] = trainer._metrics["train" if trainer.model.training else "eval"]
    return metrics


def log_training_metric(trainer: Any, name: str, value: float) -> None:
    """Add to what the next log of training averages."""
    trainer._metrics["train"][name].append(value)


def metric_logger(trainer: Any) -> "Callable[[str, float], None]":
    """What TRL hands to reward functions as ``log_metric``: figures of this rank, averaged over all of them."""
    log: Callable[[str, float], None] = trainer._log_metric
    return log


def replace_logged_advantages(trainer: Any, advantages_N: "torch.Tensor") -> None:
    """Put the advantages that are trained with into TRL's completion table, over the ones TRL computed."""
    logged = trainer._logs["advantages"]
    fresh = advantages_N.tolist()
    for _ in range(min(len(fresh), len(logged))):
        logged.pop()
    logged.extend(fresh)


def log_extra(trainer: Any, column: str, values: "Iterable[Any]") -> None:
    """Add a column to TRL's completion table, one value for every completion of all ranks, in its order."""
    trainer._logs["extra"][column].extend(values)


@contextmanager
def config_replaced(trainer: Any, args: Any) -> "Iterator[None]":
    """Let the host write down another config than the one it runs with."""
    whole, trainer.args = trainer.args, args
    try:
        yield
    finally:
        trainer.args = whole


def stop_ids(trainer: Any) -> list[int]:
    """Tokens that end a completion, or pad it: a completion whose last token is none of these was cut off."""
    tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    return [*_ends(trainer), tokenizer.pad_token_id]


def _ends(trainer: Any) -> list[int]:
    ends = getattr(trainer, "eos_token_ids", None)
    return [trainer.eos_token_id] if ends is None else list(ends)


def gather_objects(rows: list[Any]) -> list[Any]:
    """The rows of all ranks, in their order."""
    from accelerate.utils import gather_object

    everywhere: list[Any] = gather_object(rows)
    return everywhere


FORWARD_INPUTS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)
"""What a batch may hold for the forward pass beside tokens and masks."""


def score(
    trainer: Any, model: Any, inputs: "Mapping[str, Any]"
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]":
    """Log-probabilities, entropies and, where the config weights it, the MoE auxiliary loss of a micro-batch."""
    aux = {"compute_aux_loss": True} if getattr(trainer, "aux_loss_enabled", False) else {}
    logps, entropies, aux_loss = _score(trainer, model, inputs, compute_entropy=True, **aux)
    return logps, entropies, aux_loss if aux else None


def score_without_gradient(trainer: Any, inputs: "Mapping[str, Any]") -> "torch.Tensor":
    """Log-probabilities of a whole generation batch under the policy as it is."""
    import torch
    from trl.models.utils import disable_gradient_checkpointing

    args = trainer.args
    size = args.per_device_train_batch_size if trainer.model.training else args.per_device_eval_batch_size
    with torch.no_grad(), disable_gradient_checkpointing(trainer.model, args.gradient_checkpointing_kwargs):
        logps: torch.Tensor = _score(trainer, trainer.model, inputs, batch_size=size)[0]
    return logps


def _score(trainer: Any, model: Any, inputs: "Mapping[str, Any]", **keywords: Any) -> "tuple[Any, Any, Any]":
    import torch

    scored: tuple[Any, Any, Any] = trainer._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].size(1),
        **keywords,
        **{name: inputs[name] for name in FORWARD_INPUTS if inputs.get(name) is not None},
    )
    return scored


def high_entropy_mask(trainer: Any, entropies: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor | None":
    """The tokens that TRL's `top_entropy_quantile` keeps; None when it keeps all."""
    if trainer.top_entropy_quantile >= 1.0:
        return None
    kept: torch.Tensor = trainer.get_high_entropy_mask(entropies, mask, 1 - trainer.top_entropy_quantile)
    return kept


def off_policy_mask(
    trainer: Any, inputs: "Mapping[str, Any]", logps: "torch.Tensor", mask: "torch.Tensor"
) -> "torch.Tensor | None":
    """1 where TRL's `off_policy_mask_threshold` keeps a completion; None when it is unset."""
    if trainer.off_policy_mask_threshold is None:
        return None
    sampled = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
    advantages = inputs["advantages"]
    kept: torch.Tensor = trainer.get_off_policy_mask(
        advantages=advantages if advantages.dim() == 2 else advantages.unsqueeze(1),
        per_token_logps=logps,
        sampling_per_token_logps=logps.detach() if sampled is None else sampled,
        mask=mask.long(),
        off_policy_threshold=trainer.off_policy_mask_threshold,
    )
    return kept


def last_entropy(trainer: Any) -> float:
    """The entropy that TRL's adaptive entropy bonus goes by; checkpoints keep it."""
    return float(trainer._last_world_entropy)


def set_last_entropy(trainer: Any, entropy: float) -> None:
    """Set it."""
    trainer._last_world_entropy = entropy


def step_of(trainer: Any) -> int:
    """How many micro-batches TRL has trained on since the trainer was made."""
    return int(trainer._step)


def pass_over_step(trainer: Any) -> None:
    """Count a micro-batch that is not trained on, so that generation stays in phase."""
    trainer._step += 1


def mark_step(optimizer: Any, *, skipped: bool) -> None:
    """Tell the training loop whether the optimizer's last step was one: the schedule moves only then.

    Accelerate's mark for steps that a gradient scaler has skipped.
    """
    optimizer._is_overflow = skipped
    if optimizer.step_was_skipped is not skipped:
        raise RuntimeError(
            "stop_fraction cannot hold the learning rate's schedule with this version of accelerate: remove it."
        )


def update_facts(trainer: Any) -> "Facts":
    """What decides which rows of an update must run, and how they may be laid out."""
    import trl.trainer.utils as trl_utils

    from grpo_plus.engine import Facts, Head

    args, objective = trainer.args, getattr(trainer, "objective", None)
    adapters = getattr(trainer.accelerator.unwrap_model(trainer.model), "peft_config", None) or {}
    fused = hasattr(trl_utils, "add_fused_lm_head")  # since 1.16; before it, models give logits
    bonus = bool(trainer.entropy_coef != 0.0 or trainer.use_adaptive_entropy)
    targets = objective is not None and objective.makes_targets and not objective.kl_in_loss
    return Facts(
        kind=_kind_of_run(trainer),
        head=Head(fused, trainer.temperature, bonus) if fused or not args.use_liger_kernel else None,
        block=gcd(args.steps_per_generation, args.gradient_accumulation_steps),
        row_loss=objective is not None or trainer.loss_type != "bnpo",
        kl=objective is None and trainer.beta != 0.0,
        zero_is_idle=objective is None or objective.zero_advantage_means_zero_gradient or targets,
        driver="target_sign" if targets else "advantages",
        entropy_bonus=bonus,
        entropy_quantile=trainer.top_entropy_quantile < 1.0,
        router_loss=bool(getattr(trainer, "aux_loss_enabled", False)),
        noise=args.neftune_noise_alpha is not None,
        prompt_adapter=any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()),
    )


def _kind_of_run(trainer: Any) -> str | None:
    from accelerate.utils import DistributedType

    from grpo_plus.engine import REPLICATED, SHARDED, SINGLE

    accelerator = trainer.accelerator
    if getattr(accelerator, "parallelism_config", None) is not None or trainer.args.n_gpu > 1:
        return None
    if accelerator.distributed_type == DistributedType.FSDP:
        return SHARDED if getattr(accelerator, "is_fsdp2", False) else None
    if accelerator.distributed_type == DistributedType.NO:
        return SINGLE
    replicated = {DistributedType.MULTI_GPU, DistributedType.MULTI_CPU, DistributedType.MULTI_XPU}
    return REPLICATED if accelerator.distributed_type in replicated else None


def save_checkpoint(trainer: Any) -> None:
    """Save what a run goes on from, at the step where it stands, outside of the training loop."""
    trainer._save_checkpoint(trainer.model, trial=None)
    trainer.control = trainer.callback_handler.on_save(trainer.args, trainer.state, trainer.control)


def parts_with_state(trainer: Any) -> list[Any]:
    """What an objective keeps between micro-batches, and changes in a pass."""
    return [] if trainer.update is None else trainer.update.parts_with_state()


def adapter_arguments(further: "Sequence[Any]", keywords: "Mapping[str, Any]") -> dict[str, Any]:
    """The quantisation and adapter configs among the trainer's arguments after ``eval_dataset``."""
    import inspect

    from trl import GRPOTrainer

    names = list(inspect.signature(GRPOTrainer.__init__).parameters)[6:]
    given = dict(zip(names, further, strict=False)) | dict(keywords)
    return {name: given.get(name) for name in ("quantization_config", "peft_config")}


def draw_from(trainer: Any, server: Any) -> None:
    """Let TRL's own path for vLLM talk to ``server``, which has the two methods that it calls.

    What TRL does with completions from vLLM, the importance sampling correction above all, then applies to these.
    """
    trainer.use_vllm = True
    trainer.vllm_generation = server
    trainer._last_loaded_step = -1


def sampling_parameters(trainer: Any) -> dict[str, Any]:
    """How completions are drawn, in the words of a completion request to vLLM."""
    args = trainer.args
    found = {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p or 0.0,
        "repetition_penalty": args.repetition_penalty,
        "max_tokens": trainer.max_completion_length,
        "stop_token_ids": [token for token in _ends(trainer) if token is not None],
    }
    if args.vllm_structured_outputs_regex is not None:
        found["structured_outputs"] = {"regex": args.vllm_structured_outputs_regex}
    return {**found, **(args.generation_kwargs or {})}


def plain_model(trainer: Any, model: Any) -> Any:
    """The transformers model inside the wrappers of accelerate, torch.compile and PEFT."""
    model = trainer.accelerator.unwrap_model(model)
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def arranged(trainer: Any, inputs: Any, arrange: "Callable[[Any], None]") -> Any:
    """Let ``arrange`` reorder TRL's buffer in place; gives the micro-batch that is now in the place of ``inputs``."""
    if not trainer.model.training:
        return inputs
    arrange(trainer._buffered_inputs)
    return trainer._buffered_inputs[trainer._step % trainer.args.steps_per_generation]


def main() -> int:
    """Print what changed in the installed TRL; the exit code says whether anything did."""
    version = importlib.metadata.version("trl")
    problems = seam_problems()
    print(f"TRL {version}: " + ("all seams as expected" if not problems else ""))
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
