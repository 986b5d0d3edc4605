"""The fields and parts of a config as the rules see them."""

import os
from collections.abc import Mapping
from typing import Any

from grpo_plus.recipe.forms import read_form
from grpo_plus.recipe.launch import at_least_1, moves_in_batch, steps_per_generation
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.values import HEADS, changed_fields, mapping
from grpo_plus.trl.fields import other_samplers


class ConfigFacts:
    """Fields by name, keys of a part as ``field.key``; a field at its default is None, as if it were left out.

    Attributes:
        size: completions of a prompt.
        dead: the way with dead groups; None keeps them.
        after: the completions after which roulette looks at a group.
        too_few: the reason why an estimator wants more completions of a prompt; ``too_few_after``: of roulette.
        moves: the policy moves while a generation batch is trained on; ``looks`` has the fields that decide it.
        least_iterations: the least ``num_iterations`` with which it moves.
        full_iterations: an inner iteration ends with an optimizer step.
        corrected: importance weights correct for a vLLM sampler; ``by_token``: one for each token.
        elsewhere: a field that moves sampling out of TRL's own loop.
        reshaping: settings of the sampler that log-probabilities leave out.
    """

    def __init__(self, config: Any, recipe: Recipe) -> None:
        self.config = config
        self.recipe = recipe
        self.size = int(config.num_generations)
        self.objective = recipe.objective
        self.surrogate = None if recipe.objective is None else recipe.objective.surrogate.piece
        self.dead = None if recipe.dead_groups.name == "keep" else recipe.dead_groups.name
        self.after: int | None = recipe.dead_groups.keywords.get("after")
        self.reads_values = any(part.reads_values for part, _ in recipe.estimator_parts)
        self.reads_states = any(part.reads_states for part, _ in recipe.estimator_parts)
        self.too_few = None if self.size == 1 else self._short(self.size)
        self.too_few_after = None if (self.after or self.size) >= self.size else self._short(self.after or 0)
        self.corrected = bool(config.use_vllm and config.vllm_importance_sampling_correction)
        self.by_token = "token" in config.vllm_importance_sampling_mode
        self.stops = recipe.objective is not None and recipe.objective.stop_fraction is not None
        self.labels_steps = recipe.reward_model is not None and recipe.reward_model.head == "process"
        self.deepspeed = bool(config.deepspeed) or os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
        self.fsdp = bool(config.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
        self.elsewhere = next(iter(other_samplers(vars(config))), None)
        options = config.accelerator_config
        self.accelerator = options if isinstance(options, Mapping) else getattr(options, "__dict__", {})
        options = {} if config.use_vllm else mapping("generation_kwargs", config.generation_kwargs)
        self.reshaping = reshaping({"repetition_penalty": config.repetition_penalty, **options})
        steps, accumulation = steps_per_generation(config), config.gradient_accumulation_steps
        self.moves = moves_in_batch(config)
        self.looks = (
            f"num_iterations {config.num_iterations}, steps_per_generation {steps}, "
            f"gradient_accumulation_steps {accumulation}"
        )
        self.least_iterations = max(2, at_least_1(accumulation) // steps + 1)
        self.full_iterations = steps % at_least_1(accumulation) == 0
        self.per = recipe.advantage_per
        self.sure_givers = ", ".join(recipe.sure_givers)
        self.weighted = recipe.selection is not None and recipe.selection.weighted

    def __getitem__(self, name: str) -> Any:
        field, dot, key = name.partition(".")
        value = getattr(self.config, field)
        if dot:
            return (read_form(field, value) if field in HEADS else value or {}).get(key)
        if not changed_fields(self.config, [field]) or value in ([], {}):
            return None
        value = read_form(field, value).get(HEADS[field], value) if field in HEADS else value
        return getattr(value, "value", value)

    def get(self, name: str) -> Any:
        """Return a field or key; None for words that are no field."""
        return self[name] if hasattr(self.config, name.partition(".")[0]) else None

    def _short(self, completions: int) -> str | None:
        for part, words in self.recipe.estimator_parts:
            if part.check_size is not None and (text := part.check_size(words, completions)):
                return f"{part.title}: {text}"
        return None

    @property
    def off_policy(self) -> str | None:
        """The reason for ratios other than 1; None: every ratio is 1."""
        if self.moves:
            return f"the policy moves while a generation batch is trained on ({self.looks})"
        return "dead_groups 'replay' trains on groups of earlier policies" if self.dead == "replay" else None

    @property
    def moot(self) -> str:
        """Keywords of the objective that act at ratios other than 1, as they are set; caps below 1 act there, too."""
        piece = None if self.objective is None else self.objective.surrogate.piece
        if piece is None or not piece.by_ratio or (piece.weighs_itself and self.corrected and self.by_token):
            return ""
        words = self.recipe.keywords["objective"]
        inside = words.get("surrogate")
        words = {**words, **(inside if isinstance(inside, Mapping) else {})}
        options = {name: words[name] for name in piece.keywords() if words.get(name) is not None}
        caps = ("delta", "epsilon_max", "ratio_max")
        return ", ".join(f"{name} ({value})" for name, value in options.items() if name not in caps or value >= 1)

    @property
    def each_reward(self) -> str:
        """The estimators or TRL's setting that normalise each reward separately."""
        if "advantage" in self.recipe.names:
            return ", ".join(part.name for part, _ in self.recipe.estimator_parts if part.each_reward)
        split = self.config.multi_objective_aggregation
        return f"multi_objective_aggregation {split!r}" if split == "normalize_then_sum" else ""

    @property
    def sharded(self) -> bool:
        """No process has the full model during sampling: FSDP1, or ZeRO-3 without gathering."""
        options = self.config.fsdp_config if isinstance(self.config.fsdp_config, dict) else {}
        version = options.get("version", 2) if self.config.fsdp else os.environ.get("FSDP_VERSION", "1")
        stage = getattr(getattr(self.config, "deepspeed_plugin", None), "zero_stage", 0)
        in_pieces = self.deepspeed and stage == 3 and not self.config.ds3_gather_for_generation
        return in_pieces or (self.fsdp and str(version) != "2")


def divides_by_tokens(config: Any, objective: Any) -> bool:
    """The loss divides by the tokens of the batch; without pieces, TRL's own does."""
    if objective is None:
        return config.loss_type in {"cispo", "dapo", "vespo"}
    return bool(objective.reduce.piece.name == "token_mean")


UNSCORED = (
    "this changes the samples, and the loss scores tokens without it: log-probabilities are not those of the "
    "samples. To switch it off: a neutral value in generation_kwargs"
)
_NEUTRAL = {"top_p": (None, 1), "top_k": (None, 0, -1), "min_p": (None, 0)}


def truncation(config: Any) -> dict[str, Any]:
    """The settings of a config, by name, that leave tokens out when completions are sampled."""
    own = mapping("generation_kwargs", config.generation_kwargs)
    values = {name: own.get(name, getattr(config, name, None)) for name in _NEUTRAL}
    return {name: value for name, value in values.items() if value not in _NEUTRAL[name]}


def shown(config: Any) -> str:
    """These settings in words."""
    return ", ".join(f"{name} ({value!r})" for name, value in truncation(config).items())


_RESHAPING = {
    **dict.fromkeys(("repetition_penalty", "typical_p", "guidance_scale", "num_beams"), 1),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "sequence_bias", "top_h")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty")),
    "watermarking_config": None,
    "do_sample": True,
}
"""Settings of transformers' sampling that log-probabilities leave out, with their neutral values."""


def reshaping(values: Mapping[str, Any]) -> str:
    """The settings, with their values, that change the distribution of tokens and that log-probabilities leave out.

    >>> reshaping({"typical_p": 0.5, "top_p": 0.9, "use_cache": True})
    'typical_p (0.5)'
    """
    changed = {name: value for name, value in values.items() if value not in (None, [], _RESHAPING.get(name, value))}
    return ", ".join(f"{name} ({value!r})" for name, value in changed.items())
