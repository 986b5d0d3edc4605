"""The critic of a config, and every problem of the choice."""

from typing import Any

from grpo_plus.critic.options import CriticOptions
from grpo_plus.recipe.forms import name_of
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.unread import under_deepspeed, under_fsdp
from grpo_verifiers.options import option_problems


def choose_critic(config: Any) -> tuple[CriticOptions | None, list[str]]:
    """The options of a config's critic, None without one; what is wrong with its keys."""
    given = config.critic
    if given is None:
        return None, []
    if problems := option_problems("critic", CriticOptions, given, where="key"):
        return None, problems
    return CriticOptions(**given), []


def critic_problems(config: Any, recipe: Recipe) -> list[str]:
    """Keys that do not go with each other, and fields that a critic cannot go with."""
    readers = [chosen.estimator.name for chosen in recipe.estimator_parts if chosen.estimator.reads_values]
    options = recipe.critic
    if config.critic is None:
        text = "reads a critic's values, and there is none: set critic: {}."
        return [f"advantage {name!r} {text}" for name in readers[:1]]
    if options is None:
        return []
    problems = _key_problems(options)
    if config.advantage is None or (recipe.advantage is not None and not readers):
        name = "TRL's own" if config.advantage is None else repr(name_of(config, "advantage"))
        problems.append(
            f"critic is set, but the advantage estimator ({name}) reads no values, so nothing would read it: set "
            "advantage: gae, or remove critic."
        )
    if recipe.dead_groups.name != "keep":
        problems.append(
            f"dead_groups is {recipe.dead_groups.name!r}, but advantages against a critic compare nothing within a "
            "group, so no group is dead: remove dead_groups."
        )
    problems += beside_problems(config, "critic")
    if 0 < config.max_steps <= options.warmup_steps:
        problems.append(
            f"critic warmup_steps is {options.warmup_steps}, and max_steps {config.max_steps}: the policy would never "
            "be trained. Lower warmup_steps."
        )
    return problems


def beside_problems(config: Any, field: str) -> list[str]:
    """Ways to train in which weights of a field's own, beside the policy's, cannot be trained."""
    problems = [
        f"{field} trains weights beside the policy's, which is not built for {name}: use DDP or one process."
        for name, under in (("DeepSpeed", under_deepspeed), ("FSDP", under_fsdp))
        if under(config)
    ]
    if config.fp16:
        problems.append(
            f"{field} has a loss of its own, which no gradient scaler (fp16) scales: use bf16, or remove {field}."
        )
    return problems


def _key_problems(options: CriticOptions) -> list[str]:
    problems = []
    if options.model is not None and options.on in {"trunk", "adapter"}:
        problems.append(
            f"critic has model ({options.model!r}), but on is {options.on!r}, which stands on the policy: set on: "
            "model, or remove model."
        )
    if options.on == "trunk" and options.freeze:
        problems.append(
            f"critic has freeze ({', '.join(options.freeze)}), but on: trunk trains the head alone: remove freeze."
        )
    if options.on in {"trunk", "model"}:
        problems += [
            f"critic has {name} ({getattr(options, name)}), but on is {options.on!r}, which has no adapter: remove it."
            for name in ("lora_r", "lora_alpha")
            if getattr(options, name) is not None
        ]
    return problems


def critic_notes(config: Any) -> list[str]:
    """That the schedule of the learning rate does not come to its end."""
    steps = 0 if config.recipe.critic is None else config.recipe.critic.warmup_steps
    if not steps:
        return []
    text = f"critic warmup_steps: the first {steps} optimizer steps leave the policy and its schedule as they are"
    return [f"{text}, which ends {steps} steps before its last one; raise max_steps to make up for them."]
