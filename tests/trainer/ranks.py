"""Runs on the ranks there are, by their kind; each rank answers for its own rows as one process would."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from accelerate.utils import gather_object
from datasets import Dataset
from trl import GRPOTrainer

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.recipe.forms import read_form
from grpo_plus.training.hooks import Hook
from tests.trainer.conftest import SETTINGS, capture, keep_tables, tool_tokens, weights
from tests.trainer.tools_of_tests import called

rank = int(os.environ.get("RANK", "0"))
ONE = {"max_steps": 1, "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
ONE |= {"max_completion_length": 16}


def places(prompts):
    """Where this rank's rows stand in the whole batch."""
    return range(rank * len(prompts), (rank + 1) * len(prompts))


def letters_and_digits(row):
    return "ab3d5fgh"[: 1 + (5 * row) % 8] + "xyz"[row % 3] * (row % 4)


def lines(row):
    """A solution of one or two lines, some of them wrong, some without an equation."""
    return f"{row}+1={row + 1 + row % 2}" + (f"\n{row}*2={2 * row + row % 3}" if row % 4 else "\nso")


def drawn(trainer, prompts, texts, ended, **more):
    """What a rollout function gives; ended are the texts that their end token follows."""
    tokenizer = trainer.processing_class
    pairs = zip(texts, ended, strict=True)
    ids = [tokenizer.encode(text) + [tokenizer.eos_token_id] * end for text, end in pairs]
    return {"prompt_ids": [*map(tokenizer.encode, prompts)], "completion_ids": ids, "logprobs": None, **more}


def by_row(prompts, trainer):
    text, rows = lines if trainer.pipeline.verifiers.labels else letters_and_digits, places(prompts)
    return drawn(trainer, prompts, map(text, rows), [row % 2 for row in rows], row=list(rows))


def letters(completions, row, **_):
    # Rows 8 to 11 are one group without contrast; rows 2 and 7 cannot be scored.
    return [
        None if r in (2, 7) else 0.5 if 8 <= r < 12 else len(set(t)) / 3 for r, t in zip(row, completions, strict=True)
    ]


def late(completions, row, **_):
    return [float(r % 3) if r < 8 else 1.0 for r in row]


def steps_by_row(completion_ids, row, **_):
    def score(r, at):
        return None if (r + at) % 5 == 0 else float((r * 7 + at) % 3)

    spans = [[(at, min(at + 2, len(ids))) for at in range(0, len(ids) - 1, 2)] for ids in completion_ids]
    return [[(*span, score(r, span[0])) for span in each] for r, each in zip(row, spans, strict=True)]


def advantages(folder, model, per_device, **settings):
    """One step, with groups that span both ranks."""
    name = read_form("advantage", settings.get("advantage")).get("name")
    scored = name in ("process", "mix") and "verifiers" not in settings
    own = {"per_device_train_batch_size": per_device, "shuffle_dataset": False}
    config = GRPOPlusConfig(output_dir=folder + "/out", **{**SETTINGS, **ONE, **own, **settings})
    data, more = Dataset.from_dict({"prompt": ["12+3=", "4=", "12+34+5="]}), {"rollout_func": by_row}
    more["step_scorer"] = steps_by_row if scored else None
    trainer = GRPOPlusTrainer(model, [letters, late], config, data, **more)
    before, kept = weights(trainer), capture(trainer)
    trainer.train()
    told = ("advantages/", "steps/", "reward", "loss")
    return {
        "world": trainer.accelerator.num_processes,
        "advantages": gather_object([row.tolist() for row in kept[0]["advantages"].unsqueeze(-1).flatten(1)]),
        "logged": list(trainer._logs["advantages"]),
        "gradient": (before - weights(trainer)).tolist(),
        "metrics": {k: v for k, v in trainer.state.log_history[0].items() if k.startswith(told)},
    }


NUMBERS = [7 * place % 29 + 100 ** (place % 3) for place in range(24)]


