"""What the trainer records is what it trained with, and recording never stands in its way."""

import dataclasses
import json
import logging
import math
import signal
import subprocess
import sys
import time

import pytest
import torch

from grpo_plus.record import mark_sweep, open_run
from grpo_plus.record.files import FOLDER, GROUPS, METRICS, RUN
from grpo_plus.record.sample import completion_record, pieces
from grpo_plus.report.write import write_report
from grpo_plus.training.hooks import Hook
from grpo_verifiers import Status, Step, Verdict, verifier
from grpo_verifiers.verifying import REGISTRY
from tests import started
from tests.record.conftest import SETTINGS

MORE_DIGITS = 0.2999  # no share of few characters


def single(values):
    """As the float32 that they were before they were written down."""
    return torch.tensor(values, dtype=torch.float32).tolist()


@pytest.fixture
def halves():
    """A verifier that judges both halves of a completion, and is a part of each test's own config."""

    @verifier("record_halves", isolation="inline")
    def halves(completion, completion_text, answer):
        middle, end = len(completion_text) // 2, len(completion_text)
        share = sum(character.isdigit() for character in completion) / max(1, len(completion))
        steps = [Step(0, middle, share), Step(middle, end, None if end % 2 else 1.0)]
        status = Status.CORRECT if share > MORE_DIGITS else Status.WRONG
        return Verdict(share, status, f"{share:.2f} of {answer}\x1b[31m", tuple(steps))

    yield "record_halves"
    REGISTRY.unregister("record_halves")


@pytest.mark.sample(1)
@pytest.mark.parametrize("per_token", [False, True])
def test_the_record_holds_what_was_trained_with(build, capture, halves, tmp_path, per_token):
    process = {"advantage": {"name": "process", "outcome_weight": 0.5}}
    settings = process if per_token else {"advantage": "sign"}
    trainer = build(verifiers=[{"name": halves, "label": "halves", "weight": 0.5}], **settings)
    kept = capture(trainer)
    trainer.train()
    run = open_run(tmp_path / "out")
    groups = list(run.groups())
    assert run.status == "done"
    assert [(group["step"], group["group"]) for group in groups] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    seen = 0
    for group in groups:
        batch = kept[group["step"] - 1]
        assert (group["rewards"], group["weights"]) == (["digits", "halves"], [1.0, 0.5])
        for place, one in enumerate(group["completions"]):
            row = group["group"] * 4 + place
            ids, trained = batch["ids"][row], batch["advantages"][row]
            text = trainer.processing_class.decode(ids, skip_special_tokens=False)
            assert "".join(one["pieces"]) == text
            assert len(one["pieces"]) == one["tokens"] == len(ids)
            assert group["prompt"] == batch["prompts"][row]
            assert one["rewards"] == pytest.approx(batch["rewards"][row], abs=0)
            if per_token:
                assert single(one["token_advantages"]) == trained[: len(ids)]
                assert one["advantage"] == pytest.approx(sum(trained) / len(ids), abs=1e-6)
            else:
                assert single([one["advantage"]]) == [trained]
            assert "token_values" not in one  # without a critic
            (verdict,) = one["verdicts"]
            assert verdict["status"] == ("correct" if one["rewards"][1] > MORE_DIGITS else "wrong")
            assert verdict["reason"].endswith("\x1b[31m")
            first, last, _ = verdict["steps"][0]
            assert first == 0
            assert len("".join(one["pieces"][:last])) <= len(text) // 2 < len("".join(one["pieces"][: last + 1]))
            assert [step[2] is None for step in verdict["steps"]] == [False, len(text) % 2 == 1]
            if per_token:
                read = [step[2] for step in one["steps"]]
                assert read == [None if step[2] is None else pytest.approx(step[2]) for step in verdict["steps"]]
            seen += any(trained) if per_token else trained != 0
    assert seen > 4
    assert run.series("reward")[1] == [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    every = [value for row in kept[0]["advantages"] for value in (row if per_token else [row])]
    steps, quantiles = run.quantiles()
    assert steps == [1, 2]
    if not per_token:
        assert single([quantiles[0][0], quantiles[0][-1]]) == [min(every), max(every)]


@pytest.mark.slow
def test_parts_versions_and_config_are_resolved_and_hold_no_secret(build, tmp_path):
    trainer = build(advantage={"name": "sign", "band": 0.25}, hub_token="hf_very_secret", report={"every": None})
    trainer.train()
    info = json.loads((tmp_path / "out" / FOLDER / RUN).read_text())
    assert (info["parts"]["advantage"]["name"], info["parts"]["advantage"]["keywords"]) == ("sign", {"band": 0.25})
    assert info["parts"]["objective"] == {"name": "dapo", "keywords": {"beta": 0.0}, "formula": "", "host": True}
    assert info["parts"]["rewards"] == [{"name": "digits", "weight": 1.0}]
    assert set(info["versions"]) >= {"trl", "transformers", "torch", "grpo_plus"}
    assert info["config"]["num_generations"] == 4
    assert info["ended"] >= info["started"]
    assert "hf_very_secret" not in json.dumps(info)
    assert (tmp_path / "out" / "report.html").exists(), "at the end, unless report says never"


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "records"), [({}, False), ({"report": True}, True), ({"advantage": "sign", "report": False}, False)])  # fmt: skip
def test_a_drop_in_run_records_only_when_asked_to(build, tmp_path, settings, records):
    trainer = build(max_steps=1, **settings)
    trainer.train()
    assert (tmp_path / "out" / FOLDER).exists() == records
    assert (trainer.pipeline.recorder is not None) == records
    if records:
        run = open_run(tmp_path / "out")
        assert run.info["parts"]["advantage"] == {"name": "zscore", "keywords": {}, "formula": "", "host": True}
        logged = list(trainer._logs["advantages"])
        kept = [one["advantage"] for group in run.groups() for one in group["completions"]]
        assert single(kept) == logged


