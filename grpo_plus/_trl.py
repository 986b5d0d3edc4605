"""The seam to TRL: the releases that are supported, and every attribute and method of its trainer that is in use.

`Host` declares them once: mypy checks their use, and ``python -m grpo_plus._trl`` compares the declaration with the
source of the installed TRL and transformers. A release that changes one of them breaks here, by name.
"""

import ast
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import warnings
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence

    import torch
    from accelerate import Accelerator
    from torch import nn
    from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState
    from transformers.trainer_callback import CallbackHandler
    from trl import GRPOConfig

TESTED = ("1.14.2", "1.16.0")
"""TRL releases that the test suite was run with, oldest and newest."""

_OLDEST, _UNTESTED, _EXCLUDED = Version("1.14.2"), Version("1.17"), Version("1.15")
OVERRIDE = "GRPO_PLUS_ANY_TRL"
"""Environment variable that switches the version check off."""


Found = TypeVar("Found")


class Loop(Protocol):
    """The training loop of transformers: attributes and methods of ``Trainer`` in use."""

    _globalstep_last_logged: int
    _total_loss_scalar: float
    _tr_loss: "torch.Tensor"
    accelerator: "Accelerator"
    args: "GRPOConfig"
    callback_handler: "CallbackHandler"
    control: "TrainerControl"
    current_gradient_accumulation_steps: int
    eval_dataset: Any
    hub_model_id: str | None
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool
    lr_scheduler: Any
    model: "nn.Module"
    model_wrapped: "nn.Module"
    optimizer: Any
    processing_class: "PreTrainedTokenizerBase"
    state: "TrainerState"
    train_dataset: Any

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool: ...
    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]: ...
    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any: ...
    def _get_output_dir(self, trial: Any) -> str: ...
    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]: ...
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None: ...
    def _load_rng_state(self, checkpoint: str | None) -> None: ...
    def _maybe_log_save_evaluate(self, tr_loss: Any, grad_norm: Any, *further: Any, **keywords: Any) -> None: ...
    def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None: ...
    def add_callback(self, callback: "TrainerCallback") -> None: ...
    def evaluation_loop(self, dataloader: Any, description: str) -> Any: ...
    def is_world_process_zero(self) -> bool: ...
    def log(self, logs: dict[str, float], start_time: float | None = None) -> None: ...
    def push_to_hub(self, **kwargs: Any) -> Any: ...
    def remove_callback(self, callback: "type[TrainerCallback]") -> None: ...
    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...
    def train(self, resume_from_checkpoint: str | bool | None = None) -> Any: ...


class Card(Protocol):
    """The base of TRL's trainers: methods of ``_BaseTrainer`` in use."""

    def create_model_card(self, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None: ...


class Host(Loop, Card, Protocol):
    """TRL's trainer: attributes and methods of ``GRPOTrainer`` in use, and of the classes that it inherits from."""

    _buffered_inputs: list[dict[str, Any]] | None
    _current_train_step_time: float
    _entropy_window_stats: "torch.Tensor | None"
    _last_loaded_step: int
    _last_world_entropy: float
    _logs: "dict[str, Any]"
    _metrics: "dict[str, MutableMapping[str, list[float]]]"
    _step: int
    _sync_tool_dicts: list[dict[str, Any]]
    _tokenizer: "PreTrainedTokenizerBase"
    aux_loss_enabled: bool
    beta: float
    chat_template: str | None
    chat_template_kwargs: dict[str, Any]
    entropy_coef: float
    eos_token_ids: list[int]
    loss_type: str
    max_completion_length: int | None
    max_tool_calling_iterations: int
    num_generations: int
    num_generations_eval: int
    num_iterations: int
    pad_to_multiple_of: int | None
    ref_model: "nn.Module | None"
    off_policy_mask_threshold: float | None
    reward_func_names: list[str]
    reward_funcs: list[Any]
    reward_weights: "torch.Tensor"
    rollout_func: Any
    router_aux_loss_coef: float
    shuffle_dataset: bool
    temperature: float
    tools: list[Any]
    top_entropy_quantile: float
    use_adaptive_entropy: bool
    use_vllm: bool
    vllm_generation: Any

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any: ...
    def _compute_loss(self, model: Any, inputs: Any) -> "torch.Tensor": ...
    def _generate(self, prompts: Any) -> Any: ...
    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]: ...
    def _generate_single_turn(self, prompt_ids: Any) -> Any: ...
    def _get_per_token_logps_and_entropies(  # noqa: PLR0917 - the host's signature
        self,
        model: Any,
        input_ids: "torch.Tensor",
        attention_mask: "torch.Tensor",
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **further: Any,
    ) -> Any: ...
    def _log_metric(self, name: str, value: float) -> None: ...
    def _get_train_sampler(self, dataset: Any = None) -> Any: ...
    def _prepare_inputs(self, generation_batch: Any) -> Any: ...
    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any) -> Any: ...
    def _save_checkpoint(self, model: Any, trial: Any) -> None: ...
    def get_high_entropy_mask(
        self, entropies: "torch.Tensor", mask: "torch.Tensor", threshold: float
    ) -> "torch.Tensor": ...
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> "torch.Tensor": ...
    @staticmethod
    def get_off_policy_mask(
        advantages: "torch.Tensor",
        per_token_logps: "torch.Tensor",
        sampling_per_token_logps: "torch.Tensor",
        mask: "torch.Tensor",
        off_policy_threshold: float,
    ) -> "torch.Tensor": ...


