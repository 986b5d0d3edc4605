"""Tiny 4-bit runs that the tests of this folder train."""

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig, TrainerCallback

from grpo_plus.qlora.model import linear_4bit
from tests.device import FLOAT32

ROWS = Dataset.from_list([{"prompt": f"{a}+{b}="} for a in range(4) for b in range(4)])
RUN = {**FLOAT32, "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 6}
RUN |= {"learning_rate": 1e-2, "logging_steps": 1, "report_to": "none", "save_strategy": "no"}


def digits(completions, **_):
    return [sum(character.isdigit() for character in text) / max(len(text), 1) for text in completions]


def nf4(compute=torch.float32, *, double=True):
    own = {"bnb_4bit_use_double_quant": double, "bnb_4bit_compute_dtype": compute}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", **own)


def lora(**changes):
    return LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **changes})


def logged(run, name):
    return [entry[name] for entry in run.state.log_history if name in entry]


def base_bytes(model):
    """Every stored byte of the 4-bit layers: packed weights and scales."""
    values = [item for layer in linear_4bit(model) for item in layer.state_dict().items()]
    return {(at, name): value.detach().clone() for at, (name, value) in enumerate(values) if torch.is_tensor(value)}


class Gradients(TrainerCallback):
    """Keeps what the optimizer is about to see."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.steps.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})


def spread(model):
    """Draw adapters: B starts at zero, which would leave A without a gradient; older hosts draw A before their seed."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name and parameter.requires_grad:
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_((0.05 if "lora_B" in name else 0.1) * drawn)


def assert_same_gradients(first, second, rel=2e-5):
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert set(one) == set(other)
        flat = torch.cat([value.flatten() for value in one.values()])
        apart = torch.cat([other[name].flatten() for name in one]) - flat
        assert flat.norm() > 0
        assert apart.norm() / flat.norm() < rel


def assert_same_distribution(*tables):
    """Of two counts of the same length: chi-square stays below its 99.99% quantile, by Wilson and Hilferty."""
    pairs = [[table[key] for table in tables] for key in set(tables[0]) | set(tables[1])]
    parts = [(first - second) ** 2 / (first + second) for first, second in pairs if first + second >= 10]
    freedom = len(parts) - 1
    assert freedom >= 3
    assert sum(parts) < freedom * (1 - 2 / (9 * freedom) + 3.72 * (2 / (9 * freedom)) ** 0.5) ** 3
