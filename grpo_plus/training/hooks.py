"""Types that all stages share: a run's arguments, a scored batch, a stage, and `Hook`, a stage of the user's own.

`grpo_plus.training.pipeline` calls them in order.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from peft import PeftConfig
from transformers import TrainerCallback

from grpo_plus.advantages import StepScores
from grpo_plus.sampling.decode import is_adapted
from grpo_plus.trl.host import Host
from grpo_plus.trl.scoring import SUPPORT
from grpo_verifiers.errors import Problem
from grpo_verifiers.errors.messages import counted, short
from grpo_verifiers.turns import Turn
from grpo_verifiers.verdict import Verdict

CRITIC_VALUES = "critic_values"
"""Key of a generation batch: a critic's value of the state before each token, (B, T); on every rank, or on none."""
CRITIC_FEATURES = "critic_features"
"""Key of a generation batch: hidden states (B, T, H) of the policy that sampled it, for a head on them."""
IN_MAIN_MEMORY = frozenset({CRITIC_FEATURES, SUPPORT})
"""Keys of a generation batch whose tensors stay off the device until they are read."""

PromptRow = Mapping[str, Any]
"""A row of the dataset."""
Prepare = Callable[[], Any]
"""Returns the inputs of a micro-batch."""
Compute = Callable[[Any, Mapping[str, Any]], torch.Tensor]
"""Returns the loss of a model on a micro-batch."""
Score = Callable[..., Any]
"""TRL's ``_get_per_token_logps_and_entropies``."""


@dataclass
class Setup:
    """Arguments of a trainer before anything loads; hooks may change them.

    The verifiers join ``reward_funcs``. ``further`` has all other arguments of TRL's trainer, by name.
    """

    model: Any
    reward_funcs: Any
    args: Any
    train_dataset: Any
    eval_dataset: Any
    further: dict[str, Any]

    @property
    def rows_may_grow(self) -> bool:
        """True with an environment or rollout function: they may add columns, so none can be called missing."""
        return any(self.further.get(name) is not None for name in ("rollout_func", "environment_factory"))

    @property
    def adapted(self) -> bool:
        """True if an adapter of PEFT is trained."""
        return is_adapted(self.model) or isinstance(self.further.get("peft_config"), PeftConfig)

    def datasets(self) -> Iterator[tuple[str, Any, Sequence[str]]]:
        """Yield name, rows and columns of each dataset that has column names."""
        for name in ("train_dataset", "eval_dataset"):
            data = getattr(self, name)
            for key, rows in data.items() if isinstance(data, Mapping) else [(None, data)]:
                columns = getattr(rows, "column_names", None)
                if columns is not None and not isinstance(columns, Mapping):
                    yield name if key is None else f"{name}[{key!r}]", rows, columns

    def add_rewards(self, functions: Sequence[Any]) -> None:
        """Append reward functions."""
        self.reward_funcs = [*_listed(self.reward_funcs), *functions]
        processors = self.further.get("reward_processing_classes")
        if processors is not None:  # TRL counts them
            self.further["reward_processing_classes"] = [*_listed(processors), *(None for _ in functions)]


def too_few_rows(rows: Any, args: Any) -> list[str]:
    """Refuse a dataset that fills no generation batch: TRL would end such a run before its first step."""
    prompts = args.generation_batch_size // args.num_generations
    if not hasattr(rows, "__len__") or len(rows) >= prompts:
        return []
    text = f"the dataset has {counted(len(rows), 'row')}, but a generation batch takes {prompts} prompts"
    remedy = "give it more rows, or lower per_device_train_batch_size or steps_per_generation"
    return [f"{text} (generation_batch_size / num_generations): {remedy}."]