class Generation(Protocol):
    """TRL's side of vLLM: attributes and methods of ``VLLMGeneration`` in use."""

    llm: Any

    def _iter_named_params(self) -> "Iterator[tuple[str, torch.Tensor]]": ...
    def sync_weights(self) -> None: ...


class Repeats(Protocol):
    """TRL's sampler of training data: attributes of ``RepeatSampler`` in use."""

    batch_size: int
    mini_repeat_count: int
    repeat_count: int

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Seam:
    """A class of the host, the file that it stands in, and the Protocol that names what is used of it."""

    package: str
    path: str
    name: str
    protocol: type

    @property
    def attributes(self) -> tuple[str, ...]:
        """Names that the class sets on itself."""
        return tuple(self.protocol.__annotations__)

    @property
    def methods(self) -> "dict[str, tuple[str, ...]]":
        """Names of the methods, each with the parameters that it must start with."""
        found = {}
        for name, member in vars(self.protocol).items():
            function = getattr(member, "__func__", member)  # of a static method
            if inspect.isfunction(function) and name != "__init__" and not name.startswith("__"):
                kinds = inspect.signature(function).parameters.values()
                found[name] = tuple(one.name for one in kinds if one.kind is one.POSITIONAL_OR_KEYWORD)
        return found


SEAMS = (
    Seam("transformers", "trainer.py", "Trainer", Loop),
    Seam("trl", "trainer/base_trainer.py", "_BaseTrainer", Card),
    Seam("trl", "trainer/grpo_trainer.py", "GRPOTrainer", Host),
    Seam("trl", "trainer/utils.py", "RepeatSampler", Repeats),
    Seam("trl", "generation/vllm_generation.py", "VLLMGeneration", Generation),
)
"""The classes that make up the host, each after those that it inherits from, its sampler and its side of vLLM."""

STEP_STATE = ("_current_train_step_time", "_entropy_window_stats", "_last_world_entropy", "_step", "entropy_coef")
"""Attributes of the host that a micro-batch changes."""

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
"""Further classes of TRL's command lines: the model and the data."""

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

    Gives problems by field, where both names are set and differ, and the values to be set. ``defaults`` are those of
    the new names, as far as they are known.
    """
    problems, renamed = {}, {}
    for old, new in OLD_NAMES.items():
        given = values.get(old)
        if not given or new not in values:
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
    if not is_supported(installed):
        raise UnsupportedTRLError(
            f"TRL {installed} is installed; this release of grpo_plus is tested with {TESTED[0]} to {TESTED[-1]} "
            "(without 1.15, whose fused head needs Triton even on a CPU). Install one of those: pip install "
            f"'trl=={TESTED[-1]}'. To try {installed} all the same, set {OVERRIDE}=1."
        )
    if not is_untested(installed):
        return
    if problems := seam_problems():
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


def seam_problems(sources: "Mapping[str, str] | None" = None) -> list[str]:
    """Members of `Host` that the installed TRL and transformers lack or have changed; empty when all are there.

    Reads the syntax trees of the files, so it neither imports them nor needs their dependencies. ``sources`` by the
    name of the class take the place of the installed ones.
    """
    inherited: dict[str, tuple[str, ...]] = {}
    assigned: set[str] = set()
    problems = []
    for seam in SEAMS:
        try:
            source = (sources or {}).get(seam.name) or source_file(seam.package, seam.path).read_text(encoding="utf-8")
        except OSError:
            problems.append(f"the file {seam.package}/{seam.path}, where {seam.name} stood, is gone")
            continue
        tree = ast.parse(source).body
        owner = next((node for node in tree if isinstance(node, ast.ClassDef) and node.name == seam.name), None)
        if owner is None:
            problems.append(f"the class {seam.name} is gone")
            continue
        inherited |= {node.name: _parameters(node) for node in owner.body if isinstance(node, ast.FunctionDef)}
        assigned |= {
            node.attr
            for node in ast.walk(owner)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value)
        }
        for name, expected in seam.methods.items():
            found = inherited.get(name)
            if found is None:
                problems.append(f"the method {name} is gone")
            elif not _fits(found, expected):
                problems.append(f"{name} takes ({', '.join(found)}), expected it to start with ({', '.join(expected)})")
        known = assigned | inherited.keys()
        problems += [f"the attribute self.{name} is gone" for name in seam.attributes if name not in known]
    return [*problems, *_head_problems(sources)]


_HEADS = "trl", "trainer/utils.py", "add_fused_lm_head"
_SCORES = "_ChunkedLogProbFunction"


def _head_problems(sources: "Mapping[str, str] | None") -> list[str]:
    """A fused head, where there is one, must score by the function that `fused_head` replaces."""
    package, path, name = _HEADS
    try:
        source = (sources or {}).get(name) or source_file(package, path).read_text(encoding="utf-8")
    except OSError:
        return []  # no head to replace anything in
    gone = f"def {name}(" in source and f"{_SCORES}.apply(" not in source
    return [f"{name} no longer scores by {_SCORES}"] if gone else []


_ANYTHING = ("*", "**")


def _parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    """The names of a method's parameters; ``*`` and ``**`` at the end where it passes on everything else."""
    signature = function.args
    names = tuple(argument.arg for argument in signature.args)
    return (*names, *_ANYTHING) if signature.vararg is not None and signature.kwarg is not None else names


