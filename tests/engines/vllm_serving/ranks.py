"""The quickstart's task on two ranks whose parameters are in pieces, against a real vLLM server."""

import json
import sys
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from peft import LoraConfig

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer, quickstart
from grpo_plus.training.update import reference

REFRESHED = {"beta": 0.01, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0}


def main(engine, url, model, folder):
    torch.set_num_threads(1)
    rows, found, own, gathered = quickstart.dataset()["train"].select(range(64)), {}, reference.gathered, []
    reference.gathered = lambda weight: gathered.append(1) or own(weight)
    for way in ("adapter", "files"):
        args = GRPOPlusConfig(
            output_dir=str(Path(folder, way)), verifiers=["math"], objective="dapo", max_steps=3, num_generations=4,
            per_device_train_batch_size=8, gradient_accumulation_steps=2, max_completion_length=48, learning_rate=2e-3,
            lr_scheduler_type="constant", logging_steps=1, report_to="none", bf16=False, gradient_checkpointing=False,
            save_strategy="no", report=False, seed=1, ddp_backend="gloo", optim="adamw_torch", disable_tqdm=True,
            use_vllm=True, vllm_mode="server", vllm_server_base_url=url, rollout={"vllm_sync": way},
            **(REFRESHED if way == "adapter" else {}),
        )  # fmt: skip
        assert args.device.type == "cpu"
        if engine == "fsdp2":
            # accelerate enters FSDP for this kind and its like only; gloo on a CPU is "no distributed run" to it.
            PartialState().distributed_type = DistributedType.MULTI_GPU
        adapter = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        run = GRPOPlusTrainer(model, args=args, train_dataset=rows, peft_config=adapter if way == "adapter" else None)
        run.train()
        pieces = sum(hasattr(value, "full_tensor") or hasattr(value, "ds_id") for value in run.model.parameters())
        assert pieces == len(list(run.model.parameters()))
        found[way] = run.state.log_history
        if way == "adapter":
            found["gathered"] = len(gathered) / sum(".ref." in name for name, _ in run.model.named_parameters())
    if PartialState().is_main_process:
        Path(folder, "log.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
