"""Real runs: a lenient reward that listing numbers satisfies, the same reward where it cannot be, and noise."""

import logging

import pytest

from grpo_plus.record import open_run
from grpo_plus.report.write import page_data
from tests.diagnosis.conftest import FILE

pytestmark = pytest.mark.slow

WATCHED = {
    "plugins": [FILE], "diagnosis": {"judge": "strict", "every": 1, "sample": 32}, "per_device_train_batch_size": 32, "num_generations": 4,
    "learning_rate": 1e-2, "lr_scheduler_type": "constant", "max_steps": 30,
}  # fmt: skip


def test_a_hacked_reward_alarms_with_examples_and_ends_the_run(run, tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "grpo_plus.diagnosis"):
        given = {"verifiers": ["diagnosis_anywhere"], "max_completion_length": 6}
        given |= {"diagnosis": {**WATCHED["diagnosis"], "stop_on": ["hacking"]}}
        trainer = run(["12"[at % 2] for at in range(32)], **WATCHED | given)
    assert trainer.pipeline.diagnosis.stopped_by is not None, trainer.pipeline.diagnosis._monitor.checks
    assert trainer.pipeline.diagnosis.stopped_by.name == "hacking"
    assert trainer.state.global_step < 30
    found = trainer.pipeline.diagnosis.watch.current["hacking"].finding
    assert "the score of diagnosis_anywhere has risen from" in found.evidence
    assert found.values["hacking/reward"] > found.values["hacking/judge"] + 0.2
    assert found.examples
    for one in found.examples:
        assert (one["reward"], one["judge"]) == (1.0, 0.0)
        assert {"1", "2"} & set(one["completion"])
        assert len(one["completion"]) > 1
    (told,) = [each.getMessage() for each in caplog.records if each.getMessage().startswith("hacking, step")]
    assert "\n  reward 1, judge 0" in told
    assert "diagnosis_anywhere (strict), which judges the same completions in every step, has not" in told
    facts = page_data([open_run(tmp_path / "out")])["runs"][0]
    assert facts["outcome"] == "reward hacked"
    assert facts["findings"][0]["examples"] == [dict(one) for one in found.examples]


def test_an_honest_run_with_the_same_reward_does_not(run):
    trainer = run(["7"] * 32, verifiers=["diagnosis_anywhere"], max_completion_length=1, **WATCHED)
    checks = trainer.pipeline.diagnosis._monitor.checks
    assert checks[-1].reward > 0.9
    assert checks[-1].judge == checks[-1].reward
    assert "hacking" not in trainer.pipeline.diagnosis.watch.worst


def test_a_flat_run_does_not_and_nothing_is_said_against_it(run):
    trainer = run(verifiers=["diagnosis_noise"], max_completion_length=4, **WATCHED | {"learning_rate": 1e-6})
    assert len(trainer.pipeline.diagnosis._monitor.checks) == 30
    assert trainer.pipeline.diagnosis.watch.worst.keys() <= {"truncated", "reward_flat"}
