"""The registry of advantage estimators, and the decorator that adds to it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from grpo_plus.advantages.estimator import Estimator, Scope
from grpo_verifiers.registry import Registry, part_of_function, source_of
from grpo_verifiers.rules import PartRule

F = TypeVar("F", bound=Callable[..., Any])

_BUILTINS = (
    "batch_whiten", "best_of_n", "center", "gae", "gdpo", "gigpo", "gpg", "maxrl", "mix", "opo", "passk", "process",
    "raw", "reinforce_pp", "rloo", "sign", "zscore",
)  # fmt: skip


def _adopt(name: str, value: Any) -> Estimator:
    return value if isinstance(value, Estimator) else part_of_function(value, Estimator) or Estimator(name, value)


advantages: Registry[Estimator] = Registry(
    "advantage estimator",
    builtins={name: f"grpo_plus.advantages.{name}:ESTIMATOR" for name in _BUILTINS},
    group="grpo_plus.advantages",
    adopt=_adopt,
)
"""All advantage estimators."""


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
    """Register an advantage estimator; the function itself does not change.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> @register_advantage("doc_doubled")
    ... def doubled(table: RewardTable, *, factor: float = 2.0):
    ...     return factor * table.totals()
    >>> compute_advantages("doc_doubled", RewardTable.of([1, 0]))
    tensor([2., 0.])
    >>> advantages.unregister("doc_doubled")

    Args:
        name: the name to choose it by.
        per: the unit of a value: (N,), (S,) or (N, T). `spread` assigns step values to tokens, with the keywords
            ``credit``, ``gamma`` and ``outcome_weight``.
        group_relative: completions are compared in their group: groups of one and groups of equal rewards get
            exactly 0.
        formula: one line for people; by default the docstring's first line.
        scope: "batch" if other groups rescale a group's advantages by one positive factor (as whitening does).
        reads_values: it reads ``table.values``, a critic's value of the state before each token.
        reads_states: it reads ``table.steps`` with their ``states``: the turns of an environment.
        rules: its requirements and exclusions, such as ``[excludes("fp16", "why")]`` (`grpo_verifiers.rules`).

    Raises:
        DuplicateNameError: the name exists; the message shows both sides.
    """
    if not isinstance(name, str):
        raise TypeError(
            f'register_advantage takes the name first: @register_advantage("mine"), not {type(name).__name__}.'
        )
    if per not in ("completion", "step", "token"):
        raise ValueError(f"register_advantage({name!r}): per is {per!r}, expected 'completion', 'step' or 'token'.")

    def decorate(fn: F) -> F:
        estimator = Estimator(
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
        advantages.register(name, estimator, source=source_of(fn))
        return fn

    return decorate


def get_advantage(name: str) -> Estimator:
    """Return the estimator of a built-in, registered or installed name, ``package.module:attr`` or ``./file.py:attr``.

    >>> get_advantage("rloo").name
    'rloo'

    Raises:
        UnknownNameError: lists the names and the nearest match.
        PluginError: it cannot be imported; its own traceback is the cause.
    """
    return advantages.get(name)


def estimator_of(part: "str | Estimator | Callable[..., Any]") -> Estimator:
    """Return the estimator of a name, of an estimator itself, or of a function."""
    return part if isinstance(part, Estimator) else advantages.resolve(part)
