"""Two ranks: runs inside of whose generation batches a checkpoint stands, gone on from; what differs is written down."""

import json
import sys
from pathlib import Path

from carried import Look, carried, differences, unlike
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

AT = 3
INSIDE = {"steps_per_generation": 2, "num_iterations": 3}
RUNS = {
    "inner iterations": {"objective": "target", "objective_kwargs": {"stop_fraction": 0.5}, "learning_rate": 1.0},
    "a rise": {"objective": "grpo", "objective_kwargs": {"stop_rise": 0.02}, "learning_rate": 1.0},
    "reference": {"objective": "grpo", "beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2},
}


def reward(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def train(model, folder, settings, checkpoint):
    config = GRPOPlusConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=4,
        logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, max_steps=6, num_generations=4,
        save_strategy="steps", save_steps=1, max_completion_length=6, **INSIDE, **settings,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": [f"{number}+{number}=" for number in range(16)]})
    run = GRPOPlusTrainer(model, reward, config, prompts, hooks=[Look(AT)])
    run.train(resume_from_checkpoint=checkpoint)
    return run.hooks[-1].seen, carried(run), run.accelerator.process_index


def main(folder, model):
    found = {}
    for name, settings in RUNS.items():
        out = Path(folder) / name
        whole, ended, rank = train(model, out, settings, None)
        again, ended_again, _ = train(model, out, settings, str(out / f"checkpoint-{AT}"))
        counts = [seen.pop("InnerIterations._counts")[-1] for seen in (whole, again)]
        found[name] = {
            "unlike": unlike(whole, again),
            "weights": [path for path in differences(ended, ended_again) if path.startswith(("model", "ref_model"))],
            "counts": counts,
        }
    Path(folder, f"parts_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
