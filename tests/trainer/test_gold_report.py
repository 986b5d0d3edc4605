"""What is no use in the data is named before training: gold answers, verifiers that would check nothing, columns that are slips."""

import json

import pytest
from datasets import Dataset, IterableDataset

from grpo_plus import GRPOPlusConfig
from grpo_plus.training.scoring.verifiers import Verifiers, near_miss_columns
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.stats import evenly
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
    Verifiers.of(config(verifiers=["math"]).recipe).report_golds(rows())
    said = capsys.readouterr().out
    assert all(words in said for words in ("verifier 'math'", "3 of 5 gold answers accept themselves", "row 1: ''"))
    assert all(words in said for words in ("left out", "row 3: '}{'"))


def test_good_golds_rows_of_others_streams_and_other_ranks_are_silent(config, capsys, monkeypatch):
    verification = Verifiers.of(config(verifiers=["math"]).recipe)
    verification.report_golds(Dataset.from_dict({"prompt": ["p"], "answer": ["42"]}))
    verification.report_golds(IterableDataset.from_generator(lambda: iter([{"prompt": "p", "answer": ""}])))
    chosen = config(verifiers=["math", "exact"], verifier_column="kind")
    Verifiers.of(chosen.recipe).report_golds(rows(kind=["math", "exact", "math", "exact", "math"]))
    monkeypatch.setenv("RANK", "1")
    verification.report_golds(rows())
    assert capsys.readouterr().out == ""


ADD = [{"function": "add", "args": [1, 2], "expected": 3}]
WEAK = [{"code": "add(1, 2)"}]


def code_rows(*tests):
    return Dataset.from_dict({"prompt": ["p"] * len(tests), "tests": [json.dumps(each) for each in tests]})


@pytest.mark.slow
def test_a_sample_of_tests_is_tried_and_what_is_weak_has_its_place_in_the_dataset(config, capsys):
    verification = Verifiers.of(config(verifiers=["code"]).recipe)
    verification.report_golds(code_rows(*[ADD] * 30, *[WEAK] * 10))
    said = capsys.readouterr().out
    assert all(words in said for words in ("12 of 40 rows were checked", "9 of 12 rows of tests fail"))
    assert [f"row {row}: " in said for row in (26, 30, 33, 36, 39)] == [False, True, True, True, False]
    assert verification.golds["code"]["ok"] is False
    assert verification.golds["code"]["lines"][0] == "12 of 40 rows were checked."
    verification.report_golds(code_rows(ADD, ADD))  # sound ones are not talked about but kept
    assert capsys.readouterr().out == ""
    assert verification.golds["code"]["ok"] is True
    assert verification.golds["code"]["lines"][0].startswith("2 of 2 rows of tests fail")


@pytest.mark.parametrize(("size", "count", "places"), [(5, 12, [0, 1, 2, 3, 4]), (10, 3, [0, 3, 6]), (4, None, [0, 1, 2, 3])])  # fmt: skip
def test_a_sample_is_spread_evenly(size, count, places):
    assert [*evenly(range(size), count)] == places


def routed(sums, *kinds):
    return sums.add_column("kind", [kinds[row % len(kinds)] for row in range(len(sums))])


VERIFIERS = {"verifiers": ["exact", "numeric", "think_format"], "verifier_column": "kind"}


def test_a_verifier_that_no_row_names_is_refused_with_the_counts(build, sums):
    rows = routed(sums, "exact", "exact", "exact", "numeric")
    with pytest.raises(ConfigError) as refused:
        build(trainer={"train_dataset": rows, "reward_funcs": None}, **VERIFIERS)
    text = str(refused.value)
    assert "no row names 'think_format'" in text
    assert "train_dataset has 16 rows: 'exact' 12, 'numeric' 4" in text
    assert "remove it from verifiers, or correct the rows" in text


def test_several_are_named_together_and_a_stranger_is_said_first(build, sums):
    with pytest.raises(ConfigError, match="no row names 'numeric', 'think_format' "):
        build(trainer={"train_dataset": routed(sums, "exact")}, **VERIFIERS)
    with pytest.raises(ConfigError) as refused:
        build(trainer={"train_dataset": routed(sums, "exact", "numric")}, **VERIFIERS)
    assert "Did you mean 'numeric'?" in str(refused.value)
    assert "no row names" not in str(refused.value)
    sets = {"train_dataset": routed(sums, "exact", "numeric"), "eval_dataset": routed(sums, "think_format")}
    build(trainer={**sets, "reward_funcs": None}, **VERIFIERS)  # rows of an evaluation count too


def test_a_column_that_nobody_reads_and_is_nearly_wanted_is_said(build, sums, caplog):
    rows = sums.add_column("row_shema", ["{}"] * len(sums))
    schema = {"name": "json_schema", "schema": {"type": "object"}}
    build(trainer={"train_dataset": rows}, verifiers=[schema])
    assert "nothing reads the column 'row_shema', but json_schema would read 'row_schema'" in caplog.text
    caplog.clear()
    build(trainer={"train_dataset": sums}, verifiers=["exact"])
    assert "nothing reads" not in caplog.text
    absent = {"row_schema": ["json_schema"]}
    assert near_miss_columns(["prompt", "answer", "subject"], absent, {"prompt", "answer"}) == []
    assert near_miss_columns(["row_schem"], absent, {"row_schem"}) == []
    assert len(near_miss_columns(["rows_schema", "rowschema"], absent, set())) == 2