def _fits(found: "Sequence[str]", expected: "Sequence[str]") -> bool:
    if tuple(found[-2:]) == _ANYTHING:
        return tuple(expected[: len(found) - 2]) == tuple(found[:-2])
    return tuple(found[: len(expected)]) == tuple(expected)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def source_file(package: str, path: str) -> Path:
    """A file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UnsupportedTRLError(f"{package} is not installed: pip install 'trl=={TESTED[-1]}'.")
    return Path(spec.origin).parent / path


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> "Iterator[Any]":
    """Give an attribute another value inside the block; gives the one that it had."""
    own = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield own
    finally:
        setattr(owner, name, own)


class _Single(int):
    """1 in every computation, and not below TRL's least number of generations."""

    def __lt__(self, other: int) -> bool:
        return False


def single_generation(config: Any) -> AbstractContextManager[Any]:
    """Let TRL's config check a single completion a prompt like any other number of them.

    TRL refuses it for the sake of its own advantages; whether those of the config can do with one is decided elsewhere.
    """
    return replaced(config, "num_generations", _Single(1)) if config.num_generations == 1 else nullcontext()


@contextmanager
def process_state_kept() -> "Iterator[None]":
    """Put back what accelerate holds of this process, which each training config made meanwhile sets anew."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    kept = [(one._shared_state, dict(one._shared_state)) for one in (PartialState, AcceleratorState, GradientState)]
    try:
        yield
    finally:
        for state, values in kept:
            state.clear()
            state.update(values)


def no_group(config: Any) -> AbstractContextManager[Any]:
    """Keep a ``ddp_backend`` from a process that no launcher started: without a group to join, it would be an error."""
    return replaced(config, "ddp_backend", config.ddp_backend if "WORLD_SIZE" in os.environ else None)


def group_size(host: Host) -> int:
    """Completions of each prompt in the present mode."""
    return host.num_generations if host.model.training else host.num_generations_eval


def metrics_of(host: Host) -> "MutableMapping[str, list[float]]":
    """TRL's metric lists of the present mode; what is appended is averaged and logged."""
    return host._metrics["train" if host.model.training else "eval"]


def log(host: Host, values: "Mapping[str, float]") -> None:
    """Add metrics to what the next log of the present mode averages."""
    lists = metrics_of(host)
    for name, value in values.items():
        lists[name].append(value)


RUN_TOTAL = "num_tokens"
"""The metric of TRL that is a count of the run so far, and replaces what stands there."""


def log_lists(host: Host, values: "Mapping[str, Sequence[float]]") -> None:
    """Add lists of metrics, which were kept apart, to what the next log of the present mode averages."""
    lists = metrics_of(host)
    for name, added in values.items():
        lists[name] = list(added) if name == RUN_TOTAL else [*lists[name], *added]


def log_training(host: Host, values: "Mapping[str, float]") -> None:
    """Add metrics to what the next log of training averages."""
    for name, value in values.items():
        host._metrics["train"][name].append(value)


def metric_logger(host: Host) -> "Callable[[str, float], None]":
    """The ``log_metric`` of TRL's reward functions: figures of this rank, averaged over all of them."""
    return host._log_metric


def replace_logged_advantages(host: Host, advantages_N: "torch.Tensor") -> None:
    """Put the advantages that are trained with into TRL's completion table, over the ones TRL computed."""
    logged = host._logs["advantages"]
    fresh = advantages_N.tolist()
    for _ in range(min(len(fresh), len(logged))):
        logged.pop()
    logged.extend(fresh)


def log_extra(host: Host, column: str, values: "Iterable[Any]") -> None:
    """Add a column to TRL's completion table, one value for every completion of all ranks, in its order."""
    host._logs["extra"][column].extend(values)


Table = dict[str, Any]
"""Rows of TRL's table of completions: columns, and mappings of further columns."""


@contextmanager
def logging_apart(host: Host) -> "Iterator[tuple[Table, dict[str, list[float]]]]":
    """Keep what the host logs of training meanwhile apart; gives its table of completions and its metrics."""
    from collections import defaultdict

    table: Table = {name: defaultdict(list) if isinstance(column, dict) else [] for name, column in host._logs.items()}
    lists: dict[str, list[float]] = defaultdict(list)
    logs, metrics = host._logs, host._metrics["train"]
    host._logs, host._metrics["train"] = table, lists
    try:
        yield table, lists
    finally:
        host._logs, host._metrics["train"] = logs, metrics


def extend_table(host: Host, rows: Table) -> None:
    """Add rows to the host's table of completions."""
    for name, values in rows.items():
        column = host._logs[name]
        if isinstance(column, dict):
            for key, further in values.items():
                column[key].extend(further)
        else:
            column.extend(values)


