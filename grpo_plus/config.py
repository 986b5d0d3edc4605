"""`GRPOPlusConfig`: TRL's config with the parts that can be swapped."""

import copy
import inspect
from dataclasses import dataclass, field, fields
from typing import Any, Self

from grpo_plus.recipe.forms import dotted_flags, normalise, part_flags
from grpo_plus.trl.fields import resolve_renamed_fields
from grpo_plus.trl.versions import check_version

check_version()

from trl import GRPOConfig, ModelConfig, ScriptArguments  # noqa: E402 - only after a readable word about the version

from grpo_plus.recipe.aliases import UnknownOptionError, remedy  # noqa: E402 - same
from grpo_plus.recipe.host import host_check, host_problems, unseen_best_problems  # noqa: E402 - same
from grpo_plus.recipe.launch import config_folder, planned_processes, process_count  # noqa: E402 - same
from grpo_plus.recipe.parts import fingerprint, read_recipe  # noqa: E402 - same
from grpo_plus.recipe.recipe import Recipe  # noqa: E402 - same
from grpo_plus.recipe.settings import DEAD_GROUPS, OPTIONS, keys_of  # noqa: E402 - same
from grpo_plus.recipe.values import HEADS, judge  # noqa: E402 - same
from grpo_verifiers.errors import Problem, raise_all  # noqa: E402 - same
from grpo_verifiers.redaction import redact  # noqa: E402 - same

MAPPINGS = (*HEADS, "critic", "reward_model")
_RECIPE = "_recipe"
"""Attribute for the recipe and its fingerprint; not a field, so it is never saved."""
CHECKED_ELSEWHERE = (*MAPPINGS, *("verifiers", "eval_verifiers", "plugins", "tools", "environment"))
"""Fields with checks of their own: names, references and entries."""