@pytest.mark.slow
def test_evaluations_with_verifiers_of_their_own_are_recorded_beside_training(build, tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8, "max_steps": 2}
    build(evaluates=True, verifiers=["math"], eval_verifiers=[{"name": "exact", "weight": 0.5}], **settings).train()
    run = open_run(tmp_path / "out")
    assert run.series("eval_reward")[0] == [1, 2]
    modes = [(group["mode"], group["step"]) for group in run.groups()]
    assert modes.count(("eval", 1)) == modes.count(("train", 1)) == 2
    assert [(one["label"], one["weight"]) for one in run.info["parts"]["eval_verifiers"]] == [("exact", 0.5)]
    judges = {"train": set(), "eval": set()}
    for group in run.groups():
        judges[group["mode"]] |= {tuple(told["verifier"] for told in one["verdicts"]) for one in group["completions"]}
    assert judges == {"train": {("math",)}, "eval": {("math", "exact")}}


@pytest.mark.slow
def test_resuming_takes_back_what_came_after_the_checkpoint(build, tmp_path, lines):
    build(advantage="sign", max_steps=3, save_strategy="steps", save_steps=2).train()
    metrics = tmp_path / "out" / FOLDER / METRICS
    first = {(line["kind"], line["step"]): line for line in lines(metrics)}
    with metrics.open("ab") as file:  # as a kill leaves it
        file.write(b'{"kind":"train","step":3,"val')
    trainer = build(advantage="sign", max_steps=4, save_strategy="steps", save_steps=2)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    run = open_run(tmp_path / "out")
    steps, _ = run.series("reward")
    assert (steps, run.info["resumed_from"]) == ([1, 2, 3, 4], 2)
    now = {entry["step"]: entry for entry in run.entries if entry["kind"] == "train"}
    assert now[2]["time"] == first["train", 2]["time"]
    assert now[3]["time"] > first["train", 3]["time"]
    assert len(run.damage) == 1  # the torn line
    assert [group["step"] for group in run.groups()] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.slow
def test_a_new_run_in_the_same_folder_moves_the_old_record_aside(build, tmp_path):
    build(advantage="sign", max_steps=3).train()
    build(advantage="sign", max_steps=1).train()
    assert open_run(tmp_path / "out").series("reward")[0] == [1]
    assert (tmp_path / "out" / FOLDER / "previous" / METRICS).exists()


@pytest.mark.slow
def test_a_record_that_cannot_be_written_warns_once_and_training_goes_on(build, tmp_path, caplog):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / FOLDER).write_text("a file is in the way")
    trainer = build(advantage="sign", report={"every": 1})
    with caplog.at_level(logging.WARNING, "grpo_plus.record"):
        trainer.train()
    assert trainer.state.global_step == 2
    (said,) = [record.message for record in caplog.records if "training continues" in record.message]
    assert str(tmp_path / "out" / FOLDER) in said


@pytest.mark.slow
def test_a_run_with_a_critic_records_the_values_that_its_advantages_were_made_with(build, tmp_path):
    trainer = build(advantage="gae", objective="grpo", critic={"on": "trunk", "learning_rate": 0.1}, max_steps=3)
    trainer.train()
    run = open_run(tmp_path / "out")
    checked = 0
    for group in run.groups():
        for one in group["completions"]:
            values, (reward,) = one["token_values"], one["rewards"]
            # gamma = lambda = 1: the advantage of a token is what the completion earned beyond its value
            assert one["token_advantages"] == pytest.approx([reward - value for value in values], abs=1e-3)
            checked += any(values)
    assert checked >= 8  # the head starts at 0 and has learned after the first step
    page = write_report([tmp_path / "out"]).read_text()
    assert all(words in page for words in ('"valued":true'))
    assert run.series("critic/value")[0] == [1, 2, 3]


def test_values_lose_their_middle_with_the_tokens():
    row = {"ids": list(range(3000)), "advantage": 0.5, "advantages": None, "untrained": [], "truncated": False}
    row |= {"values": [at / 4 for at in range(3000)], "verdicts": []}
    record = completion_record(row, [1.0], lambda ids: "x" * len(ids))
    assert (record["left_off"], record["token_values"][1022:1026]) == ([1024, 952], [255.5, 255.8, 494.0, 494.2])
    assert len(record["token_values"]) == len(record["pieces"]) == 2048