def by_member(prompts, trainer):
    """Of three completions a prompt or of four the first ones, of one the fourth."""
    size = trainer.num_generations
    members = [3 if size == 1 else row % size for row in places(prompts)]
    texts = [f"{number_of(p)}={'ab'[member % 2] * member}" for p, member in zip(prompts, members, strict=True)]
    found = drawn(trainer, prompts, texts, [member % 2 for member in members], member=members)
    return {**found, "env_mask": [[int(at != 1) for at in range(len(ids))] for ids in found["completion_ids"]]}


def number_of(prompt):
    return int(prompt.split("+")[0])


def score(prompt, member):
    """Tied throughout, tied at first, with contrast; some are not scored."""
    number = number_of(prompt)
    if number % 5 == 1 and member == 2:
        return None
    if number % 3 == 0:
        return 1.0
    return float(member == 3) if number % 3 == 1 else float(member % 2)


def reward(prompts, member, log_extra, **_):
    log_extra("member", member)
    return [score(*one) for one in zip(prompts, member, strict=True)]


def steps_by_member(prompts, completion_ids, member, **_):
    rows = zip(prompts, member, completion_ids, strict=True)
    return [[(0, 1, score(prompt, at)), (1, len(ids), 1.0)][: 1 + at % 2] for prompt, at, ids in rows]


class Watch(Hook):
    """Keeps what is trained with, in the order of the whole batch, and the rows of each rank."""

    def __init__(self):
        self.batches, self.each = [], [[]]

    def sampled(self, batch):
        self.each[-1:] = [[*self.each[-1], len(batch.completions)]]
        return batch

    def batch(self, scored):
        output, shown = scored.output, {}
        for name in ("prompt", "completion", "tool"):
            ids = output["completion_ids" if name == "tool" else f"{name}_ids"]
            mask = output["completion_mask"] * output["tool_mask"] if name == "tool" else output[f"{name}_mask"]
            shown[name] = [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
        shown["advantages"] = output["advantages"].reshape(len(output["advantages"]), -1).tolist()
        shown["share"] = output.get("share", torch.ones(len(shown["prompt"]))).tolist()
        shown["texts"], shown["rows"] = (
            list(scored.completions.texts),
            [row["prompt"] for row in scored.completions.rows],
        )
        shown["verdicts"] = [verdict.status.value for (verdict,) in scored.verdicts]
        whole = {name: gather_object(values) for name, values in shown.items()}
        everywhere = [scored.rewards.nan_to_num(-1).tolist(), scored.lengths.tolist(), scored.truncated.tolist(), None]
        if scored.steps is not None:
            steps = (scored.steps.rows, scored.steps.scores.nan_to_num(-1), scored.steps.spans)
            everywhere[-1] = [one.tolist() for one in steps]
        self.batches.append((whole, everywhere, int(output["num_items_in_batch"])))
        self.each.append([])


def drawing(folder, model, per_device, **settings):
    """Three steps with dead groups."""
    torch.manual_seed(0)
    own = {"max_steps": 3, "per_device_train_batch_size": per_device}
    own["verifiers"] = [{"name": "regex", "pattern": ".*b", "weight": 0.0}]
    config = GRPOPlusConfig(output_dir=folder + "/out", **{**SETTINGS, **ONE, **own, **settings})
    data = Dataset.from_dict({"prompt": [f"{number}+1=" for number in NUMBERS], "answer": ["a"] * 24})
    watch, scorer = (
        Watch(),
        steps_by_member if read_form("advantage", settings.get("advantage")).get("name") == "process" else None,
    )
    more = {"rollout_func": by_member, "step_scorer": scorer, "hooks": [watch]}
    trainer = GRPOPlusTrainer(model, [reward], config, data, **more)
    before = weights(trainer)
    trainer.train()
    table = {name: list(trainer._logs[name]) for name in ("prompt", "completion", "advantages")}
    for kind in ("rewards", "extra"):
        columns = trainer._logs[kind].items()
        table[kind] = {name: [None if str(value) == "nan" else value for value in values] for name, values in columns}
    told = ("dead_groups/", "reward", "completions/", "advantages/", "loss", "num_tokens")
    return {
        "world": trainer.accelerator.num_processes, "each": watch.each[:-1], "batches": watch.batches,
        "moved": (before - weights(trainer)).tolist(), "table": table,
        "logs": [{k: v for k, v in entry.items() if k.startswith(told)} for entry in trainer.state.log_history],
        "state": trainer.pipeline.dead_groups.state_dict(),
    }  # fmt: skip


PLANS = [(1, 1, 1), (3,), (4,), (1,), (1, 2), (), (4, 1), (1, 1, 1, 1), (1, 0, 2), (5,), (2, 0, 0, 1), (1, 1)]
COUNTER = f"{Path(__file__).with_name('tools_of_tests.py')}:Counter"
TURNS = {"name": "turn_reward", "weight": 0}


def play(prompt, row):
    """Counts towards 3 by the plan of its row, which later turns find in what was said."""
    said = prompt[prompt.rindex("<|im_start|>user\nq") :]
    marked = re.search(r"plan (\d+)", said)
    number = int(marked[1]) if marked else row
    plan, at = PLANS[number % len(PLANS)], said.count("<tool_response>")
    text = f"{'so ' * (number % 3)}plan {number} "
    return text + (called("add", number=plan[at]) if at < len(plan) else "done") + "<|im_end|>"


def say(trainer, prompt_ids, *_, **__):
    tokenizer = trainer._tokenizer
    texts = [play(tokenizer.decode(ids), row) for row, ids in zip(places(prompt_ids), prompt_ids, strict=True)]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts], None


