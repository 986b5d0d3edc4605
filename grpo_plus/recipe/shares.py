"""TRL's own loss beside rows of unequal weight: what of it their advantages do not reach."""

from typing import Any

from grpo_plus.recipe.forms import name_of
from grpo_plus.recipe.recipe import Selected


def divides_by_tokens(config: Any, objective: Any) -> bool:
    """The loss divides by the tokens of the batch; without pieces, TRL's own does."""
    if objective is None:
        return config.loss_type in {"cispo", "dapo", "vespo"}
    return bool(objective.reduce.piece.name == "token_mean")


def shares_of(config: Any, selected: Selected | None) -> list[str]:
    """What of a config gives rows weights other than 1: beginnings of sentences."""
    found = []
    if name_of(config, "dead_groups") == "roulette":
        found.append("dead_groups is 'roulette', which gives rows unequal weights")
    if selected is not None and selected.weighted:
        found.append(f"selection is {selected.selection.name!r} with weights, which rows carry")
    return found


def share_problems(config: Any, giver: str) -> list[str]:
    """Parts of TRL's loss that cannot weigh rows; ``giver`` begins a sentence about what gives them weights."""
    if getattr(config, "objective", None) is not None:
        return []
    name = "dapo" if config.loss_type == "bnpo" else config.loss_type
    way_out = f"set objective (to {name!r}, say), which weighs rows in all its parts"
    found = []
    if config.beta:
        found.append((f"beta is {config.beta:g}", "the KL term", "remove beta"))
    if config.loss_type == "bnpo":
        found.append(("loss_type is 'bnpo'", "the count of tokens in a micro-batch", "choose another loss_type"))
    if config.use_adaptive_entropy:
        found.append(("use_adaptive_entropy is true", "the entropy bonus", "remove use_adaptive_entropy"))
    elif config.entropy_coef:
        found.append((f"entropy_coef is {config.entropy_coef:g}", "the entropy bonus", "remove entropy_coef"))
    return [
        f"{giver}, but {field}, and {part} of TRL's own loss counts every row alike: {way_out}, or {other}."
        for field, part, other in found
    ]
