"""Whole runs on a 4-bit base: the engine's gradients, learning, and steps that ran out of memory."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.memory.errors import StepTooLargeError
from grpo_plus.qlora.model import linear_4bit
from grpo_plus.qlora.precision import float32_trainables
from grpo_plus.qlora.repack import keep_layout
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.hooks import Hook
from tests.device import FLOAT32, ON_CPU

ROWS = Dataset.from_list([{"prompt": prompt} for prompt in ("ab", "cdc", "ef", "gghg")] * 8)


def share_of_a(completions, **_):
    return [text.count("a") / max(len(text), 1) for text in completions]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_tiny_model(path, architecture="llama", hidden=64, layers=1, vocab="abcdefgh")
    return str(path)


class Gradients(TrainerCallback):
    """Keeps what the optimizer is about to see."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.steps.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})


def build(folder, tmp_path, kind=GRPOPlusTrainer, **changes):
    values = {
        "output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 8, "num_generations": 4,
        "max_completion_length": 6, "max_steps": 2, "learning_rate": 4e-3, "lr_scheduler_type": "constant",
        "logging_steps": 1, "report_to": "none", **FLOAT32, "gradient_checkpointing": False,
        "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    config = GRPOPlusConfig if kind is GRPOPlusTrainer else GRPOConfig
    watch = Gradients()
    run = kind(
        folder,
        share_of_a,
        config(**{**values, **changes}),
        ROWS,
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True
        ),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[watch],
    )
    if kind is GRPOTrainer:  # so that the two differ by nothing but what is compared
        float32_trainables(run.model)
        keep_layout(run.model)
    # B starts at zero, which would leave A without a gradient; and older hosts draw A before they set the seed.
    generator = torch.Generator().manual_seed(0)
    for name, parameter in run.model.named_parameters():
        if "lora_" in name and parameter.requires_grad:
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.data.copy_((0.05 if "lora_B" in name else 0.1) * drawn)
    torch.manual_seed(run.args.seed)
    return run, watch


def base_bytes(model):
    layers = list(linear_4bit(model))
    return [
        value.detach().clone() for layer in layers for value in layer.state_dict().values() if torch.is_tensor(value)
    ]


def rewards(run):
    return [entry["reward"] for entry in run.state.log_history if "reward" in entry]


def assert_same_gradients(first, second, rel=2e-5):
    assert len(first) == len(second) > 0
    for one, other in zip(first, second, strict=True):
        assert set(one) == set(other)
        flat = torch.cat([value.flatten() for value in one.values()])
        apart = torch.cat([other[name].flatten() for name in one]) - flat
        assert flat.norm() > 0
        assert apart.norm() / flat.norm() < rel


@pytest.mark.sample(1)
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
    """Ratios of every update, token by token."""

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
    run.hooks.insert(0, ratios)
    run.train()
    assert float((ratios.found[0] - 1).abs().max()) < limit
    assert float((ratios.found[1] - 1).abs().max()) > 1e-4
    assert 0.1 < run.state.log_history[0]["rollout/outside_support"] < 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_4_bit_model_learns_and_its_base_stays_as_it_is(folder, tmp_path, seed):
    run, _ = build(
        folder,
        tmp_path,
        max_steps=45,
        seed=seed,
        per_device_train_batch_size=16,
        num_generations=8,
        rollout="auto",
        rollout_draft="none",  # a wrong guess takes row-steps
    )
    before = base_bytes(run.model)
    run.train()
    course = rewards(run)
    assert len(course) == 45
    assert sum(course[-20:]) / 20 > sum(course[:20]) / 20 + 0.2
    after = base_bytes(run.model)
    assert len(before) == len(after) > 7
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert {p.dtype for p in run.model.parameters() if p.requires_grad} == {torch.float32}
    saved = [entry["rollout/row_steps_saved"] for entry in run.state.log_history if "rollout/row_steps_saved" in entry]
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
    assert all(torch.equal(one, other) for one, other in zip(before, base_bytes(run.model), strict=True))


