"""`Recipe`: the parts of a run, resolved once from the names in its config and frozen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_plus.recipe.entries import COLUMN, VerifierPart
from grpo_plus.recipe.settings import CriticOptions, EngineOptions, ReportOptions, RewardModelOptions, RolloutOptions
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from grpo_plus.advantages import Estimator
    from grpo_plus.objectives import Objective
    from grpo_plus.selection import Selection
    from grpo_verifiers.tools.part import ToolPart


class Chosen(NamedTuple):
    """An estimator and its keywords."""

    estimator: "Estimator"
    keywords: dict[str, Any]


class Selected(NamedTuple):
    """A selection and its keywords."""

    selection: "Selection"
    keywords: dict[str, Any]

    @property
    def weighted(self) -> bool:
        """Groups carry weights, so that the objective is that of all prompts alike."""
        return bool(self.selection.draws and self.keywords.get("weighted", self.selection.weighted))


class DeadGroups(NamedTuple):
    """The treatment of groups without contrast, and its keywords with their defaults."""

    name: str = "keep"
    keywords: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Monitor:
    """`DiagnosisOptions` with the judge; ``against`` names the verifier that is watched, None: the total reward."""

    every: int
    sample: int
    judge: VerifierPart
    against: str | None


@dataclass(frozen=True)
class Recipe:
    """The parts of a run. Its defaults are those of a plain `GRPOConfig`, without parts of grpo_plus.

    Attributes:
        advantage: the estimator that replaces TRL's advantages, as configured. With a KL term in the reward it is set
            in any case, to the estimator that TRL's fields amount to.
        estimator_parts: the estimators that compute something: those of a mix, or ``advantage`` itself.
        objective: replaces TRL's loss; None keeps it.
        verifiers: the verifiers that reward, in the order of the config.
        eval_verifiers: the verifiers that only score evaluations.
        verifier_column: dataset column that names the verifier of each row.
        reward_weights: of all rewards, in TRL's order; None leaves the weights of the entries.
        reward_model: the reward model that trains along; None: there is none.
        tools: the tools that the model may call.
        environments: the environment of a row by the value of its column; under None the one of all rows.
        engine: how the update runs.
        selection: sampling weights of the prompts; None: TRL's sampler, without a history.
        dead_groups: the treatment of groups without contrast.
        critic: the options of a critic; None without one.
        monitor: the judge that samples of training are shown to; None: there is none.
        stop_on: names of the findings that end the run.
        rollout: the sampling of completions, with ``how`` decided.
        report: its record and report, with ``record`` decided.
        rollout_is_set: the config decides it; so ``report_is_set``.
        names: advantage, objective and selection as the config names them.
        keywords: theirs, as they are written.
        origins: part (advantage, objective, selection, label of a verifier) to ``built-in``, ``registered``,
            ``entry point`` or ``reference``.
    """

    advantage: Chosen | None = None
    estimator_parts: tuple[Chosen, ...] = ()
    objective: "Objective | None" = None
    verifiers: tuple[VerifierPart, ...] = ()
    eval_verifiers: tuple[VerifierPart, ...] = ()
    verifier_column: str | None = None
    reward_weights: tuple[float, ...] | None = None
    reward_model: RewardModelOptions | None = None
    tools: tuple["ToolPart", ...] = ()
    environments: Mapping[str | None, "ToolPart"] = field(default_factory=dict)
    engine: EngineOptions = field(default_factory=lambda: EngineOptions("stock"))
    selection: Selected | None = None
    dead_groups: DeadGroups = field(default_factory=DeadGroups)
    critic: CriticOptions | None = None
    monitor: Monitor | None = None
    stop_on: tuple[str, ...] = ()
    rollout: RolloutOptions = field(default_factory=lambda: RolloutOptions("stock"))
    rollout_is_set: bool = False
    report: ReportOptions = field(default_factory=lambda: ReportOptions(record=False))
    report_is_set: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    keywords: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)

    @property
    def advantage_per(self) -> str:
        """The unit that has one advantage: completion, step or token."""
        units = {estimator.per for estimator, _ in self.estimator_parts}
        return next((unit for unit in ("step", "token") if unit in units), "completion")

    @property
    def step_sources(self) -> tuple[str | None, ...] | None:
        """Labels of the verifiers that give steps, None for whichever does; None if no estimator reads steps."""
        sources = [keywords.get("steps_from") for part, keywords in self.estimator_parts if part.reads_steps]
        return tuple(dict.fromkeys(sources)) if sources else None

    @property
    def own_turns(self) -> bool:
        """The steps are the turns as the environment rewards them: states are read, and no verifier is named."""
        reading = [(part, keywords) for part, keywords in self.estimator_parts if part.reads_steps]
        return self.step_source is None and bool(reading) and all(part.reads_states for part, _ in reading)

    @property
    def step_aggregates(self) -> tuple[str, ...]:
        """Aggregates that replace the own one of the verifier that gives the steps."""
        aggregates = [keywords.get("aggregate") for part, keywords in self.estimator_parts if part.per == "step"]
        return tuple(dict.fromkeys(filter(None, aggregates)))

    @property
    def step_source(self) -> str | None:
        """The label that the config names as the source of steps."""
        return next(filter(None, self.step_sources or ()), None)

    @property
    def step_givers(self) -> dict[str, bool | None]:
        """Label of every rewarding verifier to True if it gives steps; None: only a run shows it."""
        return {part.label: part.verifier.gives_steps for part in self.verifiers}

    @property
    def sure_givers(self) -> list[str]:
        """The labels of those that surely give steps."""
        return [label for label, gives in self.step_givers.items() if gives]


def recipe_of(args: Any) -> Recipe:
    """The recipe of training arguments."""
    if not hasattr(args, "current_recipe"):
        return Recipe()
    recipe: Recipe = args.current_recipe()
    return recipe


def call_problems(recipe: Recipe, own: Sequence[str], iterations: int | None, *, open_ended: bool) -> list[str]:
    """Verifiers and a limit of calls without any tool, and names that no tool has.

    ``own`` names the trainer's own tools; with ``open_ended`` it may have more of them.
    """
    if open_ended:
        return []
    parts = [*recipe.tools, *recipe.environments.values()]
    names = [*own, *(method.name for part in parts for method in part.methods)]
    verifiers = [part for part in (*recipe.verifiers, *recipe.eval_verifiers) if part.entry.name in _OF_CALLS]
    if not names:
        nothing = "but nothing can be called: set tools or environment"
        problems = [f"the verifier {part.label!r} looks at calls, {nothing}, or remove it." for part in verifiers]
        if iterations is not None:
            problems.append(f"max_tool_calling_iterations is {iterations}, {nothing}, or remove it.")
        return problems
    return [
        f"the verifier {part.label!r}: {unknown('tool', name, names)}"
        for part in verifiers
        if part.entry.name == "tool_used"
        for name in part.entry.kwargs.get("names", ())
        if name not in names
    ]


_OF_CALLS = ("tool_used", "tool_valid")


def schemas_of(recipe: Recipe, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas that the model sees in a row's prompt."""
    several = None not in recipe.environments
    environment = recipe.environments.get(row.get(COLUMN) if several else None)
    parts = [*recipe.tools, *([environment] if environment is not None else [])]
    return [method.schema for part in parts for method in part.methods]
