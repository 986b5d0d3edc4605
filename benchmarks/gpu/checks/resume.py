"""A run that is killed (SIGKILL) and resumed, bit for bit the uninterrupted one, with deterministic algorithms."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import Context
from benchmarks.gpu.checks.command import started, train

STEPS, SAVES = 8, 2
REWARD = '''
def letters(completions, **columns):
    """Differs from completion to completion."""
    return [sum(map(ord, str(text))) % 11 / 11 for text in completions]
'''


def run(context: Context, *, four_bit: bool = False) -> None:
    """Train through, train until a kill behind the second checkpoint, resume, compare the weights."""
    import torch
    from safetensors.torch import load_file

    config = _config(context, four_bit=four_bit)
    whole, killed = context.folder / "whole", context.folder / "killed"
    train(context, whole, config, [])
    at = _kill(context, killed, config)
    train(context, killed, config, ["--resume_from_checkpoint", "last"])
    name = "adapter_model.safetensors" if four_bit else "model.safetensors"
    one, other = (load_file(folder / "out" / name) for folder in (whole, killed))
    first = load_file(whole / "out" / f"checkpoint-{SAVES}" / name)
    moved = sum(not torch.equal(value, first[key]) for key, value in one.items())
    context.expect(moved > len(one) // 2, f"only {moved} of {len(one)} tensors moved: this shows nothing")
    context.expect(one.keys() == other.keys(), "the two runs saved different tensors")
    apart = {
        key: float((value.double() - other[key].double()).abs().max()) for key, value in one.items() if key in other
    }
    differ = sum(not torch.equal(value, other[key]) for key, value in one.items() if key in other)
    context.report(tensors=len(one), moved=moved, differ=differ, by=max(apart.values()), killed_at=at)
    context.expect(not differ, f"{differ} of {len(one)} tensors differ, by up to {max(apart.values()):.1e}")
    context.headline(f"killed at step {at} of {STEPS} and resumed: {len(one) - differ} of {len(one)} tensors are equal")


def _config(context: Context, *, four_bit: bool) -> Path:
    """A config beside its model, data and reward: dropout and top-p, so that both devices' random numbers count."""
    from grpo_plus.testing import make_tiny_model

    folder = context.folder
    make_tiny_model(folder / "model", architecture="qwen3", hidden=64, attention_dropout=0.1)
    (folder / "rewards.py").write_text(REWARD, encoding="utf-8")
    rows = "".join(json.dumps({"prompt": f"{number}+1="}) + "\n" for number in range(64))
    (folder / "data.jsonl").write_text(rows, encoding="utf-8")
    values: dict[str, Any] = {
        "model_name_or_path": str(folder / "model"), "output_dir": "out", "dataset_name": "./data.jsonl",
        "reward_funcs": ["./rewards.py:letters"], "advantage": "zscore", "max_steps": STEPS, "num_generations": 4,
        "per_device_train_batch_size": 8, "steps_per_generation": 3, "max_completion_length": 16, "top_p": 0.9,
        "learning_rate": 1e-3, "logging_steps": 1, "save_strategy": "steps", "save_steps": SAVES,
        "save_total_limit": STEPS, "report_to": "none", "use_cpu": not context.cuda, "bf16": context.cuda,
        "full_determinism": True, "disable_tqdm": True, "gradient_checkpointing": False,
    }  # fmt: skip
    if four_bit:
        values |= {"load_in_4bit": True, "use_peft": True, "lora_dropout": 0.1}
    path = folder / "config.yaml"
    path.write_text(json.dumps(values), encoding="utf-8")  # which is YAML, too
    return path


def _kill(context: Context, folder: Path, config: Path) -> int:
    """Train until the second checkpoint is there, and kill the process group; gives the last step that was logged."""
    process = started(folder, config)
    there = folder / "out" / f"checkpoint-{2 * SAVES}" / "trainer_state.json"
    try:
        while not there.exists():
            if process.poll() is not None:
                raise RuntimeError(f"train ended with {process.returncode} before its second checkpoint")
            if context.left < 1:
                raise RuntimeError("its second checkpoint was not there in time")
            time.sleep(0.002)
    finally:
        ended = process.poll()
        if ended is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print((folder / "log").read_text(encoding="utf-8"))
    if ended is not None:
        raise RuntimeError("the run was over before it could be killed")
    return 2 * SAVES
