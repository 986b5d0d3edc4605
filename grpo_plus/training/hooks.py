"""Hooks: small objects that take part in a run, each with the state that its checkpoints keep.

`GRPOPlusTrainer` calls them in the order of its list. A seam that wraps something (``inputs``, ``step``, ``loss``,
``logps``, a context) has the first hook outermost. A hook that needs another one before it declares that in ``after``;
a list in the wrong order is refused.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from peft import PeftConfig
from transformers import TrainerCallback

from grpo_plus.sampling.decode import is_adapted
from grpo_plus.trl.host import Host
from grpo_verifiers.errors import Problem
from grpo_verifiers.turns import Turn

Prepare = Callable[[], Any]
"""Makes the inputs of a micro-batch."""
Compute = Callable[[Any, Mapping[str, Any]], torch.Tensor]
"""Gives the loss of a model on a micro-batch."""
Draw = Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]
"""Draws and scores a completion for each of this rank's rows; every rank must call it, with equally many rows."""


@dataclass
class Setup:
    """Arguments of a trainer before anything loads, as given to it; hooks may change them.

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
        """An environment or rollout function may add columns, so that none can be called missing."""
        return any(self.further.get(name) is not None for name in ("rollout_func", "environment_factory"))

    @property
    def adapted(self) -> bool:
        """An adapter of PEFT is trained."""
        return is_adapted(self.model) or isinstance(self.further.get("peft_config"), PeftConfig)

    def datasets(self) -> Iterator[tuple[str, Any, Sequence[str]]]:
        """Name, rows and columns of each dataset that says which columns it has."""
        for field in ("train_dataset", "eval_dataset"):
            data = getattr(self, field)
            for key, rows in data.items() if isinstance(data, Mapping) else [(None, data)]:
                columns = getattr(rows, "column_names", None)
                if columns is not None and not isinstance(columns, Mapping):
                    yield field if key is None else f"{field}[{key!r}]", rows, columns

    def add_rewards(self, functions: Sequence[Any]) -> None:
        """Put reward functions after those that are there."""
        self.reward_funcs = [*_listed(self.reward_funcs), *functions]
        processors = self.further.get("reward_processing_classes")
        if processors is not None:  # TRL counts them
            self.further["reward_processing_classes"] = [*_listed(processors), *(None for _ in functions)]

    def too_few_rows(self) -> list[Problem]:
        """A dataset that fills no generation batch: TRL would end such a run before its first step."""
        data, args = self.train_dataset, self.args
        prompts = args.generation_batch_size // args.num_generations
        if not hasattr(data, "__len__") or len(data) >= prompts:
            return []
        text = f"the dataset has {len(data)} rows, but a generation batch takes {prompts} prompts"
        remedy = "give it more rows, or lower per_device_train_batch_size or steps_per_generation"
        return [f"{text} (generation_batch_size / num_generations): {remedy}."]


def _listed(given: Any) -> list[Any]:
    """Arguments of TRL that may be none, one or several."""
    return [] if given is None else list(given) if isinstance(given, list | tuple) else [given]


class Completion(NamedTuple):
    """One row of `Completions`."""

    row: Mapping[str, Any]
    prompt: Any
    text: Any
    ids: Sequence[int]
    prompt_ids: Sequence[int] | None = None
    turns: Sequence[Turn] | None = None
    turn_tokens: Sequence[tuple[int, int]] | None = None

    def emptied(self) -> "Completion":
        """The same prompt, with nothing drawn."""
        found = self._replace(text=type(self.text)(), ids=[])
        return found if self.turns is None else found._replace(turns=[], turn_tokens=[])


@dataclass(frozen=True)
class Completions:
    """One rank's part of a generation batch: texts as reward functions see them, ids as sampled.

    ``prompt_ids`` are what the completions were drawn behind; None where a rollout function has drawn them. Where there
    are tools, ``turns`` are what the model did in each completion, and ``turn_tokens`` the span of tokens of each turn.
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

    def each(self) -> list[Completion]:
        """Its rows."""
        columns = [[None] * len(self) if column is None else column for column in self._columns()]
        return [Completion(*values) for values in zip(*columns, strict=True)]

    @classmethod
    def of(cls, completions: Iterable[Completion]) -> "Completions":
        """Of rows from wherever; a column that is not known of all of them is None."""
        columns: list[Any] = [None if None in column else [*column] for column in zip(*completions, strict=True)]
        return cls(*columns)

    def _columns(self) -> tuple[Any, ...]:
        return self.rows, self.prompts, self.texts, self.ids, self.prompt_ids, self.turns, self.turn_tokens


