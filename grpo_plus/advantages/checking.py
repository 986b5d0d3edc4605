"""Checks of an estimator's keywords, before the run."""

import inspect
from collections.abc import Mapping
from typing import Any

from grpo_plus.advantages.estimator import Estimator, EstimatorKeywordError
from grpo_plus.advantages.registry import get_advantage
from grpo_plus.advantages.spread import SPREAD_KEYWORDS, spread
from grpo_verifiers.options import keywords_of, option_problems


def keyword_problems(estimator: Estimator, keywords: Any) -> list[str]:
    """Return every problem of the estimator with these keywords."""
    if not isinstance(keywords, Mapping) or not all(isinstance(name, str) for name in keywords):
        return [f"{estimator.title}: keywords are {keywords!r}, expected a mapping from keyword to value."]
    table, added = _table(estimator), _added(estimator)
    problems = option_problems(estimator.title, estimator.fn, keywords, skip=table, more=added)
    if estimator.per == "step" and not problems:
        problems += _unread_discount(estimator, keywords)
    if estimator.check is not None and not problems:  # it may rely on the types
        problems += estimator.check(keywords)
    return problems


def _unread_discount(estimator: Estimator, keywords: Mapping[str, Any]) -> list[str]:
    """A discount with a credit that sums over no later step; an estimator's own ``gamma`` is not checked."""
    gamma, declared = keywords.get("gamma"), keywords_of(estimator.fn)
    if "gamma" in declared or gamma in (None, 1.0):
        return []
    credit = keywords.get("credit", declared["credit"].default if "credit" in declared else "step")
    if credit != "step":
        return []
    text = f"{estimator.title}: keyword 'gamma' is {gamma!r}, but with credit 'step' a token carries its own step only"
    return [f"{text}, and nothing would be discounted: remove gamma, or set credit to 'return'."]


def parameters_of(estimator: Estimator) -> dict[str, inspect.Parameter]:
    """Return the keywords of an estimator, including those of `spread` for a step estimator.

    >>> sorted(parameters_of(get_advantage("zscore")))
    ['ddof', 'eps', 'scale']
    """
    return keywords_of(estimator.fn, _table(estimator)) | _added(estimator)


def require_keywords(estimator: Estimator, keywords: Mapping[str, Any]) -> None:
    """Raise one error with every problem of the keywords."""
    if problems := keyword_problems(estimator, keywords):
        raise EstimatorKeywordError("\n".join(problems))


def parts_of(estimator: Estimator, keywords: Mapping[str, Any]) -> list[tuple[Estimator, dict[str, Any]]]:
    """Return the parts of a mix with their keywords, or the estimator itself."""
    if estimator.per != "parts":
        return [(estimator, dict(keywords))]
    return [(get_advantage(name), dict(keywords.get(name, {}))) for name in keywords.get("parts", {})]


def _added(estimator: Estimator) -> dict[str, inspect.Parameter]:
    added, own = SPREAD_KEYWORDS if estimator.per == "step" else (), inspect.signature(estimator.fn).parameters
    return {name: p for name, p in keywords_of(spread).items() if name in added and name not in own}


def _table(estimator: Estimator) -> list[str]:
    return list(inspect.signature(estimator.fn).parameters)[:1]
