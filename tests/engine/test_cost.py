"""The cost of a pass counted the plain way, from the tensors that would run, and the choice among layouts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.engine.branches import branches_of
from grpo_plus.engine.cost import NOT_WORTH_IT, PassPlan, Shape, choose, shape_of, split_passes
from grpo_plus.engine.pack import lay_out, tree_mask
from grpo_plus.engine.rows import read_rows
from grpo_plus.engine.trees import grow
from grpo_plus.testing import make_tiny_model

QUICK = settings(max_examples=60, deadline=None)
SHAPE = Shape(token=5.0, pair=3.0, overhead=70.0, token_bytes=2.0, pair_bytes=11.0, state_bytes=13.0)


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "qwen3_moe"])
def test_the_operations_of_a_token_are_six_for_each_weight_that_it_meets(architecture):
    model = make_tiny_model(architecture=architecture)[0]
    config = model.config
    meets = 0.0
    for name, weight in model.named_parameters():
        if "experts" in name:
            meets += weight.numel() * config.num_experts_per_tok / config.num_experts
        elif weight.dim() > 1 and not name.endswith(("embed_tokens.weight", "mlp.gate.weight")):
            meets += weight.numel()
    if config.tie_word_embeddings:
        meets += model.get_input_embeddings().weight.numel()
    shape = shape_of(config, device="cpu", eager=False)
    assert shape.token == 6 * meets
    attention = model.model.layers[0].self_attn
    width = attention.q_proj.out_features
    # Forward each pair of a head takes a product of queries and keys and one of weights and values.
    assert shape.pair == 3 * (2 + 2) * width * config.num_hidden_layers
    # Attention keeps a token's states in 32 bits.
    assert shape.state_bytes == 4 * width * config.num_hidden_layers
    assert shape.pair_bytes == 5
    eager = shape_of(config, device="cpu", eager=True)
    assert eager.pair_bytes == 2 * 4 * config.num_attention_heads * config.num_hidden_layers


def measured(prompts, completions, *, pad=0, same=True):
    """Rows of these sizes; ``same``: as many tokens of each as the other has are equal."""
    left, right = max(prompts) + pad, max(completions) + pad
    ids, mask = torch.zeros(len(prompts), left + right, dtype=torch.long), torch.zeros(len(prompts), left + right)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        ids[row, left : left + completion] = torch.arange(completion) + (0 if same else 1000 * (row + 1))
        mask[row, left - prompt : left + completion] = 1
    return read_rows(ids, mask, right)


def counted(plan, rows, shape):
    """Operations of a plan, from the tensors that it runs."""
    total = 0.0
    for trees in plan.passes:
        packed = lay_out(trees, rows, "cpu", joined=plan.joined)
        if not plan.joined:
            count, length = packed.input_ids.shape
            pairs = tree_mask(packed.until).numel() * (1.0 if packed.branching else 0.5)
            total += count * length * shape.token + pairs * shape.pair + shape.overhead
        else:
            bundles = branches_of(trees, torch.device("cpu")).bundles
            pairs = sum(bundle.visible.numel() for bundle in bundles)
            total += packed.input_ids.numel() * shape.token + pairs * shape.pair
            total += shape.overhead * (1 + 0.1 * len(bundles))
    return total


CAN = {"packing": True, "sharing": True, "branching": False, "deep": False, "joining": False, "trimming": True}
CAN |= {"single_pass": False}
SHAPES = [
    SHAPE,
    Shape(token=50.0, pair=1.0, overhead=10.0, token_bytes=2.0, pair_bytes=0.0, state_bytes=0.0),
    Shape(token=1.0, pair=0.1, overhead=500.0, token_bytes=2.0, pair_bytes=0.01, state_bytes=0.0),
    Shape(token=9.0, pair=0.01, overhead=0.0, token_bytes=0.0, pair_bytes=0.0, state_bytes=1.0),
]


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=7),
    st.integers(1, 9),
    st.sampled_from(SHAPES),
    st.sampled_from([{}, {"branching": True}, {"branching": True, "deep": True}, {"sharing": False}, {"deep": True}]),
    st.sampled_from([None, 8, 20, 60]),
    st.booleans(),
)
@QUICK
def test_a_plan_costs_what_it_runs_and_no_other_one_costs_less(completions, prompt, shape, can, bound, single):  # noqa: PLR0917
    rows = measured([prompt] * len(completions), completions, same="deep" in can)
    count, chosen = len(completions), range(len(completions))
    given = {**CAN, **can, "single_pass": single, "most_tokens": bound, "stock_rows": count}
    made = {name: choose(rows, chosen, shape, forced=name, **given) for name in ("auto", "trimmed", "packed")}
    for name in ("trimmed", "packed"):
        assert made[name].layout == name
    ragged = len(set(completions)) > 1
    assert made["trimmed"].cost == shape.cost(count, prompt + max(completions), dense=ragged)
    packed = made["packed"]
    assert packed.cost == pytest.approx(counted(packed, rows, shape))
    assert not (single and len(packed.passes) > 1)
    stock = shape.cost(count, rows.width, dense=ragged)
    best = min(made["packed"].cost, made["trimmed"].cost)
    assert made["auto"] == (PassPlan("stock", cost=stock) if best > NOT_WORTH_IT * stock else made["auto"])
    assert made["auto"].cost == (stock if best > NOT_WORTH_IT * stock else best)
    if packed.joined:
        return
    # Rows of their own, or trees of half as many rows each, as long as they keep no more than TRL's pass.
    most = count
    while True:
        trees = grow(rows, chosen, most if given["sharing"] else 1)
        parts = [trees] if single else split_passes(trees, shape, most_tokens=bound)
        keeps = sum(shape.memory(len(part), part[0].size) for part in parts) <= shape.memory(count, rows.width)
        fits = bound is None or trees[0].size <= bound
        if most == 1 or (keeps and fits):
            passes = tuple(map(tuple, parts))
            assert packed.cost <= counted(PassPlan("packed", passes), rows, shape) * (1 + 1e-12)
        if most == 1:
            break
        most = (most + 1) // 2


def test_what_shares_keeps_no_more_than_the_pass_in_its_place():
    rows = measured([50] * 4, [2] * 4, same=False)
    shape = {"token": 1.0, "pair": 0.0, "overhead": 0.0, "token_bytes": 1.0, "pair_bytes": 0.0}
    for states, joined in ((0.0, True), (0.1, True), (1e3, False)):  # branches copy states, a mask does not
        plan = choose(rows, range(4), Shape(**shape, state_bytes=states), stock_rows=4, **{**CAN, "branching": True})
        assert (plan.joined, [len(tree.rows) for tree in plan.passes[0]]) == (joined, [4])
    shape["pair_bytes"] = 1.0  # one tree of 57 tokens keeps 3306 bytes, the four rows 11024
    assert [
        len(tree.rows) for tree in choose(rows, range(4), Shape(**shape, state_bytes=0), stock_rows=4, **CAN).passes[0]
    ] == [4]
    few = measured([50] * 4, [200] * 4, same=False)
    shape["pair_bytes"] = 1.0  # one tree of 849 tokens keeps 720 thousand pairs, the four rows 250 thousand
    plan = choose(few, range(4), Shape(**shape, state_bytes=0), stock_rows=4, **CAN, forced="packed")
    assert {len(tree.rows) for part in plan.passes for tree in part} == {1}
    exactly = Shape(**{**shape, "pair_bytes": 0.0}, state_bytes=0.0)
    same = measured([2] * 2, [1] * 2)  # a prompt of one token is shared, and nothing is saved: two rows keep as much
    assert choose(same, range(2), exactly, stock_rows=2, **CAN, forced="packed").cost <= 4
