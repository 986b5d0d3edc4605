"""A run of two steps on a tiny model, as tests of commands start it."""

import json

TRAINING = """
model_name_or_path: {model}
output_dir: {folder}/out
dataset_name: ./data.jsonl
reward_funcs: [./rewards.py:digits]
max_steps: 2
num_generations: 4
per_device_train_batch_size: 8
max_completion_length: 8
learning_rate: 1e-3
logging_steps: 1
save_strategy: no
report_to: none
use_cpu: true
bf16: false
disable_tqdm: true
gradient_checkpointing: false
"""


def write_data(folder, rewards):
    """Lay data and a file of reward functions beside the config."""
    rows = [
        {"prompt": f"{number}+1=", "question": f"what is {number}?", "answer": str(number + 1)} for number in range(16)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewards.py").write_text(rewards)
