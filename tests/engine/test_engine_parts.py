"""The engine's pure parts, each against the plainest way to compute the same."""

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, create_mask

from grpo_plus.engine.arrange import (
    arrange,
    block_size,
    families,
    fill_entropy,
    idle_rows,
    is_row_aligned,
    reorder,
    unscored_logps,
)
from grpo_plus.engine.cost import choose, shape_of, split_passes
from grpo_plus.engine.pack import sees, tree_mask
from grpo_plus.engine.rows import read_rows, trim
from grpo_plus.engine.trees import grow
from tests.device import DEVICE

QUICK = settings(max_examples=40, deadline=None)
CONFIG = SimpleNamespace(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=704, vocab_size=2048)  # fmt: skip
SHAPE = shape_of(CONFIG, device="cpu", eager=False)
tensor = partial(torch.tensor, device=DEVICE)


@st.composite
def padded(draw, least=0):
    """Token ids and mask of rows in groups, as TRL pads them, and the completion columns."""
    prompts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    rows = [group for group in range(len(prompts)) for _ in range(draw(st.integers(1, 4)))]
    lengths = [draw(st.integers(least, 7)) for _ in rows]
    left, right = max(prompts) + draw(st.integers(0, 2)), max(*lengths, 1) + draw(st.integers(0, 2))
    ids = torch.arange(len(rows) * (left + right)).reshape(len(rows), -1) + 100
    mask = torch.zeros_like(ids)
    for row, (group, length) in enumerate(zip(rows, lengths, strict=True)):
        mask[row, left - prompts[group] : left + length] = 1
        ids[row, :left] = torch.arange(left) + 1000 * group
    return ids.to(DEVICE), mask.to(DEVICE), right, rows, lengths


@given(padded(least=1))
@QUICK
def test_trees_hold_no_more_than_they_must(data):
    ids, mask, right, groups, lengths = data
    rows = read_rows(ids, mask, right)
    trees = grow(rows, range(len(ids)), None)
    shared = {group: rows.prompts[row] - 1 for row, group in enumerate(groups)}
    assert len(trees) == sum(1 if shared[group] else groups.count(group) for group in set(groups))
    assert sum(tree.size for tree in trees) == sum(lengths) + sum(shared.values())
    assert [tree.size for tree in trees] == sorted((tree.size for tree in trees), reverse=True)


def test_no_row_of_a_mask_is_empty_and_nothing_sees_padding():
    until = tensor([[4, 3, 3, 4, 0], [1, 0, 0, 0, 0]])
    visible = tree_mask(until)[:, 0]
    assert visible.any(-1).all()
    seen = [[0], [0, 1], [0, 1, 2], [0, 3], [4]]
    assert [row.nonzero()[:, 0].tolist() for row in visible[0]] == seen
    assert visible[1, 0].int().tolist() == [1, 0, 0, 0, 0]


def test_the_mask_of_flex_attention_is_the_same():
    until = tensor([[9] * 3 + [7] * 4 + [9] * 2 + [0] * 2, [5] * 5 + [11] * 6])
    assert torch.equal(create_mask(sees(until), 2, None, 11, 11, device=DEVICE), tree_mask(until))
    assert create_block_mask(sees(until), 2, None, 11, 11, device=DEVICE).shape == (2, 1, 11, 11)


@pytest.mark.parametrize("hole", [(0, 1), (0, 5), (1, 4)])
def test_padding_in_the_middle_is_not_measured(hole):
    mask = tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    assert read_rows(torch.ones_like(mask), mask, 3).completions == [2, 3]
    mask[hole] = 1 - mask[hole]
    broken = read_rows(torch.ones_like(mask), mask, 3)
    assert broken is None or hole == (0, 5) or (hole == (0, 1) and broken.prompts == [1, 3])
    mask = tensor([[1, 0, 1, 1, 1, 0]])
    assert read_rows(torch.ones_like(mask), mask, 3) is None
    mask = tensor([[1, 1, 1, 1, 0, 1]])
    assert read_rows(torch.ones_like(mask), mask, 3) is None


@given(padded())
@QUICK
def test_trimming_drops_padding_alone(data):
    ids, mask, right, _, _ = data
    rows = read_rows(ids, mask, right)
    chosen = list(range(0, len(ids), 2))
    cut, cut_mask, kept = trim(rows, chosen, ids, mask)
    assert cut_mask.sum() == mask[chosen].sum()
    assert torch.equal(cut[cut_mask.bool()], ids[chosen][mask[chosen].bool()])
    assert cut_mask[:, 0].any()
    assert kept == 0 or cut_mask[:, -1].any()
    assert kept == max(rows.completions[row] for row in chosen)