def turns(folder, model, per_device, **settings):
    """One generation batch of 12 completions, groups of 4: what it trained with, and the turns behind it."""
    torch.manual_seed(0)
    own = {"learning_rate": 1e-3, "max_completion_length": 900, "shuffle_dataset": False, "environment": COUNTER}
    own["per_device_train_batch_size"] = per_device
    config = GRPOPlusConfig(output_dir=folder + "/out", **{**SETTINGS, **ONE, **own, **settings})
    rows = [{"prompt": [{"role": "user", "content": f"q{n}"}], "goal": 3} for n in range(3)]
    trainer = GRPOPlusTrainer(model, None, config, Dataset.from_list(rows), processing_class=tool_tokens(model))
    kept, told, reward = capture(trainer), [], trainer._calculate_rewards
    tables = keep_tables(trainer)

    def keep_turns(*arguments):
        found = reward(*arguments)
        for turns, spans, ids in zip(*trainer.pipeline.round.turns, arguments[3], strict=True):
            each = [[*span, turn.reward, turn.state] for turn, span in zip(turns, spans, strict=True)]
            told.append({"turns": each, "length": len(ids)})
        told[0]["rewards"] = found.tolist()  # of all ranks
        return found

    trainer._calculate_rewards = keep_turns
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(GRPOTrainer, "_generate_single_turn", say)
        trainer.train()
    trained, values = kept[0]["completion_mask"] * kept[0]["tool_mask"], kept[0]["advantages"]
    values = values if values.dim() == 2 else values[:, None].expand_as(trained)
    everywhere = gather_object(told)
    rewards = [each.pop("rewards") for each in everywhere if "rewards" in each]
    steps = tables[0].steps
    return {
        "world": trainer.accelerator.num_processes, "advantages": gather_object(values.double().tolist()),
        "trained": gather_object(trained.tolist()), "told": everywhere, "rewards": rewards[0], "keywords": trainer.estimator[1],
        "steps": [steps.rows.tolist(), steps.ordinals().tolist(), steps.states.tolist()],
        "log": {k: v for k, v in trainer.state.log_history[0].items() if isinstance(v, float | int)},
    }  # fmt: skip


KINDS = {one.__name__: one for one in (advantages, drawing, turns)}


if __name__ == "__main__":
    folder, model, runs, *kind = sys.argv[1:]
    run = KINDS[kind[0] if kind else "advantages"]
    found = {name: run(folder, model, 6, **settings) for name, settings in json.loads(runs).items()}
    everywhere = gather_object([[one.get("state") for one in found.values()]])
    assert everywhere[0] == everywhere[1]
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
