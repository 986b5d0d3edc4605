"""The registry of advantage estimators, and the decorator that adds to it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from grpo_plus.advantages.estimator import Estimator, Scope
from grpo_verifiers.registry import Registry, part_of_function, source_of
from grpo_verifiers.rules import PartRule

F = TypeVar("F", bound=Callable[..., Any])

_BUILTINS = (
    "batch_whiten",
    "best_of_n",
    "center",
    "gae",
    "gdpo",
    "gigpo",
    "gpg",
    "maxrl",
    "mix",
    "opo",
    "passk",
    "process",
    "raw",
    "reinforce_pp",
    "rloo",
    "sign",
    "zscore",
)


def _adopt(name: str, value: Any) -> Estimator:
    """The object of a reference or entry point as an estimator."""
    return value if isinstance(value, Estimator) else part_of_function(value, Estimator) or Estimator(name, value)


advantages: Registry[Estimator] = Registry(
    "advantage estimator",
    builtins={name: f"grpo_plus.advantages.{name}:ESTIMATOR" for name in _BUILTINS},
    group="grpo_plus.advantages",
    adopt=_adopt,
)
"""Every advantage estimator there is."""


def register_advantage(
    name: str,
    *,
    per: Literal["completion", "step", "token"] = "completion",
    group_relative: bool = True,
    formula: str = "",
    scope: Scope = "group",
    reads_values: bool = False,
    reads_states: bool = False,
    rules: Sequence[PartRule] = (),
) -> Callable[[F], F]:
    """Register an advantage estimator; the function itself stays as it is.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> @register_advantage("doc_doubled")
    ... def doubled(table: RewardTable, *, factor: float = 2.0):
    ...     return factor * table.totals()
    >>> compute_advantages("doc_doubled", RewardTable.of([1, 0]))
    tensor([2., 0.])
    >>> advantages.unregister("doc_doubled")

    Args:
        name: the name to choose it by.
        per: what the function returns one value for: (N,), (S,) or (N, T). Step values are put onto tokens by one
            shared function, with the keywords ``credit``, ``gamma`` and ``outcome_weight``.
        group_relative: whether completions are compared within their group: groups of one and groups whose rewards
            are all equal then get exactly 0.
        formula: one line for a human; the docstring's first line unless given.
        scope: "batch" when other groups rescale a group's advantages by one positive factor (whitening, say).
        reads_values: whether it reads ``table.values``, a critic's value of the state before each token.
        reads_states: whether it reads ``table.steps`` with their ``states``, which are the turns of an environment.
        rules: what it needs and excludes, such as ``[excludes("fp16", "why")]`` (`grpo_verifiers.rules`).

    Raises:
        DuplicateNameError: the name is taken; the message shows both sides.
    """
    if not isinstance(name, str):
        raise TypeError(
            f'register_advantage takes the name first: @register_advantage("mine"), not {type(name).__name__}.'
        )
    if per not in ("completion", "step", "token"):
        raise ValueError(f"register_advantage({name!r}): per is {per!r}, expected 'completion', 'step' or 'token'.")

    def decorate(fn: F) -> F:
        made = Estimator(
            name,
            fn,
            per=per,
            group_relative=group_relative,
            formula=formula,
            scope=scope,
            reads_values=reads_values,
            reads_states=reads_states,
            rules=tuple(rules),
        )
        advantages.register(name, made, source=source_of(fn))
        return fn

    return decorate


def get_advantage(name: str, base: Path | None = None) -> Estimator:
    """The estimator of a built-in, registered or installed name, ``package.module:attr`` or ``./file.py:attr``.

    Relative paths start from ``base``, the working directory unless given.

    >>> get_advantage("rloo").name
    'rloo'

    Raises:
        UnknownNameError: lists what there is and the nearest match.
        PluginError: it cannot be imported; its own traceback is the cause.
    """
    return advantages.get(name, base=base)


def estimator_of(part: "str | Estimator | Callable[..., Any]") -> Estimator:
    """The estimator that is meant by a name, by an estimator itself, or by a function."""
    return part if isinstance(part, Estimator) else advantages.resolve(part)
