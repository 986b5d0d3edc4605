"""Attention over trees in one row: each token sees what it would see alone, for every sdpa model, and in no other pass."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from grpo_plus.engine import engine
from grpo_plus.engine.branches import FILLING, _gathered, bundled, install, padded_pairs, stretches
from grpo_plus.engine.trees import Node, Tree
from tests.device import DEVICE


def a_tree(shared, lengths):
    """A tree whose branches have branches: each shares another part of the first one."""
    every = tuple(range(len(lengths) + 1))
    nodes = [Node(0, shared, every), Node(shared, shared + 7, every[1:], 0)]
    return Tree((*nodes, *(Node(shared + 7, shared + 7 + length, (row,), 1) for row, length in enumerate(lengths, 1))))


TREES = st.lists(
    st.builds(a_tree, st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1, max_size=5)), min_size=1, max_size=6
)


@given(TREES)
@settings(max_examples=60, deadline=None)
def test_bundles_hold_every_stretch_once_and_little_filling(trees):
    found = list(stretches(trees))
    bundles = bundled(found)
    assert sorted((one.at, one.own) for bundle in bundles for one in bundle) == sorted(
        (one.at, one.own) for one in found
    )
    assert sum(one.own for one in found) == sum(tree.size for tree in trees)
    for bundle in bundles:
        assert sum(one.pairs for one in bundle) >= (1 - FILLING) * padded_pairs(bundle)


def test_attention_without_branches_is_what_it_was():
    install()
    first = AttentionInterface()["sdpa"]
    install()
    assert AttentionInterface()["sdpa"] is first  # wrapped once
    query, key, value = torch.randn(3, 2, 4, 5, 8).to(DEVICE).unbind()
    module = torch.nn.Module()
    module.is_causal = True
    assert torch.equal(
        first(module, query, key, value, None, scaling=0.3)[0],
        sdpa_attention_forward(module, query, key, value, None, scaling=0.3)[0],
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_gradient_of_a_shared_state_is_summed_in_float32(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")  # there alone an addition in the states' own precision would show
    states = torch.randn(1, 1, 2, 4, dtype=torch.bfloat16, device=device, requires_grad=True)
    pulls = torch.rand(4000, 1, 1, 4, dtype=torch.bfloat16, device=device)
    _gathered(states, torch.zeros(4000, 1, dtype=torch.long, device=device)).backward(pulls)
    total = pulls.double().sum(0)[0, 0]
    assert torch.allclose(states.grad[0, 0, 0].double(), total, rtol=2**-7)  # one by one in bfloat16 it stops at 256
    assert not states.grad[0, 0, 1].any()


@pytest.fixture
def plans(monkeypatch, branches):
    """The plans that are made."""
    made, choose = [], engine.choose

    def kept(*arguments, **keywords):
        made.append(choose(*arguments, **keywords))
        return made[-1]

    monkeypatch.setattr(engine, "choose", kept)
    return made


@pytest.mark.sample(1, 4)
@pytest.mark.parametrize("more", [{}, {"gradient_checkpointing": True}, {"tokens_per_pass": 60}])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "phi3"])
def test_the_gradient_through_branches_is_that_of_trl(bench, plans, architecture, more):
    config = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}} if architecture == "phi3" else {}
    model = bench.model(architecture, **config)
    reports = bench.check(bench.batch(rows=8, groups=2, dead=()), engine="packed", model=model, old=0.3, **more)
    assert any(plan.joined and max(len(tree.rows) for part in plan.passes for tree in part) > 1 for plan in plans)
    assert all(report["engine/layout"] == 2.0 for report in reports)


def test_a_pass_of_rows_with_nothing_to_share_keeps_them_apart(bench, plans):
    batch = bench.batch(completions=(6, 12), dead=(1, 3))
    batch["advantages"][[3, 9, 10, 11]] = 0  # three completions of one prompt and one of another are left
    size = int(batch["prompt_mask"][0].sum()) - 1 + int(batch["completion_mask"][:3].sum())
    bench.check(batch, engine="packed", tokens_per_pass=size, old=0.3)
    assert any(
        plan.joined and len(plan.passes) > 1 and all(len(tree.rows) == 1 for tree in part)
        for plan in plans
        for part in plan.passes
    )


def test_a_model_that_drops_what_it_does_not_know_gets_trees_under_a_mask(bench, plans):
    def made():
        model = AutoModelForCausalLM.from_pretrained(bench.model())
        for layer in model.model.layers:
            forward = layer.self_attn.forward
            layer.self_attn.forward = lambda *a, forward=forward, branches=None, **k: forward(*a, **k)
        return model

    batch = bench.batch(dead=())
    truth, loss, _ = bench.gradient(bench.trainer(model=made()), batch)
    found, ours, reports = bench.gradient(bench.trainer("packed", model=made()), batch)
    assert bench.distance(found, truth) < 1e-5
    assert ours == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert plans
    assert not any(plan.joined for plan in plans)
    assert any(len(tree.rows) > 1 for plan in plans for part in plan.passes for tree in part)
    assert all(report["engine/layout"] == 2.0 for report in reports)


def test_a_model_that_masks_by_itself_gets_trees_under_a_mask_though_no_short_row_shows_it(bench, plans):
    def forgetful(forward):
        """Attention that forgets some tokens for good, in passes longer than any that is tried out."""

        def attend(hidden_states, attention_mask=None, **more):
            length = hidden_states.shape[1]
            if attention_mask is None:
                attention_mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=DEVICE).tril()
            kept = (hidden_states[..., 0] > 0) | (length < 30)
            kept = kept[:, None, None, :] | torch.eye(length, dtype=torch.bool, device=DEVICE)
            return forward(hidden_states, attention_mask=attention_mask & kept, **more)

        return attend

    def made():
        model = AutoModelForCausalLM.from_pretrained(bench.model())
        for layer in model.model.layers:
            layer.self_attn.forward = forgetful(layer.self_attn.forward)
        return model

    batch = bench.batch(dead=(), prompts=(9, 9), completions=(18, 24))
    truth, _, _ = bench.gradient(bench.trainer(model=made()), batch)
    plain, _, _ = bench.gradient(bench.trainer(), batch)
    assert bench.distance(plain, truth) > 0.1
    assert bench.distance(bench.gradient(bench.trainer("packed", model=made()), batch)[0], truth) < 1e-5
    assert plans
    assert not any(plan.joined for plan in plans)


def test_attention_that_changes_during_training_is_judged_anew(bench, branches):
    def steeper(module, query, *rest, **more):
        assert "branches" not in more
        return sdpa(module, query * 2, *rest, **more)

    batch = bench.batch(dead=())
    stock, trainer = bench.trainer(), bench.trainer("packed")
    sdpa = AttentionInterface()["sdpa"]
    truth = bench.gradient(stock, batch)[0]
    assert bench.distance(bench.gradient(trainer, batch)[0], truth) < 1e-5
    ours = AttentionInterface()["sdpa"]
    try:
        AttentionInterface.register("sdpa", steeper)
        other = bench.gradient(stock, batch)[0]
        assert bench.distance(other, truth) > 1e-3
        assert bench.distance(bench.gradient(trainer, batch)[0], other) < 1e-5
    finally:
        AttentionInterface.register("sdpa", ours)
    trainer.model.set_attn_implementation("eager")
    assert bench.distance(bench.gradient(trainer, batch)[0], truth) < 1e-5
