"""Two ranks: a checkpoint is made, and gone on from, with a hook that keeps a state of its own on each of them."""

import json
import sys
from pathlib import Path

from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.training.hooks import Hook


class OwnRank(Hook):
    """Adds up its rank's number over micro-batches."""

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


def reward(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def build(model, folder, steps):
    schedule = {"name": "adaptive", "target": 1e-4, "rate": 0.5}
    config = GRPOPlusConfig(
        output_dir=str(Path(folder) / "out"), use_cpu=True, bf16=False, report_to="none", num_generations=4,
        per_device_train_batch_size=4, max_completion_length=6, max_steps=steps, save_strategy="steps", save_steps=2,
        logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, learning_rate=0.05, optim="sgd",
        objective="grpo", beta=0.05, objective_kwargs={"kl": {"schedule": schedule}},
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["1+1=", "say it", "x", "a b c"] * 4})
    hook = OwnRank()
    return GRPOPlusTrainer(model, reward, config, prompts, hooks=[hook]), hook


def main(folder, model):
    first, _ = build(model, folder, 2)
    first.train()
    rank = first.accelerator.process_index
    again, hook = build(model, folder, 3)
    again.train(resume_from_checkpoint=str(Path(folder) / "out" / "checkpoint-2"))
    (beta,) = [entry["beta"] for entry in again.state.log_history if "beta" in entry and entry["step"] == 3]
    found = {"loaded": hook.loaded, "total": hook.total, "saved": first.update.coefficient.beta, "beta": beta}
    Path(folder, f"state_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
