"""A run with truncated sampling on the ranks there are: how far its log-probabilities are from brute force."""

import json
import sys
from pathlib import Path

import torch
from conftest import SETTINGS, digits
from datasets import Dataset
from test_support import Watch

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

folder, model = sys.argv[1:]
prompts = Dataset.from_list([{"prompt": f"{number}+{number}="} for number in range(16)])
own = {
    "advantage": "zscore",
    "objective": "dapo",
    "rollout": "auto",
    "engine": "packed",
    "num_iterations": 2,
    "top_k": 5,
}
config = GRPOPlusConfig(output_dir=f"{folder}/out", **{**SETTINGS, **own})
trainer = GRPOPlusTrainer(model, [digits], config, prompts)
watch = Watch()
watch.after_loading(trainer)
trainer.hooks.insert(0, watch)
trainer.train()
off = tokens = ratio = 0.0
for output in watch.batches:
    mask = output["completion_mask"].bool()
    off = max(off, float((output["old_per_token_logps"] - output["brute"])[mask].abs().max()))
    tokens += int(mask.sum())
for step, inputs, logps in watch.seen:
    if step == 0:
        mask = inputs["completion_mask"].bool()
        ratio = max(ratio, float(((logps - inputs["old_per_token_logps"]).exp() - 1)[mask].abs().max()))
assert torch.distributed.is_initialized()
found = {"world": trainer.accelerator.num_processes, "off": off, "tokens": tokens, "ratio": ratio}
Path(folder, f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(found))