@dataclass
class GRPOPlusConfig(GRPOConfig):
    """TRL's `GRPOConfig` with an advantage estimator, an objective, verifiers and the update engine.

    With nothing new set it trains as `GRPOConfig` does. All problems of a config are reported together.

    Attributes:
        advantage: the advantage estimator, as `NAME` or `{name: NAME, keyword: value}`; None leaves TRL's own, set by
            `scale_rewards` and `multi_objective_aggregation`.
        objective: the objective in the same form, with its keywords and pieces; None runs TRL's own loss, set by
            `loss_type` and friends.
        verifiers: verifiers by name, or mappings with the keys name, label, weight, columns, timeout, on_error and
            isolation, and keywords of the verifier.
        eval_verifiers: verifiers, in the form of `verifiers`, that only look at evaluations: their scores are logged as
            ``eval_rewards/<label>/mean``, their weighted sum as ``eval_score``; they reward nothing.
        verifier_column: dataset column that names the verifier of each row.
        plugins: modules (``package.module``) or files (``./file.py``) to import, so that their decorators register.
        engine: how the update runs: a layout, or the keys of `grpo_plus.recipe.settings.EngineOptions`.
        tools: tools that the model may call while it answers, by name, or mappings with the keys name, label, timeout
            and keywords of the tool. They run in processes of their own.
        environment: the environment that each completion plays with, in the same form; or a mapping of the values of
            the column ``environment`` to such.
        reward_model: a reward model that trains along on pairs which the other rewards order: a mapping of the options
            of `grpo_plus.recipe.settings.RewardModelOptions`, ``{}`` for all defaults; None: there is none.
        selection: sampling weights of the prompts, as `NAME` or `{name: NAME, keyword: value}`; None leaves TRL's
            sampler, which draws all alike.
        dead_groups: the treatment of groups without contrast, from which the estimator learns nothing: ``keep`` trains
            on, ``resample`` (``rounds``) draws other prompts in their place, ``roulette`` (``after``, ``keep``) stops
            most of them half-way and weights the rest, ``replay`` (``age``, ``groups``) puts live groups of earlier
            batches there.
        critic: a critic for the estimator `gae`, by the keys of `CriticOptions`; ``{}`` has them at their defaults.
        rollout: the way completions are sampled, or the keys of `grpo_plus.recipe.settings.RolloutOptions`.
        check: the effect of findings about the data before training: ``stop`` ends a run that would be worthless,
            ``strict`` ends at warnings too, ``warn`` only reports, ``off`` skips the checks.
        report: the record and its page: true, false, or the keys of `grpo_plus.recipe.settings.ReportOptions`.
        diagnosis: a judge, and findings that end the run: the keys of `grpo_plus.recipe.settings.DiagnosisOptions`.
        overwrite_output_dir: remove checkpoints of another run from `output_dir` before training; False refuses them.
    """

    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, *MAPPINGS]  # noqa: SLF001, RUF012 - the host's own protocol

    advantage: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Advantage estimator: NAME or {name: NAME, KEYWORD: VALUE}; unset: TRL's (scale_rewards).",
            **dotted_flags("advantage", part_flags("advantage estimator")),
        },
    )
    objective: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Objective, in the same form; unset: TRL's own loss (loss_type).",
            **dotted_flags("objective", part_flags("objective", "ratio", "surrogate", "reduction")),
        },
    )
    # An entry is a name or a mapping; TRL's parser can build only the annotated type from the command line.
    verifiers: list[str] | None = field(
        default=None, metadata={"help": "Verifiers that reward: names, references, or mappings."}
    )
    eval_verifiers: list[str] | None = field(
        default=None, metadata={"help": "Verifiers that only score evaluations and never reward."}
    )
    verifier_column: str | None = field(
        default=None,
        metadata={"help": "Column that holds the label of each row's verifier; unset: all score all rows."},
    )
    plugins: list[str] | None = field(
        default=None, metadata={"help": "Modules or ./files.py to import, which register parts; relative to the YAML."}
    )
    engine: dict[str, Any] | str | None = field(
        default="auto",
        metadata={
            "help": "How the update runs: auto, packed, trimmed or stock (TRL's own); tokens_per_pass bounds memory.",
            **dotted_flags("engine", keys_of(OPTIONS["engine"])),
        },
    )
    tools: list[str] | None = field(
        default=None, metadata={"help": "Tools that the model may call: names, references, or mappings."}
    )
    # A name, a mapping with the key name, or such by the values of the column; a text on the command line.
    environment: str | None = field(
        default=None,
        metadata={"help": "The environment of each row: a name or reference, or several by the column environment."},
    )
    reward_model: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "A reward model that trains along: a mapping of its options, or the JSON text of one.",
            **dotted_flags("reward_model", keys_of(OPTIONS["reward_model"])),
        },
    )
    selection: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Sampling weights of prompts: NAME or {name: NAME, ...}; unset: all alike (TRL's sampler).",
            **dotted_flags("selection", part_flags("selection")),
        },
    )
    dead_groups: dict[str, Any] | str | None = field(
        default="keep",
        metadata={
            "help": "Treatment of groups that teach nothing: keep, resample, roulette or replay.",
            **dotted_flags("dead_groups", keys_of(*DEAD_GROUPS.values())),
        },
    )
    critic: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "A critic, for advantage gae: its keys, as a mapping or its JSON text; {} for the defaults.",
            **dotted_flags("critic", keys_of(OPTIONS["critic"])),
        },
    )
    rollout: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Sampling of completions: auto or stock, rows, vllm_sync; unset: auto with a part of grpo_plus.",
            **dotted_flags("rollout", keys_of(OPTIONS["rollout"])),
        },
    )
    check: str = field(
        default="stop",
        metadata={
            "help": "Checks of the data before training: stop at problems, strict (at warnings too), warn or off.",
            "choices": ("stop", "strict", "warn", "off"),
        },
    )
    report: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Record for the report: true, false, or {every: STEPS}; unset: true with a part of grpo_plus.",
            **dotted_flags("report", keys_of(OPTIONS["report"])),
        },
    )
    diagnosis: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "A judge against reward hacking (judge, every, sample, against); stop_on ends the run.",
            **dotted_flags("diagnosis", keys_of(OPTIONS["diagnosis"])),
        },
    )

    overwrite_output_dir: bool = field(
        default=False,
        metadata={"help": "Remove another run's checkpoints from output_dir, and start from the beginning."},
    )

    def __new__(cls, *_: Any, **values: Any) -> Self:
        """Refuse unknown names, all together; those of other projects with their names here."""
        names = inspect.signature(cls.__init__).parameters
        strange = [] if any(each.kind is each.VAR_KEYWORD for each in names.values()) else values.keys() - names.keys()
        if strange:
            command = {spec.name for group in (ModelConfig, ScriptArguments) for spec in fields(group)}
            end = {name: remedy(name, names, elsewhere=command) for name in values if name in strange}
            raise UnknownOptionError(f"{cls.__name__} has no field {name!r}{end[name]}" for name in end)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        """Normalise, resolve and check everything, before any model loads."""
        redact(vars(self))  # remembers the secrets, so that messages hide them
        fields = self.__dataclass_fields__
        values = {name: getattr(self, name, None) for name in fields}
        wrong_values, right_values = judge(type(self), values, skip=CHECKED_ELSEWHERE)
        for name, value in right_values.items():
            setattr(self, name, value)
        # TRL fills in both of these, and refuses both when a config is built from its own values.
        rows, steps = self.generation_batch_size, self.steps_per_generation
        if steps is not None and rows == self.per_device_train_batch_size * process_count() * steps:
            self.generation_batch_size: int | None = None
        parts, wrong_forms = normalise(self, config_folder())
        recipe, wrong_parts = read_recipe(self, parts)
        defaults = {name: spec.default for name, spec in fields.items()}
        wrong_names, renamed = resolve_renamed_fields({name: getattr(self, name, None) for name in fields}, defaults)
        for name, value in renamed.items():
            setattr(self, name, value)
        problems: list[Problem] = [*{**wrong_values, **wrong_names}.values(), *wrong_forms, *wrong_parts]
        problems += unseen_best_problems(self)
        check = host_check(self, super().__post_init__)
        problems += host_problems(type(self), vars(self), check, (*wrong_values, *wrong_names))
        raise_all(problems)
        self.__dict__[_RECIPE] = fingerprint(self), recipe

    @property
    def recipe(self) -> Recipe:
        """The parts of the run, resolved once; resolved anew after a change of a field that they depend on.

        Raises:
            ConfigError: the changed fields contradict each other.
        """
        return self.current_recipe()

    def current_recipe(self) -> Recipe:
        """Return `recipe`, for the trainer: a subclass may have a field of that name."""
        stored: tuple[str, Recipe] | None = self.__dict__.get(_RECIPE)
        if stored is not None and stored[0] == fingerprint(self):
            return stored[1]
        parts, wrong_forms = normalise(self, config_folder())
        recipe, wrong_parts = read_recipe(self, parts)
        raise_all([*wrong_forms, *wrong_parts])
        self.__dict__[_RECIPE] = fingerprint(self), recipe
        return recipe

    def __getstate__(self) -> dict[str, Any]:
        """The fields without the recipe: it has live verifiers, and is read from the fields again."""
        return {name: value for name, value in vars(self).items() if name != _RECIPE}

    @property
    def world_size(self) -> int:
        """The processes there are, or those that a launcher is about to start."""
        return planned_processes() or int(super().world_size)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data, without secrets: experiment trackers and files get these."""
        values: dict[str, Any] = redact(super().to_dict())
        return values

    def __str__(self) -> str:
        lines = [f"{name}={value!r},\n" for name, value in sorted(self.to_dict().items())]
        return f"{type(self).__name__}(\n{''.join(lines)})"

    __repr__ = __str__

    def without_secrets(self) -> "GRPOPlusConfig":
        """A copy to store with a model, in which secrets are replaced by `grpo_verifiers.redaction.HIDDEN`."""
        twin = copy.copy(self)
        for name, value in list(vars(twin).items()):
            if isinstance(value, str | list | tuple | dict):
                object.__setattr__(twin, name, redact(value, name))
        return twin

    def as_written(self) -> "GRPOPlusConfig":
        """A copy for the host to pickle, whose pickle has no secrets."""
        reduced = lambda *_: (copy.copy, (self.without_secrets(),))  # noqa: E731 - a method
        twin = copy.copy(self)
        twin.__dict__[_RECIPE] = self.__dict__.get(_RECIPE)
        twin.__class__ = type(type(self).__name__, (type(self),), {"__reduce_ex__": reduced})
        return twin
