"""`measure` and evaluations on two FSDP2 ranks give what they give in one process."""

import json

import pytest

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def found(tmp_path_factory, tiny_model, alone, ranks):
    folder = tmp_path_factory.mktemp("measuring")
    for world, run in ((1, alone), (2, ranks)):
        (folder / str(world)).mkdir()
        with run("measuring.py", folder / str(world), tiny_model, log=folder / f"log of {world}"):
            pass
    one, *two = (folder / f"{world}/rank {rank} of {world}.json" for world, rank in ((1, 0), (2, 0), (2, 1)))
    return json.loads(one.read_text()), [json.loads(path.read_text()) for path in two]


@pytest.mark.parametrize("run", ["whole", "LoRA"])
def test_the_same_completions_are_measured_and_evaluations_are_the_same(found, run):
    """The first rank draws three rows and the second one two, each as long as it takes."""
    one, two = found
    for rank in two:
        for when in ("before", "after"):
            assert len(one[run]["samples"][when]) == 15
            assert rank[run]["samples"][when] == one[run]["samples"][when]
        assert rank[run]["said"] == one[run]["said"]
    assert one[run]["samples"]["before"] != one[run]["samples"]["after"]
    assert len(one[run]["evaluated"]) == 2
    for mine, truth in zip(two[0][run]["evaluated"], one[run]["evaluated"], strict=True):
        assert mine == pytest.approx(truth, rel=1e-5, abs=1e-6)


def test_a_run_that_goes_on_keeps_the_measurement_from_before_it_or_says_that_there_is_none(found):
    _, two = found
    assert two[0]["again"]["samples"]["before"] == two[0]["whole"]["samples"]["before"]  # of the rank that reads them
    for rank in two:
        assert rank["again"]["samples"]["after"] == rank["whole"]["samples"]["after"]
        assert list(rank["unknown"]["samples"]) == ["after"]
        assert "unknown" in rank["unknown"]["said"][0]
