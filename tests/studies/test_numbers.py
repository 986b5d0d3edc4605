"""Statistics of the studies, against exact expectations, brute force and known tables."""

import itertools
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.studies.numbers import Noise, crossing, noise, quotient, slope, smoothed, spread, student

QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042, 200: 1.972}


def gram(vectors):
    return [[sum(a * b for a, b in zip(one, other, strict=True)) for other in vectors] for one in vectors]


def test_an_interval_of_a_mean_is_students_and_one_seed_has_none():
    assert {degrees: student(degrees) for degrees in QUANTILES} == pytest.approx(QUANTILES, abs=6e-4)
    found = spread([0.2, 0.4, 0.9])
    assert found.mean == pytest.approx(0.5)
    half = 4.3027 * statistics.stdev([0.2, 0.4, 0.9]) / math.sqrt(3)
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-4)
    assert found.text(".2f") == "0.50 ± 0.36"
    found = spread([0.5])
    assert (found.text(".1f"), found.interval()) == ("0.5", "-")
    with pytest.raises(ValueError, match="no values"):
        spread([])


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=3), st.integers(3, 4))
def test_the_noise_is_unbiased_for_every_distribution(values, count):
    """All draws of a small distribution, each as probable as any other: the mean estimate is the true value."""
    middle = [statistics.fmean(part) for part in zip(*values, strict=True)]
    signal = sum(part**2 for part in middle)
    variance = statistics.fmean(math.dist(value, middle) ** 2 for value in values)
    found = [noise(gram(draws)) for draws in itertools.product(values, repeat=count)]
    assert statistics.fmean(one.variance for one in found) == pytest.approx(variance, abs=1e-9)
    assert statistics.fmean(one.signal for one in found) == pytest.approx(signal, abs=1e-9)


def test_the_variance_is_the_trace_of_the_covariance_and_its_error_that_of_leaving_samples_out():
    vectors = [(1.0, 2.0, 0.0), (3.0, -1.0, 1.0), (2.0, 2.0, 2.0), (4.0, 1.0, -1.0)]
    found = noise(gram(vectors))
    trace = sum(statistics.variance(part) for part in zip(*vectors, strict=True))
    assert found.variance == pytest.approx(trace)
    squared = sum(statistics.fmean(part) ** 2 for part in zip(*vectors, strict=True))
    assert found.signal == pytest.approx(squared - trace / 4)
    assert found.ratio == pytest.approx(found.variance / found.signal)
    middle = [statistics.fmean(part) for part in zip(*vectors, strict=True)]
    apart = [math.dist(vector, middle) ** 2 for vector in vectors]
    assert found.largest == pytest.approx(max(apart) / sum(apart))
    rng = random.Random(1)
    vectors = [(1 + rng.gauss(0, 1), 2 + rng.gauss(0, 1)) for _ in range(8)]
    logs = [math.log(noise(gram(vectors[:at] + vectors[at + 1 :])).ratio) for at in range(8)]
    expected = math.sqrt(7 / 8 * sum((value - statistics.fmean(logs)) ** 2 for value in logs))
    assert noise(gram(vectors)).log_error == pytest.approx(expected)


def test_a_quotient_is_the_geometric_mean_over_seeds_and_too_few_samples_or_no_signal_have_none():
    over, under = [Noise(0, 0, 1.0, 0.3, 0), Noise(0, 0, 4.0, 0.4, 0)], [Noise(0, 0, 8.0, 0.0, 0)] * 2
    middle, low, high = quotient(over, under)
    assert middle == pytest.approx(math.sqrt(1 / 8 * 4 / 8))
    assert math.log(high / middle) == pytest.approx(1.95996 * 0.25, rel=1e-4)
    assert math.log(middle / low) == pytest.approx(math.log(high / middle))
    with pytest.raises(ValueError, match="at least 3"):
        noise([[1.0, 0.0], [0.0, 1.0]])
    found = noise(gram([(1.0,), (-1.0,), (1.0,), (-1.0,)]))
    assert found.signal < 0
    assert math.isinf(found.ratio)
    assert quotient([found], [found]) is None


def test_slopes_leave_out_what_is_not_known_targets_are_reached_in_between_and_smoothing_looks_back():
    sizes = [2, 4, 8, 16, 32]
    assert slope(sizes, [7 * size**-0.8 for size in sizes]) == pytest.approx(-0.8)
    assert slope([2, 4, 8], [4.0, math.inf, 1.0]) == pytest.approx(-1.0)
    assert slope([2, 4], [1.0, math.inf]) is None
    assert crossing([0, 10, 20], [0.5, 0.8, 1.0], 0.9) == pytest.approx(15)
    assert (crossing([5, 10], [0.9, 0.5], 0.9), crossing([0, 10], [0.1, 0.2], 0.9)) == (5, None)
    assert smoothed([1, 2, 3, 4], width=2) == [1, 1.5, 2.5, 3.5]