def each_column(change: "Callable[[Any], Any]", column: Any) -> Any:
    """A column of a table, or a mapping of further columns, each changed."""
    return {name: change(one) for name, one in column.items()} if isinstance(column, dict) else change(column)


def stop_ids(host: Host) -> list[int]:
    """Tokens that end a completion, or pad it: a completion whose last token is none of these was cut off."""
    return [*host.eos_token_ids, host._tokenizer.pad_token_id]


def pad_id(host: Host) -> int:
    """The token that pads prompts and completions."""
    found: int = host._tokenizer.pad_token_id
    return found


def text_of(host: Host, ids: "Sequence[int]") -> str:
    """Tokens as text, special ones as well."""
    return str(host._tokenizer.decode(list(ids)))


def repeats_of(sampler: Repeats) -> tuple[int, int, int, int]:
    """Of the host's sampler: prompts of a batch, copies of each, repeats of the batch, batches of a pass."""
    prompts, copies, repeats = sampler.batch_size, sampler.mini_repeat_count, sampler.repeat_count
    return prompts, copies, repeats, len(sampler) // (prompts * copies * repeats)


def parsed_turn(host: Host, row: int, ids: list[int], behind: list[int]) -> dict[str, Any]:
    """The message that TRL's loop over tools will make of a further turn of a row; empty of one without ids."""
    if not ids:
        return {}
    tools = host.tools
    if getattr(host, "environment_factories", None) is not None:
        named: Any = host
        tools = named._env_tools[named._batch_environments[row]]
    return message_read(host._tokenizer, ids, behind, tools)


def tool_tables(host: Host) -> list[dict[str, Any]]:
    """For each row of the drawing, the functions that TRL's loop over tools calls, by name."""
    return host._sync_tool_dicts


@dataclass(frozen=True)
class DrawnTurns:
    """Completions of several turns as TRL's loop over tools leaves them, before anything scores them.

    ``prompts`` are those that the rows were drawn behind, with what environments said at the start. ``mask`` is 1 for
    the model's own tokens. ``environments`` has the environment of each row, where there are any.
    """

    prompts: list[Any]
    prompt_ids: list[list[int]]
    ids: list[list[int]]
    mask: list[list[int]]
    completions: list[list[dict[str, Any]]]
    environments: list[Any] | None


class _DrawnError(Exception):
    """Leaves TRL's method once completions are drawn; holds them."""

    def __init__(self, found: DrawnTurns) -> None:
        super().__init__()
        self.found = found


class _Alone:
    """What TRL's drawing asks of accelerate, in a process that draws by itself."""

    is_main_process = True

    def __init__(self, device: Any) -> None:
        self.device = device

    @staticmethod
    def gather(values: Any) -> Any:
        """What this process has is all there is."""
        return values


def turn_drawer(
    host: Host,
    single_turn: "Callable[[list[list[int]]], list[list[int]]]",
    loop: "Callable[..., Any]",
    max_completion_length: int,
) -> Any:
    """TRL's drawing with the tools and environments of ``host``, for `draw_turns`.

    It shares the host's parts and changes none of its state: metrics, counters and the batch's tools are its own, and
    no other process takes part. ``single_turn`` draws one turn behind prompts; ``loop`` is given TRL's loop over tools
    to run, and the lists that it fills.
    """
    from collections import defaultdict
    from functools import partial

    from transformers import TrainerState
    from trl import GRPOTrainer

    class Drawer(GRPOTrainer):
        def __init__(self) -> None:  # the host has run TRL's own
            for name, value in vars(host).items():
                if not callable(getattr(Drawer, name, None)):
                    setattr(self, name, value)
            self.accelerator = _Alone(host.accelerator.device)
            self.state = TrainerState()
            self._metrics: dict[str, Any] = {mode: defaultdict(list) for mode in ("train", "eval")}
            self.use_vllm, self.rollout_func = False, None
            self.max_completion_length = max_completion_length

        def _generate(self, prompts: Any, *further: Any) -> Any:
            prompt_ids, ids, mask, completions, *_ = super()._generate(prompts, *further)
            raise _DrawnError(DrawnTurns(prompts, prompt_ids, ids, mask, completions, self.environments))

        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            return single_turn([list(ids) for ids in prompt_ids]), None

        def _tool_call_loop(
            self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *further: Any
        ) -> Any:
            run = partial(super()._tool_call_loop, prompts, prompt_ids, completion_ids, completions, *further)
            return loop(run, prompt_ids, completion_ids, completions)

    return Drawer()


def draw_turns(drawer: Any, rows: "Sequence[Mapping[str, Any]]") -> DrawnTurns:
    """Have TRL prepare and draw the rows as it does in training, up to where it would score them."""
    try:
        drawer._generate_and_score_completions([dict(row) for row in rows])
    except _DrawnError as drawn:
        return drawn.found
    raise AssertionError  # its _generate ends in the error


def tool_trainer(args: Any, tokenizer: Any, positions: int | None, **further: Any) -> Host:
    """TRL's trainer with tools and environments and a model of next to nothing, which nothing is drawn from.

    ``positions`` is how many tokens the model that does draw can read: TRL drops results that go beyond.
    """
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOTrainer

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=1, max_position_embeddings=positions or sys.maxsize)
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * 2, "environment": [""] * 2})
    host: Any = GRPOTrainer(
        LlamaForCausalLM(config),
        [lambda completions, **_: [0.0] * len(completions)],
        args,
        rows,
        processing_class=tokenizer,
        **further,
    )
    found: Host = host
    return found


