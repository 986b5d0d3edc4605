"""The contract of selections, as checks for any selection, built in or not.

All checks look at `selection_weights`, which are used to sample prompts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_plus.selection.checking import keyword_problems, own_keywords, selection_weights
from grpo_plus.selection.history import PromptHistory
from grpo_plus.selection.part import Selection, SelectionKeywordError
from grpo_plus.selection.registry import selection_of
from grpo_plus.testing.contract import Kit, Part, Subject, checks_of, label_of, leaves_alone

if TYPE_CHECKING:
    from collections.abc import Callable


def check_selection(part: "str | Selection | Callable[..., Any]", /, **keywords: Any) -> None:
    """Run all checks of the contract on a selection.

    >>> check_selection("contrast", power=2)

    The history has the columns ``prompt`` and ``difficulty``.

    Raises:
        AssertionError: lists every check that failed.
    """
    KIT.run((part, keywords))


def sample_history(num_generations: int = 4, *, graded: bool = False, progress: float = 0.25) -> PromptHistory:
    """Prompts of all kinds: never solved, always, sometimes, frequent, unseen, unscored, in several rows."""
    random = torch.Generator().manual_seed(0)
    rates = [0.0, 1.0, 0.5, 0.1, 0.9, 0.3, 0.0, 1.0]
    count = len(rates) + 2
    columns: dict[str, list[Any]] = {
        "prompt": [f"prompt {number}" for number in range(count)],
        "difficulty": list(range(count)),
    }
    history = PromptHistory.empty([1, 1, 2, 1, 1, 3, 1, 1, 1, 1], num_generations, columns)
    for visit in range(3):
        index = [prompt for prompt in range(visit, len(rates)) for _ in range(num_generations)]
        draws = torch.rand(len(index), generator=random, dtype=torch.float64)
        totals = (draws < torch.tensor([rates[prompt] for prompt in index])).double()
        totals = totals * torch.randint(1, 4, totals.shape, generator=random) if graded else totals
        history = history.observed(index, totals, decay=0.7)
    unscored = [count - 1] * num_generations
    history = history.observed(unscored, torch.full((num_generations,), torch.nan), decay=0.7)
    return replace(history, progress=progress)


def _run(subject: Subject, history: PromptHistory) -> Tensor:
    try:
        return selection_weights(subject.part, history, **subject.keywords)
    except Exception as error:
        raise AssertionError(f"raised {type(error).__name__}: {error}") from error


def _all_histories() -> Sequence[PromptHistory]:
    sizes = [sample_history(size, graded=graded) for size in (2, 4, 16) for graded in (False, True)]
    return [*sizes, *(sample_history(progress=progress) for progress in (0.0, 1.0))]


def check_weights(subject: Subject) -> None:
    """Finite weights of at least 0, one a prompt, and one of them more than 0, at any time and for any rewards."""
    for history in _all_histories():
        _run(subject, history)


def check_empty_history(subject: Subject) -> None:
    """It works before the first batch, and for a single prompt."""
    history = sample_history()
    empty = PromptHistory.empty(history.rows, 4, history.columns)
    _run(subject, empty)
    _run(subject, empty.take([3]))


def check_leaves_history_alone(subject: Subject) -> None:
    """It does not change its history."""
    history, keywords = sample_history(), own_keywords(subject.keywords)
    columns = {name: list(values) for name, values in history.columns.items()}
    # The function itself: `selection_weights` passes a copy.
    leaves_alone("history", vars(history), lambda: subject.part.fn(history, **keywords))
    for name, values in columns.items():
        if values != list(history.columns[name]):
            raise AssertionError(f"history.columns[{name!r}] was changed in place")


def check_permutes(subject: Subject) -> None:
    """Prompts in another order get the same weights, each its own."""
    for history in _all_histories():
        order = torch.randperm(len(history), generator=torch.Generator().manual_seed(1))
        got, expected = _run(subject, history.take(order)), _run(subject, history)[order]
        if not torch.allclose(got, expected, rtol=1e-9, atol=1e-12):
            prompt = int((got - expected).abs().argmax())
            text = f"prompts in another order: {float(got[prompt]):g} instead of {float(expected[prompt]):g}"
            raise AssertionError(f"{text} for one of them")


def _resolve(part: Part) -> Subject:
    source, keywords = part if isinstance(part, tuple) else (part, {})
    selection = selection_of(source)
    if problems := keyword_problems(selection, keywords):
        raise SelectionKeywordError("\n".join(problems))
    return Subject(selection, dict(keywords), label_of(selection.name, keywords))


KIT = Kit(_resolve, checks_of(globals(), lambda subject: _run(subject, sample_history()), keyword_problems))
