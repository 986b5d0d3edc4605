"""Ranks that draw for different times stay in step under FSDP2, and draw what whole weights would."""

import json

import pytest

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, tiny_model, ranks):
    folder = tmp_path_factory.mktemp("drawing")
    with ranks("drawing.py", folder, tiny_model, log=folder / "log", seconds=150):
        pass
    return [json.loads((folder / f"rank {rank}.json").read_text()) for rank in range(2)]


AFTER_AN_ERROR = ("lean, after an error", "generate, after an error", "lean, LoRA, kept whole, after an error")


@pytest.mark.parametrize("name", ["lean", "lean, LoRA, few rows", "generate", "generate, LoRA", *AFTER_AN_ERROR])
def test_completions_are_those_of_whole_weights_however_long_the_other_rank_draws(drawn, name):
    for found, most in zip(drawn, (24, 5), strict=True):
        assert found[name]["lengths"] == [most] * 3
        assert found[name]["equal"] == [True] * 3


def test_our_decode_draws_in_every_precision_and_a_rank_that_fails_ends_the_others(drawn):
    for rank in drawn:
        found = {name: case for name, case in rank.items() if name != "failed"}
        assert {case["stock"] for case in found.values()} == {None}
        lean = {name for name, case in found.items() if "rollout/row_steps" in case["log"]}
        assert lean == {name for name in found if name.startswith("lean")}
    assert drawn[1]["failed"] == ["ValueError", 2, None]
    assert drawn[0]["failed"] == ["OtherRankFailedError", 2, None]


@pytest.mark.parametrize("name", AFTER_AN_ERROR)
def test_an_error_in_the_middle_of_drawing_leaves_the_model_as_it_was(drawn, name):
    assert [rank[name]["broken"] for rank in drawn] == [[[None]] * 3] * 2
