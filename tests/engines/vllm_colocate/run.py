"""A run whose completions come from a vLLM in its own process; run by the interpreter that has vLLM.

usage: run.py CASE FOLDER, where CASE is full, adapter, object or four_bit. What it found goes into found.json there.
"""

import hashlib
import json
import logging
import os
import sys
from pathlib import Path

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.testing import make_tiny_model

SIZES = {"hidden": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""vLLM's attention for CPUs takes heads of 32 and more."""
RATIOS = [f"sampling/importance_sampling_ratio/{which}" for which in ("min", "mean", "max")]
NF4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
ROWS = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(4) for b in range(4)])


RUN = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4, "max_steps": 4}
RUN |= {"max_completion_length": 8, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "logging_steps": 1}
RUN |= {"report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "use_vllm": True}
RUN |= {"vllm_mode": "colocate", "vllm_max_model_length": 64, "vllm_gpu_memory_utilization": 0.1}


def digits(completions, **_):
    return [sum(character.isdigit() for character in text) / max(len(text), 1) for text in completions]


def model_folder(folder: Path, *, four_bit: bool) -> str:
    """A tiny model; for 4 bits one whose weights are all multiples that NF4 has, so that both engines hold the same."""
    model, tokenizer = make_tiny_model(folder / "model", architecture="llama", **SIZES)
    if four_bit:
        import bitsandbytes

        weights = model.state_dict()
        quantised = AutoModelForCausalLM.from_pretrained(folder / "model", quantization_config=NF4, dtype=torch.float32)
        for name, module in quantised.named_modules():
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                weight = bitsandbytes.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
                weights[f"{name}.weight"].copy_(weight)
        model.load_state_dict(weights)
        model.save_pretrained(folder / "rounded")
        tokenizer.save_pretrained(folder / "rounded")
        return str(folder / "rounded")
    return str(folder / "model")


def digest(parameters) -> str:
    whole = hashlib.sha256()
    for name, parameter in parameters:
        whole.update(name.encode() + parameter.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


SAID = []


class Lines(logging.Handler):
    def emit(self, record):
        SAID.append(record.getMessage())


def made_in_memory(name: str):
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    return model


def make(folder: Path, case: str, **changes):
    lora = LoraConfig(r=12, lora_alpha=24, target_modules="all-linear", task_type="CAUSAL_LM")
    further = {} if case == "full" else {"peft_config": lora}
    if case == "four_bit":
        further["quantization_config"] = NF4
    name = model_folder(folder, four_bit=case == "four_bit")
    args = GRPOPlusConfig(output_dir=str(folder / "out"), temperature=0.8, **{**RUN, **changes})
    return GRPOPlusTrainer(made_in_memory(name) if case == "object" else name, digits, args, ROWS, **further)


def main():
    case, folder = sys.argv[1], Path(sys.argv[2])
    logging.getLogger("grpo_plus").addHandler(Lines())
    run = make(folder, case)

    def frozen():
        return [(n, p) for n, p in run.model.named_parameters() if not p.requires_grad]

    def trained():
        return [(n, p) for n, p in run.model.named_parameters() if p.requires_grad]

    before = digest(frozen()), digest(trained())
    run.train()
    history = [entry for entry in run.state.log_history if "reward" in entry]
    found = {
        "gap": [entry["sampling/sampling_logp_difference/max"] for entry in history],
        "ratio": [entry[ratio] for entry in history for ratio in RATIOS],
        "drift": [entry.get("rollout/logp_drift_max") for entry in history],
        "same_base": digest(frozen()) == before[0],
        "moved": digest(trained()) != before[1],
        "frozen": len(frozen()),
        "left": [str(path) for path in Path(os.environ["TMPDIR"]).glob("grpo_plus_vllm_*")],
        "said": SAID,
    }
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