def _listed(value: Any) -> list[Any]:
    """Return an argument that may be None, one object or several as a list."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


class CompletionRow(NamedTuple):
    """One row of `Completions`."""

    row: Mapping[str, Any]
    prompt: Any
    text: Any
    ids: Sequence[int]
    prompt_ids: Sequence[int] | None = None
    turns: Sequence[Turn] | None = None
    turn_tokens: Sequence[tuple[int, int]] | None = None

    def without_completion(self) -> "CompletionRow":
        """Return the row with an empty completion."""
        row = self._replace(text=type(self.text)(), ids=[])
        return row if self.turns is None else row._replace(turns=[], turn_tokens=[])


@dataclass(frozen=True)
class Completions:
    """One rank's part of a generation batch: texts as reward functions get them, ids as sampled.

    ``prompt_ids`` are None if a rollout function sampled. With tools, ``turns`` are the model's turns in each
    completion, and ``turn_tokens`` the span of tokens of each turn.
    """

    rows: Sequence[Mapping[str, Any]]
    prompts: Sequence[Any]
    texts: Sequence[Any]
    ids: Sequence[Sequence[int]]
    prompt_ids: Sequence[Sequence[int]] | None = None
    turns: Sequence[Sequence[Turn]] | None = None
    turn_tokens: Sequence[Sequence[tuple[int, int]]] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def each(self) -> list[CompletionRow]:
        fields = (self.rows, self.prompts, self.texts, self.ids, self.prompt_ids, self.turns, self.turn_tokens)
        columns = [[None] * len(self) if column is None else column for column in fields]
        return [CompletionRow(*values) for values in zip(*columns, strict=True)]

    @classmethod
    def of(cls, completions: Iterable[CompletionRow]) -> "Completions":
        """Build from rows; a column that any row lacks is None."""
        columns: list[Any] = [None if None in column else [*column] for column in zip(*completions, strict=True)]
        return cls(*columns)


@dataclass(frozen=True)
class ScoredBatch:
    """A scored generation batch, or a round of one, on its way through `grpo_plus.training.pipeline`.

    Attributes:
        completions: those of this rank.
        rewards: (N, K) of all ranks.
        verdicts: one a verifier, for each of this rank's rows.
        lengths: (N,) tokens of all ranks' completions; this and the next two are None without an estimator.
        truncated: (N,) completions that ran out of tokens.
        steps: step scores of all ranks' completions, for an estimator that reads them.
        output: TRL's tensors of this rank's rows, with the columns that stages have added.
        rounds: the rounds of sampling that the batch was joined from.
        replaced: for each group of all ranks, True if its prompt is an extra one; empty if none is.
    """

    completions: Completions
    rewards: torch.Tensor
    verdicts: Sequence[Sequence[Verdict]] = ()
    lengths: torch.Tensor | None = None
    truncated: torch.Tensor | None = None
    steps: StepScores | None = None
    output: Mapping[str, Any] = field(default_factory=dict)
    rounds: Sequence["ScoredBatch"] = ()
    replaced: Sequence[bool] = ()

    def adding(self, **columns: Any) -> "ScoredBatch":
        """Return the batch with columns of its output added or replaced."""
        return replace(self, output={**self.output, **columns})


def group_ids(count: int, num_generations: int, device: torch.device) -> torch.Tensor:
    """Return prompt-group ids in gathered order: groups are consecutive there, and may span ranks."""
    return torch.arange(count, device=device) // num_generations


def local_rows(advantages_N: torch.Tensor, *, rank: int, rows: int, width: int) -> torch.Tensor:
    """Return this rank's rows; per-token ones cut or padded to the rank's own completion width."""
    local = advantages_N[rank * rows : (rank + 1) * rows]
    if local.dim() == 1:
        return local.clone()
    fitted = local.new_zeros(rows, width)
    shared = min(width, local.size(1))
    fitted[:, :shared] = local[:, :shared]
    return fitted


Sample = Callable[[Sequence[PromptRow]], ScoredBatch]
"""Samples and scores a completion for each of this rank's rows; every rank must call it, with equally many rows."""


