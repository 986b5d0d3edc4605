"""The diagnosis in real runs: said once, written down, resumed, told to callbacks, and what it ends."""

import json
import logging
from itertools import pairwise
from types import SimpleNamespace

import pytest
from datasets import Dataset
from peft import LoraConfig

from grpo_plus import GRPOPlusConfig, OnFinding
from grpo_plus.diagnosis import RULES, Finding
from grpo_plus.diagnosis.watch import FindingTracker
from grpo_plus.record import open_run
from grpo_plus.record.files import FINDINGS, FOLDER
from grpo_plus.report.write import page_data
from grpo_plus.training.hooks import Hook
from grpo_plus.training.observers import RunDiagnosis
from grpo_verifiers.errors import ConfigError
from tests.diagnosis.conftest import FILE

HOPELESS = {
    "verifiers": ["math"], "per_device_train_batch_size": 16, "num_generations": 4, "max_completion_length": 6, "max_steps": 6,
}  # fmt: skip
"""A model that knows nothing: reward 0, all groups dead, most completions cut off."""
BASE = {"output_dir": "unused", "use_cpu": True, "bf16": False, "report_to": "none"}


def lines(folder):
    return [json.loads(line) for line in (folder / FOLDER / FINDINGS).read_text().splitlines()]


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "grpo_plus.diagnosis"]


def test_the_end_names_findings_of_the_last_entry_and_no_dead_groups_of_a_solved_run():
    dead, solved = (Finding(name, "warning", "", "", "") for name in ("dead_groups", "solved"))
    tracker = FindingTracker()
    for step, findings, expected in ((1, [dead], [dead]), (2, [dead, solved], [solved]), (3, [], [])):
        tracker.update(step, findings)
        assert RunDiagnosis.at_end(SimpleNamespace(watch=tracker)) == expected


@pytest.mark.slow
def test_a_run_of_nothing_but_dead_groups_says_why_in_log_record_and_report(run, tmp_path, caplog):
    told = []

    def broken(finding):
        raise RuntimeError(finding.name)

    with caplog.at_level(logging.WARNING, "grpo_plus.diagnosis"):
        trainer = run(**HOPELESS, trainer={"callbacks": [OnFinding(broken), OnFinding(told.append)]})
    first, *others = said(caplog)
    assert any("OnFinding failed on dead_groups" in each for each in others), "which ends nothing"
    assert first.startswith("dead_groups, step 3: 100% of the groups are dead")
    assert "reward of 0" in first
    assert "are cut off before they can state an answer" in first
    assert "raise max_completion_length (now 6) to 12" in first
    assert sum(each.startswith("dead_groups, ") for each in others) == 0, "once"
    assert others[-1].startswith("at the end of the run: dead_groups (since step 3)")
    assert [one.name for one in told] == ["dead_groups", "truncated"]
    assert trainer.pipeline.diagnosis.outcome == "learned nothing"
    written = lines(tmp_path / "out")
    assert [(line["name"], line["step"]) for line in written] == [
        (name, step) for step in (3, 6) for name in ("dead_groups", "truncated")
    ], "as they begin, and with the last figures"
    facts = page_data([open_run(tmp_path / "out")])["runs"][0]
    assert (facts["status"], facts["outcome"]) == ("done", "learned nothing")