def rewarding_environments(host: Host) -> list[str]:
    """The environments that give a reward of their own, as TRL names the rewards."""
    pools: Mapping[Any, list[Any]] = getattr(host, "_environment_pool", None) or {}
    kinds = [type(pool[0]) for pool in pools.values() if pool]
    return [kind.__name__ for kind in dict.fromkeys(kinds) if callable(getattr(kind, "get_reward", None))]


def gather_objects(rows: list[Any]) -> list[Any]:
    """The rows of all ranks, in their order."""
    from accelerate.utils import gather_object

    everywhere: list[Any] = gather_object(rows)
    return everywhere


def calling_tokenizer(tokenizer: Any) -> "tuple[Any, str | None]":
    """A copy of a tokenizer that reads calls of tools, and TRL's chat template for them; None: the tokenizer's own."""
    import copy

    from trl.chat_template_utils import (
        add_response_schema,
        get_training_chat_template,
        is_chat_template_prefix_preserving,
        supports_tool_calling,
    )

    if not supports_tool_calling(tokenizer):
        raise ValueError("the chat template cannot write a call of a tool with its result")
    made = copy.deepcopy(tokenizer)
    if all(getattr(made, name, None) is None for name in ("response_template", "response_schema")):
        made = add_response_schema(made)
    return made, None if is_chat_template_prefix_preserving(made) else get_training_chat_template(made)


def message_read(
    tokenizer: Any, ids: "Sequence[int]", behind: "Sequence[int]", tools: "Sequence[Any] | None" = None
) -> dict[str, Any]:
    """The message that TRL makes of a turn's ids, whatever trainer draws them."""
    from trl.chat_template_utils import parse_response

    # Older releases read arguments without the schemas of their tools.
    typed = {"tools": list(tools)} if tools and "tools" in inspect.signature(parse_response).parameters else {}
    message: dict[str, Any] = parse_response(tokenizer, list(ids), prefix=list(behind), **typed)
    return message


def result_ids(
    tokenizer: Any, template: str | None, keywords: "Mapping[str, Any]", messages: "Sequence[Mapping[str, Any]]"
) -> list[int]:
    """The ids that TRL's loop puts behind a turn that called: the results, and the opening of the next turn."""
    from types import SimpleNamespace

    from trl import GRPOTrainer

    trainer: Any = SimpleNamespace(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        _is_vlm=False,
        chat_template=template,
        chat_template_kwargs=dict(keywords),
    )
    found: list[int] = GRPOTrainer._get_tool_suffix_ids(trainer, [dict(message) for message in messages])
    return found


def supervised_trainer(model: str, settings: "Mapping[str, Any]", rows: Any, tokenizer: Any, **further: Any) -> "Loop":
    """TRL's trainer on completions whose ids are known: columns ``input_ids`` and ``completion_mask``."""
    from trl import SFTConfig, SFTTrainer

    trainer: Loop = SFTTrainer(
        model, args=SFTConfig(**settings), train_dataset=rows, processing_class=tokenizer, **further
    )
    return trainer


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
"""Inputs of a batch for the forward pass, beside tokens and masks."""


SUPPORT = "support"
"""The tokens that each completion token was drawn from, an item for each row of a batch; ours, and never TRL's."""


def score(
    host: Host, model: Any, inputs: "Mapping[str, Any]"
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]":
    """Log-probabilities, entropies and, where the config weights it, the MoE auxiliary loss of a micro-batch."""
    aux = {"compute_aux_loss": True} if host.aux_loss_enabled else {}
    logps, entropies, aux_loss = _score(host, model, inputs, compute_entropy=True, **aux)
    return logps, entropies, aux_loss if aux else None


def score_without_gradient(host: Host, inputs: "Mapping[str, Any]") -> "torch.Tensor":
    """Log-probabilities of a whole generation batch under the policy as it is."""
    import torch
    from trl.models.utils import disable_gradient_checkpointing

    args = host.args
    size = args.per_device_train_batch_size if host.model.training else args.per_device_eval_batch_size
    with torch.no_grad(), disable_gradient_checkpointing(host.model, args.gradient_checkpointing_kwargs):
        logps: torch.Tensor = _score(host, host.model, inputs, batch_size=size)[0]
    return logps


def _score(host: Host, model: Any, inputs: "Mapping[str, Any]", **keywords: Any) -> "tuple[Any, Any, Any]":
    import torch

    scored: tuple[Any, Any, Any] = host._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].size(1),
        **keywords,
        **{name: inputs[name] for name in (*FORWARD_INPUTS, SUPPORT) if inputs.get(name) is not None},
    )
    return scored


@dataclass(frozen=True)
class FusedHead:
    """What a model that scores its hidden states itself makes logits by (TRL 1.16)."""

    weight: "torch.Tensor"
    bias: "torch.Tensor | None"
    temperature: float
    softcap: float | None
    scale: float