@pytest.mark.slow
def test_a_batch_that_cannot_be_recorded_is_left_out_and_training_goes_on(build, tmp_path, caplog):
    class Odd(list):
        def __iter__(self):
            raise RuntimeError("no text")

    class OddAtFirst(Hook):
        def sampled(self, batch):
            if trainer.state.global_step:
                return batch
            odd = dataclasses.replace(batch.completions, prompts=[Odd([1])] * len(batch.completions))
            return dataclasses.replace(batch, completions=odd)

    trainer = build(advantage="sign")
    trainer.pipeline.hooks.append(OddAtFirst())
    trainer.train()
    run = open_run(tmp_path / "out")
    assert (run.status, {group["step"] for group in run.groups()}, run.quantiles()[0]) == ("done", {2}, [2])
    told = [record.getMessage() for record in caplog.records if "not recorded" in record.getMessage()]
    assert told == ["a batch of step 0 was not recorded: RuntimeError('no text')"]


@pytest.mark.slow
@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), "interrupted"), (OSError("gone"), "failed")])
def test_how_a_run_ends_is_written_down(build, tmp_path, error, status):
    calls = []

    def fails(completions, **_):
        calls.append(1)
        if len(calls) == 2:
            raise error
        return [float(len(text)) for text in completions]

    with pytest.raises(type(error)):
        build(rewards=[fails], advantage="sign", report={"every": None}).train()
    run = open_run(tmp_path / "out")
    assert (run.status, run.series("reward")[0]) == (status, [1])
    assert type(error).__name__ in run.info["error"]
    assert (tmp_path / "out" / "report.html").exists()


@pytest.mark.slow
def test_groups_stay_within_their_bytes_and_long_runs_are_sampled_evenly(build, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("grpo_plus.record.files.BYTES", 3000)
        build(advantage="sign", max_steps=6).train()
    run = open_run(tmp_path / "out")
    size = (tmp_path / "out" / FOLDER / GROUPS).stat().st_size
    assert 0 < size <= 3000 + max(len(json.dumps(group)) for group in run.groups())
    assert run.series("reward")[0] == [1, 2, 3, 4, 5, 6]
    monkeypatch.setattr("grpo_plus.training.observers.recorder.BATCHES", 2)
    build(advantage="sign", max_steps=6).train()
    assert sorted({group["step"] for group in open_run(tmp_path / "out").groups()}) == [1, 4]


KILLED = """
import json, sys
from datasets import Dataset
from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
out, model, settings = sys.argv[1:]
config = GRPOPlusConfig(output_dir=out, **json.loads(settings))
data = Dataset.from_dict({"prompt": ["1+1=", "2+2="] * 8})
GRPOPlusTrainer(model, [lambda completions, **_: [float(len(set(text))) for text in completions]], config, data).train()
"""


@pytest.mark.slow
def test_a_killed_run_can_be_read_and_reported(tmp_path, tiny_model, clean_environment, end_tree):
    out = tmp_path / "out"
    settings = SETTINGS | {"max_steps": 400, "max_completion_length": 6, "advantage": "sign", "report": {"every": 2}}
    command = [sys.executable, "-c", KILLED, str(out), tiny_model, json.dumps(settings)]
    streams = {"stdout": subprocess.DEVNULL, "stderr": (tmp_path / "log").open("w")}
    process = started.Popen(command, env=clean_environment, **streams, start_new_session=True)
    try:
        limit = time.monotonic() + 120
        while not ((out / "report.html").exists() and len(open_run(out).series("reward")[0]) >= 4):
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < limit
            time.sleep(0.2)
        assert open_run(out).status == "running"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=60)
    finally:
        end_tree(process)
    with (out / FOLDER / GROUPS).open("r+b") as file:  # and the machine lost the end of a file
        file.truncate(file.seek(0, 2) - 40)
    run = open_run(out)
    assert run.status == "interrupted"
    assert len(list(run.groups())) >= 2
    assert "cannot be read" in run.damage[0]
    assert write_report([out]).stat().st_size > 50_000
    assert not list(out.rglob("*.tmp")), "whole files are written beside and moved"


@pytest.mark.slow
def test_a_sweep_marks_its_runs_and_metrics_that_are_no_numbers_are_left_out_of_series(build, tmp_path):
    def never(completions, **_):
        return [None] * len(completions)

    mark_sweep(tmp_path / "out", "sign, band 0.25", seed=3)
    build(rewards=[never, lambda completions, **_: [1.0] * len(completions)], advantage="sign", max_steps=1).train()
    run = open_run(tmp_path / "out")
    assert (run.variant, run.info["sweep"]["seed"]) == ("sign, band 0.25", 3)
    assert run.series("rewards/never/mean") == ([], [])
    assert all(math.isfinite(value) for key in run.metrics() for value in run.series(key)[1])
    assert [one["rewards"][0] for group in run.groups() for one in group["completions"]] == [None] * 8


def test_a_completion_without_tokens_has_no_pieces():
    """Those of a group that roulette stopped are such."""
    assert pieces([], lambda _: "") == ([], [])