@pytest.mark.slow
def test_stop_on_ends_the_run_with_a_checkpoint_and_a_resumed_one_goes_on_in_silence(run, tmp_path, caplog):
    settings = {
        **HOPELESS,
        "diagnosis": {"stop_on": ["nan", "dead_groups"]},
        "eval_strategy": "steps",
        "eval_steps": 100,
    }
    sums = {"eval_dataset": Dataset.from_list([{"prompt": f"{at}:", "answer": str(at)} for at in range(4)])}
    trainer = run(**settings, per_device_eval_batch_size=4, trainer=sums)
    assert trainer.state.global_step == 3
    assert [entry["step"] for entry in trainer.state.log_history if "eval_reward" in entry] == [3]
    assert trainer.pipeline.diagnosis.stopped_by.name == "dead_groups"
    assert (tmp_path / "out" / "checkpoint-3").is_dir()
    assert (tmp_path / "out" / "report.html").is_file()
    stopped = open_run(tmp_path / "out")
    assert (stopped.status, stopped.info["error"][:21]) == ("interrupted", "stop_on dead_groups: ")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "grpo_plus.diagnosis"):
        again = run(**settings, per_device_eval_batch_size=4, trainer=sums, resume=True)
    assert again.state.global_step == 6
    assert again.pipeline.diagnosis.stopped_by is None
    assert not any(each.startswith("dead_groups, ") for each in said(caplog)), "it was said before"
    assert again.pipeline.diagnosis.watch.current["dead_groups"].since == 3
    assert open_run(tmp_path / "out").status == "done"


def test_another_trainer_is_refused():
    with pytest.raises(ConfigError, match="needs a GRPOPlusTrainer"):
        OnFinding(print).on_train_begin(None, None, None)


@pytest.mark.slow
def test_what_grows_graver_is_said_written_told_and_ends_the_run_again(run, tmp_path, caplog):
    settings = HOPELESS | {
        "per_device_train_batch_size": 8,
        "diagnosis": {"stop_on": ["dead_groups"]},
    }  # two groups a step
    told, listening = [], {"callbacks": [OnFinding(lambda one: told.append((one.name, one.severity)))]}
    assert run(**settings, trainer=listening).state.global_step == 3
    caplog.clear()
    with caplog.at_level(logging.WARNING, "grpo_plus.diagnosis"):
        again = run(**settings, trainer=listening, resume=True)
    assert again.state.global_step == 5
    assert again.pipeline.diagnosis.stopped_by.severity == "severe"
    assert [one for one in told if one[0] == "dead_groups"] == [("dead_groups", "warning"), ("dead_groups", "severe")]
    assert [each[:20] for each in said(caplog) if each.startswith("dead_groups, ")] == ["dead_groups, step 5:"]
    written = [
        (line["step"], line["severity"]) for line in lines(tmp_path / "out") if line.get("name") == "dead_groups"
    ]
    assert list(dict.fromkeys(written)) == [(3, "warning"), (5, "severe")]


@pytest.mark.slow
def test_a_listener_may_end_the_run_and_is_its_own_again_afterwards(run, tmp_path):
    told = []
    listener = OnFinding(lambda one: told.append(one.name), stop_on=["dead_groups"])
    trainer = run(**HOPELESS, diagnosis={"stop_on": ["nan"]}, trainer={"callbacks": [listener]})
    assert trainer.state.global_step == 3
    assert trainer.pipeline.diagnosis.stopped_by.name == "dead_groups"
    assert open_run(tmp_path / "out").status == "interrupted"
    assert told == ["dead_groups", "truncated"], "by the trainer alone"
    assert not listener.reported_by_trainer
    trainer.add_callback(OnFinding(print, stop_on=["hacking"]))
    with pytest.raises(ConfigError, match="stop_on has 'hacking'"):
        trainer.train()
    with pytest.raises(ConfigError, match="stop_on has 'hacking', but there is no judge"):
        run(**HOPELESS, trainer={"callbacks": [OnFinding(print, stop_on=["hacking"])]})


def test_what_a_model_wrote_reaches_no_terminal_as_commands():
    from grpo_plus.training.observers.diagnosing import _side_by_side

    marks = (range(0x20), range(0x7F, 0xA0), range(0x202A, 0x202F), range(0x2066, 0x206A), (0x2028, 0x2029, 0xD800))
    wild = "".join(chr(each) for some in marks for each in some)
    one = {"completion": f"ok {wild}\x1b]0;title\x07 end", "reason": f"no\n{wild}\x1b[31m", "reward": 1.0, "judge": 0.0}
    told = _side_by_side(one)
    assert told.isprintable()
    assert told.startswith("reward 1, judge 0 (no ")
    assert told.endswith(" end")
    assert "(no reason): " in _side_by_side(one | {"reason": ""})
    assert len(_side_by_side(one | {"completion": "x" * 5000, "reason": ""})) < 200


