"""Pairs out of groups, labels of steps, prompts held out, the bounded store, and rewards out of scores."""

import math

import pytest
import torch

from grpo_plus.heads.reward_pairs import (
    Comparison,
    History,
    Labelled,
    few_of_each,
    is_held_out,
    ordered_pairs,
    packed,
    replayed,
    step_labels,
    unpacked,
)
from grpo_plus.heads.reward_scores import rewards_of, wins, worst_step


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def pair(number):
    return Comparison((number,), (number, 1), (number, 2))


def test_pairs_are_those_of_a_plain_loop():
    scores = torch.randint(0, 4, (24,), generator=generator()) / 2
    groups = torch.arange(24) // 6
    expected = [[i, j] for i in range(24) for j in range(24) if groups[i] == groups[j] and scores[i] > scores[j]]
    assert ordered_pairs(scores, groups).tolist() == expected
    assert len(expected) > 10


def test_equal_scores_and_scores_that_are_no_numbers_are_in_no_pair():
    scores = torch.tensor([1.0, 1.0, math.nan, math.inf, -math.inf])
    assert len(ordered_pairs(scores, torch.zeros(5))) == 0
    assert ordered_pairs(torch.tensor([0.0, math.nan, 1.0]), torch.zeros(3)).tolist() == [[2, 0]]


def test_a_group_gives_at_most_so_many_pairs_drawn_by_its_own_generator():
    scores, groups = torch.arange(16.0), torch.arange(16) // 8
    whole = ordered_pairs(scores, groups)
    drawn = [few_of_each(whole, groups, 5, generator(seed)).tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [sum(int(groups[better]) == group for better, _ in drawn[0]) for group in (0, 1)] == [5, 5]
    assert all(one in whole.tolist() for one in drawn[0])
    assert few_of_each(whole, groups, 100, generator()).tolist() == whole.tolist()


def test_a_label_stands_at_the_last_token_of_a_step_that_was_judged():
    steps = [(0, 2, 0.5), (2, 2, 1.0), (2, 6, 0.49), (6, 7, math.nan), (7, 9, 1.0)]
    assert step_labels(steps, 0.5) == ((1, 5, 8), (1, 0, 1))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_so_large_a_share_of_prompts_is_held_out_and_always_the_same(share):
    prompts = [f"prompt {number}" for number in range(4000)]
    out = [is_held_out(prompt, share) for prompt in prompts]
    assert sum(out) / len(out) == pytest.approx(share, abs=0.02)
    assert out == [is_held_out(prompt, share) for prompt in prompts]
    messages = [{"role": "user", "content": "a"}]
    assert is_held_out(messages, 0.5) == is_held_out([{"content": "a", "role": "user"}], 0.5)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("fresh", [1, 9, 90, 1000])
def test_replayed_pairs_are_their_share_of_a_training_to_the_nearest_whole_number(fresh, share):
    again = replayed(fresh, share)
    assert abs(again - share * (fresh + again)) <= 0.5


def test_the_store_is_bounded_and_every_pair_is_as_likely_to_be_in_it():
    counts = torch.zeros(40)
    for seed in range(600):
        store, draws = History(10), generator(seed)
        for start in (0, 7, 30):
            store.add([pair(number) for number in range(start, {0: 7, 7: 30, 30: 40}[start])], draws)
        assert (len(store), store.offered) == (10, 40)
        for one in store.items:
            counts[one.prompt[0]] += 1
    # 600 draws of chance 1/4 have a standard deviation of 10.6.
    assert (counts - 150).abs().max() < 4.5 * 10.6


def test_a_sample_of_the_store_repeats_nothing():
    store = History(10)
    store.add([pair(number) for number in range(8)], generator())
    assert len(set(store.sample(5, generator()))) == 5
    assert set(store.sample(20, generator())) == set(store.items)


def test_stores_come_back_from_tensors_as_they_were_and_hold_each_text_once():
    stores = {"fresh": [pair(3), pair(4)], "held": [], "history": [pair(3), Comparison((3,), (), (3, 2))]}
    tensors = packed(stores)
    assert unpacked(tensors, Comparison, stores) == stores
    assert len(tensors["lengths"]) == len({text for one in [*stores["fresh"], *stores["history"]] for text in one})
    assert packed({"fresh": []}) == {}
    assert unpacked({}, Comparison, ["fresh"]) == {"fresh": []}
    labelled = {"fresh": [Labelled((1,), (2, 3), (0, 1), (1, 0))]}
    assert unpacked(packed(labelled), Labelled, labelled) == labelled
    with pytest.raises(ValueError, match="a different kind of head"):
        unpacked(packed(labelled), Comparison, labelled)


def test_a_reward_is_the_mean_chance_to_beat_the_others_of_the_group():
    scores, groups = torch.randn(12, generator=generator(), dtype=torch.float64), torch.arange(12) // 4
    others = [[j for j in range(12) if j != i and groups[j] == groups[i]] for i in range(12)]
    expected = [sum(1 / (1 + math.exp(scores[j] - scores[i])) for j in others[i]) / 3 for i in range(12)]
    found = wins(scores, groups)
    assert found.tolist() == pytest.approx(expected)
    level = torch.tensor([5.0, -100.0, 0.1], dtype=torch.float64)[groups]
    assert wins(scores + level, groups).tolist() == pytest.approx(found.tolist())
    assert found.view(3, 4).mean(dim=1).tolist() == pytest.approx([0.5] * 3)


def test_other_scales_leave_the_score_or_take_its_sigmoid():
    scores, groups = torch.tensor([-1.0, 2.0]), torch.tensor([0, 0])
    assert rewards_of(scores, groups, "raw").tolist() == [-1.0, 2.0]
    assert rewards_of(scores, groups, "sigmoid").tolist() == pytest.approx([0.26894, 0.88080], abs=1e-5)
    assert rewards_of(scores, groups, "wins").tolist() == pytest.approx([0.04743, 0.95257], abs=1e-5)


def test_a_completion_is_worth_its_worst_step_and_one_half_without_any():
    found = worst_step([torch.tensor([3.0, -1.0]), torch.tensor([]), torch.tensor([0.0])])
    assert found.tolist() == pytest.approx([0.26894, 0.5, 0.5], abs=1e-5)
