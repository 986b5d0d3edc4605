"""Completions of several turns that depend on their place in the whole batch only, on the ranks there are."""

import json
import os
import re
import sys
from pathlib import Path

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOTrainer

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from tests.trainer.conftest import SETTINGS

rank = int(os.environ.get("RANK", "0"))
PLANS = [(1, 1, 1), (3,), (4,), (1,), (1, 2), (), (4, 1), (1, 1, 1, 1), (1, 0, 2), (5,), (2, 0, 0, 1), (1, 1)]
TEMPLATE = "qwen3.jinja"
COUNTER = f"{Path(__file__).with_name('tools_of_tests.py')}:Counter"
TURNS = {"name": "turn_reward", "weight": 0}


def called(number):
    return f"<tool_call>\n{json.dumps({'name': 'add', 'arguments': {'number': number}})}\n</tool_call>"


def play(prompt, row):
    """Counts towards 3 by the plan of its row, which later turns find in what was said."""
    said = prompt[prompt.rindex("<|im_start|>user\nq") :]
    marked = re.search(r"plan (\d+)", said)
    number = int(marked[1]) if marked else row
    plan, at = PLANS[number % len(PLANS)], said.count("<tool_response>")
    text = f"{'so ' * (number % 3)}plan {number} "
    return text + (called(plan[at]) if at < len(plan) else "done") + "<|im_end|>"


def say(trainer, prompt_ids, *_, **__):
    tokenizer = trainer._tokenizer
    first = rank * len(prompt_ids)
    texts = [play(tokenizer.decode(ids), first + row) for row, ids in enumerate(prompt_ids)]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts], None


def rows():
    return Dataset.from_list([{"prompt": [{"role": "user", "content": f"q{n}"}], "goal": 3} for n in range(3)])


def run(folder, model, per_device, **settings):
    """One generation batch of 12 completions, groups of 4: what it trained with, and the turns behind it."""
    import trl

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / TEMPLATE).read_text()
    plain = {"max_steps": 1, "learning_rate": 1e-3, "max_grad_norm": 0.0, "shuffle_dataset": False}
    plain |= {"max_completion_length": 900, "per_device_train_batch_size": per_device, "environment": COUNTER}
    config = GRPOPlusConfig(output_dir=folder + "/out", **{**SETTINGS, **plain, **settings})
    trainer = GRPOPlusTrainer(model, None, config, rows(), processing_class=tokenizer)
    held, told = {}, []
    score, reward = trainer._generate_and_score_completions, trainer._calculate_rewards

    def keep(inputs):
        held.update(score(inputs))
        return held

    def keep_turns(*arguments):
        found = reward(*arguments)
        for turns, spans, ids in zip(trainer.calling.turns, trainer.calling.turn_tokens, arguments[3], strict=True):
            each = [[*span, turn.reward, turn.state] for turn, span in zip(turns, spans, strict=True)]
            told.append({"turns": each, "length": len(ids)})
        told[0]["rewards"] = found.tolist()  # of all ranks
        return found

    trainer._generate_and_score_completions, trainer._calculate_rewards = keep, keep_turns
    trainer.train()
    trained = held["completion_mask"] * held["tool_mask"]
    values = held["advantages"]
    values = values if values.dim() == 2 else values[:, None].expand_as(trained)
    everywhere = gather_object(told)
    steps = trainer._advantages.table.steps
    rewards = next(each.pop("rewards") for each in everywhere if "rewards" in each)
    for each in everywhere:
        each.pop("rewards", None)
    return {
        "world": trainer.accelerator.num_processes,
        "advantages": gather_object(values.double().tolist()),
        "trained": gather_object(trained.tolist()),
        "told": everywhere,
        "rewards": rewards,
        "keywords": trainer.estimator[1],
        "steps": [steps.rows.tolist(), steps.ordinals().tolist(), steps.states.tolist()],
        "log": {k: v for k, v in trainer.state.log_history[0].items() if isinstance(v, float | int)},
    }


def main():
    folder, model, runs = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    GRPOTrainer._generate_single_turn = say
    found = {name: run(folder, model, 6, **settings) for name, settings in runs.items()}
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