@given(st.data())
@QUICK
def test_arranging_keeps_rows_and_brings_prompts_together(data):
    size = data.draw(st.integers(1, 6))
    batches = data.draw(st.integers(1, 4))
    keys = data.draw(st.lists(st.integers(0, 4), min_size=size * batches, max_size=size * batches))
    live = data.draw(st.lists(st.booleans(), min_size=len(keys), max_size=len(keys)))
    order = arrange(keys, [1] * len(keys), live, size)
    assert sorted(order) == list(range(len(keys)))

    def places(order):
        """How many (micro-batch, live prompt) pairs there are: the prompts that must be run."""
        return len({(place // size, keys[row]) for place, row in enumerate(order) if live[row]})

    assert places(order) <= places(list(range(len(keys))))
    counts = Counter(key for key, alive in zip(keys, live, strict=True) if alive)
    if all(size % count == 0 for count in counts.values()):
        assert places(order) == len(counts)


def test_rows_that_begin_alike_come_together_though_their_prompts_differ():
    # Four games, each opened by two rows with an observation of its own, and one prompt that two rows share.
    rows = [[1, 2, 3, 4, game, 90 + row] for row, game in enumerate([7, 8, 9, 10])] + [
        [60, 61, 62, 63, 64, row] for row in (5, 6)
    ]
    rows += [[5, 6, 7, 8, game, row] for row, game in enumerate([7, 8, 9, 10])]
    scrambled = [0, 4, 6, 1, 7, 2, 8, 5, 9, 3]
    sequences = [torch.tensor(rows[row]).numpy() for row in scrambled]
    family, ranks = families(sequences, [5] * 10)
    assert len(set(family)) == 3
    assert [rows[scrambled[place]] for place in sorted(range(10), key=ranks.__getitem__)] == sorted(rows)
    keys = [tuple(rows[row][:5]) for row in scrambled]
    order = arrange(keys, [1] * 10, [True] * 10, 2, family=family, ranks=ranks)
    assert [len({family[row] for row in order[start : start + 2]}) for start in range(0, 10, 2)] == [1] * 5
    # A group that has no room in one micro-batch is split where its completions part.
    turns = [torch.tensor([1, 1, turn, row]).numpy() for row, turn in enumerate([5, 4, 5, 4])]
    order = arrange([0] * 4, [1] * 4, [True] * 4, 2, ranks=families(turns, [2] * 4)[1])
    assert [sorted(order[:2]), sorted(order[2:])] == [[1, 3], [0, 2]]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.integers(1, 3))
@QUICK
def test_blocks_never_cross_an_optimizer_step(per_generation, accumulation, iterations, generations):
    block = block_size(per_generation, accumulation)
    steps = per_generation * iterations * generations
    window = [step // accumulation for step in range(steps)]  # the last one of an epoch may be shorter
    for start in range(0, steps, per_generation):
        for first in range(0, per_generation, block):
            assert len(set(window[start + first : start + first + block])) == 1


def test_reordering_moves_every_value_of_a_row_together():
    batches = [
        {"a": tensor(range(3)) + 3 * i, "b": [f"r{3 * i + j}" for j in range(3)], "n": tensor(7), "x": None}
        for i in range(2)
    ]
    moved = reorder(batches, [5, 0, 1, 4, 2, 3])
    assert [batch["a"].tolist() for batch in moved] == [[5, 0, 1], [4, 2, 3]]
    assert [batch["b"] for batch in moved] == [["r5", "r0", "r1"], ["r4", "r2", "r3"]]
    assert all(batch["n"] == 7 and batch["x"] is None for batch in moved)
    assert is_row_aligned(batches[0], 3)
    assert not is_row_aligned({"pixel_values": torch.zeros(5, 2)}, 3)
    assert not is_row_aligned({"note": "one for all"}, 3)


def test_idle_rows():
    mask = tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0], [1, 0, 0]])
    advantages = tensor([0.0, -0.5, 1.0, 1e-30])
    assert idle_rows(advantages, mask, zero_is_idle=True).tolist() == [True, False, True, False]
    assert idle_rows(advantages, mask, zero_is_idle=False).tolist() == [False, False, True, False]
    per_token = tensor([[0.0, 0, 5], [0, 0, 1], [1, 1, 1], [0, 1, 1]])
    assert idle_rows(per_token, mask, zero_is_idle=True).tolist() == [True, False, True, True]
    assert idle_rows(tensor([float("nan")] * 4), mask, zero_is_idle=True).tolist() == [False, False, True, False]


def test_stand_ins_give_a_ratio_of_one():
    old = tensor([[-3.0, -900.0], [-1.0, -2.0]])
    scored = tensor([[False, False], [True, False]])
    assert torch.equal(unscored_logps(old, scored), tensor([[-3.0, -900.0], [0.0, -2.0]]))
    assert not unscored_logps(None, scored).any()


def test_the_mean_entropy_is_that_of_the_live_tokens():
    entropies = tensor([[1.0, 3.0], [0.0, 0.0], [5.0, 9.0]])
    mask = tensor([[1, 1], [1, 1], [1, 0]])
    filled = fill_entropy(entropies, tensor([False, True, False]), mask, nothing=float("nan"))
    assert float((filled * mask).sum() / mask.sum()) == pytest.approx(3.0)
    nothing = fill_entropy(entropies, tensor([True] * 3), mask, nothing=-1.0)
    assert torch.equal(nothing, tensor([[-1.0] * 2] * 3))


