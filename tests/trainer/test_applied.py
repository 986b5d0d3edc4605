"""Verifiers that would check nothing are refused or said, with counts; so are columns that look like a slip."""

import pytest

from grpo_plus.training.applied import nearly_read
from grpo_verifiers.errors import ConfigError


def routed(sums, *kinds):
    return sums.add_column("kind", [kinds[row % len(kinds)] for row in range(len(sums))])


VERIFIERS = {"verifiers": ["exact", "numeric", "think_format"], "verifier_column": "kind"}


def test_a_verifier_that_no_row_names_is_refused_with_the_counts(build, sums):
    rows = routed(sums, "exact", "exact", "exact", "numeric")
    with pytest.raises(ConfigError) as refused:
        build(trainer={"train_dataset": rows, "reward_funcs": None}, **VERIFIERS)
    text = str(refused.value)
    assert "no row names the verifier 'think_format'" in text
    assert "train_dataset has 16 rows: 'exact' 12, 'numeric' 4" in text
    assert "remove it from verifiers, or correct the rows" in text


def test_several_are_named_together_and_a_stranger_is_said_first(build, sums):
    with pytest.raises(ConfigError, match="no row names the verifiers 'numeric', 'think_format'"):
        build(trainer={"train_dataset": routed(sums, "exact")}, **VERIFIERS)
    with pytest.raises(ConfigError) as refused:
        build(trainer={"train_dataset": routed(sums, "exact", "numric")}, **VERIFIERS)
    assert "Did you mean 'numeric'?" in str(refused.value)
    assert "no row names" not in str(refused.value)


def test_rows_of_an_evaluation_count_too(build, sums):
    sets = {"train_dataset": routed(sums, "exact", "numeric"), "eval_dataset": routed(sums, "think_format")}
    build(trainer={**sets, "reward_funcs": None}, **VERIFIERS)


def test_a_stream_is_said_at_the_end(trained, sums, caplog):
    rows = routed(sums, "exact", "numeric").to_iterable_dataset()
    trained(trainer={"train_dataset": rows, "reward_funcs": None}, **VERIFIERS, rollout="stock")
    assert "the verifier 'think_format' was never applied: none of 16 completions was its" in caplog.text
    assert "'exact' was never" not in caplog.text


def test_a_verifier_that_applied_to_nothing_is_said_at_the_end(trained, tmp_path, caplog):
    plugin = tmp_path / "half.py"
    plugin.write_text(
        "from grpo_verifiers import Verdict\n\ndef none(completion):\n    return Verdict(None, 'not_applicable')\n\n"
        "def some(completion):\n    return Verdict(1.0, 'correct') if len(completion) % 2 else Verdict(0.0, 'wrong')\n"
    )
    trained(verifiers=[f"{plugin}:none", f"{plugin}:some"])
    assert "the verifier 'none' applied to none of the 16 completions" in caplog.text
    assert "'some' applied" not in caplog.text


def test_a_column_that_nobody_reads_and_is_nearly_wanted_is_said(build, sums, caplog):
    rows = sums.add_column("row_shema", ["{}"] * len(sums))
    build(
        trainer={"train_dataset": rows}, verifiers=[{"name": "json_schema", "kwargs": {"schema": {"type": "object"}}}]
    )
    assert "nothing reads the column 'row_shema', but json_schema would read 'row_schema'" in caplog.text
    caplog.clear()
    build(trainer={"train_dataset": sums}, verifiers=["exact"])
    assert "nothing reads" not in caplog.text


def test_columns_that_are_read_or_unlike_are_let_be():
    absent = {"row_schema": ["json_schema"]}
    assert nearly_read(["prompt", "answer", "subject"], absent, {"prompt", "answer"}) == []
    assert nearly_read(["row_schem"], absent, {"row_schem"}) == []
    assert len(nearly_read(["rows_schema", "rowschema"], absent, set())) == 2
