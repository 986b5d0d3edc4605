"""Runs that differ in what is trained, one after the other: one process on TRL's own path, two ranks on the engine's."""

import json
import os
import sys
from pathlib import Path

import torch
from fixed import WORLD, build, logs, sharded, weights

from grpo_verifiers import Step, Verdict, verifier

MOVES = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.6}
REFRESHED = {**MOVES, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0, "max_steps": 4, "lora": True}
CASES = {
    "full": {},
    "full, trimmed": {"engine": "trimmed", "alone": "full"},
    "full, TRL's path": {"engine": "stock", "alone": "full"},
    "gradient checkpointing": {"gradient_checkpointing": True, "alone": "full"},
    "dead rows on one rank": {"dead": (4, 5, 6, 7)},
    "LoRA": {"lora": True},
    "KL": {"objective": "grpo", "beta": 0.1},
    "reference": MOVES,
    "reference, weights kept whole": {**MOVES, "keeps": True, "alone": "reference"},
    "reference of LoRA": REFRESHED,
    "reference of LoRA, weights kept whole": {**REFRESHED, "keeps": True, "alone": "reference of LoRA"},
    "KL of LoRA": {"lora": True, "objective": "grpo", "beta": 0.1},
    "KL of LoRA, weights kept whole": {"lora": True, "objective": "grpo", "beta": 0.1, "keeps": True, "alone": "KL of LoRA"},
    "target": {"objective": "target", "num_iterations": 2, "max_steps": 4},
    "inner iterations": {"objective": "grpo", "num_iterations": 2, "max_steps": 4},
    "process supervision": {"verifiers": ["halves"], "advantage": "process"},
    "bf16": {"bf16": True, "alone": "full"},
    "bf16, trimmed": {"bf16": True, "engine": "trimmed", "alone": "full"},
    "bf16, TRL's path": {"bf16": True, "engine": "stock", "alone": "full"},
}  # fmt: skip


@verifier("halves", isolation="inline")
def halves(completion: str, completion_text: str) -> Verdict:
    middle, end = len(completion_text) // 2, len(completion_text)
    scores = [sum(map(ord, part)) % 5 / 5 for part in (completion[:middle], completion[middle:])]
    return Verdict(min(scores), steps=(Step(0, middle, scores[0]), Step(middle, end, scores[1])))


def main(folder, model):
    torch.set_num_threads(1)
    found = {}
    for name, case in CASES.items():
        settings = dict(case)
        alone = settings.pop("alone", name)
        if WORLD == 1 and alone != name:
            continue
        os.environ["FSDP_RESHARD_AFTER_FORWARD"] = str(not settings.pop("keeps", False)).lower()
        engine = settings.pop("engine", "packed") if WORLD > 1 else "stock"
        trainer = build(model, Path(folder, "out", name), **settings, engine=engine)
        trainer.train()
        if WORLD > 1:
            sharded(trainer)
        rank = trainer.accelerator.process_index
        kept = {"model": weights(trainer.model)}
        if trainer.ref_model is not None:
            kept["reference"] = weights(trainer.ref_model)
        if rank == 0:
            torch.save(kept, Path(folder, f"{name} of {WORLD}.pt"))
        steps = logs(trainer, "loss", "grad_norm", "reward", "engine/layout", "engine/rows_skipped")
        found[name] = {"alone": alone, "steps": steps}
    Path(folder, f"rank {rank} of {WORLD}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
