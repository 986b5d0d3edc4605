"""`Estimator`, and the errors of estimators."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from grpo_verifiers.errors import KeywordError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import takes_first
from grpo_verifiers.rules import PartRule

if TYPE_CHECKING:
    from torch import Tensor

Per = Literal["completion", "step", "token", "parts"]
"""The unit of one value; "parts" is a composition, whose shape follows from its parts."""
Scope = Literal["group", "batch"]


class EstimatorKeywordError(KeywordError, ValueError):
    """Unknown keywords of an estimator, wrong types or values out of range; lists every problem."""


class EstimatorOutputError(ValueError):
    """The output of an estimator is not valid as advantages."""


class EstimatorFailedError(RuntimeError):
    """An estimator raised an exception, which is the cause and has the estimator's own traceback."""


class NotAnEstimatorError(TypeError):
    """Something that cannot be used as an advantage estimator."""


@dataclass(frozen=True)
class Estimator:
    """A pure function for advantages, and its properties.

    Attributes:
        fn: ``(table, *, keywords) -> Tensor``, of shape (N,), (S,) or (N, T) according to ``per``.
        group_relative: it compares the completions of a prompt, so a group without contrast gets exactly 0.
        formula: one line for people.
        scope: "group" if a group's advantages depend on that group only; "batch" if other groups may rescale them
            by one positive factor.
        own_zero_rule: it has its own rule for completions without contrast (by reward column, for example).
        reads_values: it reads the values of a critic.
        reads_steps: it reads the scores of steps; always True with ``per`` step.
        reads_states: it reads the states before steps, from an environment with ``state_key``.
        each_reward: it normalises each reward separately.
        rules: its requirements, exclusions and replacements, in addition to these properties (`grpo_verifiers.rules`).
        check_size: the problem of a number of completions a prompt, ``(keywords, completions) -> text or None``.
        check: further problems of keywords, ``keywords -> list of messages``.
    """

    name: str
    fn: "Callable[..., Tensor]"
    per: Per = "completion"
    group_relative: bool = True
    formula: str = ""
    scope: Scope = "group"
    own_zero_rule: bool = False
    reads_values: bool = False
    reads_steps: bool = False
    reads_states: bool = False
    each_reward: bool = False
    rules: tuple[PartRule, ...] = ()
    check_size: Callable[[Mapping[str, Any], int], str | None] | None = None
    check: Callable[[Mapping[str, Any]], list[str]] | None = None

    def __post_init__(self) -> None:
        takes_first(self.fn, NotAnEstimatorError, of=f"the {self.title}", takes="RewardTable", named="table")
        for name, value, allowed in (("per", self.per, Per), ("scope", self.scope, Scope)):
            if value not in (choices := get_args(allowed)):
                raise ValueError(f"the advantage estimator {self.name!r}: {unknown(name, value, choices)}")
        object.__setattr__(self, "reads_steps", self.reads_steps or self.reads_states or self.per == "step")
        if not self.formula:
            object.__setattr__(self, "formula", (inspect.getdoc(self.fn) or "").strip().partition("\n")[0].rstrip("."))

    def over_the_batch(self, keywords: Mapping[str, Any]) -> bool:
        """Return True if other groups rescale a group's advantages with these keywords."""
        return self.scope == "batch" or keywords.get("scale") == "batch" or bool(keywords.get("whiten"))

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"advantage estimator {self.name!r}"
