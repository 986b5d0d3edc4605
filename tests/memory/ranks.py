"""One run on the ranks there are, where the last rank has little memory; each rank writes how it went."""

import json
import os
import sys
import threading
from pathlib import Path

import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

rank = int(os.environ.get("RANK", "0"))


def letters(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def run(folder, model, where):
    """Train a step; the rank's second process runs out of memory in its passes of a kind, or nobody does."""
    settings = {
        "per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 2, "max_completion_length": 12,
        "learning_rate": 0.05, "optim": "sgd", "report_to": "none", "use_cpu": True, "bf16": False, "beta": 0.1,
        "gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True, "logging_steps": 1,
    }  # fmt: skip
    rows = Dataset.from_list([{"prompt": prompt} for prompt in ("ab", "cdc", "ef", "gghg")] * 4)
    trainer = GRPOPlusTrainer(model, letters, GRPOPlusConfig(output_dir=f"{folder}/out", **settings), rows)
    assert trainer.engine._facts().kind == "replicated"

    def fail(module, inputs, output):
        if rank == 1 and output.shape[0] * output.shape[1] > 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    watched = {"reference": trainer.ref_model, "update": trainer.model}.get(where)
    if watched is not None:
        layer = watched.model.layers[0].self_attn.q_proj
        layer.register_forward_hook(lambda *a: fail(*a) if torch.is_grad_enabled() == (where == "update") else None)
    torch.manual_seed(rank)
    try:
        trainer.train()
        error = None
    except RuntimeError as caught:
        error = f"{type(caught).__name__}: {caught}"
    weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return {"error": error, "retries": trainer.pipeline.retry.count, "weights": weights.tolist()}


if __name__ == "__main__":
    folder, model, wheres = sys.argv[1:]
    torch.set_num_threads(1)
    for where in json.loads(wheres):
        found = run(folder, model, where)
        Path(folder, f"{where}{rank}.json").write_text(json.dumps(found))
    sys.stdout.flush()
    threading.Timer(2 * rank, os._exit, (0,)).start()  # a broken collective has no orderly end
