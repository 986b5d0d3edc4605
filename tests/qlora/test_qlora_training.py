"""Whole runs on a 4-bit base: the engine's gradients, learning, and steps that ran out of memory."""

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.qlora.model import keep_layout
from grpo_plus.qlora.precision import float32_trainables
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.hooks import Hook
from tests.qlora.runs import RUN, Gradients, assert_same_gradients, base_bytes, logged, lora, nf4, spread

ROWS = Dataset.from_list([{"prompt": prompt} for prompt in ("ab", "cdc", "ef", "gghg")] * 8)


def share_of_a(completions, **_):
    return [text.count("a") / max(len(text), 1) for text in completions]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, architecture="llama", hidden=64, layers=1, vocab="abcdefgh")
    return str(path)


def build(folder, tmp_path, kind=GRPOPlusTrainer, **changes):
    values = {**RUN, "per_device_train_batch_size": 8, "max_steps": 2, "learning_rate": 4e-3, "disable_tqdm": True}
    values |= {"lr_scheduler_type": "constant", "gradient_checkpointing": False}
    config = GRPOPlusConfig if kind is GRPOPlusTrainer else GRPOConfig
    args, watch = config(output_dir=str(tmp_path / "out"), **{**values, **changes}), Gradients()
    adapter = {"quantization_config": nf4(), "peft_config": lora(r=8, lora_alpha=16)}
    run = kind(folder, share_of_a, args, ROWS, **adapter, callbacks=[watch])
    if kind is GRPOTrainer:  # so that the two differ by nothing but what is compared
        float32_trainables(run.model)
        keep_layout(run.model)
    spread(run.model)
    torch.manual_seed(run.args.seed)
    return run, watch


@pytest.mark.sample(0)
@pytest.mark.parametrize("engine", ["auto", "packed"])
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_gradients_through_the_engine_are_those_of_stock_trl(folder, tmp_path, engine, beta):
    settings = {"max_steps": 1, "beta": beta, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0}
    stock, expected = build(folder, tmp_path, GRPOTrainer, **settings)
    stock.train()
    ours, found = build(folder, tmp_path, engine=engine, **settings)
    ours.train()
    assert_same_gradients(expected.steps, found.steps)


class Ratios(Hook):
    def __init__(self):
        self.found, self._inputs = [], None

    def loss(self, compute, model, inputs):
        self._inputs = inputs
        return compute(model, inputs)

    def logps(self, score, *arguments, **keywords):
        result = score(*arguments, **keywords)
        if torch.is_grad_enabled() and self._inputs["old_per_token_logps"] is not None:
            ratio = (result[0].detach() - self._inputs["old_per_token_logps"]).exp()
            self.found.append(ratio[self._inputs["completion_mask"].bool()])
        return result


@pytest.mark.slow
@pytest.mark.parametrize(("bf16", "limit"), [(False, 1e-5), (True, 0.05)])
@pytest.mark.parametrize("engine", ["stock", "packed"])
def test_truncated_sampling_has_the_ratio_one(folder, tmp_path, engine, bf16, limit):
    settings = {"top_k": 3, "rollout": "auto", "engine": engine, "num_iterations": 2, "advantage": "zscore"}
    run, _ = build(folder, tmp_path, bf16=bf16, objective="dapo", **settings)
    ratios = Ratios()
    ratios.after_loading(run)
    run.pipeline.hooks.append(ratios)
    score = run._get_per_token_logps_and_entropies
    run._get_per_token_logps_and_entropies = lambda *given, **keywords: ratios.logps(score, *given, **keywords)
    run.train()
    assert float((ratios.found[0] - 1).abs().max()) < limit
    assert float((ratios.found[1] - 1).abs().max()) > 1e-4
    assert 0.1 < run.state.log_history[0]["rollout/outside_support"] < 0.9


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_4_bit_model_learns_and_its_base_stays_as_it_is(folder, tmp_path, seed):
    sizes = {"per_device_train_batch_size": 16, "num_generations": 8, "max_steps": 45}
    run, _ = build(folder, tmp_path, seed=seed, **sizes, rollout="auto")
    before = base_bytes(run.model)
    run.train()
    course = logged(run, "reward")
    assert len(course) == 45
    assert sum(course[-20:]) / 20 > sum(course[:20]) / 20 + 0.2
    after = base_bytes(run.model)
    assert len(before) == len(after) > 7
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert {p.dtype for p in run.model.parameters() if p.requires_grad} == {torch.float32}
    saved = logged(run, "rollout/row_steps_saved")
    assert len(saved) == 45
    assert all(0 <= share < 1 for share in saved)


@pytest.mark.slow
def test_an_evaluation_in_between_changes_nothing_of_the_training(folder, tmp_path):
    settings = {"max_steps": 1, "seed": 2, "max_grad_norm": 0.0, "rollout": "auto", "per_device_eval_batch_size": 4}
    plain, expected = build(folder, tmp_path, **settings)
    plain.train()
    run, found = build(folder, tmp_path, **settings)
    before = base_bytes(run.model)
    metrics = run.evaluate(ROWS.select(range(4)))
    assert "eval_rollout/row_steps_saved" in metrics
    torch.manual_seed(run.args.seed)
    run.train()
    assert_same_gradients(expected.steps, found.steps)
    assert all(torch.equal(value, before[key]) for key, value in base_bytes(run.model).items())