@contextmanager
def fused_head(
    score: "Callable[[torch.Tensor, torch.Tensor, FusedHead], tuple[torch.Tensor, torch.Tensor]]",
) -> "Iterator[None]":
    """Have ``score`` take the place of the function that such a model scores by.

    It gets hidden states, targets and the head; returns log-probabilities and entropies.
    """
    import trl.trainer.utils as trl_utils

    called = False

    def apply(*given: Any) -> "tuple[torch.Tensor | None, ...]":
        nonlocal called
        called = True
        hidden, weight, bias, targets, temperature, _, softcap, scale, *outputs = given
        logps, entropies = score(hidden, targets, FusedHead(weight, bias, temperature, softcap, scale))
        return logps, entropies if not outputs or "entropy" in outputs[0] else None, None, None, None

    with replaced(trl_utils, _SCORES, type(_SCORES, (), {"apply": staticmethod(apply)})):
        yield
    if not called:
        raise UnsupportedTRLError(
            "log-probabilities within the support of top_p, top_k or min_p need a function of TRL that this release no "
            "longer calls. Set rollout: stock, or top_p 1.0, top_k 0 and min_p 0."
        )


@contextmanager
def scored_alone(scored_M: "torch.Tensor") -> "Iterator[None]":
    """Have such a model make logits of these positions alone, of all that it runs over; TRL does so on GPUs only."""
    import trl.trainer.utils as trl_utils

    own = getattr(trl_utils, _SCORES, None)
    if own is None:
        yield
        return

    def apply(hidden: "torch.Tensor", weight: Any, bias: Any, targets: "torch.Tensor", *rest: Any) -> Any:
        if len(hidden) != len(scored_M):  # chosen already
            return own.apply(hidden, weight, bias, targets, *rest)
        index = scored_M.to(hidden.device).nonzero()[:, 0]
        if not len(index):
            return own.apply(hidden, weight, bias, targets, *rest)
        found = own.apply(hidden[index], weight, bias, targets[index], *rest)
        return tuple(None if one is None else one.new_zeros(len(hidden)).index_put((index,), one) for one in found)

    with replaced(trl_utils, _SCORES, type(_SCORES, (), {"apply": staticmethod(apply)})):
        yield


def high_entropy_mask(host: Host, entropies: "torch.Tensor", mask: "torch.Tensor") -> "torch.Tensor | None":
    """The tokens that TRL's `top_entropy_quantile` keeps; None when it keeps all."""
    if host.top_entropy_quantile >= 1.0:
        return None
    return host.get_high_entropy_mask(entropies, mask, 1 - host.top_entropy_quantile)


def off_policy_mask(
    host: Host, inputs: "Mapping[str, Any]", logps: "torch.Tensor", mask: "torch.Tensor"
) -> "torch.Tensor | None":
    """1 where TRL's `off_policy_mask_threshold` keeps a completion; None when it is unset."""
    if host.off_policy_mask_threshold is None:
        return None
    sampled = inputs.get("sampling_per_token_logps", inputs.get("old_per_token_logps"))
    advantages = inputs["advantages"]
    return host.get_off_policy_mask(
        advantages=advantages if advantages.dim() == 2 else advantages.unsqueeze(1),
        per_token_logps=logps,
        sampling_per_token_logps=logps.detach() if sampled is None else sampled,
        mask=mask.long(),
        off_policy_threshold=host.off_policy_mask_threshold,
    )


def last_entropy(host: Host) -> float:
    """The entropy that TRL's adaptive entropy bonus goes by."""
    return float(host._last_world_entropy)


def set_last_entropy(host: Host, entropy: float) -> None:
    """Set the entropy that TRL's adaptive entropy bonus goes by."""
    host._last_world_entropy = entropy


def step_of(host: Host) -> int:
    """Micro-batches that TRL has trained on since the trainer was made."""
    return int(host._step)


def buffer(host: Host) -> list[dict[str, Any]] | None:
    """The micro-batches of the present generation batch; None: the next one draws them."""
    return host._buffered_inputs


def pass_over_step(host: Host) -> None:
    """Count a micro-batch that is not trained on, so that generation stays in phase; set the mode that it would."""
    host.model_wrapped.train()
    host._step += 1


def open_batch(host: Host) -> "list[dict[str, Any]] | None":
    """The micro-batches of a generation batch that is not used up yet; None between two of them."""
    block = host.args.steps_per_generation * host.num_iterations
    return host._buffered_inputs if host._step % block else None


def set_batch(host: Host, step: int, batch: "list[dict[str, Any]] | None") -> None:
    """Set the count of micro-batches, and those of the present generation batch."""
    host._step, host._buffered_inputs = step, batch
    host._current_train_step_time = 0.0


def between_logs(host: Host) -> "tuple[dict[str, Any], dict[str, torch.Tensor]]":
    """What the next log of training will say of the steps so far: JSON values, and tensors by name."""
    import torch

    logs, lists = host._logs, host._metrics["train"]
    state: dict[str, Any] = {"time": host._current_train_step_time} if host._current_train_step_time else {}
    tensors = {f"metrics/{name}": torch.tensor(values, dtype=torch.float64) for name, values in lists.items() if values}
    if host._globalstep_last_logged != host.state.global_step:
        state["logged"] = host._globalstep_last_logged
        tensors["loss"] = host._tr_loss
    if host.args.log_completions and host.accelerator.is_main_process and len(logs["prompt"]):
        state["table"] = {name: each_column(_listed, logs[name]) for name in _TABLE}
    return state, tensors