class Hook(TrainerCallback):
    """Part of a run. Subclass it and override what is needed; every method does nothing by default.

    A hook is a `TrainerCallback` as well: ``on_step_end`` and the like are called by the training loop.

    What a resumed run needs goes through `state_dict`, and its tensors through `tensors`; each has a counterpart that
    loads it. A hook without any at the start is found all the same where a checkpoint has some.

    Attributes:
        name: key of the state in checkpoints and part of a file name, unique in a run.
        after: class names (one, or several) of hooks that must come before this one, if the run has them.
        state_version: raised when the meaning of the state changes; another version is refused.
        rank_local: every rank has a state of its own. A checkpoint then holds all of them.
        begins_anew: without a state in the checkpoint, as in one of TRL's own trainer, the hook starts from nothing.
        learns_at_step_end: its tensors change in ``on_step_end`` only, so that nobody has to copy them in between.
        host: the trainer, once it is loaded.
    """

    name: str = ""
    after: str | tuple[str, ...] = ()
    state_version: int = 1
    rank_local: bool = False
    begins_anew: bool = False
    learns_at_step_end: bool = False
    host: Host

    def problems(self, setup: Setup) -> Sequence[Problem]:  # noqa: ARG002 - for overriding, as below
        """Problems of the trainer's arguments. Those of all hooks are reported together."""
        return []

    def before_loading(self, setup: Setup) -> None:
        """Called before TRL loads the model; may change the arguments."""

    def loading(self, args: Any) -> AbstractContextManager[None]:  # noqa: ARG002
        """Context of TRL's own ``__init__``."""
        return nullcontext()

    def after_loading(self, host: Host) -> None:
        """Called once with the trainer, which has its model by now."""
        self.host = host

    def training(self) -> AbstractContextManager[None]:
        """Context of ``train``; a checkpoint's state is loaded inside it, before the first step."""
        return nullcontext()

    def prompts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Called with the rows whose completions are about to be drawn."""

    def inputs(self, prepare: Prepare) -> Any:
        """The inputs of a micro-batch."""
        return prepare()

    def draw(self, draw: Draw, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A scored generation batch, this rank's rows. ``draw`` may be called again, with other rows."""
        return draw(rows)

    def sampling(self) -> AbstractContextManager[None]:
        """Context of the drawing of completions."""
        return nullcontext()

    def logps(self, score: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Log-probabilities and entropies, with the arguments of TRL's ``_get_per_token_logps_and_entropies``."""
        return score(*arguments, **keywords)

    def scoring(self, completions: Completions) -> AbstractContextManager[None]:  # noqa: ARG002
        """Context of the reward functions."""
        return nullcontext()

    def scored(self, completions: Completions, rewards_NK: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """All ranks' rewards of a generation batch; a hook may return others. The innermost hook is asked first."""
        return rewards_NK

    def batch(self, output: dict[str, Any]) -> None:
        """Called with a scored generation batch, this rank's rows; may change it."""

    def step(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        """One micro-batch of training, forward and backward; returns its loss."""
        return run()

    def loss(self, compute: Compute, model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The loss of a micro-batch."""
        return compute(model, inputs)

    def evaluating(self) -> AbstractContextManager[None]:
        """Context of an evaluation."""
        return nullcontext()

    def changed_in_a_pass(self) -> list[Any]:
        """Objects whose attributes a micro-batch changes: they are put back where it must run again."""
        return []

    @property
    def identity(self) -> str:
        """The part that the state belongs to; a checkpoint of another one is refused."""
        return self.name

    def state_dict(self) -> dict[str, Any]:
        """State between steps, as JSON values; a hook without any returns an empty mapping."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Raises:
            ValueError: the state does not fit; the message says why.
        """

    def tensors(self) -> dict[str, torch.Tensor]:
        """What of the state is tensors: saved beside it as safetensors, never pickled."""
        return {}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from what `tensors` returned, on the CPU; called after `load_state_dict`, where there were any.

        Raises:
            ValueError: they do not fit; the message says why.
        """

    def close(self) -> None:
        """Called when training is over, whatever ended it."""


class Hooks(list[Hook]):
    """The hooks of a run, outermost first, called as one."""

    def problems(self, setup: Setup) -> list[Problem]:
        """Of all hooks, of their names and of their order."""
        own = [*name_problems(self), *order_problems(self)]
        return [*own, *(problem for hook in self for problem in hook.problems(setup))]

    def each(self, name: str, *arguments: Any) -> None:
        """Call a method of all, in order."""
        for hook in self:
            getattr(hook, name)(*arguments)

    def around(self, name: str, innermost: Callable[..., Any]) -> Callable[..., Any]:
        """The method of each around that of the next."""
        for hook in reversed(self):
            innermost = partial(getattr(hook, name), innermost)
        return innermost

    @contextmanager
    def inside(self, name: str, *arguments: Any) -> Iterator[None]:
        """The contexts of all, which a method gives."""
        with ExitStack() as stack:
            for hook in self:
                stack.enter_context(getattr(hook, name)(*arguments))
            yield

    def after_loading(self, host: Host) -> None:
        """In order; each is a callback of the training loop from here on."""
        for hook in self:
            hook.after_loading(host)
            host.add_callback(hook)

    @contextmanager
    def training(self) -> Iterator[None]:
        """The contexts of all; in the end all are closed."""
        with ExitStack() as stack:
            for hook in self:
                stack.callback(hook.close)
            with self.inside("training"):
                yield

    def scored(self, completions: Completions, rewards_NK: torch.Tensor) -> torch.Tensor:
        """Innermost first: each gets the rewards that the one inside it returned."""
        for hook in reversed(self):
            rewards_NK = hook.scored(completions, rewards_NK)
        return rewards_NK


def checked(hooks: Iterable[Hook]) -> list[Hook]:
    """The hooks that a caller gives."""
    listed = list(hooks) if isinstance(hooks, Iterable) else []
    wrong = [hook for hook in listed if not isinstance(hook, Hook)] if isinstance(hooks, Iterable) else [hooks]
    if wrong:
        raise TypeError(f"hooks has {wrong[0]!r}, expected a list of objects of grpo_plus.training.hooks.Hook.")
    return listed


def name_problems(hooks: Iterable[Hook]) -> list[str]:
    """Hooks whose state no checkpoint could tell apart from another's."""
    problems: list[str] = []
    named: dict[str, str] = {}
    for hook in hooks:
        kind, of_class = type(hook).__name__, type(hook)
        keeps = of_class.state_dict is not Hook.state_dict or of_class.tensors is not Hook.tensors
        if not hook.name and keeps:
            problems.append(f"the hook {kind} has state to save, but it has no name: set its name.")
        elif hook.name and not re.fullmatch(r"\w[\w.-]*", hook.name):
            problems.append(f"the hook {kind} is named {hook.name!r}, expected letters, digits, '_', '-' and '.'.")
        elif hook.name in named:
            problems.append(f"the hooks {named[hook.name]} and {kind} are both named {hook.name!r}: set another name.")
        if hook.name:
            named.setdefault(hook.name, kind)
    return problems


def order_problems(hooks: Sequence[Hook]) -> list[str]:
    """Hooks that come before one that they declare to come ``after``."""
    pairs = [(hook, later) for place, hook in enumerate(hooks) for later in hooks[place + 1 :]]
    return [
        f"the hook {type(hook).__name__} must come after {type(later).__name__}: move it down the list."
        for hook, later in pairs
        if {each.__name__ for each in type(later).__mro__}
        & ({hook.after} if isinstance(hook.after, str) else {*hook.after})
        and _built_in(hook) <= _built_in(later)  # a built-in one means built-in ones
    ]


def _built_in(hook: Hook) -> bool:
    return type(hook).__module__.startswith("grpo_plus.")
