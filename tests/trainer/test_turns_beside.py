"""An environment beside the other parts of a run: whatever is drawn, kept or taken up again, turns stay with their rows."""

import copy
import re
from pathlib import Path

import pytest
from datasets import Dataset

from grpo_plus.record import open_run

from .test_calling import COUNTER, LONG, called, turn_of

ROWS = [{"prompt": [{"role": "user", "content": f"q{n}"}], "goal": 3} for n in range(8)]


def play(prompt, row):
    """Count on as often as planned; on every other question all rows do the same, so that its group is dead."""
    said = prompt[prompt.rindex("<|im_start|>user\nq") :]
    question, planned = re.search(r"q(\d)", said), re.search(r"plan (\d)", said)
    count = int(planned[1]) if planned else 3 if int(question[1]) % 2 else row % 4
    return text_of(count, turn_of(prompt)) + "<|im_end|>"


def text_of(count, at):
    return f"plan {count} {called('add', number=1)}" if at < count else f"done {count}"


PROCESS = {"advantage": "process", "advantage_kwargs": {"steps_from": "turn_reward"}}
BESIDE = {
    "nothing": {},
    "resample": {"dead_groups": "resample"},
    "roulette": {"dead_groups": "roulette"},
    "replay": {"dead_groups": "replay"},
    "contrast": {"selection": "contrast"},
    "target": {"objective": "target", "num_iterations": 2},
    "a KL term": {"beta": 0.1},
    "a KL term in the rewards": {"objective": "grpo", "beta": 0.1, "objective_kwargs": {"kl": {"placement": "reward"}}},
    "process": PROCESS,
    "process and resample": {**PROCESS, "dead_groups": "resample"},
    "a critic": {"advantage": "gae", "critic": {"on": "trunk"}},
    "a reward model": {"reward_model": {}},
    "evaluations": {"eval_strategy": "steps", "eval_steps": 1},
    "TRL's rollouts": {"rollout": "stock"},
    "inner iterations": {"num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4},
    "a part of the support": {"top_p": 0.9},
}


@pytest.mark.sample(0, 5)
@pytest.mark.parametrize("name", BESIDE)
def test_turns_are_those_of_their_rows(build, say, tool_tokenizer, name):
    say(play)
    data = Dataset.from_list(ROWS)
    given = {"train_dataset": data, "eval_dataset": data, "reward_funcs": None}
    settings = {**LONG, "environment": COUNTER, "max_steps": 3, "verifiers": ["turn_reward", "tool_valid"]}
    given["processing_class"] = copy.deepcopy(tool_tokenizer)
    trainer = build(trainer=given, **{**settings, **BESIDE[name]})
    scored = []
    inner = trainer._calculate_rewards

    def keeping(inputs, prompts, completions, ids):
        turns = trainer.calling.turns
        for row, done in zip(completions, turns, strict=True):
            assert [turn.text for turn in done] == [one.get("content") for one in row if one["role"] == "assistant"]
        scored.append(len(turns))
        return inner(inputs, prompts, completions, ids)

    trainer._calculate_rewards = keeping
    trainer.train()
    assert sum(scored) > 0
    if "resample" in name:
        assert trainer.state.log_history[0]["dead_groups/rounds"] > 0
    groups = open_run(Path(trainer.args.output_dir)).groups()
    seen = 0
    for completion in [one for group in groups for one in group["completions"]]:
        pieces, turns = completion["pieces"], completion["turns"]
        if not completion["tokens"]:  # a group that the roulette has stopped
            assert name == "roulette"
            assert turns == []
            continue
        count = int(re.search(r"done (\d)", turns[-1]["text"])[1])
        assert len(turns) == count + 1
        for at, turn in enumerate(turns):
            said = "".join(pieces[slice(*turn["tokens"])])
            assert said == text_of(count, at) + "<|im_end|>"
            assert [call["result"] for call in turn["calls"]] == ([f"{at + 1} of 3"] if at < count else [])
            assert turn["state"] == str(at)
            assert turn["score"] == turn["reward"] == (1.0 if at < count else None)
        untrained = "".join("".join(pieces[slice(*span)]) for span in completion.get("untrained", []))
        assert untrained.count("<tool_response>") == count
        seen += 1
    assert seen > 0