_TABLE = ("prompt", "completion", "rewards", "advantages", "extra")
"""TRL's table of completions, without images: columns, and mappings of further columns."""


def _listed(column: Any) -> Any:
    """A column as JSON values; images and the like are left out."""
    return json.loads(json.dumps(list(column), default=_plain, skipkeys=True))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else None


def set_between_logs(host: Host, state: "Mapping[str, Any]", tensors: "Mapping[str, torch.Tensor]") -> None:
    """Go on from what `between_logs` returned."""
    lists = host._metrics["train"]
    lists.clear()
    for name, values in tensors.items():
        if name.startswith("metrics/"):
            lists[name.removeprefix("metrics/")].extend(values.tolist())
    host._current_train_step_time = float(state.get("time", 0.0))
    if "logged" in state:
        host._globalstep_last_logged = int(state["logged"])
        host._tr_loss += tensors["loss"].to(host._tr_loss.device)
        host._total_loss_scalar -= float(host._tr_loss)  # the mean at the end is that of this call's steps
    _refill(host, state.get("table", {}))


def _refill(host: Host, table: Table) -> None:
    for name in table:
        host._logs[name].clear()
    extend_table(host, table)


def noted_logs(host: Host) -> "Callable[[], None]":
    """Note TRL's table and the history of logs; gives what puts them back."""
    table = {name: each_column(list, column) for name, column in host._logs.items()}
    length = len(host.state.log_history)

    def undo() -> None:
        _refill(host, table)
        del host.state.log_history[length:]

    return undo


def evaluates(host: Host) -> bool:
    """Evaluations are part of the run."""
    return bool(getattr(host.args.eval_strategy, "value", host.args.eval_strategy) != "no")


def evaluate_owed(host: Host, checkpoint: str) -> None:
    """Do the evaluation of the present step, in a run that resumes from the checkpoint of that step."""
    step = host.state.global_step
    if host._determine_best_metric(host._evaluate(None, None, skip_scheduler=step == 0), None):
        host.state.best_model_checkpoint = checkpoint


def load_random_state(host: Host, checkpoint: str) -> None:
    """Load the state of all generators from a checkpoint."""
    host._load_rng_state(checkpoint)


def mark_step(optimizer: Any, *, skipped: bool, by: str) -> None:
    """Tell the training loop whether the optimizer's last step was one: the schedule moves only then.

    Accelerate's mark for steps that a gradient scaler has skipped; an error without it names the settings ``by``.
    """
    optimizer._is_overflow = skipped
    if optimizer.step_was_skipped is not skipped:
        raise RuntimeError(f"the learning rate's schedule cannot be held with this version of accelerate: remove {by}.")


def save_checkpoint(host: Host) -> None:
    """Save a checkpoint of the step where the run stands, outside of the training loop."""
    host._save_checkpoint(host.model, trial=None)
    host.control = host.callback_handler.on_save(host.args, host.state, host.control)


def save_model(host: Host, folder: Path) -> None:
    """Save the model whole, without a push to the Hub; the host writes none where FSDP's checkpoints are in pieces."""
    with ExitStack() as around:
        if host.is_fsdp_enabled and (plugin := host.accelerator.state.fsdp_plugin) is not None:
            from torch.distributed.fsdp import StateDictType

            around.enter_context(replaced(plugin, "state_dict_type", StateDictType.FULL_STATE_DICT))
        host.save_model(str(folder), _internal_call=True)


def checkpoint_folder(host: Host, trial: Any) -> Path:
    """The folder of the checkpoint that is about to be saved."""
    return Path(host._get_output_dir(trial)) / f"checkpoint-{host.state.global_step}"


@contextmanager
def printable_table(shown: "Callable[[Any], Any]") -> "Iterator[None]":
    """TRL's table of completions prints texts as ``shown`` returns them."""
    from trl.trainer import grpo_trainer

    real = grpo_trainer.print_prompt_completions_sample

    def printed(prompts: "Iterable[Any]", completions: "Iterable[Any]", *rest: Any, **more: Any) -> None:
        if more.get("extra"):
            more["extra"] = {shown(name): shown(list(values)) for name, values in more["extra"].items()}
        real(shown(list(prompts)), shown(list(completions)), *rest, **more)

    with replaced(grpo_trainer, "print_prompt_completions_sample", printed):
        yield


def push_checkpoint(host: Host, folder: Path) -> None:
    """Push to the Hub what ``hub_strategy`` asks for after a checkpoint."""
    host._push_from_checkpoint(str(folder))


