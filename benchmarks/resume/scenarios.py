"""The rows of the table: kinds of short runs in which something carries over from step to step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_plus.training.hooks import Hook

COMMON = {
    "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "gradient_checkpointing": False,
    "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 6, "max_steps": 6,
    "optim": "adamw_torch", "learning_rate": 1e-2, "logging_steps": 1, "save_strategy": "steps", "save_steps": 2,
    "seed": 3,
}  # fmt: skip
STEPS = {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "save_steps": 1}
KL = {"beta": 0.1}
ADAPTIVE = {"kl": {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}}
ENTROPY = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_coef_delta": 0.003, "entropy_target": 2.8}
REFRESH = {"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2, "save_steps": 1}
EVALUATES = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "max_steps": 5}


@dataclass(frozen=True)
class Scenario:
    """A kind of run.

    Attributes:
        text: for the table.
        settings: fields of TRL's config.
        ours: fields that TRL has not; a stock run of this kind is then none.
        model: of the tiny model.
        prompts: how many there are.
        lora: an adapter is trained.
        four_bits: on a base in 4 bits.
        stream: the data is a stream.
        hook: a hook of a user takes part.
        stock: stock TRL can run it.
        ranks: processes.
    """

    text: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)
    model: Mapping[str, Any] = field(default_factory=dict)
    prompts: int = 16
    lora: bool = False
    four_bits: bool = False
    stream: bool = False
    hook: bool = False
    stock: bool = True
    ranks: int = 1


SCENARIOS = {
    "plain": Scenario("plain"),
    "epochs": Scenario("past the first epoch, and saved exactly at its end", {"max_steps": 8}, prompts=6),
    "steps": Scenario("`steps_per_generation` 4, accumulation 2", STEPS),
    "steps_odd": Scenario("`steps_per_generation` 3, accumulation 2", STEPS | {"steps_per_generation": 3}),
    "iterations": Scenario("`num_iterations` 2", {"num_iterations": 2, "save_steps": 1}),
    "stop": Scenario(
        "`num_iterations` 3 with `stop_fraction`",
        {"num_iterations": 3, "save_steps": 1, "max_steps": 7, "learning_rate": 0.3},
        {"objective": {"name": "target", "stop_fraction": 0.5}},
        stock=False,
    ),
    "refresh": Scenario("the reference model refreshed every 2 steps", REFRESH | {"ref_model_mixup_alpha": 1.0}),
    "refresh_mixed": Scenario("the same, mixed by 0.6", REFRESH | {"ref_model_mixup_alpha": 0.6}),
    "adaptive": Scenario("adaptive KL", KL, {"objective": {"name": "grpo", **ADAPTIVE}}, stock=False),
    "entropy": Scenario("TRL's entropy controller", ENTROPY),
    "lora": Scenario("LoRA", lora=True),
    "lora_refresh": Scenario(
        "LoRA, its reference refreshed every 2 steps",
        REFRESH | {"ref_model_mixup_alpha": 1.0},
        lora=True,
        stock=False,
    ),
    "four_bits": Scenario(
        "4 bits, bf16",
        {"bf16": True},
        model={"architecture": "llama", "hidden": 64, "layers": 1},
        lora=True,
        four_bits=True,
    ),
    "process": Scenario(
        "process supervision, verifiers in workers",
        {},
        {
            "advantage": {"name": "process", "steps_from": "halves"},
            "verifiers": [
                "benchmarks.resume.verifiers:vowels",
                {"name": "benchmarks.resume.verifiers:halves", "weight": 0},
            ],
        },
        stock=False,
    ),
    "evaluation": Scenario("evaluation at every step", EVALUATES),
    "evaluation_epoch": Scenario(
        "evaluation at the end of an epoch", EVALUATES | {"eval_strategy": "epoch", "max_steps": 6}, prompts=4
    ),
    "stream": Scenario("a stream past its first pass", {"max_steps": 7}, prompts=5, stream=True),
    "rollout": Scenario("`rollout: auto`", {}, {"rollout": "auto"}, stock=False),
    "resample": Scenario("`dead_groups: resample`", STEPS, {"dead_groups": "resample"}, stock=False),
    "roulette": Scenario(
        "`dead_groups: roulette`",
        {"num_generations": 4, "save_steps": 1},
        {"dead_groups": {"name": "roulette", "keep": 0.5}, "objective": "grpo"},
        stock=False,
    ),
    "packed": Scenario("`engine: packed`", STEPS | {"beta": 0.1}, {"engine": "packed"}, stock=False),
    "engine_stock": Scenario("`engine: stock`", STEPS, {"engine": "stock"}, stock=False),
    "warmup": Scenario("warm-up and a cosine", {"lr_scheduler_type": "cosine", "warmup_steps": 2}),
    "logging": Scenario("`logging_steps` 3", {"logging_steps": 3}),
    "dropout": Scenario("dropout", STEPS, model={"attention_dropout": 0.2}),
    "one_kept": Scenario("`save_total_limit` 1", {"save_total_limit": 1, "save_steps": 1, "max_steps": 5}),
    "hook": Scenario("a hook of a user with state", STEPS, hook=True, stock=False),
    "ranks": Scenario("two ranks", {"max_steps": 4, "per_device_train_batch_size": 2}, ranks=2),
    "ranks_steps": Scenario(
        "two ranks, `steps_per_generation` 4, accumulation 2",
        STEPS | {"max_steps": 5, "per_device_train_batch_size": 2},
        ranks=2,
    ),
}


class Drift(Hook):
    """Rewards that depend on how many batches were scored before."""

    name = "drift"

    def __init__(self) -> None:
        self.seen = 0

    def scored(self, completions: Any, rewards_NK: Any) -> Any:  # noqa: ARG002, N803
        """Changed by the count."""
        self.seen += 1
        return rewards_NK + 0.01 * self.seen * (rewards_NK > 0)

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The count."""
        self.seen = state["seen"]


def make_model(scenario: Scenario, folder: Path) -> None:
    """The tiny model of a scenario."""
    from grpo_plus.testing import make_tiny_model

    make_tiny_model(folder, **{"layers": 1, "hidden": 16, **scenario.model})


def make_trainer(scenario: Scenario, model: Path, out: Path, reward: Any, *, stock: bool, watched: Any) -> Any:
    """The trainer of a run; ``watched`` makes a class of it that tells what happens."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    rows = Dataset.from_list([{"prompt": f"{number}+{number * 7 % 10}="} for number in range(scenario.prompts)])
    settings = {**COMMON, **scenario.settings}
    given: dict[str, Any] = {"train_dataset": rows.to_iterable_dataset() if scenario.stream else rows}
    if "eval_strategy" in settings:
        given["eval_dataset"] = rows.select(range(4))
    if scenario.lora:
        from peft import LoraConfig

        given["peft_config"] = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    if scenario.four_bits:
        from transformers import BitsAndBytesConfig

        given["quantization_config"] = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    if stock:
        config = GRPOConfig(output_dir=str(out), **settings)
        return watched(GRPOTrainer)(model=str(model), reward_funcs=[reward], args=config, **given)
    if scenario.hook:
        given["hooks"] = [Drift()]
    config = GRPOPlusConfig(output_dir=str(out), **{"report": True, **settings, **scenario.ours})
    return watched(GRPOPlusTrainer)(model=str(model), reward_funcs=[reward], args=config, **given)
