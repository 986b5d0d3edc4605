"""A trainer for one process or a rank under FSDP2, on the real path through accelerate, with fixed completions."""

import os
import random

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from datasets import Dataset
from peft import LoraConfig
from torch.distributed.tensor import DTensor

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

WORLD = int(os.environ.get("WORLD_SIZE", "1"))
SETTINGS = {"bf16": False, "report_to": "none", "num_generations": 4, "gradient_accumulation_steps": 2, "max_steps": 3}
SETTINGS |= {"max_completion_length": 12, "logging_steps": 1, "save_strategy": "no", "report": False}
SETTINGS |= {"gradient_checkpointing": False, "shuffle_dataset": False, "lr_scheduler_type": "constant"}
SETTINGS |= {"optim": "adamw_torch", "learning_rate": 1e-2, "disable_tqdm": True}
SETTINGS |= {"adam_epsilon": 1e-3}  # a gradient of rounding alone moves no weight


def reward(completions, dead, **_):
    return [0.0 if off else sum(map(ord, text)) % 7 / 7 for text, off in zip(completions, dead, strict=True)]


def rows(dead=(), count=64):
    """Prompts in the order in which they are drawn: of eight in a generation batch, the second rank has the last four."""
    texts = [f"{number}+{number * 7 % 10}=" + "?" * (number % 3) for number in range(count)]
    return Dataset.from_dict({"prompt": texts, "dead": [number % 8 in dead for number in range(count)]})


def config(folder, **settings):
    """A config of the run, of which accelerate makes FSDP2 where there are several ranks."""
    settings = {"per_device_train_batch_size": 16 // WORLD, "objective": "dapo", **SETTINGS, **settings}
    backend = {"ddp_backend": "gloo"} if WORLD > 1 else {"use_cpu": True}
    if WORLD > 1 and settings["bf16"]:
        import transformers.training_args

        transformers.training_args.is_torch_bf16_gpu_available = lambda: True  # asked for where use_cpu is false
    made = GRPOPlusConfig(output_dir=str(folder), **backend, **settings)
    if WORLD > 1:
        assert made.device.type == "cpu"
        # accelerate enters FSDP for this kind and its like only; gloo on a CPU is "no distributed run" to it.
        PartialState().distributed_type = DistributedType.MULTI_GPU
    return made


class Fixed(GRPOPlusTrainer):
    """Completions depend on the prompt, the place in its group and the step, on nothing else."""

    def _generate_single_turn(self, prompt_ids, *_, **__):
        seen, found = {}, []
        for ids in prompt_ids:
            place = seen[tuple(ids)] = seen.get(tuple(ids), -1) + 1
            draw = random.Random(f"{ids}/{place}/{self.state.global_step}")
            length = draw.randint(1, self.max_completion_length)
            text = [draw.randint(5, 90) for _ in range(length - 1)]
            found.append([*text, self.eos_token_ids[0] if length % 4 else 7])
        return found, None


def adapter():
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")


def build(model, folder, *, lora=False, dead=(), kind=Fixed, further=None, **settings):
    args = config(folder, **settings)
    torch.manual_seed(3)  # adapters of all begin alike
    return kind(model, reward, args, rows(dead), peft_config=adapter() if lora else None, **(further or {}))


def sharded(trainer):
    assert trainer.accelerator.distributed_type == DistributedType.FSDP
    assert trainer.accelerator.is_fsdp2
    assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())


def weights(model):
    """Whole weights by name, on every rank."""
    named = {name: weight.detach() for name, weight in model.named_parameters()}
    return {name: (w.full_tensor() if isinstance(w, DTensor) else w).clone() for name, w in named.items()}


def logs(trainer, *names):
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{name: entry[name] for name in names if name in entry} for entry in steps]
