"""Two ranks: updates with other pairs on each, a run with trainings, and the same run gone on from a checkpoint."""

import sys
from pathlib import Path

import torch
from datasets import Dataset
from test_reward_model_hook import PROMPTS, comparisons, same, share_of_digits, stirred, weights

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


def build(model, folder, **options):
    config = GRPOPlusConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=8,
        logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, max_steps=4, num_generations=4,
        save_strategy="steps", save_steps=1, max_completion_length=12, learning_rate=0.05, optim="sgd",
        reward_model={"on": "model", "learning_rate": 1e-2, **options},
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    return GRPOPlusTrainer(model, share_of_digits, config, data)


def main(folder, model):
    trainer = build(model, Path(folder) / "updates")
    rank, scorer = trainer.accelerator.process_index, stirred(trainer)
    parts = (slice(0, 4), slice(4, 5)), (slice(0, 0), slice(0, 5))  # of each update, this rank's and the other's
    losses = [float(scorer.update(comparisons(5, seed)[parts[seed][rank]], 5, 2)) for seed in (0, 1)]
    found = {"updated": scorer.tensors(), "losses": losses}
    seen = []
    runs = []
    for checkpoint in (None, str(Path(folder) / "run" / "checkpoint-3")):
        trainer = build(model, Path(folder) / "run", every=2, held_out=0.2, replay=0.5, batch_size=2)
        take = trainer.reward_model.pairs.take
        trainer.reward_model.pairs.take = lambda take=take: (seen.append(take()), seen[-1])[1]
        trainer.train(resume_from_checkpoint=checkpoint)
        runs.append(trainer)
    whole, again = runs
    examples, replayed, _ = seen[1]
    found |= {
        "run": whole.reward_model.scorer.tensors(),
        "logged": {name: one for name, one in whole.state.log_history[3].items() if name.startswith("reward_model/")},
        "pairs": len(examples) - replayed,
        "resumed": same(whole.reward_model.scorer.tensors(), again.reward_model.scorer.tensors())
        and whole.reward_model.pairs.history.items == again.reward_model.pairs.history.items,
        "policy": same(weights(whole), weights(again)),
    }
    torch.save(found, Path(folder) / f"reward_{rank}.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
