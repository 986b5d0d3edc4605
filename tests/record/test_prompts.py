"""The record of prompts: what it says is what was drawn and rewarded, bounded, and it goes on with the run."""

import json
import math

import pytest
import torch

from grpo_plus.record import open_run, prompts
from grpo_plus.record.files import FOLDER, PROMPTS
from grpo_plus.record.prompts import Followed, PromptLog, totals
from grpo_plus.selection.history import digest_of

DRAWS = {"max_steps": 4, "num_generations": 4, "max_completion_length": 6, "rollout": "stock"}


CHOICES = {"resample": {"dead_groups": "resample"}, "uniform": {"selection": "uniform"}}
CHOICES["roulette"] = {"dead_groups": {"name": "roulette", "after": 2}}
CHOICES["both"] = {"selection": "contrast", "dead_groups": "resample"}


def lucky(completions, answer, **_):
    return [float(gold in [*"0246"] and text[:1] < "k") for text, gold in zip(completions, answer, strict=True)]


def test_totals_are_weighted_sums_of_what_was_given():
    rewards = torch.tensor([[1.0, math.nan], [math.nan, math.nan], [0.5, 2.0]])
    found = totals(rewards, torch.tensor([2.0, 0.25]))
    assert found[[0, 2]].tolist() == [2.0, 1.5]
    assert math.isnan(found[1])


def test_kinds_add_up_and_only_changes_are_written_with_each_text_once():
    followed = Followed(2, rows=5)
    log = PromptLog(followed.summary)
    keys = {name: digest_of(name) for name in "abc"}
    followed.observe([keys["a"]] * 2 + [keys["b"]] * 2, torch.tensor([1.0, 1.0, 0.0, 1.0]))
    log.see({keys["a"]: "a", keys["b"]: "b"})
    first = log.line()
    assert [first[name] for name in ("unseen", "impossible", "died_out", "between")] == [3, 0, 1, 1]
    changed = {each["prompt"]: (each["drawn"], each["rate"]) for each in first["changed"]}
    assert changed == {keys["a"].hex()[:16]: (1.0, 1.0), keys["b"].hex()[:16]: (1.0, 0.5)}
    assert first["texts"] == {keys["a"].hex()[:16]: "a", keys["b"].hex()[:16]: "b"}
    followed.observe([keys["c"]] * 2, torch.tensor([0.0, 0.0]))
    log.see({keys["c"]: "c", keys["a"]: "a"})
    second = log.line()
    assert [second[name] for name in ("unseen", "impossible", "died_out", "between")] == [2, 1, 1, 1]
    assert [each["prompt"] for each in second["changed"]] == [keys["c"].hex()[:16]]
    assert list(second["texts"].values()) == ["c"]
    assert log.line()["changed"] == []


def test_what_is_followed_and_sampled_is_bounded(monkeypatch):
    monkeypatch.setattr(prompts, "FOLLOWED", 6)
    monkeypatch.setattr(prompts, "SAMPLED", 4)
    followed = Followed(1, rows=100)
    log = PromptLog(followed.summary)
    for number in range(6):
        followed.observe([digest_of(number)], torch.tensor([float(number % 2)]))
    assert log.line()["unseen"] == 94
    followed.observe([digest_of(number) for number in range(4, 9)], torch.zeros(5))
    log.see({digest_of(number): str(number) for number in range(9)})
    line = log.line()
    assert line["unseen"] is None
    assert (line["impossible"] + line["died_out"] + line["between"], len(line["texts"])) == (6, 4)


def test_followed_prompts_go_on_from_their_state():
    whole, half = Followed(2, rows=None), Followed(2, rows=None)
    batches = [([digest_of(n % 3)] * 2, torch.tensor([float(n % 2), 0.0])) for n in range(8)]
    for batch in batches:
        whole.observe(*batch)
    for batch in batches[:4]:
        half.observe(*batch)
    again = Followed(2, rows=None)
    assert again.state_dict() == again.tensors() == {}
    again.load_state_dict(json.loads(json.dumps(half.state_dict())))
    again.load_tensors(half.tensors())
    for batch in batches[4:]:
        again.observe(*batch)
    assert again.summary() == whole.summary()


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
    settings = {**DRAWS, "dead_groups": "resample", "save_strategy": "steps", "save_steps": 2}

    def said():
        names = ("step", "unseen", "impossible", "died_out", "between")
        return [{name: line[name] for name in names} for line in open_run(tmp_path / "out").prompts()]

    build(rewards=[lucky], **settings).train()
    whole = said()
    build(rewards=[lucky], **settings).train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert said() == whole
    assert [line["step"] for line in lines(tmp_path / "out" / FOLDER / PROMPTS) if line["kind"] == "begin"] == [2]