class Breaks(Hook):
    """The second step's loss is NaN, and so is its gradient."""

    def loss(self, compute, model, inputs):
        found = compute(model, inputs)
        return found * float("nan") if self.host.state.global_step == 1 else found


@pytest.mark.slow
def test_nan_is_found_where_it_begins_and_ends_the_run_before_the_next_drawing(run, tmp_path):
    noise = {"plugins": [FILE], "verifiers": ["diagnosis_noise"], "max_completion_length": 4}
    noise |= {"diagnosis": {"stop_on": ["nan"]}}
    small = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 4}
    told = []
    trainer = run(**noise, **small, trainer={"hooks": [Breaks()], "callbacks": [OnFinding(told.append)]})
    assert [one.name for one in told] == ["nan"]
    assert "grad_norm" in told[0].evidence
    assert trainer.state.global_step == 2
    facts = page_data([open_run(tmp_path / "out")])["runs"][0]
    assert (facts["outcome"], facts["findings"][0]["since"]) == ("broken by NaN", 2)


@pytest.mark.slow
def test_an_adapter_at_the_rate_of_a_model_is_told(run):
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    settings = {
        "plugins": [FILE], "verifiers": ["diagnosis_noise"], "max_completion_length": 4, "per_device_train_batch_size": 8,
        "num_generations": 4, "learning_rate": 1e-6, "max_steps": 20,
    }  # fmt: skip
    trainer = run(**settings, trainer={"peft_config": lora})
    found = trainer.pipeline.diagnosis.watch.current["learning_rate_low"].finding
    assert found.evidence.startswith("learning_rate is 1e-06 with LoRA, and the reward does not rise")


PROBLEMS = {
    "unknown finding": ({"diagnosis": {"stop_on": ["dead_group"]}}, "stop_on: unknown finding 'dead_group'. Did you mean 'dead_groups'?"),
    "hacking without a judge": ({"diagnosis": {"stop_on": ["hacking"]}, "verifiers": ["math"]}, "there is no judge, so it cannot begin: set diagnosis: {judge: strict}, or remove it"),
    "no twin": ({"diagnosis": {"judge": "strict"}, "verifiers": ["exact"]}, "none has a stricter twin"),
    "no such verifier": ({"diagnosis": {"judge": "exat"}, "verifiers": ["math"]}, "Did you mean 'exact'?"),
    "no such option": ({"diagnosis": {"judge": "strict", "evry": 3}}, "Did you mean 'every'"),
    "none": ({"diagnosis": {"judge": "exact", "every": 0}}, "every is 0, expected an integer of at least 1"),
    "one": ({"diagnosis": {"judge": "exact", "sample": 1}}, "sample is 1, expected an integer of at least 2"),
    "too short": ({"diagnosis": {"judge": "exact"}, "max_steps": 50}, "every is 10, and max_steps 50: an alarm needs 6 checks. Lower every"),
}  # fmt: skip


@pytest.mark.parametrize("case", PROBLEMS)
def test_every_problem_of_the_fields_is_found(case):
    settings, message = PROBLEMS[case]
    with pytest.raises(ConfigError) as caught:
        GRPOPlusConfig(**BASE, **settings)
    assert message in str(caught.value)
    assert len(caught.value.problems) == 1