def from_main(find: "Callable[[], Found]") -> "Found":
    """What the main process finds, on all of them; so is the error that it raises."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    processes = PartialState()
    if processes.num_processes == 1:
        return find()
    told: list[Any] = [None, None]
    if processes.is_main_process:
        try:
            told[0] = find()
        except Exception as error:  # noqa: BLE001 - raised below, here and elsewhere
            told[1] = error
    broadcast_object_list(told)
    if told[1] is not None:
        raise told[1]
    found: Found = told[0]
    return found


def trainer_arguments(further: "Sequence[Any]", keywords: "Mapping[str, Any]") -> dict[str, Any]:
    """The arguments of TRL's trainer after ``eval_dataset``, by name."""
    from trl import GRPOTrainer

    first = (None,) * 6  # self, model, reward_funcs, args, train_dataset, eval_dataset
    return dict(list(inspect.signature(GRPOTrainer.__init__).bind(*first, *further, **keywords).arguments.items())[6:])


def draw_from(host: Host, server: Any) -> None:
    """Let TRL's own path for vLLM talk to ``server``, which has the two methods that it calls.

    TRL then treats its completions as vLLM's, with the importance sampling correction above all.
    """
    host.use_vllm = True
    host.vllm_generation = server
    host._last_loaded_step = -1


def vllm_made_by(make: "Callable[..., Any]") -> AbstractContextManager[Any]:
    """Have ``make`` called, with the same keywords, where TRL would make vLLM's ``LLM`` in this process."""
    import trl.generation.vllm_generation as theirs

    there = getattr(theirs, "LLM", None) is not None  # not without vLLM, which TRL then says
    return replaced(theirs, "LLM", make) if there else nullcontext()


def push_by(host: Host, push: "Callable[[], None]") -> None:
    """Have ``push`` called where TRL would bring the weights to the vLLM in this process."""
    host.vllm_generation.sync_weights = push


def weights_for_vllm(host: Host) -> "Iterator[tuple[str, torch.Tensor]]":
    """All weights of the policy as TRL gives them to vLLM, gathered and merged as need be; every rank must take all."""
    generation: Generation = host.vllm_generation
    yield from generation._iter_named_params()


def sampling_parameters(host: Host) -> dict[str, Any]:
    """The sampling options, in the words of a completion request to vLLM."""
    args = host.args
    parameters = {
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p or 0.0,
        "repetition_penalty": args.repetition_penalty,
        "max_tokens": host.max_completion_length,
        "stop_token_ids": [token for token in host.eos_token_ids if token is not None],
    }
    if args.vllm_structured_outputs_regex is not None:
        parameters["structured_outputs"] = {"regex": args.vllm_structured_outputs_regex}
    return {**parameters, **(args.generation_kwargs or {})}


def token_ids(host: Host, text: str) -> list[int]:
    """A text in the model's vocabulary, without what marks its ends."""
    ids: list[int] = host._tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids


def prompt_ids(host: Host, prompt: Any) -> list[int]:
    """The ids of a row's prompt, without tools; none where it is not of texts alone."""
    if isinstance(prompt, str):
        return [int(token) for token in host._tokenizer(prompt)["input_ids"]]
    messages = isinstance(prompt, list) and all(isinstance(message.get("content"), str) for message in prompt)
    if not messages or host._tokenizer.chat_template is None:
        return []
    keywords = host.args.chat_template_kwargs or {}
    ids: Any = host._tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True, **keywords)
    return [int(token) for token in ids["input_ids"]]


def unwrapped(host: "Loop") -> Any:
    """The model without the wrappers of accelerate; adapters stay around it."""
    return host.accelerator.unwrap_model(host.model)


def plain_model(host: Host, model: Any) -> Any:
    """The transformers model inside the wrappers of accelerate, torch.compile and PEFT."""
    model = host.accelerator.unwrap_model(model)
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def is_fsdp2(host: Host) -> bool:
    """FSDP2 holds the weights in pieces, which every pass gathers from all ranks."""
    return bool(host.is_fsdp_enabled and getattr(host.accelerator, "is_fsdp2", False))


def zero_stage(host: Host) -> int | None:
    """The stage of DeepSpeed ZeRO that the run is under; None without DeepSpeed."""
    plugin = getattr(host.accelerator.state, "deepspeed_plugin", None) if host.is_deepspeed_enabled else None
    return None if plugin is None else int(plugin.zero_stage)


@contextmanager
def without_hooks_of_zero3(host: Host) -> "Iterator[None]":
    """Passes within the block gather nothing under ZeRO-3: the weights are whole already."""
    from trl.models.utils import add_hooks, remove_hooks

    remove_hooks(host.model_wrapped)
    try:
        yield
    finally:
        add_hooks(host.model_wrapped)


def adapters_of(host: Host) -> dict[str, Any]:
    """The configs of the model's PEFT adapters by name; empty when it has none."""
    return getattr(unwrapped(host), "peft_config", None) or {}


def arranged(host: Host, inputs: Any, arrange: "Callable[[Any], None]") -> Any:
    """Let ``arrange`` reorder TRL's buffer in place; gives the micro-batch that is now in the place of ``inputs``."""
    if not host.model.training:
        return inputs
    arrange(host._buffered_inputs)
    assert host._buffered_inputs is not None
    return host._buffered_inputs[host._step % host.args.steps_per_generation]


def main() -> int:
    """Print what has changed in the installed TRL; exit code 1 when anything has."""
    version = importlib.metadata.version("trl")
    problems = seam_problems()
    print(f"TRL {version}: " + ("all seams as expected" if not problems else ""))
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
