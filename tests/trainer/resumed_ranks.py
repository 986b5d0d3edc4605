"""Ranks of one run, a kind of run by its name: what they make of it, and mostly of the same gone on from a checkpoint."""

import hashlib
import json
import logging
import os
import sys
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.checkpoints import manifest
from grpo_plus.checkpoints.folder import CheckpointError
from grpo_plus.training.hooks import Hook
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.scoring import score_without_gradient
from tests.trainer.carried import Look, carried, differences, unlike
from tests.trainer.conftest import SETTINGS, digits, weights

SAVING = {"save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": 4, "max_completion_length": 6}
NUMBERED = [{"prompt": f"{number}+{number}="} for number in range(16)]
ADAM = {"optim": "adamw_torch", "learning_rate": 0.01}
SPOKEN = [{"prompt": prompt} for prompt in ("1+1=", "say it", "x", "a b c")]


def fill(disk, left):
    """Leaves so many bytes of a disk."""
    with (disk / "other").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            file.truncate(file.tell() - left)


def checksum(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def made(model, folder, *, kind=GRPOPlusTrainer, data=NUMBERED, evaluation=None, hooks=(), reward=checksum, **settings):
    config = GRPOPlusConfig(output_dir=str(folder), **{**SETTINGS, **SAVING, **settings})
    data = Dataset.from_list(data) if isinstance(data, list) else data
    return kind(model, reward, config, data, evaluation, hooks=list(hooks))


class Notes(Hook):
    def __init__(self):
        self.drawn, self.shares = [], []

    def prompts(self, rows):
        self.drawn.append([self.host.state.global_step, [row["prompt"] for row in rows]])

    def batch(self, batch):
        self.shares.append(batch.output["share"].tolist() if "share" in batch.output else None)


def logged(trainer, step):
    """What was logged after a step, without times; a checkpoint holds the history of the first rank only."""
    return [
        {name: value for name, value in entry.items() if "time" not in name}
        for entry in trainer.state.log_history
        if "train_loss" not in entry and entry["step"] > step
    ]


def place(folder, model):
    """Inside generation batches, past the first pass, and in a stream."""
    rows, found = [*SPOKEN, {"prompt": "2+2="}, {"prompt": "y"}], []
    settings = {"num_generations": 2, "logging_steps": 2, "per_device_train_batch_size": 1, "max_steps": 14}
    settings |= {"steps_per_generation": 2, "num_iterations": 2, "objective": "grpo", **ADAM}
    for stream in (False, True):
        data = IterableDataset.from_generator(lambda: iter(rows)) if stream else rows
        notes = Notes()
        whole = made(model, folder / f"whole_{stream}", data=data, hooks=[notes], **settings)
        whole.train()
        for step in (3, 6, 12, 13):
            later = Notes()
            again = made(model, folder / f"again_{stream}", data=data, hooks=[later], **settings)
            again.train(resume_from_checkpoint=str(folder / f"whole_{stream}" / f"checkpoint-{step}"))
            expected = [entry for entry in notes.drawn if entry[0] >= step]
            same = {
                "weights": torch.equal(weights(again), weights(whole)),
                "logs": logged(again, step) == logged(whole, step),
                "prompts": later.drawn == expected,
            }
            found.append([stream, step, len(expected), same])
    return found


INSIDE = {"steps_per_generation": 2, "num_iterations": 3, "learning_rate": 1.0}
PARTS = {
    "inner iterations": {"objective": {"name": "target", "stop_fraction": 0.5}, **INSIDE},
    "reference": {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2, **INSIDE, "learning_rate": 0.05},
    "kept weights of prompts": {"selection": {"name": "contrast", "every": 2}},
}


def parts(folder, model):
    """What every part carries over the step of a checkpoint."""
    found = {}
    for name, settings in PARTS.items():
        at = 2 if "selection" in settings else 3
        seen, ended = [], []
        for checkpoint in (None, str(folder / name / f"checkpoint-{at}")):
            plain = {"objective": "grpo", "max_steps": 2 * at, "optim": "adamw_torch"}
            run = made(model, folder / name, hooks=[Look(at)], **{**plain, **settings})
            run.train(resume_from_checkpoint=checkpoint)
            seen.append(run.pipeline.hooks[-1].seen)
            ended.append(carried(run))
        counts = [one.pop("InnerIterations._counts")[-1] for one in seen] if name == "inner iterations" else None
        other = (
            "host.state.log_history" if "selection" in settings else "-"
        )  # a checkpoint holds the first process's log
        found[name] = {
            "unlike": [path for path in unlike(*seen) if not path.startswith(other)],
            "weights": [path for path in differences(*ended) if path.startswith(("model", "ref_model"))],
            "counts": counts,
        }
    return found


def solved(prompts, completions, **_):
    """Prompts that begin with a are never solved, those with b always, those with c sometimes."""
    sums = [sum(map(ord, text)) % 2 for text in completions]
    return [float({"a": 0, "b": 1}.get(prompt[0], one)) for prompt, one in zip(prompts, sums, strict=True)]


def chance(history):
    """Other weights on each rank."""
    return torch.rand(len(history)) ** 4


def selecting(folder, model):
    """What a selection draws and remembers."""
    found = {}
    settings = {"per_device_train_batch_size": 6, "max_steps": 12, "logging_steps": 2, **ADAM}
    settings |= {"objective": "grpo", "selection": "contrast", "reward": solved}
    settings["data"] = [{"prompt": f"{kind}{number}"} for kind in "abc" for number in range(4)]
    ways = {way: {"dead_groups": way} for way in ("keep", "resample", "roulette")}
    ways["random"] = {"selection": f"{__file__}:chance", "dead_groups": "resample"}
    for way, own in ways.items():
        notes, later = Notes(), Notes()
        whole = made(model, folder / way, hooks=[notes], **{**settings, **own})
        whole.train()
        again = made(model, folder / f"{way}_again", hooks=[later], **{**settings, **own})
        again.train(resume_from_checkpoint=str(folder / way / "checkpoint-5"))
        drawn, rest = ([rows for _, rows in one.drawn] for one in (notes, later))
        found[way] = {
            "drawn": drawn, "shares": notes.shares, "counts": whole.pipeline.prompt_sampler.history.counts.tolist(),
            "draws": whole.pipeline.prompt_sampler.history.drawn.tolist(),
            "resumed": rest == drawn[len(drawn) - len(rest) :], "weights": torch.equal(weights(again), weights(whole)),
        }  # fmt: skip
    return found


class OwnRank(Hook):
    name = "own_rank"
    rank_local = True

    def __init__(self):
        self.total = 0
        self.loaded = None

    def step(self, run):
        self.total += 1 + self.host.accelerator.process_index
        return run()

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.loaded = state["total"]


def state(folder, model):
    """A hook that keeps a state of its own on each of them."""
    kl = {"kl": {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
    settings = {"data": SPOKEN * 4, "save_steps": 2, "objective": {"name": "grpo", **kl}, "beta": 0.05}
    first, hook = made(model, folder / "out", hooks=[OwnRank()], **settings), OwnRank()
    first.train()
    again = made(model, folder / "out", hooks=[hook], max_steps=3, **settings)
    again.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-2"))
    (beta,) = [entry["beta"] for entry in again.state.log_history if "beta" in entry and entry["step"] == 3]
    return {
        "loaded": hook.loaded,
        "total": hook.total,
        "saved": first.pipeline.objective.coefficient.beta,
        "beta": beta,
    }


def processes(folder, model, checkpoint=None):
    """A first run is saved after two steps, another one goes on with another number of processes."""
    said, prompts = [], []

    class Said(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    class Prompts(Hook):
        def prompts(self, rows):
            prompts.append(gather_objects([row["prompt"] for row in rows]))

    logging.getLogger("grpo_plus").addHandler(Said())
    count = int(os.environ.get("WORLD_SIZE", "1"))
    run = made(model, folder / "out", hooks=[Prompts()], per_device_train_batch_size=8 // count, max_steps=4)
    run.train(resume_from_checkpoint=checkpoint, allow_changes=True)
    notes = [text for text in said if text.startswith("allow_changes: the checkpoint")]
    return {"processes": count, "prompts": prompts, "notes": notes}


def whole(folder, model):
    """They save, and go on from the same checkpoint, or are refused alike."""

    class Steps(Hook):
        def on_step_end(self, _args, state, *_, **__):
            found["steps"].append(state.global_step)

    out, settings = folder / "out", {"data": SPOKEN * 4, "report": False, "optim": "adamw_torch"}
    first = made(model, out, **settings)
    first.train()
    wait, main = first.accelerator.wait_for_everyone, first.is_world_process_zero()
    found = {"files": sorted(manifest.read(out / "checkpoint-2").files), "steps": []}
    wait()
    if main:
        os.truncate(out / "checkpoint-2" / "rng_state_1.pth", 0)
    wait()
    again = made(model, out, hooks=[Steps()], save_total_limit=5, **settings)
    again.args.save_strategy = "no"
    again.train(resume_from_checkpoint="last")
    wait()
    if main:
        os.truncate(out / "checkpoint-1" / "rng_state_1.pth", 0)
        (out / "checkpoint-2" / "optimizer.pt").unlink()
    wait()
    try:
        made(model, out, **settings).train(resume_from_checkpoint=True)
    except CheckpointError as error:
        found["refused"] = str(error)
    return found


def saving(folder, model, disk, *case):
    """The disk of one of them is full from step 2 to step 4."""
    full, left, further = case
    own = int(os.environ["RANK"]) == int(full)
    place = Path(disk) if own else folder / "fine"

    class Act(Hook):
        def on_step_begin(self, _args, state, _control, **_):
            if own and state.global_step == 1:
                fill(place, int(left))
            if own and state.global_step == 3:
                (place / "other").unlink()

    settings = {"max_steps": 4, "optim": "adamw_torch", "evaluation": Dataset.from_list(SPOKEN[:2])}
    trainer = made(model, place / "run", data=SPOKEN * 4, hooks=[Act()], **settings, **json.loads(further))
    said, save = [], trainer.pipeline.saving.save
    trainer.pipeline.saving.save = lambda *given: (save(*given), said.append(str(trainer.pipeline.saving.failed)))
    trainer.train()
    files = sorted(str(path.relative_to(place / "run")) for path in (place / "run").glob("checkpoint-*/*"))
    digest = hashlib.sha256(weights(trainer).numpy().tobytes()).hexdigest()
    return {"failed": said, "step": trainer.state.global_step, "weights": digest, "files": files}


def replay(folder, model):
    """Three groups of four, of which the second spans both; all but the first are dead in the second batch."""
    batches, calls = [], []

    class Kept(Hook):
        def batch(self, batch):
            output = batch.output

            def rows(values):
                pairs = zip(values, output["completion_mask"].bool(), strict=True)
                return gather_objects([row[mask].tolist() for row, mask in pairs])

            found = {"texts": rows(output["completion_ids"]), "now": rows(score_without_gradient(self.host, output))}
            found["old"] = rows(output["old_per_token_logps"]) if "old_per_token_logps" in output else None
            found["advantages"] = gather_objects(output["advantages"].tolist())
            batches.append({**found, "items": int(output["num_items_in_batch"])})

    def reward(completions, **_):
        calls.append(1)
        rank = trainer.accelerator.process_index
        groups = [(rank * len(completions) + row) // 4 for row in range(len(completions))]
        return [float(row % 2) if len(calls) == 1 or group == 0 else 1.0 for row, group in enumerate(groups)]

    data = [{"prompt": prompt} for prompt in ("1+1=", "what is 30?", "x", "say", "a b c", "77")]
    settings = {"per_device_train_batch_size": 6, "learning_rate": 0.5, "objective": "grpo", "dead_groups": "replay"}
    trainer = made(model, folder, data=data, reward=reward, hooks=[Kept()], save_strategy="no", **settings)
    trainer.train()
    return batches


def learned(folder, model):
    """Updates of a reward model with other pairs on each, and a run with trainings."""
    from tests.trainer.test_reward_model_hook import PROMPTS, comparisons, same, share_of_digits, stirred
    from tests.trainer.test_reward_model_hook import weights as policy

    def build(name, **options):
        settings = {"max_steps": 4, "per_device_train_batch_size": 8, "max_completion_length": 12}
        settings["reward_model"] = {"on": "model", "learning_rate": 1e-2, **options}
        data = [{"prompt": prompt} for prompt in PROMPTS]
        return made(model, folder / name, data=data, reward=share_of_digits, **settings)

    trainer, runs, seen = build("updates"), [], []
    rank, scorer = trainer.accelerator.process_index, stirred(trainer)
    own = (slice(0, 4), slice(4, 5)), (slice(0, 0), slice(0, 5))  # of each update, this rank's and the other's
    losses = [float(scorer.update(comparisons(5, seed)[own[seed][rank]], 5, 2)) for seed in (0, 1)]
    updated = scorer.tensors()
    for checkpoint in (None, str(folder / "run" / "checkpoint-3")):
        trainer = build("run", every=2, held_out=0.2, replay=0.5, batch_size=2)
        take = trainer.pipeline.reward_model.pairs.take
        trainer.pipeline.reward_model.pairs.take = lambda take=take: (seen.append(take()), seen[-1])[1]
        trainer.train(resume_from_checkpoint=checkpoint)
        runs.append(trainer)
    whole, again = (run.pipeline.reward_model for run in runs)
    examples, replayed, _ = seen[1]
    torch.save({"updated": updated, "run": whole.scorer.tensors()}, folder / f"reward_{rank}.pt")
    alike = same(whole.scorer.tensors(), again.scorer.tensors())
    logged = runs[0].state.log_history[3]
    return {
        "losses": losses, "logged": {name: one for name, one in logged.items() if name.startswith("reward_model/")},
        "pairs": len(examples) - replayed, "resumed": alike and whole.pairs.history.items == again.pairs.history.items,
        "policy": same(*map(policy, runs)),
    }  # fmt: skip


def support(folder, model):
    """Truncated sampling: how far log-probabilities are from brute force."""
    from tests.trainer.test_support import Watch

    settings = {"advantage": "zscore", "objective": "dapo", "rollout": "auto", "engine": "packed", "top_k": 5}
    sizes = {"per_device_train_batch_size": 8, "max_completion_length": 12, "num_iterations": 2}
    trainer, watch = made(model, folder, reward=digits, **settings, **sizes), Watch()
    watch.after_loading(trainer)
    watch.watch(trainer)
    trainer.train()
    masks = [output["completion_mask"].bool() for output in watch.batches]
    off = [
        float((output["old_per_token_logps"] - output["brute"])[mask].abs().max())
        for output, mask in zip(watch.batches, masks, strict=True)
    ]
    ratio = [
        float(((logps - inputs["old_per_token_logps"]).exp() - 1)[inputs["completion_mask"].bool()].abs().max())
        for step, inputs, logps in watch.seen
        if step == 0
    ]
    tokens = sum(int(mask.sum()) for mask in masks)
    return {"world": trainer.accelerator.num_processes, "off": max(off), "tokens": tokens, "ratio": max(ratio)}


KINDS = {
    one.__name__: one for one in (place, parts, selecting, state, processes, whole, saving, replay, learned, support)
}


def main(kind, folder, model, name, *more):
    found = KINDS[kind](Path(folder), model, *more)
    Path(folder, f"{name}_{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
