"""Two steps of adapter-only training on the ranks there are; writes what the main one logged."""

import json
import sys
from pathlib import Path

from datasets import Dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer


def digits(completions, **_):
    return [sum(character.isdigit() for character in text) / max(len(text), 1) for text in completions]


def main(folder, url, out, timeout):
    # Groups of four over two ranks of two rows each: every group spans both.
    args = GRPOPlusConfig(
        output_dir=out, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=5, max_steps=2, learning_rate=1e-2, logging_steps=1, report_to="none", use_cpu=True,
        bf16=False, save_strategy="no", use_vllm=True, vllm_mode="server", vllm_server_base_url=url,
        vllm_server_timeout=float(timeout),
    )  # fmt: skip
    run = GRPOPlusTrainer(
        folder,
        digits,
        args,
        Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(4) for b in range(4)]),
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        ),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    run.train()
    if run.accelerator.is_main_process:
        Path(out, "log.json").write_text(json.dumps(run.state.log_history))


if __name__ == "__main__":
    main(*sys.argv[1:])