class Fails:
    """Runs out of memory in the middle of a backward pass, as long as a pass has more rows than it can take."""

    def __init__(self, model, times=1, most_rows=None):
        self.left = times
        self.most_rows = most_rows
        self.seen = []
        self.model = model
        layer = next(module for name, module in model.named_modules() if name.endswith("self_attn.q_proj"))
        layer.register_forward_hook(self.forward)

    def forward(self, module, inputs, output):
        if torch.is_grad_enabled() and output.requires_grad:
            rows = output.shape[0] * output.shape[1]
            output.register_hook(lambda gradient: self.backward(gradient, rows))

    def backward(self, gradient, size):
        # The adapters of the feed-forward part, further up, have their gradients by now.
        self.seen.append(sum(p.grad is not None for p in self.model.parameters()))
        assert self.seen[-1] >= 6
        if self.left and (self.most_rows is None or size > self.most_rows):
            self.left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return gradient


SETTINGS = {"max_steps": 2, "gradient_accumulation_steps": 2, "max_grad_norm": 0.0}
LOWER, PLAN = ("Lower max_completion_length", "grpo-plus plan") if ON_CPU else ("does not fit", "take a smaller model")
"""Advice of the planner, which knows the size of a card."""


class TestOutOfMemory:
    @pytest.mark.slow
    @pytest.mark.parametrize("objective", [{}, {"objective": "dapo"}])
    def test_the_step_goes_through_in_parts_with_the_same_gradient(self, folder, tmp_path, caplog, objective):
        smooth, expected = build(folder, tmp_path, **SETTINGS, **objective)
        smooth.train()
        rough, found = build(folder, tmp_path, **SETTINGS, **objective)
        failing = Fails(rough.model, times=2)
        rough.train()
        assert failing.left == 0
        assert_same_gradients(expected.steps, found.steps)
        assert rewards(rough) == rewards(smooth)
        logs = [[entry for entry in run.state.log_history if "reward" in entry] for run in (smooth, rough)]
        for one, other in zip(*logs, strict=True):
            same_rows = one["engine/rows_skipped"] == other["engine/rows_skipped"]  # the entropy is of those that ran
            for name in ("loss", "grad_norm", *["entropy"] * same_rows):
                assert other[name] == pytest.approx(one[name], rel=1e-3, abs=1e-6), name
        assert logs[1][0]["memory/retries"] == 2
        assert rough.retry.count == 2
        assert "Out of memory in the update" in caplog.text
        assert rough.engine.tokens_per_pass is not None

    @pytest.mark.slow
    def test_gradients_of_earlier_micro_batches_survive_the_failure(self, folder, tmp_path):
        smooth, expected = build(folder, tmp_path, **{**SETTINGS, "max_steps": 1})
        smooth.train()
        run, found = build(folder, tmp_path, **{**SETTINGS, "max_steps": 1})
        failing = Fails(run.model, times=0)
        original = run.retry.step

        def second_fails(step):
            failing.left = 1 if failing.seen and not run.retry.count else 0
            return original(step)

        run.retry.step = second_fails
        run.train()
        assert run.retry.count == 1
        assert_same_gradients(expected.steps, found.steps)

    @pytest.mark.slow
    def test_what_never_fits_ends_with_advice(self, folder, tmp_path):
        run, _ = build(folder, tmp_path, **SETTINGS)
        Fails(run.model, times=10**6)
        with pytest.raises(StepTooLargeError, match=rf"one completion of at most \d+ tokens a pass.*{PLAN}"):
            run.train()

    @pytest.mark.slow
    def test_without_the_engine_it_is_refused_with_advice(self, folder, tmp_path):
        run, _ = build(folder, tmp_path, engine="stock", **SETTINGS)
        Fails(run.model)
        with pytest.raises(StepTooLargeError, match=rf"engine is 'stock'.*{LOWER}"):
            run.train()

    @pytest.mark.slow
    def test_a_lack_of_memory_while_drawing_is_told_apart(self, folder, tmp_path):
        run, _ = build(folder, tmp_path, **SETTINGS)

        def fail(*_):
            if not torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory.")

        next(linear_4bit(run.model)).register_forward_hook(fail)
        with pytest.raises(StepTooLargeError, match=r"while completions were drawn.*set rollout: auto"):
            run.train()

    @pytest.mark.slow
    def test_other_errors_pass_through(self, folder, tmp_path):
        run, _ = build(folder, tmp_path, **SETTINGS)

        def fail(*_):
            if torch.is_grad_enabled():
                raise ZeroDivisionError

        next(linear_4bit(run.model)).register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            run.train()
        assert run.retry.count == 0
