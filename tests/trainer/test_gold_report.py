"""Gold answers that are no use are named when the training data is given, before anything is generated."""

import json

import pytest
from datasets import Dataset, IterableDataset

from grpo_plus import GRPOPlusConfig
from grpo_plus.training.verification import Verification, evenly
from tests.device import FLOAT32

GOLDS = ["42", "", r"\frac43", "}{", "$5$"]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    def make(**fields):
        return GRPOPlusConfig(str(tmp_path_factory.mktemp("run")), **FLOAT32, report_to="none", **fields)

    return make


def rows(**columns):
    return Dataset.from_dict({"prompt": ["p"] * len(GOLDS), "answer": GOLDS, **columns})


def test_golds_that_are_no_use_are_counted_listed_and_their_treatment_said(config, capsys):
    Verification.of(config(verifiers=["math"]).recipe).report_golds(rows())
    said = capsys.readouterr().out
    assert "verifier 'math'" in said
    assert "3 of 5 gold answers accept themselves" in said
    assert "row 1: ''" in said
    assert "left out" in said
    assert "row 3: '}{'" in said


def test_good_golds_are_not_talked_about(config, capsys):
    Verification.of(config(verifiers=["math"]).recipe).report_golds(
        Dataset.from_dict({"prompt": ["p"], "answer": ["42"]})
    )
    assert capsys.readouterr().out == ""


def test_only_the_rows_routed_to_a_verifier_are_its_golds(config, capsys):
    chosen = config(verifiers=["math", "exact"], verifier_column="kind")
    Verification.of(chosen.recipe).report_golds(rows(kind=["math", "exact", "math", "exact", "math"]))
    assert capsys.readouterr().out == ""


def test_other_ranks_stay_silent_and_streams_are_left_alone(config, capsys, monkeypatch):
    verification = Verification.of(config(verifiers=["math"]).recipe)
    stream = IterableDataset.from_generator(lambda: iter([{"prompt": "p", "answer": ""}]))
    verification.report_golds(stream)
    monkeypatch.setenv("RANK", "1")
    verification.report_golds(rows())
    assert capsys.readouterr().out == ""


ADD = [{"function": "add", "args": [1, 2], "expected": 3}]
WEAK = [{"code": "add(1, 2)"}]


def code_rows(*tests):
    return Dataset.from_dict({"prompt": ["p"] * len(tests), "tests": [json.dumps(each) for each in tests]})


@pytest.mark.slow
def test_a_sample_of_tests_is_tried_and_what_is_weak_has_its_place_in_the_dataset(config, capsys):
    verification = Verification.of(config(verifiers=["code"]).recipe)
    verification.report_golds(code_rows(*[ADD] * 30, *[WEAK] * 10))
    said = capsys.readouterr().out
    assert "12 of 40 rows were looked at" in said
    assert "9 of 12 rows of tests fail" in said
    assert [f"row {row}: " in said for row in (26, 30, 33, 36, 39)] == [False, True, True, True, False]
    assert verification.golds["code"]["ok"] is False
    assert verification.golds["code"]["lines"][0] == "12 of 40 rows were looked at."


def test_sound_tests_are_not_talked_about_but_kept(config, capsys):
    verification = Verification.of(config(verifiers=["code"]).recipe)
    verification.report_golds(code_rows(ADD, ADD))
    assert capsys.readouterr().out == ""
    assert verification.golds["code"]["ok"] is True
    assert verification.golds["code"]["lines"][0].startswith("2 of 2 rows of tests fail")


@pytest.mark.parametrize(
    ("size", "count", "places"), [(5, 12, [0, 1, 2, 3, 4]), (10, 3, [0, 3, 6]), (4, None, [0, 1, 2, 3])]
)
def test_a_sample_is_spread_evenly(size, count, places):
    assert [*evenly(range(size), count)] == places
