"""Run by `test_engine_processes.py` on several processes: each writes its gradients' distance from those of one."""

import dataclasses
import json
import os
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from accelerate import PartialState
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from grpo_plus.engine import cost
from tests.engine.conftest import Bench


def replicated(trainer):
    model = trainer.accelerator.prepare(trainer.model)
    assert type(model).__name__ == "DistributedDataParallel"
    assert trainer.engine._facts().kind == "replicated"
    return model


def sharded(trainer):
    mesh = init_device_mesh("cpu", (PartialState().num_processes,))
    for layer in trainer.model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(trainer.model, mesh=mesh)
    # accelerate runs an FSDP config on a CPU as DDP without a word.
    assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    return trainer.model


def gradient(trainer, wrap, batch, bench):
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    model = wrap(trainer)
    trainer.model.train()
    noise = torch.randn(32, batch["completion_ids"].shape[1], generator=torch.Generator().manual_seed(11))
    rank, rows = PartialState().process_index, len(batch["completion_ids"])
    # The passes without gradient go through the engine too, before any loss.
    bench.feed(trainer, batch, old=0.0, reference=0.0 if trainer.beta else None)
    output = trainer._generate_and_score_completions(None)
    for key in ("old_per_token_logps", "ref_per_token_logps"):
        if key in output:
            output[key] = output[key] + 0.2 * noise[rank * rows : (rank + 1) * rows]
    trainer._generate_and_score_completions = lambda _: dict(output)
    torch.manual_seed(0)
    steps = trainer.args.steps_per_generation
    for step in range(steps):
        sync = step == steps - 1 or not hasattr(model, "no_sync")
        with torch.enable_grad() if sync else model.no_sync():
            trainer.accelerator.backward(trainer.compute_loss(model, trainer._prepare_inputs([{}])))
        trainer._step += 1
    grads = {name: parameter.grad for name, parameter in trainer.model.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in grads.items()}


def main(folder):
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    rank, world = state.process_index, state.num_processes
    bench = Bench(Path(folder))
    bench._models[("qwen2", "[]")] = f"{folder}/model"
    whole = bench.batch(rows=4, groups=8, completions=(1, 12), dead=(4, 5, 6, 7), seed=3)  # the second rank has no work
    # Nor has it anything to score in its first pass without gradient, which the other rank waits for under FSDP.
    whole["completion_mask"][16:20] = 0
    whole["completion_ids"][16:20] = 0
    # Completions in pairs begin with the same turn, whose result is read and not trained on.
    whole["completion_ids"][1::2, :5] = whole["completion_ids"][::2, :5]
    whole["completion_ids"] *= whole["completion_mask"]
    whole["tool_mask"] = torch.ones_like(whole["completion_mask"])
    whole["tool_mask"][:, 2:4] = 0
    whole["num_items_in_batch"] = (whole["completion_mask"] * whole["tool_mask"]).sum()
    cost._BUNDLE_OVERHEAD = 0.0
    rows = 32 // world
    batch = {k: v[rank * rows : (rank + 1) * rows] if v.dim() else v for k, v in whole.items()}
    if world == 1:
        for loss, beta in (("dapo", 0), ("grpo", 0), ("dapo", 0.1)):
            trainer = bench.trainer(gradient_accumulation_steps=8, loss_type=loss, beta=float(beta))
            torch.save(gradient(trainer, lambda trainer: trainer.model, batch, bench), f"{folder}/{loss}{beta}.pt")
        return
    cases = {
        "ddp auto": (replicated, "auto", {}),
        "ddp packed": (replicated, "packed", {}),
        "ddp trimmed": (replicated, "trimmed", {"loss_type": "grpo"}),
        "ddp checkpointing": (replicated, "packed", {"gradient_checkpointing": True, "loss_type": "grpo"}),
        "ddp unused": (replicated, "packed", {"ddp_find_unused_parameters": True}),
        "ddp kl": (replicated, "packed", {"beta": 0.1}),
        "fsdp": (sharded, "packed", {}),
        "fsdp checkpointing": (sharded, "auto", {"gradient_checkpointing": True, "loss_type": "grpo"}),
    }
    distances = {}
    for name, (wrap, engine, settings) in cases.items():
        trainer = bench.trainer(engine, gradient_accumulation_steps=8 // world, **settings)
        if wrap is sharded:  # made by hand: accelerate would not shard on a CPU
            facts = dataclasses.replace(trainer.engine._facts(), kind="sharded")
            trainer.engine._facts = lambda facts=facts: facts
        found = gradient(trainer, wrap, batch, bench)
        truth = torch.load(f"{folder}/{settings.get('loss_type', 'dapo')}{settings.get('beta', 0)}.pt")
        distances[name] = bench.distance(found, truth)
        state.wait_for_everyone()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(distances))


if __name__ == "__main__":
    main(sys.argv[1])
