"""Every problem of an estimator's keywords, before anything runs."""

import inspect
from collections.abc import Mapping
from typing import Any

from grpo_plus.advantages.estimator import Estimator, EstimatorKeywordError
from grpo_plus.advantages.registry import advantages, get_advantage
from grpo_plus.advantages.spread import SPREAD_KEYWORDS, spread
from grpo_verifiers.options import keywords_of, option_problems


def keyword_problems(estimator: Estimator, given: Any) -> list[str]:
    """Every problem of calling the estimator with these keywords."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        return [f"{estimator.title}: keywords are {given!r}, expected a mapping from keyword to value."]
    problems = option_problems(estimator.title, estimator.fn, given, skip=_table(estimator), more=_added(estimator))
    if estimator.per == "step" and not problems:
        problems += _unread_discount(estimator, given)
    if estimator.check is not None and not problems:  # it may rely on the types
        problems += estimator.check(given)
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
    return keywords_of(estimator.fn, _table(estimator)) | _added(estimator)


def flags() -> tuple[str, ...]:
    """The keywords of the built-in estimators, for command lines."""
    names = [entry.name for entry in advantages.entries() if entry.way == "built-in"]
    return tuple(sorted({keyword for name in names for keyword in parameters_of(get_advantage(name))}))


def require_keywords(estimator: Estimator, given: Mapping[str, Any]) -> None:
    """Raise one error that lists every problem of the keywords."""
    if problems := keyword_problems(estimator, given):
        raise EstimatorKeywordError("\n".join(problems))


def parts_of(estimator: Estimator, keywords: Mapping[str, Any]) -> list[tuple[Estimator, dict[str, Any]]]:
    """The estimators that compute something, with their keywords: the parts of a mix, or the estimator itself."""
    if estimator.per != "parts":
        return [(estimator, dict(keywords))]
    return [(get_advantage(name), dict(keywords.get(name, {}))) for name in keywords.get("parts", {})]


def _added(estimator: Estimator) -> dict[str, inspect.Parameter]:
    """What spreading steps adds to the keywords of a step estimator."""
    added, own = SPREAD_KEYWORDS if estimator.per == "step" else (), inspect.signature(estimator.fn).parameters
    return {name: p for name, p in keywords_of(spread).items() if name in added and name not in own}


def _table(estimator: Estimator) -> list[str]:
    """The name of the parameter that takes the table."""
    return list(inspect.signature(estimator.fn).parameters)[:1]
