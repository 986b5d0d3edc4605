"""One run of each kind of critic on the ranks there are, of completions that depend on their place in the batch only."""

import json
import os
import sys
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from safetensors.torch import save_file

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from tests.critic.conftest import RUN
from tests.trainer.conftest import logged
from tests.trainer.ranks import by_row, rank


def seventh(completions, row, **_):
    return [None if r == 6 else (3 * r % 7) / 7 for r in row]


def run(folder, model, kind, per_device):
    critic = {"on": kind, "updates": 2, "learning_rate": 1e-3, "max_grad_norm": 0.05}
    settings = {"per_device_train_batch_size": per_device, "max_completion_length": 16, "shuffle_dataset": False}
    settings |= {"optim": "sgd", "learning_rate": 0.1, "critic": critic}
    config = GRPOPlusConfig(output_dir=f"{folder}/{kind}", **RUN | settings)
    rows = Dataset.from_dict({"prompt": ["1+1=", "say it", "x", "a b c"] * 2})
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM") if kind == "adapter" else None
    trainer = GRPOPlusTrainer(model, seventh, config, rows, rollout_func=by_row, peft_config=adapter)
    trainer.train()
    if "RANK" in os.environ:
        Path(folder, f"{kind}_{rank}.json").write_text(json.dumps(logged(trainer, "critic/loss")))
    return {name: tensor for name, tensor in trainer.pipeline.critic.tensors().items() if not name.startswith("adamw")}


if __name__ == "__main__":
    for each in ("trunk", "adapter", "model"):
        save_file(run(sys.argv[1], sys.argv[2], each, 4), Path(sys.argv[1]) / f"{each}_{rank}.safetensors")
