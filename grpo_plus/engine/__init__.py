"""The update engine: the same gradient as TRL's own path, from fewer tokens."""

from grpo_plus.engine.engine import Engine
from grpo_plus.engine.facts import REPLICATED, SHARDED, SINGLE, Facts, facts_of
from grpo_plus.engine.forward import Head
from grpo_plus.engine.notes import EngineError

__all__ = ["REPLICATED", "SHARDED", "SINGLE", "Engine", "EngineError", "Facts", "Head", "facts_of"]
