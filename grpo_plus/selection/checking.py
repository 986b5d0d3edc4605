"""Checks of a selection's keywords and of its weights."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from grpo_plus.selection.history import PromptHistory
from grpo_plus.selection.part import (
    Selection,
    SelectionFailedError,
    SelectionKeywordError,
    SelectionOutputError,
    common,
)
from grpo_plus.selection.registry import selection_of
from grpo_verifiers.errors.messages import short, show
from grpo_verifiers.options import keywords_of, option_problems


def keyword_problems(selection: Selection, values: Mapping[str, Any]) -> list[str]:
    """Return every problem of the selection with these keywords."""
    problems = option_problems(selection.title, selection.fn, values, skip=_history(selection), more=_added(selection))
    if problems or not selection.draws:
        return problems
    settings = common_of(selection, values)
    if settings["weighted"] and settings["explore"] == 0:
        problems.append(
            f"{selection.title}: explore is 0 and weighted is true, but a prompt of weight 0 would never be sampled: "
            "set explore to more than 0, or weighted to false."
        )
    return problems


def common_of(selection: Selection, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of every selection, with defaults for unset ones."""
    defaults = {name: p.default for name, p in keywords_of(common).items()} | {"weighted": selection.weighted}
    return {name: values.get(name, default) for name, default in defaults.items()}


def parameters_of(selection: Selection) -> dict[str, inspect.Parameter]:
    """Return the keywords of a selection, including the common ones.

    >>> sorted(parameters_of(selection_of("contrast")))
    ['decay', 'every', 'explore', 'power', 'weighted']
    """
    return keywords_of(selection.fn, _history(selection)) | _added(selection)


def own_keywords(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords of the function itself: all but the common ones."""
    return {name: value for name, value in keywords.items() if name not in keywords_of(common)}


def selection_weights(
    selection: "str | Selection | Callable[..., Any]", history: PromptHistory, /, **keywords: Any
) -> Tensor:
    """(P,) float64: the weight of each prompt, by a selection, its name or its function.

    >>> selection_weights("uniform", PromptHistory.of([[1, 0], []])).tolist()
    [1.0, 1.0]

    Raises:
        SelectionKeywordError: a keyword is unknown, of the wrong type or out of range.
        SelectionOutputError: the weights are invalid; names the first prompt with a wrong weight.
        SelectionFailedError: the selection raised an exception, which is the cause.
    """
    part = selection_of(selection)
    if problems := keyword_problems(part, keywords):
        raise SelectionKeywordError("\n".join(problems))
    try:
        weights = part.fn(history.copy(), **own_keywords(keywords))  # a copy: it may write in place
    except SelectionOutputError:
        raise
    except Exception as error:
        raise SelectionFailedError(
            f"the {part.title} raised {type(error).__name__}: {error}. Its traceback is above."
        ) from error
    return _checked(part, history, weights)


def _checked(part: Selection, history: PromptHistory, output: Any) -> Tensor:
    allowed = f"the {part.title} must return a tensor of {len(history)} weights, finite and at least 0, one a prompt"
    if not isinstance(output, Tensor):
        raise SelectionOutputError(f"{allowed}; it returned {short(output)}.")
    if output.shape != (len(history),):
        raise SelectionOutputError(f"{allowed}; it returned the shape {tuple(output.shape)}.")
    if output.is_complex():
        raise SelectionOutputError(f"{allowed}; it returned {output.dtype}.")
    weights_P = output.detach().cpu().double()
    wrong = ~(weights_P.isfinite() & (weights_P >= 0))
    if bool(wrong.any()):
        prompt = int(wrong.nonzero()[0])
        raise SelectionOutputError(f"{allowed}; it returned {weights_P[prompt]:g} for {named(history, prompt)}.")
    if not bool((weights_P * history.rows > 0).any()):
        raise SelectionOutputError(f"{allowed}, and more than 0 for one of them; all are 0.")
    return weights_P


def named(history: PromptHistory, prompt: int) -> str:
    """Return a prompt's number for a message, and its text if the history has it."""
    texts = history.columns.get("prompt")
    return f"prompt {prompt}" + ("" if texts is None else f" ({show(texts[prompt])})")


def _added(selection: Selection) -> dict[str, inspect.Parameter]:
    more = {name: p for name, p in keywords_of(common).items() if selection.draws or name == "decay"}
    if "weighted" in more:
        more["weighted"] = more["weighted"].replace(default=selection.weighted)
    return more


def _history(selection: Selection) -> list[str]:
    return list(inspect.signature(selection.fn).parameters)[:1]
