"""Two steps of adapter-only training on the ranks there are; writes what the main one logged."""

import json
import sys
from pathlib import Path

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from tests.qlora.runs import ROWS, RUN, digits, lora, nf4


def main(folder, url, out, timeout):
    # Groups of four over two ranks of two rows each: every group spans both.
    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url}
    server |= {"vllm_server_timeout": float(timeout)}
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 2}
    args = GRPOPlusConfig(output_dir=out, **{**RUN, **server, **sizes, "max_completion_length": 5})
    run = GRPOPlusTrainer(folder, digits, args, ROWS, quantization_config=nf4(), peft_config=lora())
    run.train()
    if run.accelerator.is_main_process:
        Path(out, "log.json").write_text(json.dumps(run.state.log_history))


if __name__ == "__main__":
    main(*sys.argv[1:])
