"""The engine's gradient is TRL's: in every architecture, loss and layout, from fewer tokens."""

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from grpo_plus.objectives import objectives
from tests.device import DEVICE

ARCHITECTURES = {"qwen2": {}, "qwen3": {}, "llama": {}, "mistral": {"sliding_window": None}}
ARCHITECTURES |= {"gemma2": {}}  # eager attention with soft-capped scores and logits
ARCHITECTURES |= {"phi3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}}
ARCHITECTURES |= {name: {"router_aux_loss_coef": 0.0} for name in ("qwen3_moe", "mixtral")}


@pytest.fixture(autouse=True, params=["trees by cost", "trees in one row"])
def trees(request):
    """Small batches are not worth a row of their own, so every test runs twice."""
    if request.param == "trees in one row":
        request.getfixturevalue("branches")


@pytest.mark.sample(0, 5)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_architectures(bench, architecture):
    config = dict(ARCHITECTURES[architecture])
    settings = {k: config.pop(k) for k in ("router_aux_loss_coef",) if k in config}
    model = bench.model(architecture, **config)
    for engine, saved, layout in (("packed", 0.7, 2.0), ("trimmed", 0.4, 1.0)):
        reports = bench.check(bench.batch(), engine=engine, model=model, old=0.3, **settings)
        assert sum(report["engine/tokens_saved"] for report in reports) / len(reports) > saved
        # The live groups have been put into two of the four micro-batches; the others have nothing to run.
        assert [report.get("engine/layout") for report in reports] == [layout] * 2 + [None] * 2
        assert [report["engine/rows_skipped"] for report in reports] == [0.0, 0.0, 1.0, 1.0]


LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "vespo", "luspo")


@pytest.mark.sample(1, 7)
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_of_trl(bench, loss, beta):
    bench.check(bench.batch(), loss_type=loss, beta=beta, reference=0.3 if beta else None)
    reports = bench.check(bench.batch(), loss_type=loss, beta=beta, old=0.3, reference=0.3 if beta else None)
    skipped = sum(report["engine/rows_skipped"] for report in reports)
    # With a KL term only rows without a token stay out.
    assert skipped < 0.5 if beta else skipped >= 2


PRESETS = [entry.name for entry in objectives.entries() if entry.way == "built-in"]


@pytest.mark.sample(1, 7)
@pytest.mark.parametrize("preset", [*PRESETS, "prompt_mean"])
def test_our_objectives(bench, preset):
    batch, more = bench.batch(completions=(1, 12)), {"objective": preset}
    if preset == "prompt_mean":
        more = {"objective": {"name": "grpo", "reduce": "prompt_mean"}}
    again = {"num_iterations": 2} if preset == "target" else {}
    reports = bench.check(batch, stock="stock", old=0.3, **more, **again)
    # The rows of the dead groups: for `target`, whose targets join completions of one prompt text, at least one group.
    assert sum(report["engine/rows_skipped"] for report in reports) >= (1 if preset == "target" else 2)
    if preset not in {"grpo_clip", "target"}:
        bench.check(batch, stock="stock", beta=0.1, reference=0.3, **more)


CASES = {
    "advantages per token": {},
    "a truncated completion left out": {},
    "prompts of one token": {"prompts": (1, 1)},
    "groups over several micro-batches": {"rows": 8, "groups": 2, "dead": ()},
    "padding to multiples": {"width": 48},
    "nothing empty, nothing dead": {"completions": (4, 12), "dead": ()},
    "one group alone has an advantage": {"dead": (0, 1, 2)},
}


@pytest.mark.sample(1, 7)
@pytest.mark.parametrize("engine", ["packed", "trimmed"])
@pytest.mark.parametrize("name", CASES)
def test_shapes_of_batches(bench, name, engine):
    batch = bench.batch(**CASES[name])
    if name == "advantages per token":
        batch["advantages"] = batch["advantages"][:, None] * torch.randn(batch["completion_ids"].shape).to(DEVICE)
        batch["advantages"][5] = 0
        batch["advantages"][5, -1] = 1  # nothing but padding carries it: the row has no work
        batch["completion_mask"][5, -1] = 0
    if name == "a truncated completion left out":
        batch["completion_mask"][2] = 0
    bench.check(batch, engine=engine, old=0.3)
    bench.check(batch, engine=engine, beta=0.1, reference=0.3)