class TrainerStage(TrainerCallback):
    """A part of the trainer with its own checks, loading, training and checkpoints.

    A stage is a `TrainerCallback` as well: the training loop calls ``on_step_end`` and the like.

    A resumed run restores the values of `state_dict` and `tensors`, also in a stage that starts without state.

    Attributes:
        name: key of the state in checkpoints and part of a file name, unique in a run.
        state_version: raised when the meaning of the state changes; another version is refused.
        rank_local: every rank has a state of its own. A checkpoint then holds all of them.
        begins_anew: start empty if the checkpoint has no state of the stage, as one of TRL's own trainer.
        host: the trainer, once it is loaded.
    """

    name: str = ""
    state_version: int = 1
    rank_local: bool = False
    begins_anew: bool = False
    host: Host

    def problems(self, setup: Setup) -> Sequence[Problem]:  # noqa: ARG002 - for overriding, as below
        """Problems of the trainer's arguments. Those of all stages are reported together."""
        return []

    def before_loading(self, setup: Setup) -> None:
        """Called before TRL loads the model; may change the arguments."""

    def after_loading(self, host: Host) -> None:
        """Called once with the trainer and its loaded model."""
        self.host = host

    def training(self) -> AbstractContextManager[None]:
        """Context of ``train``; a checkpoint's state is loaded inside it, before the first step."""
        return nullcontext()

    def close(self) -> None:
        """Called at the end of training, also after an error."""

    @property
    def identity(self) -> str:
        """Owner of the state; a checkpoint with another identity is refused."""
        return self.name

    def state_dict(self) -> dict[str, Any]:
        """State between steps, as JSON values; a stage without any returns an empty mapping."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the value of `state_dict`.

        Raises:
            ValueError: the state does not fit, and the reason.
        """

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the state, saved as safetensors and never pickled."""
        return {}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the value of `tensors`, on the CPU; called after `load_state_dict`, if there were any.

        Raises:
            ValueError: they do not fit, and the reason.
        """


class Hook(TrainerStage):
    """A stage of your own, for ``GRPOPlusTrainer(hooks=[...])``; each method does nothing by default.

    Hooks are called in the order of the list; around a step or a loss the first one is outermost.
    """

    def prompts(self, rows: Sequence[PromptRow]) -> None:
        """See the rows whose completions are about to be sampled."""

    def scored(self, completions: Completions, rewards_NK: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """See and change all ranks' rewards; the last hook is called first."""
        return rewards_NK

    def sampled(self, batch: ScoredBatch) -> ScoredBatch:
        """See and change a round of sampling, before dead groups, weights of prompts and advantages."""
        return batch

    def batch(self, batch: ScoredBatch) -> None:
        """See the generation batch as it is trained on."""

    def step(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """One micro-batch of training, forward and backward; returns its loss."""
        return run()

    def loss(self, compute: Compute, model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The loss of a micro-batch."""
        return compute(model, inputs)


def check_hooks(hooks: Iterable[Hook]) -> list[Hook]:
    """Return the hooks as a list, or raise a TypeError if one of them is no hook."""
    listed = list(hooks) if isinstance(hooks, Iterable) else [hooks]
    if wrong := [hook for hook in listed if not isinstance(hook, Hook) or not isinstance(hooks, Iterable)]:
        raise TypeError(f"hooks has {wrong[0]!r}, expected a list of objects of grpo_plus.training.hooks.Hook.")
    return listed


def returned(value: Any, method: str, hooks: Sequence[Hook], like: Any = None) -> Any:
    """Return what hooks returned; raise a TypeError if it is no tensor, or not of the type and shape of ``like``."""
    kind = torch.Tensor if like is None else type(like)
    if (isinstance(value, kind) and (like is None or _shape(value) == _shape(like))) or not hooks:
        return value
    names = ", ".join(type(hook).__name__ for hook in hooks)
    rule = f"{method} of the hook {names} must return a {kind.__name__}{_shape(like)}"
    raise TypeError(f"{rule}; it returned {f'the shape{_shape(value)}' if _shape(value) else short(value)}.")


def _shape(value: Any) -> str:
    return f" {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""


def name_problems(stages: Iterable[TrainerStage]) -> list[str]:
    """Return the stages whose state a checkpoint could not distinguish from another's."""
    problems: list[str] = []
    named: dict[str, str] = {}
    for stage in stages:
        kind, of_class = type(stage).__name__, type(stage)
        has_state = of_class.state_dict is not TrainerStage.state_dict or of_class.tensors is not TrainerStage.tensors
        if not stage.name and has_state:
            problems.append(f"the hook {kind} has state to save, but it has no name: set its name.")
        elif stage.name and not re.fullmatch(r"\w[\w.-]*", stage.name):
            problems.append(f"the hook {kind} is named {stage.name!r}, expected letters, digits, '_', '-' and '.'.")
        elif stage.name in named:
            problems.append(
                f"the hooks {named[stage.name]} and {kind} are both named {stage.name!r}: set another name."
            )
        if stage.name:
            named.setdefault(stage.name, kind)
    return problems
