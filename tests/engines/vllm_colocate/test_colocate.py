"""A vLLM in the trainer's own process draws from the weights of each step, on a CPU and from a base in 4 bits too."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.engine("vllm"), pytest.mark.timeout(700)]


@pytest.fixture(scope="module", params=["full", "adapter", "object", "four_bit"])
def case(request, colocated, tmp_path_factory):
    return request.param, colocated("run.py", request.param, folder=tmp_path_factory.mktemp(request.param))


def test_each_step_draws_from_its_own_weights_and_an_adapter_leaves_every_bit_of_the_base_alone(case):
    name, found = case
    assert len(found["gap"]) == 4
    assert max(found["gap"]) < 1e-4
    assert found["ratio"] == pytest.approx([1.0] * 12, abs=1e-4)
    assert found["moved"]
    assert found["frozen"] == (0 if name == "full" else 21)
    assert found["same_base"] or name == "object"  # merged into it, and out again


def test_the_run_says_nothing_of_a_drift_and_leaves_nothing_behind(case):
    name, found = case
    assert found["drift"] == pytest.approx(found["gap"], abs=1e-7)
    said = [line for line in found["said"] if "vLLM" in line]
    assert len(said) == (name == "object"), said
    assert all("merged into all weights" in line and "as an object" in line for line in said)
    assert found["left"] == []
