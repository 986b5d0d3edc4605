"""Weights that cannot be drawn by, and keywords that no selection takes."""

import pytest
import torch

from grpo_plus.selection import part, selection_weights
from grpo_plus.selection.checking import keyword_problems
from grpo_plus.selection.history import EVIDENCE, PromptHistory
from grpo_plus.selection.part import Selection
from grpo_plus.selection.registry import get_selection, register_selection, selections
from grpo_verifiers.errors import DuplicateNameError, UnknownNameError

HISTORY = PromptHistory.of([[1, 0], [], [0, 0]], columns={"prompt": ["one", "two", "three"]})

WRONG = {
    "a NaN": ([1.0, float("nan"), 1.0], r"it returned nan for prompt 1 \('two'\)"),
    "a negative one": ([1.0, 0.0, -0.5], r"it returned -0.5 for prompt 2 \('three'\)"),
    "an infinite one": ([float("inf"), 0.0, 1.0], r"it returned inf for prompt 0 \('one'\)"),
    "all zero": ([0.0, 0.0, 0.0], "more than 0 for one of them; all are 0"),
    "too few": ([1.0, 1.0], r"it returned the shape \(2,\)"),
    "a column": ([[1.0], [1.0], [1.0]], r"it returned the shape \(3, 1\)"),
    "no tensor": ([1, 2, 3], r"it returned \[1, 2, 3\]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_weights_are_named_with_the_first_prompt(name):
    values, message = WRONG[name]
    made = list if name == "no tensor" else torch.tensor
    said = r"the selection 'mine' must return a tensor of 3 weights.*" + message
    with pytest.raises(part.SelectionOutputError, match=said):
        selection_weights(Selection("mine", lambda history: made(values)), HISTORY)


def test_a_selection_that_raises_is_the_cause():
    def failing(history):
        return 1 / 0

    with pytest.raises(part.SelectionFailedError, match="the selection 'mine' raised ZeroDivisionError") as found:
        selection_weights(Selection("mine", failing), HISTORY)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    assert selection_weights(Selection("mine", lambda h: h.drawn > 0), HISTORY).tolist() == [1, 0, 1]


def test_keywords_are_checked_from_the_signature_and_weights_cannot_make_up_for_what_is_never_drawn():
    contrast, curriculum = get_selection("contrast"), get_selection("curriculum")
    found = keyword_problems(contrast, {"power": -1, "explore": 2, "weighted": 1, "decai": 0.5})
    words = ["'power' is -1", "'explore' is 2", "'weighted' is 1", "'decai'. Did you mean 'decay'?"]
    assert len(found) == 4
    assert all(word in problem for word, problem in zip(words, found, strict=True))
    (found,) = keyword_problems(get_selection("uniform"), {"explore": 0.5})  # it draws nothing
    assert "unknown keyword 'explore'. There is: decay." in found
    (found,) = keyword_problems(contrast, {"explore": 0})
    assert "explore is 0 and weighted is true" in found
    assert keyword_problems(contrast, {"power": 0, "explore": 0, "weighted": False}) == []
    assert keyword_problems(curriculum, {"explore": 0, "column": "a"}) == []
    assert keyword_problems(curriculum, {"explore": 0, "column": "a", "weighted": True})
    with pytest.raises(UnknownNameError, match="There is: contrast, curriculum, uniform"):
        get_selection("contrst")


def test_the_decorator_registers_a_function_and_leaves_it():
    @register_selection("test_drawn_least", weighted=False)
    def least(history, *, most: int = 3):
        """Those drawn least."""
        return (history.drawn < most).double()

    try:
        found = get_selection("test_drawn_least")
        assert (found.fn, found.formula, found.weighted) == (least, "Those drawn least", False)
        assert Selection("other", least, "1/n").formula == "1/n"
        with pytest.raises(part.SelectionKeywordError, match="unknown keyword 'mst'"):
            selection_weights(least, HISTORY, mst=1)
    finally:
        selections.unregister("test_drawn_least")


def test_names_and_parameters_that_are_taken_are_refused():
    with pytest.raises(DuplicateNameError, match="the selection 'contrast' exists already"):
        register_selection("contrast")(lambda history: history.counts)
    with pytest.raises(part.NotASelectionError, match="has a keyword 'explore', which every selection has"):
        Selection("mine", lambda history, *, explore=1: history.counts)
    with pytest.raises(part.NotASelectionError, match="whose first parameter is the PromptHistory"):
        Selection("mine", lambda: 1)
    with pytest.raises(TypeError, match="takes the name first"):
        register_selection(lambda history: history.counts)


def test_what_a_selection_writes_into_its_history_stays_its_own():
    def writes(history):
        for name in (*EVIDENCE, "rows"):
            getattr(history, name).fill_(7.0)
        return history.rows

    history = PromptHistory.of([[1, 0], [1, 1], []])
    before = history.copy()
    assert selection_weights(writes, history).tolist() == [7.0] * 3
    for name in (*EVIDENCE, "rows"):
        assert torch.equal(getattr(history, name), getattr(before, name)), name
