"""What an advantage estimator is, and the errors of choosing and running one."""

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
    """Keywords that an estimator does not take, of the wrong type or out of range; lists every problem."""


class EstimatorOutputError(ValueError):
    """The output of an estimator cannot be used as advantages."""


class EstimatorFailedError(RuntimeError):
    """An estimator raised an exception, which is the cause and carries the estimator's own traceback."""


class NotAnEstimatorError(TypeError):
    """Something that cannot be used as an advantage estimator."""


@dataclass(frozen=True)
class Estimator:
    """A pure function, and what must be known about it to run it safely.

    Attributes:
        fn: ``(table, *, keywords) -> Tensor``, of shape (N,), (S,) or (N, T) according to ``per``.
        group_relative: whether it compares the completions of one prompt, so that a group without contrast teaches
            nothing and gets exactly 0.
        formula: one line for a human.
        scope: "group" when a group's advantages depend on that group only; "batch" when other groups may rescale them
            by one positive factor.
        own_zero_rule: it decides itself which completions have no contrast (by reward column, say).
        reads_values: it reads the values of a critic.
        reads_steps: it reads the scores of steps; each that is ``per`` step does.
        reads_states: it reads the states before steps, which an environment with ``state_key`` gives.
        each_reward: it normalises each reward by itself.
        rules: what it needs, excludes and replaces, beside what its traits say (`grpo_verifiers.rules`).
        check_size: what is wrong with that many completions of a prompt, ``(keywords, completions) -> text or None``.
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
        for what, value, allowed in (("per", self.per, Per), ("scope", self.scope, Scope)):
            if value not in (choices := get_args(allowed)):
                raise ValueError(f"the advantage estimator {self.name!r}: {unknown(what, value, choices)}")
        object.__setattr__(self, "reads_steps", self.reads_steps or self.reads_states or self.per == "step")
        if not self.formula:
            object.__setattr__(self, "formula", first_line(self.fn))

    def over_the_batch(self, keywords: Mapping[str, Any]) -> bool:
        """With these keywords other groups rescale a group's advantages."""
        return self.scope == "batch" or keywords.get("scale") == "batch" or bool(keywords.get("whiten"))

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"advantage estimator {self.name!r}"


def first_line(fn: Callable[..., Any]) -> str:
    """The first line of a docstring, without its full stop."""
    text = inspect.getdoc(fn) or ""
    return text.strip().partition("\n")[0].rstrip(".")
