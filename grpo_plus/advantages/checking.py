"""Every problem of an estimator's keywords, before anything runs."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_plus.advantages.estimator import Estimator, EstimatorKeywordError, NotAnEstimatorError, table_parameter
from grpo_plus.advantages.registry import advantages, estimator_of, get_advantage
from grpo_plus.advantages.spread import SPREAD_KEYWORDS, spread
from grpo_verifiers.errors import DuplicateNameError, UnknownNameError
from grpo_verifiers.options import hints_of, keywords_of, option_problems
from grpo_verifiers.registry import is_reference


def check_advantage_kwargs(name: str, kwargs: Mapping[str, Any] | None, base: Path | None = None) -> list[str]:
    """Every problem of choosing an estimator by name or reference; relative paths start from ``base``.

    >>> check_advantage_kwargs("zscore", {"eps": 1e-6})
    []
    >>> print(check_advantage_kwargs("zscore", {"epsilon": 1e-6})[0].split("?")[0])
    advantage estimator 'zscore': unknown keyword 'epsilon'. Did you mean 'eps'

    Raises:
        PluginError: the estimator exists but cannot be imported; its own traceback is the cause.
    """
    try:
        estimator = get_advantage(name, base)
    except (UnknownNameError, DuplicateNameError, NotAnEstimatorError) as error:
        return [str(error)]
    return keyword_problems(estimator, {} if kwargs is None else kwargs, base)


def keyword_problems(estimator: Estimator, given: Any, base: Path | None = None) -> list[str]:
    """Every problem of calling the estimator with these keywords."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        return [f"{estimator.title}: keywords are {given!r}, expected a mapping from keyword to value."]
    target = _with_all_keywords(estimator)
    problems = option_problems(estimator.title, target, given)
    if estimator.per == "step" and not problems:
        problems += _unread_discount(estimator, given)
    if estimator.check is not None and not problems:  # it may rely on the types
        problems += estimator.check(given, base)
    return problems


def _unread_discount(estimator: Estimator, given: Mapping[str, Any]) -> list[str]:
    """A discount beside a credit that sums over no later step; an estimator's own ``gamma`` is its own business."""
    gamma, declared = given.get("gamma"), keywords_of(estimator.fn)
    if "gamma" in declared or gamma in (None, 1.0):
        return []
    credit = given.get("credit", declared["credit"].default if "credit" in declared else "step")
    if credit != "step":
        return []
    text = f"{estimator.title}: keyword 'gamma' is {gamma!r}, but with credit 'step' a token carries its own step only"
    return [f"{text}, and nothing would be discounted: remove gamma, or set credit to 'return'."]


def parameters_of(estimator: Estimator) -> dict[str, inspect.Parameter]:
    """The keywords an estimator takes, those of spreading steps onto tokens included.

    >>> sorted(parameters_of(get_advantage("zscore")))
    ['ddof', 'eps', 'scale']
    """
    return keywords_of(_with_all_keywords(estimator))


def flags() -> tuple[str, ...]:
    """The keywords of the built-in estimators, for command lines."""
    names = [entry.name for entry in advantages.entries() if entry.way == "built-in"]
    return tuple(sorted({keyword for name in names for keyword in parameters_of(get_advantage(name))}))


def require_keywords(estimator: Estimator, given: Mapping[str, Any]) -> None:
    """Raise one error that lists every problem of the keywords."""
    if problems := keyword_problems(estimator, given):
        raise EstimatorKeywordError("\n".join(problems))


def leaf_estimators(
    name: str | Estimator, kwargs: Mapping[str, Any] | None = None, base: Path | None = None
) -> list[Estimator]:
    """The estimators that compute something: the parts of a composition, otherwise the one itself.

    >>> [part.name for part in leaf_estimators("mix", {"parts": {"rloo": 1.0, "process": 0.5}})]
    ['rloo', 'process']

    Whether step scores are needed, or groups of several, is a question to each of them.
    """
    estimator = estimator_of(name, base)
    if estimator.per != "parts":
        return [estimator]
    return [get_advantage(part, base) for part in (kwargs or {}).get("parts", {})]


def anchor_parts(kwargs: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Keywords of a composition with relative ``./file.py:attr`` parts made absolute, for use from any folder.

    >>> anchor_parts({"parts": {"./mine.py:ranks": 1.0, "zscore": 0.5}}, Path("/runs"))
    {'parts': {'/runs/mine.py:ranks': 1.0, 'zscore': 0.5}}

    Keywords without parts stay as they are.
    """

    def anchored(part: str) -> str:
        where, _, attr = part.rpartition(":")
        return f"{(base / Path(where).expanduser()).resolve()}:{attr}" if where.endswith(".py") else part

    parts = kwargs.get("parts")
    if not isinstance(parts, Mapping):
        return dict(kwargs)
    names = {part: anchored(part) for part in parts if isinstance(part, str) and is_reference(part)}
    renamed = {names.get(key, key): value for key, value in kwargs.items() if key != "parts"}
    return {"parts": {names.get(part, part): weight for part, weight in parts.items()}, **renamed}


def _with_all_keywords(estimator: Estimator) -> Callable[..., Any]:
    """A callable with the signature that a config sees: no table, and what spreading steps adds."""
    fn = estimator.fn
    table = table_parameter(fn)
    own = [parameter for name, parameter in inspect.signature(fn).parameters.items() if name != table]
    hints = {name: hint for name, hint in hints_of(fn).items() if name not in (table, "return")}
    if estimator.per == "step":
        taken = {parameter.name for parameter in own}
        more = [p for n, p in inspect.signature(spread).parameters.items() if n in SPREAD_KEYWORDS and n not in taken]
        hints |= {p.name: hints_of(spread)[p.name] for p in more}
        own = [p for p in own if p.kind is not p.VAR_KEYWORD] + more + [p for p in own if p.kind is p.VAR_KEYWORD]
    own = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in own]
    own.sort(key=lambda p: p.kind)

    def target(**keywords: Any) -> None:
        """Stands for the estimator where only its signature matters."""

    target.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]  # what inspect.signature reads first
    target.__annotations__ = hints
    return target
