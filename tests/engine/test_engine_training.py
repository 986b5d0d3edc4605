"""Whole runs: the engine on and off give the same model; the same run twice gives the same bits."""

import pytest
import torch
from datasets import Dataset

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.training.observers.clock import PARTS
from tests.engine.conftest import SETTINGS as PLAIN

SETTINGS = {**PLAIN, "gradient_accumulation_steps": 2, "max_steps": 4, "per_device_eval_batch_size": 4}
SETTINGS |= {"max_completion_length": 12, "learning_rate": 0.05, "logging_steps": 1}
SETTINGS |= {"optim": "sgd"}  # Adam would turn the rounding of a gradient near 0 into a step of the learning rate
RUNS = {
    "on policy": {},
    "one generation for several steps and iterations": {"steps_per_generation": 4, "num_iterations": 2},
    "generations that do not divide": {"steps_per_generation": 3, "num_iterations": 2},
    "a reference": {"beta": 0.1, "num_iterations": 2},
    "evaluation": {"eval_strategy": "steps", "eval_steps": 2},
    "a ceiling": {"tokens_per_pass": 30},
}  # fmt: skip


def reward(prompts, completions, **_):
    """The prompts with an even number have no contrast: their groups are dead."""
    live = [int(prompt.rstrip("=").split("+")[0]) % 2 for prompt in prompts]
    return [alive * sum(map(str.isdigit, text)) / 12 for alive, text in zip(live, completions, strict=True)]


def run(bench, engine, **settings):
    prompts = Dataset.from_list([{"prompt": f"{number}+{number * 37}="} for number in range(16)])
    bound = settings.pop("tokens_per_pass", None)
    settings["engine"] = {"layout": engine, "tokens_per_pass": None if engine == "stock" else bound}
    config = GRPOPlusConfig(output_dir=str(bench.folder / "run"), **{**SETTINGS, **settings})
    trainer = GRPOPlusTrainer(bench.model(), reward, config, prompts, eval_dataset=prompts.select(range(4)))
    trainer.train()
    return trainer


@pytest.mark.sample(0, 4)
@pytest.mark.parametrize("name", RUNS)
def test_the_same_model_comes_out(bench, name):
    truth, found = run(bench, "stock", **RUNS[name]), run(bench, "packed", **RUNS[name])
    moved = 0.0
    start = dict(bench.trainer().model.named_parameters())
    for (key, theirs), ours in zip(truth.model.named_parameters(), found.model.parameters(), strict=True):
        moved += float((theirs - start[key]).detach().abs().sum())
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6), key
    assert moved > 0
    skipped = 0.0
    for ours, theirs in zip(found.state.log_history, truth.state.log_history, strict=True):
        # The metric 'entropy' covers the rows that ran. Shares of clipped tokens are averaged over micro-batches, whatever
        # their tokens, so they depend a little on which rows share one.
        measured = ("time", "per_second", "entropy", *[f"time/{part}" for part in PARTS])
        compared = [key for key in theirs if not key.endswith(measured) and "clip" not in key]
        assert {key: ours[key] for key in compared} == pytest.approx(
            {key: theirs[key] for key in compared}, rel=1e-3, abs=1e-5
        )
        skipped += ours.get("engine/rows_skipped", 0)
        if "eval_entropy" in theirs:
            assert ours["eval_entropy"] == pytest.approx(theirs["eval_entropy"], rel=1e-4)
    assert skipped > 0.5 or "beta" in RUNS[name]
    assert not any(key.startswith("engine/") for entry in truth.state.log_history for key in entry)  # off is off


@pytest.mark.slow
def test_the_same_run_gives_the_same_bits(bench):
    settings = RUNS["one generation for several steps and iterations"]
    first, second = (run(bench, "auto", **settings).model.state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
