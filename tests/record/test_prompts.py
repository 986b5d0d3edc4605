"""The record of prompts: what it says is what was drawn and rewarded, and it goes on with the run."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from grpo_plus.record import open_run
from grpo_plus.record.files import FOLDER, PROMPTS
from grpo_plus.selection.history import digest_of
from grpo_plus.training.hooks import Completions, ScoredBatch
from grpo_plus.training.observers.prompt_stats import PromptStats

DRAWS = {"max_steps": 4, "num_generations": 4, "max_completion_length": 6, "rollout": "stock"}
CHOICES = {"uniform": {"selection": "uniform"}, "both": {"selection": "contrast", "dead_groups": "resample"}}
CHOICES["roulette"] = {"selection": "uniform", "dead_groups": {"name": "roulette", "after": 2}}


def lucky(completions, answer, **_):
    return [float(gold in [*"0246"] and text[:1] < "k") for text, gold in zip(completions, answer, strict=True)]


def test_only_changes_of_sampled_prompts_are_written_with_each_text_once():
    keys = {name: digest_of(name).hex() for name in "abcd"}
    sample = {keys["a"]: (0.0, None), keys["b"]: (0.0, None)}
    counts = {"unseen": 5, "impossible": 0, "died_out": 0, "between": 0, "graded": False}
    written = []
    recorder = SimpleNamespace(warn_on_error=nullcontext, append=lambda _, line: written.append(line))
    log = PromptStats(recorder, lambda: {**counts, "sample": [[key, *seen] for key, seen in sample.items()]})
    log.host = SimpleNamespace(model=SimpleNamespace(training=True), state=SimpleNamespace(global_step=7))
    log.training()

    def draw(names, *, sampled=True, **rates):
        sample.update({keys[name]: (sample[keys[name]][0] + 1, rate) for name, rate in rates.items()})
        completions = Completions([{"prompt": name} for name in names], [], [], [])
        log.record(ScoredBatch(completions, torch.zeros(len(names), 1)), sampled=sampled)
        return written[-1] if written else None

    assert draw("ac", sampled=False, a=1.0) is None
    line = draw("b", b=0.5)
    assert {name: line[name] for name in counts} == counts
    assert (line["kind"], line["step"]) == ("prompts", 8)
    short = {name: key[:16] for name, key in keys.items()}
    assert line["texts"] == {short["a"]: "a", short["b"]: "b"}, "of the batch that was not sampled, too"
    assert {each["prompt"]: (each["drawn"], each["rate"]) for each in line["changed"]} == {
        short["a"]: (1.0, 1.0),
        short["b"]: (1.0, 0.5),
    }
    line = draw("abd", b=0.25)
    assert (line["texts"], [each["prompt"] for each in line["changed"]]) == ({}, [short["b"]])
    log.host.model.training = False
    assert draw("a") is line, "an evaluation draws nothing"


@pytest.mark.slow
@pytest.mark.parametrize("settings", CHOICES.values(), ids=CHOICES)
def test_a_run_says_which_prompts_it_drew_and_how_they_were_rewarded(build, tmp_path, settings):
    trainer = build(rewards=[lucky], **DRAWS, **settings)
    drawn = {}
    inner = trainer._calculate_rewards

    def seeing(inputs, *rest):
        for row in inputs:
            drawn[row["prompt"]] = drawn.get(row["prompt"], 0) + 1 / 4
        return inner(inputs, *rest)

    trainer._calculate_rewards = seeing
    trainer.train()
    found = open_run(tmp_path / "out").prompts()
    assert [line["step"] for line in found] == [1, 2, 3, 4]
    texts = {key: text for line in found for key, text in line["texts"].items()}
    last = {texts[each["prompt"]]: each for line in found for each in line["changed"]}
    assert {text: each["drawn"] for text, each in last.items()} == pytest.approx(drawn)
    assert all(each["rate"] == 0 for text, each in last.items() if int(text.split("+")[0]) > 3)
    for line in found:
        assert sum(line[name] for name in ("unseen", "impossible", "died_out", "between")) == 16
    assert found[-1]["unseen"] == 16 - len(drawn)


@pytest.mark.slow
def test_a_resumed_run_writes_what_the_uninterrupted_one_does(build, tmp_path, lines):
    settings = {**DRAWS, "selection": "uniform", "dead_groups": "resample", "save_strategy": "steps", "save_steps": 2}

    def said():
        names = ("step", "unseen", "impossible", "died_out", "between")
        return [{name: line[name] for name in names} for line in open_run(tmp_path / "out").prompts()]

    build(rewards=[lucky], **settings).train()
    whole = said()
    build(rewards=[lucky], **settings).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert said() == whole
    assert [line["step"] for line in lines(tmp_path / "out" / FOLDER / PROMPTS) if line["kind"] == "begin"] == [2]
