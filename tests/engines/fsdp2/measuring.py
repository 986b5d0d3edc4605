"""A run that is measured before and after training and evaluated in between; one that goes on from it."""

import json
import sys
from pathlib import Path

import torch
from fixed import WORLD, build, rows, sharded

from grpo_plus.evaluation.measure import Measure
from grpo_verifiers import verifier

SETTINGS = {
    "verifiers": ["even"], "eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8 // WORLD,
    "max_steps": 2, "save_strategy": "steps", "save_steps": 1, "beta": 0.05,
}  # fmt: skip
MEASURED = {"n": 3, "limit": 5, "batch": 4, "max_completion_length": 9}


@verifier("even", isolation="inline")
def even(completion: str) -> bool:
    return sum(map(ord, completion)) % 2 == 0


def measured(model, folder, *, resume=None, lora=False):
    trainer = build(model, folder, further={"eval_dataset": rows(count=8)}, lora=lora, **SETTINGS)
    measure, said = Measure(MEASURED, trainer, rows(count=16)), []
    measure.before(said.append, resumes=resume is not None)
    trainer.train(resume_from_checkpoint=resume)
    said.append(measure.take("after"))
    if WORLD > 1:
        sharded(trainer)
    evaluated = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
    kept = ("eval_loss", "eval_reward", "eval_completions/mean_length", "eval_rewards/even/mean")
    found = {"said": said, "evaluated": [{key: entry[key] for key in kept} for entry in evaluated]}
    found["samples"] = {
        when: [sample.as_json() for sample in kept.samples] for when, kept in measure.evaluations.items()
    }
    return trainer.accelerator.process_index, found


def main(folder, model):
    torch.set_num_threads(1)
    folder = Path(folder)
    rank, whole = measured(model, folder / "out")
    found = {"whole": whole, "LoRA": measured(model, folder / "lora", lora=True)[1]}
    if WORLD > 1:
        found["again"] = measured(model, folder / "out", resume=str(folder / "out/checkpoint-1"))[1]
        for name in ("before.jsonl", "before.json"):
            if rank == 0:
                (folder / "out/measure" / name).unlink()
        found["unknown"] = measured(model, folder / "out", resume=str(folder / "out/checkpoint-1"))[1]
    Path(folder, f"rank {rank} of {WORLD}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
