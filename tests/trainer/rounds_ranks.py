"""Two ranks: rounds, and the same run gone on from a checkpoint in which one ends; what differs is written down."""

import json
import sys
from pathlib import Path

from carried import Look, carried, differences, unlike
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

AT = 2
RUNS = {
    "reference": {"objective": "grpo", "beta": 0.1, "rounds": {"every": 2, "reference": "refresh"}},
    "prompts": {"selection": "contrast", "rounds": {"every": 2, "prompts": "reselect"}},
}


def reward(completions, **_):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


def train(model, folder, settings, checkpoint):
    config = GRPOPlusConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", per_device_train_batch_size=4,
        logging_steps=1, disable_tqdm=True, gradient_checkpointing=False, max_steps=4, num_generations=4,
        save_strategy="steps", save_steps=1, max_completion_length=6, learning_rate=0.05, **settings,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": [f"{number}+{number}=" for number in range(16)]})
    run = GRPOPlusTrainer(model, reward, config, prompts, hooks=[Look(AT)])
    run.train(resume_from_checkpoint=checkpoint)
    (rounds,) = [hook for hook in run.hooks if hook.name == "rounds"]
    return run.hooks[-1].seen, carried(run), rounds.number, run.accelerator.process_index


def main(folder, model):
    found = {}
    for name, settings in RUNS.items():
        out = Path(folder) / name
        whole, ended, number, rank = train(model, out, settings, None)
        again, ended_again, _, _ = train(model, out, settings, str(out / f"checkpoint-{AT}"))
        found[name] = {
            "number": number,
            # A checkpoint holds the first process's log.
            "unlike": [path for path in unlike(whole, again) if not path.startswith("host.state.log_history")],
            "weights": [path for path in differences(ended, ended_again) if path.startswith(("model", "ref_model"))],
        }
    Path(folder, f"rounds_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
