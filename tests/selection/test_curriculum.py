"""Easy prompts first: by a column, or as an evaluation measured them."""

import json

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


@pytest.fixture
def measured(tmp_path):
    """A file of an evaluation: the share of right samples by prompt, and the label of a verifier."""

    def measured(rates, labels=("exact",), lines=()):
        path = tmp_path / "samples.jsonl"
        fixed = {"completion": "", "tokens": 1, "cut_off": False}
        found = []
        for row, (prompt, rate) in enumerate(rates.items()):
            for sample in range(4):
                verdict = {"score": float(sample < 4 * rate), "status": "", "detail": ""}
                verdicts = dict.fromkeys(labels, verdict)
                found.append({"row": row, "sample": sample, "prompt": prompt, **fixed, "verdicts": verdicts})
        path.write_text("".join(f"{line}\n" for line in [*map(json.dumps, found), *lines]))
        return str(path)

    return measured


def refused(match, given=None, **keywords):
    with pytest.raises(SelectionOutputError, match=match):
        selection_weights("curriculum", history() if given is None else given, **keywords)


def test_the_difficulty_comes_from_one_place_that_there_is():
    for how, keywords in (("unset", {}), ("set", {"column": "a", "file": "b"})):
        with pytest.raises(SelectionKeywordError, match=f"column and file are both {how}, expected one of them"):
            selection_weights("curriculum", history(), **keywords)
    refused("unknown column 'levl'. Did you mean 'level'", history(level=[1] * 5), column="levl")


@pytest.mark.parametrize(("value", "shown"), [("hard", "'hard'"), (None, "'None'"), (float("nan"), "'nan'"), (True, "'True'")])  # fmt: skip
def test_a_difficulty_that_is_no_number_is_named_with_its_prompt(value, shown):
    given = history(level=[1, 2, value, 4, 5])
    refused(f"the column 'level' is {shown} for the prompt 'three', expected a finite number", given, column="level")


def test_an_evaluation_says_what_is_hard_by_all_prompts_and_one_verifier_that_is_meant(measured, tmp_path):
    file = measured({"one": 1.0, "two": 0.5, "three": 0.5, "four": 0.5})
    refused("no judged sample of 1 of 5 prompts, first 'five'", file=file)
    file = measured(dict.fromkeys(PROMPTS, 0.5), labels=("exact", "math"))
    refused("verdicts of exact, math: name one of them as verifier", file=file)
    refused("unknown verifier 'mth'. Did you mean 'math'", file=file, verifier="mth")
    assert selection_weights("curriculum", history(), file=file, verifier="math").tolist() == [1] * 5
    refused("cannot be read", file=str(tmp_path / "none.jsonl"))
    for line in ("{}", "[1]", "no json", '{"prompt": 1, "verdicts": {"exact": 3}}'):
        refused("is no sample of an evaluation", file=measured({}, lines=[line]))
    file = measured(dict(zip(PROMPTS, [0.5, 1.0, 0.75, 0.0, 0.25], strict=True)))
    assert selection_weights("curriculum", history(0.25), file=file).tolist() == [1, 1, 1, 0, 0]
