"""Runs whose vLLM is not at the policy, one after the other on one engine; run by the interpreter that has vLLM.

usage: run.py FOLDER. What it found goes into found.json there.
"""

import json
import sys
from pathlib import Path

from datasets import Dataset
from run import RUN, digits  # sets vLLM's variables
from run import SIZES as HEADS
from transformers import TrainerCallback

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.rollout.vllm_drift import DriftError

SIZES = {"architecture": "llama", **HEADS}
ROWS = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(8) for b in range(8)])


class Stale(TrainerCallback):
    """From a step on, the weights of training no longer reach vLLM."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            self.run.vllm_generation.sync_weights = lambda: None


def trained(model, folder, *, pushes=True, stale=None, **changes):
    args = GRPOPlusConfig(output_dir=str(folder / "out"), **{**RUN, **changes})
    run = GRPOPlusTrainer(model, digits, args, ROWS)
    if not pushes:
        run.vllm_generation.sync_weights = lambda: None
    if stale is not None:
        callback = Stale(stale)
        callback.run = run
        run.add_callback(callback)
    error = None
    try:
        run.train()
    except DriftError as raised:
        error = str(raised)
    history = [entry for entry in run.state.log_history if "reward" in entry]
    return {
        "mean": [entry.get("rollout/logp_drift") for entry in history],
        "worst": [entry.get("rollout/logp_drift_max") for entry in history],
        "ratio": [entry.get("sampling/importance_sampling_ratio/mean") for entry in history],
        "outside": [entry.get("rollout/outside_support") for entry in history],
        "error": error,
        "steps": run.state.global_step,
    }


def main():
    folder = Path(sys.argv[1])
    make_tiny_model(folder / "served", **SIZES)
    make_tiny_model(folder / "other", seed=1, **SIZES)
    make_tiny_model(folder / "fewer", vocab="0123456789+=", **SIZES)
    import vllm

    own, made = vllm.LLM, []

    def one(**arguments):
        if not made:
            made.append(own(**arguments))
        return made[0]

    vllm.LLM = one  # an engine takes longer to start than all of these runs together
    served, apart = str(folder / "served"), {"vllm_importance_sampling_correction": False}
    found = {
        "at_the_policy": trained(served, folder),
        "stale": trained(served, folder, stale=2),
        "by_a_pass": trained(served, folder, max_steps=12, **apart),
        "stale_by_a_pass": trained(served, folder, max_steps=12, stale=2, **apart),
        "truncated": trained(served, folder, top_p=0.7, top_k=40),
        "truncated_stale": trained(served, folder, top_p=0.7, top_k=40, stale=2),
        "penalty": trained(served, folder, repetition_penalty=1.3, max_steps=1),
        "other": trained(str(folder / "other"), folder, pushes=False),
        "other_by_a_pass": trained(str(folder / "other"), folder, pushes=False, **apart),
        "vocabulary": trained(str(folder / "fewer"), folder, pushes=False),
    }
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