def measured(prompt, completions, pad=0):
    left, right = prompt, max(completions) + pad
    ids = torch.ones(len(completions), left + right, dtype=torch.long)
    mask = torch.ones_like(ids)
    for row, length in enumerate(completions):
        mask[row, left + length :] = 0
    return read_rows(ids, mask, right)


def plan(rows, chosen=None, *, single_pass=False, sharing=True, branching=False, deep=False, **keywords):
    chosen = range(len(rows.prompts)) if chosen is None else chosen
    can = {"packing": True, "sharing": sharing, "branching": branching, "deep": deep, "joining": False}
    can |= {"trimming": True}
    return choose(rows, chosen, SHAPE, stock_rows=len(rows.prompts), single_pass=single_pass, **can, **keywords)


def test_the_layout_that_is_chosen():
    assert plan(measured(12, [128] * 8)).layout == "stock"  # nothing to gain: TRL's own path, unchanged
    long = plan(measured(1000, [100] * 8))
    assert long.layout == "packed"
    assert [len(tree.rows) for trees in long.passes for tree in trees] == [8]
    # Long completions of a short prompt: one dense mask over all of them would cost more than the prompt.
    ragged = plan(measured(12, [1500, 1400, 300, 200, 100, 50, 40, 30]))
    assert ragged.layout == "packed"
    assert max(len(tree.rows) for trees in ragged.passes for tree in trees if tree.size > 1000) == 1
    assert plan(measured(1000, [100] * 8), sharing=False).layout == "stock"
    assert plan(measured(12, [128] * 8), chosen=[1, 5]).cost < plan(measured(12, [128] * 8)).cost / 3
    assert len(plan(measured(12, [900, 800, 20, 10]), single_pass=True).passes) == 1


def test_branches_share_a_prompt_whole_where_their_attention_pays():
    # 8 trees of 16 uneven branches behind one another: only their own tokens run.
    short = plan(measured(12, [5, 9, 14, 30] * 4), branching=True)
    assert (short.layout, short.joined) == ("packed", True)
    assert [[len(tree.rows) for tree in part] for part in short.passes] == [[16]]
    assert short.cost < plan(measured(12, [5, 9, 14, 30] * 4)).cost
    # A completion as long as this is cheaper alone, under a causal mask, than its prompt is worth.
    assert not plan(measured(12, [1500, 1400, 300, 200, 100, 50, 40, 30]), branching=True).joined
    shared = plan(measured(1000, [100] * 8), branching=True, most_tokens=1500)
    assert (shared.joined, [sum(tree.size for tree in part) for part in shared.passes]) == (True, [1399, 1399])


def turns(shared, own, rows=8, prompt=100):
    """Completions of which each half begins alike, all being of different tokens otherwise."""
    ids = torch.arange(rows * (prompt + shared + own)).reshape(rows, -1)
    ids[:, :prompt] = ids[0, :prompt]
    for half in (slice(0, rows // 2), slice(rows // 2, rows)):
        ids[half, prompt : prompt + shared] = ids[half.start, prompt : prompt + shared]
    return read_rows(ids, torch.ones_like(ids), shared + own)


def test_turns_are_shared_where_that_pays():
    def nodes(made):
        return sum(len(tree.nodes) for part in made.passes for tree in part)

    near, deep = (plan(turns(100, 50), branching=True, deep=deep) for deep in (False, True))
    assert (nodes(near), nodes(deep)) == (9, 11)
    assert deep.cost < 0.6 * near.cost
    # The same first word is worth neither a call of attention more nor, under a mask, any more than the rounding.
    assert nodes(plan(turns(1, 150), branching=True, deep=True)) == 9
    assert nodes(plan(turns(1, 150), deep=True)) == nodes(plan(turns(1, 150)))
    # Under a dense mask every token pays for the whole tree; whole turns are worth that.
    assert plan(turns(100, 50), deep=True).cost < 0.6 * plan(turns(100, 50)).cost
    # Where a pass holds no more, a tree is cut into trees of rows that are still beside one another.
    half = plan(turns(100, 50), branching=True, deep=True, most_tokens=450)
    assert [[tree.rows for tree in part] for part in half.passes] == [[(0, 1, 2, 3)], [(4, 5, 6, 7)]]
    assert [tree.size for part in half.passes for tree in part] == [99 + 100 + 4 * 50] * 2
    assert not plan(turns(100, 50), branching=True, deep=True, sharing=False).joined


LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 40), st.integers(20, 400), st.booleans(), st.booleans())
@QUICK
def test_passes_keep_to_their_bound(completions, prompt, bound, branching, deep):
    rows = measured(prompt, completions)  # all of the same token, so each begins the longer ones
    made = plan(rows, forced="packed", most_tokens=bound, branching=branching, deep=deep)
    trees = [tree for part in made.passes for tree in part]
    assert sorted(row for tree in trees for row in tree.rows) == list(range(len(completions)))
    for part in made.passes:
        tokens = sum(tree.size for tree in part) if made.joined else len(part) * part[0].size
        assert tokens <= bound or (len(part) == 1 and len(part[0].rows) == 1)
    assert split_passes(trees, SHAPE)  # sizes are in order
