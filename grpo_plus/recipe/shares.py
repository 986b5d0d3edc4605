"""Losses that divide by the tokens of a batch."""

from typing import Any


def divides_by_tokens(config: Any, objective: Any) -> bool:
    """The loss divides by the tokens of the batch; without pieces, TRL's own does."""
    if objective is None:
        return config.loss_type in {"cispo", "dapo", "vespo"}
    return bool(objective.reduce.piece.name == "token_mean")
