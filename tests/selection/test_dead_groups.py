"""The pure parts of what becomes of dead groups: who is dead, fresh prompts, coins, and rows put together anew."""

import collections
import itertools
import math
import random

import pytest
import torch
from trl.trainer.utils import pad

from grpo_plus.selection.dead_groups.assemble import Source, cut, emptied, full, join, live_groups, picked, sources_of
from grpo_plus.selection.dead_groups.replay import Replay
from grpo_plus.selection.dead_groups.resample import PromptCursor, Resample, replacements
from grpo_plus.selection.dead_groups.roulette import Coins, shares
from tests.device import DEVICE


def test_a_group_with_any_advantage_on_any_token_is_live(device):
    advantages_NT = torch.zeros(6, 3, device=device)
    advantages_NT[3, 2] = -1e-30
    assert live_groups(advantages_NT, 2) == [False, True, False]
    assert live_groups(advantages_NT, 3) == [False, True]
    assert live_groups(advantages_NT[:, 2], 1) == [False, False, False, True, False, False]


def test_rounds_have_as_few_groups_as_make_ranks_equal_and_live_candidates_fill_dead_places_in_order():
    for groups, size, ranks in itertools.product(range(1, 8), range(1, 9), range(1, 9)):
        expected = next(count for count in itertools.count(groups) if count * size % ranks == 0)
        assert full(groups, size, ranks) == expected, (groups, size, ranks)
    assert replacements([5, 2], [False, False]) == []
    assert replacements([2, 5], [True, False, True, True]) == [(2, 0), (5, 2)]
    assert replacements([2, 5, 7], [False, True]) == [(2, 1)]


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_place_comes_once_a_pass_in_another_order_each(shuffle):
    cursor = PromptCursor(7, shuffle=shuffle)
    passes = [cursor.take(5, 20, lambda _: True) for _ in range(12)]
    orders = [list(itertools.chain(*passes[start : start + 4])) for start in (0, 4, 8)]
    assert [sorted(order) for order in orders] == [list(range(20))] * 3
    assert (orders[0] == list(range(20))) is not shuffle
    assert (orders[0] == orders[1]) is not shuffle


def test_the_walk_is_that_of_its_seed_and_goes_on_from_its_state():
    state, before = torch.get_rng_state(), random.getstate()
    walks = [PromptCursor(seed, shuffle=True).take(10, 50, lambda _: True) for seed in (1, 1, 2)]
    assert walks[0] == walks[1] != walks[2]
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == before
    one, other = PromptCursor(3, shuffle=True), PromptCursor(3, shuffle=True)
    one.take(17, 10, lambda _: True)
    other.load_state_dict(one.state_dict())
    assert other.take(25, 10, lambda _: True) == one.take(25, 10, lambda _: True)
    cursor = PromptCursor(3, shuffle=False)
    cursor.load_state_dict({"passes": 0, "place": 9})  # of longer data: it begins a pass
    assert (cursor.take(4, 3, lambda _: True), cursor.state_dict()) == ([0, 1, 2, 0], {"passes": 2, "place": 1})
    assert (Resample(), Replay()) == (Resample(rounds=2), Replay(age=4, groups=64))


@pytest.mark.parametrize(("size", "count", "barred"), [(10, 3, range(8)), (10, 10, range(10)), (2, 7, (0,)), (1, 4, (0,))])  # fmt: skip
def test_what_is_wanted_comes_first_and_the_rest_only_where_a_whole_pass_has_no_more(size, count, barred):
    found = PromptCursor(0, shuffle=True).take(count, size, lambda place: place not in barred)
    wanted = set(range(size)) - set(barred)
    assert (len(found), set(found[: len(wanted)])) == (count, wanted)
    assert all(0 <= place < size for place in found)


