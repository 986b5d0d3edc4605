"""What an unset ``rollout`` or ``report`` stands for."""

from typing import Any

from grpo_plus import _trl
from grpo_plus.recipe.forms import name_of, read_form


def sets_parts(config: Any) -> bool:
    """Whether a part of ours is set: the run then keeps a record, and draws completions leaner."""
    fields = ("advantage", "objective", "selection", "verifiers", "tools", "environment", "reward_model")
    ours = any(getattr(config, field, None) not in (None, []) for field in fields)
    judged = read_form("diagnosis", getattr(config, "diagnosis", None)).get("judge") is not None
    return ours or judged or name_of(config, "dead_groups") not in (None, "keep")


def rollout_of(config: Any) -> str:
    """How completions are drawn on the plain path, ``stock`` or ``auto``."""
    given = read_form("rollout", config.rollout)
    if given.get("how") is not None:
        return str(given["how"])
    lean = sets_parts(config) or given.get("rows") is not None
    return "auto" if lean and not _trl.other_samplers(vars(config)) else "stock"


def records(config: Any) -> bool:
    """Whether a record is kept."""
    given = read_form("report", config.report).get("record")
    return sets_parts(config) if given is None else bool(given)
