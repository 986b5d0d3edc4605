"""From weights to draws: what is drawn, how often, and that shares make up for it."""

import itertools

import pytest
import torch

from grpo_plus.selection.drawing import distribution, sample_prompts, shares

WEIGHTS = torch.tensor([0.0, 3.0, 1.0, 0.5], dtype=torch.float64)
ROWS = torch.tensor([1.0, 2.0, 1.0, 4.0], dtype=torch.float64)


def test_the_distribution_is_weights_times_rows_and_a_floor_at_any_size_and_never_draws_a_zero():
    found = distribution(WEIGHTS, ROWS, 0.2)
    assert found.tolist() == pytest.approx(
        [0.8 * w * r / 9 + 0.2 * r / 8 for w, r in zip(WEIGHTS.tolist(), ROWS.tolist(), strict=True)]
    )
    assert float(found.sum()) == pytest.approx(1)
    even = torch.ones(3, dtype=torch.float64)
    for scale in (1e-300, 1e300):
        found = distribution(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64) * scale, even, 0.0)
        assert found.tolist() == pytest.approx([0.5, 0.5, 0])
    chances = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    for again in (True, False):
        found = sample_prompts(chances, 50, torch.Generator().manual_seed(0), again=again)
        assert (len(found), set(found)) == (50, {1, 2})


@pytest.mark.parametrize("explore", [0.05, 0.5, 1.0])
def test_weighted_draws_are_unbiased(explore):
    """By enumeration of all batches of two: the weighted mean of any number is that over all rows."""
    chances = distribution(WEIGHTS, ROWS, explore)
    weight = shares(chances, ROWS)
    gradients = torch.tensor([5.0, -1.0, 2.0, 0.3], dtype=torch.float64)
    expected = 0.0
    for batch in itertools.product(range(4), repeat=2):
        probability = float(chances[list(batch)].prod())
        expected += probability * float((weight * gradients)[list(batch)].mean())
    assert expected == pytest.approx(float((ROWS * gradients).sum() / ROWS.sum()), abs=1e-12)


def assert_follow(found, chances):
    counts, count = torch.bincount(torch.tensor(found), minlength=4), len(found)
    deviations = (counts - count * chances) / (count * chances * (1 - chances)).sqrt()
    assert float(deviations.abs().max()) < 4


def test_draws_with_replacement_and_the_first_of_those_without_follow_the_distribution():
    chances = distribution(WEIGHTS, ROWS, 0.1)
    first, second = (sample_prompts(chances, 40_000, torch.Generator().manual_seed(0), again=True) for _ in range(2))
    assert first == second  # equal generators draw the same
    assert_follow(first, chances)
    generator = torch.Generator().manual_seed(0)
    batches = [sample_prompts(chances, 2, generator, again=False) for _ in range(4000)]
    assert all(len(set(batch)) == 2 for batch in batches)
    assert_follow([batch[0] for batch in batches], chances)