OPTIONS = [{"entropy_coef": 0.1}, {"top_entropy_quantile": 0.5}, {"temperature": 0.7}, {"cast_lm_head_to_fp32": True}]
OPTIONS += [{"importance_sampling_level": "sequence", "loss_type": "grpo"}, {"off_policy_mask_threshold": 0.05}]
OPTIONS += [{"delta": 1.5}, {"gradient_checkpointing": True}]
OPTIONS += [{"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}]
OPTIONS += [{"per_device_train_batch_size": a, "gradient_accumulation_steps": b} for a, b in ((2, 8), (16, 1))]
OPTIONS += [{"gradient_accumulation_steps": steps, "steps_per_generation": 4} for steps in (2, 8)]


@pytest.mark.sample(1, 7)
@pytest.mark.parametrize("settings", OPTIONS, ids=str)
def test_settings(bench, settings):
    bench.check(bench.batch(), old=0.3, **settings)


def test_tool_results_are_read_but_not_trained_on(bench):
    batch = bench.batch(completions=(4, 12))
    batch["tool_mask"] = torch.ones_like(batch["completion_mask"])
    batch["tool_mask"][::2, 1:3] = 0
    batch["tool_mask"][1] = 0
    batch["num_items_in_batch"] = (batch["completion_mask"] * batch["tool_mask"]).sum()
    bench.check(batch, old=0.3)


def test_dead_rows_far_off_policy_do_not_overflow(bench):
    # Under a constant stand-in the ratio of these rows would be exp(900), infinite, and zero times that is no zero.
    batch = bench.batch(completions=(1, 12))
    batch["old_per_token_logps"] = -4.0 * batch["completion_mask"]
    batch["old_per_token_logps"][4:8] *= 200
    found, loss, reports = bench.gradient(bench.trainer("packed"), batch)
    assert sum(report["engine/rows_skipped"] for report in reports) == 2
    assert all(bool(value.isfinite().all()) for value in found.values())
    assert torch.isfinite(torch.tensor(loss))


def test_a_step_without_any_advantage_gives_the_zeros_that_trl_gives(bench):
    batch = bench.batch(dead=(0, 1, 2, 3))
    truth, loss, _ = bench.gradient(bench.trainer(), batch, old=0.3)
    found, our_loss, reports = bench.gradient(bench.trainer("auto"), batch, old=0.3)
    # Zeros, not nothing: an optimizer with momentum moves on zeros and leaves parameters without gradient alone.
    assert set(found) == set(truth)
    assert all(not value.any() for value in found.values())
    assert loss == our_loss == 0
    assert all(report["engine/rows_skipped"] == 1 and report["engine/tokens_saved"] > 0.9 for report in reports)


@pytest.mark.sample(1, 7)
@pytest.mark.parametrize("window", [8, 14, 64])
def test_sliding_windows(bench, window):
    # Rows have up to 21 tokens: the narrow windows cut them, and no prompt is shared; the wide one never acts.
    model = bench.model("mistral", sliding_window=window)
    reports = bench.check(bench.batch(dead=(), prompts=(6, 9), completions=(4, 12)), model=model, old=0.3)
    saved = sum(report["engine/tokens_saved"] for report in reports) / len(reports)
    assert saved > 0.3 if window == 64 else saved < 0.3


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize(
    "settings", [{}, {"beta": 0.1, "entropy_coef": 0.1}, {"gradient_checkpointing": True}], ids=str
)
def test_a_ceiling_on_tokens(bench, settings):
    noise = {"old": 0.3, "reference": 0.3 if "beta" in settings else None}
    truth, loss, _ = bench.gradient(bench.trainer(**settings), bench.batch(), **noise)
    for engine in ("auto", "packed", "trimmed"):
        trainer = bench.trainer(engine, tokens_per_pass=20, **settings)
        for ceiling in (20, 40, 10_000):
            trainer.engine.tokens_per_pass = ceiling
            found, our_loss, _ = bench.gradient(trainer, bench.batch(), **noise)
            assert bench.distance(found, truth) < 1e-5
            assert our_loss == pytest.approx(loss, rel=1e-5)


def test_a_ceiling_bounds_the_tokens_that_any_pass_keeps(bench):
    trainer = bench.trainer("auto", tokens_per_pass=40)
    trainer.engine.try_out(trainer.model, torch.device(DEVICE))
    seen = []
    trainer.model.model.layers[0].register_forward_hook(
        lambda _, args, __: seen.append((args[0].shape[:2].numel(), torch.is_grad_enabled()))
    )
    bench.gradient(trainer, bench.batch(dead=()))
    assert max(tokens for tokens, _ in seen) <= 40
    # Without a graph for the loss, then with one for the backward pass.
    assert {graph for _, graph in seen} == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("quantised", [False, True])
def test_adapters(bench, quantised):
    folder = bench.model(hidden=64)
    batch = bench.batch()
    kinds = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": torch.float32}
    loading = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True, **kinds)} if quantised else {}
    gradients = []
    for engine in (None, "auto", "packed", "packed"):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **loading)
        torch.manual_seed(0)
        lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
        more = {"tokens_per_pass": 30} if len(gradients) == 3 else {}
        trainer = bench.trainer(engine, model=model, peft_config=lora, beta=0.1, **more)
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()  # TRL casts adapters of a quantised model to bfloat16
        gradients.append(bench.gradient(trainer, batch, old=0.3, reference=0.3)[0])
    assert all(bench.distance(found, gradients[0]) < 1e-5 for found in gradients[1:])
