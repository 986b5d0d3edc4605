"""The chance of contrast, by integration and by lot; the fitted prior."""

import math

import pytest
import torch

from grpo_plus.selection import PromptHistory, selection_weights
from grpo_plus.selection.contrast import LEAST, MOST, chance_of_both, contrast_chance, fitted_prior


def integrated(a, b, size, points=200_000):
    """The expectation over Beta(a, b) by the midpoint rule."""
    x = (torch.arange(points, dtype=torch.float64) + 0.5) / points
    log_density = (a - 1) * x.log() + (b - 1) * (-x).log1p() - (math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b))
    both = 1 - x**size - (1 - x) ** size
    return float((log_density.exp() * both).mean())


@pytest.mark.parametrize("size", [2, 8, 64])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 0.7), (3.0, 9.5), (30.0, 1.2), (0.51, 40.0)])
def test_the_chance_is_that_of_the_integral(a, b, size):
    found = float(chance_of_both(torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64), size))
    assert found == pytest.approx(integrated(a, b, size), rel=1e-4)


def test_large_counts_do_not_overflow():
    found = chance_of_both(torch.tensor([1e9, 1e-9, 1e6]).double(), torch.tensor([1e9, 1e9, 1e-6]).double(), 512)
    assert found.isfinite().all()
    assert found[0] == pytest.approx(1)
    assert found[1:].max() < 1e-6


def drawn_counts(a, b, prompts, size, seed=0):
    torch.manual_seed(seed)
    rates = torch.distributions.Beta(a, b).sample((prompts,)).double()
    counts = torch.full((prompts,), float(size)).double()
    return torch.binomial(counts, rates), counts


@pytest.mark.parametrize(("a", "b"), [(1.0, 2.0), (4.0, 1.5), (0.5, 0.5)])
def test_the_prior_is_found_again(a, b):
    first, second = fitted_prior(*drawn_counts(a, b, 4000, 8))
    assert first == pytest.approx(a, rel=0.15)
    assert second == pytest.approx(b, rel=0.15)


def test_prompts_of_one_rate_have_the_strongest_prior():
    passes, counts = torch.tensor([4.0, 4.0, 4.0]), torch.tensor([8.0, 8.0, 8.0])
    assert sum(fitted_prior(passes, counts)) == pytest.approx(MOST)
    assert fitted_prior(torch.tensor([3.0, 0.0]), torch.tensor([8.0, 0.0])) == (1.0, 1.0)  # one says nothing of others


@pytest.mark.parametrize("passes", [[0.0, 0.0], [8.0, 8.0], [0.0, 8.0]])
def test_the_prior_has_floors(passes):
    first, second = fitted_prior(torch.tensor(passes), torch.tensor([8.0, 8.0]))
    assert min(first, second) > 0
    assert LEAST - 1e-9 <= first + second <= MOST + 1e-9


def test_the_middle_goes_before_the_unseen_graded_rewards_go_by_groups_and_power_sharpens():
    history = PromptHistory.of([[1, 0] * 4, [], [0] * 8, [1] * 8])
    middle, unseen, impossible, died_out = contrast_chance(history).tolist()
    assert middle > unseen > impossible
    assert impossible == pytest.approx(died_out)
    history = PromptHistory.of([[0.1, 0.2], [0.5, 0.5], [0.3, 0.9], []])
    typical = (2 + 1) / (3 + 2)
    expected = [(1 + typical) / 2, typical / 2, (1 + typical) / 2, typical]
    assert contrast_chance(history).tolist() == pytest.approx(expected)
    history = PromptHistory.of([[1, 0], [1, 1]])
    plain, sharp, flat = (selection_weights("contrast", history, power=power) for power in (1, 3, 0))
    assert torch.allclose(sharp, plain**3)
    assert flat.tolist() == [1, 1]
