"""Out of memory on one of two ranks under DDP: survived without gradient, an error that says so in the update."""

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory, tiny_model, two_ranks):
    folder = tmp_path_factory.mktemp("ranks")
    runs = ["plenty", "reference", "update"]  # the last one breaks the ranks' connection
    with two_ranks(Path(__file__).with_name("ranks.py"), folder, tiny_model, json.dumps(runs), log=folder / "log"):
        pass
    return {name: [json.loads((folder / f"{name}{rank}.json").read_text()) for rank in (0, 1)] for name in runs}


def test_a_rank_goes_on_alone_in_passes_without_gradient(found):
    assert [rank["error"] for rank in found["reference"]] == [None, None]
    assert found["reference"][0]["retries"] == 0 < found["reference"][1]["retries"]
    for rank in (0, 1):
        assert found["reference"][rank]["weights"] == pytest.approx(found["plenty"][rank]["weights"], abs=1e-6)


def test_an_update_of_several_ranks_ends_and_says_why(found):
    error = found["update"][1]["error"]
    assert re.match("StepTooLargeError: out of memory in the update: .*the ranks add up their gradients", error)
    assert "its launcher ends all other ranks, or they wait until their collective times out" in error
    assert found["update"][0]["error"] is not None  # it lost the other one
    assert found["update"][1]["retries"] == 0