def test_coins_are_even_independent_of_all_other_streams_and_go_on_from_their_state():
    state = torch.get_rng_state()
    coins, again, other = Coins(1), Coins(1), Coins(2)
    drawn = [coins.next() for _ in range(20_000)]
    assert min(drawn) >= 0
    assert max(drawn) < 1
    counts = collections.Counter(int(10 * value) for value in drawn)
    chi_square = sum((counts[place] - 2000) ** 2 / 2000 for place in range(10))
    assert chi_square < 27.9  # one in a thousand
    pairs = torch.tensor(drawn).reshape(-1, 2)
    assert abs(torch.corrcoef(pairs.T)[0, 1].item()) < 0.04
    assert [again.next() for _ in range(5)] == drawn[:5] != [other.next() for _ in range(5)]
    again.count = 19_999
    assert again.next() == drawn[-1]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tied_group_stops_or_weighs_as_much_more_as_it_is_rarer():
    coins = Coins(5)
    weights = shares([False] * 8000, coins, 0.2)
    assert set(weights) == {0.0, 5.0}
    assert sum(weights) / 8000 == pytest.approx(1, abs=4 * math.sqrt(0.2 * 0.8 / 8000) / 0.2)
    assert shares([True] * 50, coins, 0.2) == [1.0] * 50
    assert coins.count == 8000  # a group with contrast draws none
    assert shares([False] * 50, coins, 1.0) == [1.0] * 50


PROMPTS, COMPLETIONS = (3, 1, 4, 2), (5, 1, 0, 3)


def made(prompts=PROMPTS, completions=COMPLETIONS, *, multiple=None, sequence=False, seed=0):
    """A batch as TRL makes it, its rows of these lengths."""
    torch.manual_seed(seed)

    def padded(lengths, value, side, fill=0):
        return pad([value(length) for length in lengths], fill, side, pad_to_multiple_of=multiple)

    def numbers(length):
        return torch.randint(1, 90, (length,))

    def ones(length):
        return torch.ones(length, dtype=torch.long)

    found = {
        "prompt_ids": padded(prompts, numbers, "left", 99),
        "prompt_mask": padded(prompts, ones, "left"),
        "completion_ids": padded(completions, numbers, "right", 99),
        "completion_mask": padded(completions, ones, "right"),
        "advantages": torch.randn(len(prompts)),
        "num_items_in_batch": torch.tensor(sum(completions)),
        "old_per_token_logps": padded(completions, torch.randn, "right"),
        "tool_mask": padded(completions, ones, "right", 1),
        "sampling_per_token_logps": padded(completions, torch.randn, "right"),
        "support": [[[1, token] for token in range(length)] for length in completions],
        "nothing": None,
    }
    width = 1 if sequence else found["completion_ids"].size(1)
    ratio = torch.rand(len(prompts), width)
    found["importance_sampling_ratio"] = ratio if sequence else torch.where(found["completion_mask"] > 0, ratio, 1.0)
    return {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in found.items()}


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        equal = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
        assert equal, (name, value, other[name])
        assert getattr(value, "dtype", None) == getattr(other[name], "dtype", None)


def rows_only(batch):
    return {name: value for name, value in batch.items() if name not in ("num_items_in_batch", "nothing")}


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("multiple", [None, 8])
def test_a_batch_that_is_cut_and_joined_is_itself(multiple, sequence):
    batch = made(multiple=multiple, sequence=sequence)
    joined = join(cut(batch, COMPLETIONS), pad=99, multiple=multiple, device=DEVICE)
    assert set(joined.pop("prompt_width").tolist()) == {batch["prompt_ids"].size(1)}
    same(joined, rows_only(batch))


