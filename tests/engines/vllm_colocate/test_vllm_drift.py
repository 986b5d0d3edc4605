"""What vLLM draws from is compared with what is trained: stale weights and other models do not go unseen."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.engine("vllm"), pytest.mark.timeout(700)]


@pytest.fixture(scope="module")
def runs(colocated, tmp_path_factory):
    return colocated("drift_runs.py", folder=tmp_path_factory.mktemp("drift"))


def test_at_the_policy_there_is_no_drift_and_a_penalty_that_the_loss_does_not_score_is_seen(runs):
    run = runs["at_the_policy"]
    assert max(run["worst"]) < 1e-4
    assert (run["error"], run["steps"]) == (None, 4)
    (mean,) = runs["penalty"]["mean"]
    assert 0.01 < mean < 1.0


def test_stale_weights_show_from_the_first_batch_that_they_drew(runs):
    run = runs["stale"]
    assert max(run["worst"][:2]) < 1e-4
    assert min(run["mean"][2:]) > 0.2
    assert run["steps"] == 4


def test_without_trls_correction_the_first_batch_and_every_tenth_are_compared(runs):
    run, stale = runs["by_a_pass"], runs["stale_by_a_pass"]
    for found in (run, stale):
        assert [at for at, mean in enumerate(found["mean"]) if mean is not None] == [0, 10]
        assert found["worst"][0] < 1e-4
    assert run["worst"][10] < 1e-4
    assert stale["worst"][10] > 1e-2


ANOTHER = "means another model or another vocabulary"
KNOWN = "the model in training has 17 tokens: vLLM serves a model with another vocabulary"


@pytest.mark.parametrize(("name", "said"), [("other", ANOTHER), ("other_by_a_pass", ANOTHER), ("vocabulary", KNOWN)])
def test_another_model_or_vocabulary_ends_the_run_before_its_first_step(runs, name, said):
    run = runs[name]
    assert said in run["error"]
    assert run["steps"] == 0


def test_within_what_truncated_sampling_left_the_two_are_compared_too(runs):
    run, stale = runs["truncated"], runs["truncated_stale"]
    assert max(run["worst"]) < 1e-4
    assert run["ratio"] == pytest.approx([1.0] * 4, abs=1e-4)
    assert min(run["outside"]) > 0.01
    assert max(stale["worst"][:2]) < 1e-4
    assert min(stale["worst"][2:]) > 1e-2
