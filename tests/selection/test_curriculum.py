"""Easy prompts first, by a column."""

import pytest

from grpo_plus.selection import PromptHistory, selection_weights
from grpo_plus.selection.part import SelectionKeywordError, SelectionOutputError

PROMPTS = ["one", "two", "three", "four", "five"]


def history(progress=0.0, **columns):
    return PromptHistory.of([[]] * 5, progress=progress, columns={"prompt": PROMPTS, **columns})


def opened(progress, difficulty=(3, 1, 2, 5, 4), **keywords):
    given = history(progress, level=list(difficulty))
    return selection_weights("curriculum", given, column="level", **keywords).tolist()


def test_prompts_open_from_easy_to_hard():
    schedule = {0.0: [0, 1, 0, 0, 0], 0.125: [0, 1, 1, 0, 0], 0.25: [1, 1, 1, 0, 0], 0.5: [1] * 5, 1.0: [1] * 5}
    assert {progress: opened(progress) for progress in schedule} == schedule
    assert opened(0.0, start=0.6) == [1, 1, 1, 0, 0]
    assert opened(0.5, full=1.0) == [1, 1, 1, 0, 0]
    assert opened(0.0, difficulty=(1, 1, 1, 2, 2)) == [1, 1, 1, 0, 0]  # of one difficulty open together


def refused(match, given=None, **keywords):
    with pytest.raises(SelectionOutputError, match=match):
        selection_weights("curriculum", history() if given is None else given, **keywords)


def test_the_difficulty_is_a_column_that_there_is():
    with pytest.raises(SelectionKeywordError, match="keyword 'column' is required and missing"):
        selection_weights("curriculum", history())
    refused("unknown column 'levl'. Did you mean 'level'", history(level=[1] * 5), column="levl")


@pytest.mark.parametrize(("value", "shown"), [("hard", "'hard'"), (None, "'None'"), (float("nan"), "'nan'"), (True, "'True'")])  # fmt: skip
def test_a_difficulty_that_is_no_number_is_named_with_its_prompt(value, shown):
    given = history(level=[1, 2, value, 4, 5])
    refused(f"the column 'level' is {shown} for the prompt 'three', expected a finite number", given, column="level")