def test_names_may_be_given_as_one_text_and_a_twin_is_made_of_lenient_options():
    config = GRPOPlusConfig(**BASE, diagnosis={"judge": "exact", "stop_on": "hacking, nan,dead_groups"})
    assert config.recipe.stop_on == ("hacking", "nan", "dead_groups")
    assert set(config.recipe.stop_on) < RULES.keys()
    lenient = {"name": "math", "conflicts": "last", "last_number": True}
    monitor = GRPOPlusConfig(**BASE, verifiers=["exact", lenient], diagnosis="strict").recipe.monitor
    assert (monitor.every, monitor.sample, monitor.against) == (10, 32, "math")
    assert monitor.judge.verifier.options == {"conflicts": "reject", "last_number": True}
    text = r"\boxed{3} no, \boxed{4}"
    assert (monitor.judge.verifier.verify(text, answer="4").score) == 0.0
    assert GRPOPlusConfig(**BASE).recipe.monitor is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"judge": "exact", "against": "maths"}, "against is 'maths', expected one of the rewards: math"),
        ({"judge": {"name": "exact", "columns": {"answer": "gold"}}}, "no column 'gold', which the judge"),
    ],
)
def test_a_judge_of_nothing_is_refused_before_anything_loads(run, judge, message):
    with pytest.raises(ConfigError, match=message):
        run(verifiers=["math"], diagnosis={**judge, "every": 1}, max_steps=12)


def test_the_state_of_the_monitor_goes_through_json_and_its_sample_is_spread_over_prompts():
    from grpo_plus.diagnosis.hacking import RewardCheck
    from grpo_plus.training.observers.monitor import HackingMonitor, sample

    options = GRPOPlusConfig(**BASE, verifiers=["math"], diagnosis={"judge": "exact"}).recipe.monitor
    one, other = HackingMonitor(options), HackingMonitor(options)
    assert one.state_dict() == {}
    one.checks, one.examples = [RewardCheck.of(1, [(1.0, 0.0), (0.0, 0.0)])], [{"step": 1, "reward": 1.0, "judge": 0.0}]
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert (other.checks, other.examples) == (one.checks, one.examples)
    assert one.due(0)
    one._last = 0
    assert [one.due(step) for step in (0, 5, 9, 10, 12, 20)] == [False, False, False, True, True, True]
    for rows, size, most in ((64, 8, 32), (64, 8, 4), (16, 4, 64), (8, 8, 2)):
        chosen = sample(rows, size, most)
        assert len(chosen) == len(set(chosen)) <= most
        assert len({row // size for row in chosen}) == min(rows // size, most)


@pytest.mark.parametrize(("every", "micro", "accumulation", "steps"), [
    (10, 4, 1, 60), (10, 3, 1, 120), (3, 4, 1, 24), (10, 8, 1, 60), (7, 8, 1, 100), (1, 1, 4, 9), (2, 6, 4, 50), (5, 1, 1, 1),
])  # fmt: skip
def test_checks_are_made_where_completions_are_drawn(every, micro, accumulation, steps):
    from grpo_plus.training.observers.monitor import HackingMonitor

    given = {"judge": "exact", "every": every}
    monitor = HackingMonitor(GRPOPlusConfig(**BASE, verifiers=["math"], diagnosis=given).recipe.monitor)
    made = []
    for look in range(0, steps * accumulation, micro):  # micro-batches at which completions are drawn
        if monitor.due(look // accumulation):
            monitor._last = look // accumulation
            made.append(monitor._last)
    assert all(every <= after - before < every + max(1, micro / accumulation) for before, after in pairwise(made))


@pytest.mark.slow
def test_every_is_kept_where_completions_are_drawn_every_few_steps(run):
    settings = {
        "plugins": [FILE], "verifiers": ["diagnosis_noise"], "max_completion_length": 4, "num_generations": 4,
        "per_device_train_batch_size": 8, "num_iterations": 3, "max_steps": 32, "learning_rate": 1e-6,
    }  # fmt: skip
    trainer = run(**settings, diagnosis={"judge": "strict", "every": 4})
    assert [check.step for check in trainer.pipeline.diagnosis._monitor.checks] == [1, 7, 13, 19, 25, 31]