@pytest.mark.parametrize("multiple", [None, 8])
@pytest.mark.parametrize("sequence", [False, True])
def test_rows_of_narrower_and_wider_batches_are_padded_as_if_drawn_together(multiple, sequence):
    one = made(multiple=multiple, sequence=sequence)
    other = made((9, 2), (1, 11), multiple=multiple, sequence=sequence, seed=1)
    tiny = made((1, 1), (1, 1), multiple=multiple, sequence=sequence, seed=2)
    rows = [*cut(one, COMPLETIONS), *cut(other, (1, 11)), *cut(tiny, (1, 1))]
    chosen = [rows[place] for place in (5, 0, 6, 2)]
    joined = join(chosen, pad=99, multiple=multiple, device=DEVICE)
    lengths = [11, 5, 1, 0]
    up = (lambda width: width) if multiple is None else lambda width: -(-width // multiple) * multiple
    assert (joined["completion_ids"].shape, joined["prompt_ids"].shape) == ((4, up(11)), (4, up(4)))
    sources = [(other, 1), (one, 0), (tiny, 0), (one, 2)]
    for place, ((batch, row), length) in enumerate(zip(sources, lengths, strict=True)):
        for name in rows_only(batch):
            given, found = batch[name][row], joined[name][place]
            if name in ("prompt_ids", "prompt_mask"):
                count = int(batch["prompt_mask"][row].sum())
                assert torch.equal(found[up(4) - count :], given[len(given) - count :]), name
                assert (found[: up(4) - count] == (99 if name == "prompt_ids" else 0)).all(), name
            elif name in ("advantages", "support") or (sequence and name == "importance_sampling_ratio"):
                assert torch.equal(found, given) if isinstance(given, torch.Tensor) else found == given, name
            else:
                fill = {"completion_ids": 99, "tool_mask": 1, "importance_sampling_ratio": 1}.get(name, 0)
                assert torch.equal(found[:length], given[:length]), name
                assert (found[max(length, 1) :] == fill).all(), name
                assert found.shape == (up(11),)


def test_a_row_without_its_completion_keeps_its_prompt_and_a_value_with_another_number_of_rows_is_named():
    batch = made()
    rows = cut(batch, COMPLETIONS)
    joined = join([emptied(rows[0]), emptied(rows[3])], pad=99, multiple=None, device=DEVICE)
    assert (joined["prompt_mask"].sum(1).tolist(), joined["completion_ids"].tolist()) == ([3, 2], [[99], [99]])
    assert (joined["completion_mask"].tolist(), joined["advantages"].tolist()) == ([[0], [0]], [0, 0])
    assert (joined["support"], joined["importance_sampling_ratio"].tolist()) == ([[], []], [[1], [1]])
    with pytest.raises(ValueError, match="3 values of 'support', expected one a row"):
        cut({**made(), "support": [[]] * 3}, COMPLETIONS)


@pytest.mark.parametrize("policy", [-300.0, -1e-4])
def test_no_loss_is_made_infinite_by_what_is_filled_in_behind_a_completion(policy):
    """Masks multiply, and infinity times 0 is no number."""
    rows = cut({**made(), "ref_per_token_logps": made()["old_per_token_logps"]}, COMPLETIONS)
    joined = join(rows[2:3] + rows[:1], pad=99, multiple=8, device=DEVICE)
    empty = joined["completion_mask"][0] == 0
    policy_T = torch.full((int(empty.sum()),), policy, device=DEVICE)[1:]
    old_T, ref_T = (joined[name][0][empty][1:] for name in ("old_per_token_logps", "ref_per_token_logps"))
    for exponent in (policy_T - old_T, ref_T - policy_T):
        assert exponent.exp().isfinite().all()


def test_values_are_picked_from_rounds_of_unequal_widths(device):
    one, other = (torch.ones(*shape, dtype=torch.bool, device=device) for shape in ((2, 3), (4, 1)))
    sources = [Source(1, 3), Source(0, 1), Source(0, 0, has_completion=False)]
    assert picked([one, other], sources, 0).tolist() == [[True, False, False], [True] * 3, [False] * 3]
    numbers = picked(
        [torch.tensor(given, device=device) for given in ([1.0, 2.0], [3.0, 4.0, 5.0, 6.0])], sources, math.nan
    )
    assert numbers[:2].tolist() == [6, 2]
    assert numbers[2].isnan()
    assert sources_of([(0, 1), (2, 0)], 2) == [(0, 2, True), (0, 3, True), (2, 0, True), (2, 1, True)]
