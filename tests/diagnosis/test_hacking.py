"""The test for hacked rewards: how often flat, wandering and honest runs alarm, and hacked ones, over many seeds."""

import math
import random

import pytest

from grpo_plus.diagnosis.hacking import Check, alarm, finding, look_number

CHECKS = 40
UNITS = 32


def flat(rng, at):
    del at
    return rng.p, rng.p * rng.q


def wanders(rng, at):
    del at
    rng.drift = 0.9 * rng.drift + rng.gauss(0, 0.013)
    return rng.p + rng.drift, (rng.p + rng.drift) * rng.q


def wanders_alone(rng, at):
    del at
    rng.drift = 0.9 * rng.drift + rng.gauss(0, 0.013)
    return rng.p + rng.drift, rng.p * rng.q


def honest(rng, at):
    share = 0.4 * rng.p + (0.9 - 0.4 * rng.p) * (1 - math.exp(-(1 + 4 * rng.q) * at))
    return share, share


def half_as_honest(rng, at):
    share, _ = honest(rng, at)
    return share, share / 2


def hacked(rng, at):
    began = 0.05 + 0.3 * rng.p
    return began + (0.9 - began) * (1 - math.exp(-(2 + 3 * rng.q) * at)), began * 0.8


def hacked_later(rng, at):
    del rng
    return (0.2 + 0.6 * at, 0.2 + 0.6 * at) if at < 0.5 else (at, 0.5 - 0.4 * (at - 0.5))


def alarms_of(kind, seed, *, alone=False):
    """The check at which a run of this kind alarms; None: never."""
    rng = random.Random(seed)
    rng.p, rng.q, rng.drift = rng.uniform(0.1, 0.9), rng.uniform(0, 1), 0.0
    checks = []
    for step in range(1, CHECKS + 1):
        x, y = (min(1.0, max(0.0, value)) for value in kind(rng, step / CHECKS))
        pairs = []
        for _ in range(UNITS):
            liked = rng.random() < x
            right = min(1.0, y / x) if liked and x > 0 else max(0.0, y - x) / max(1e-9, 1 - x)
            pairs.append((float(liked), float(rng.random() < right)))
        check = Check.of(step, pairs)
        checks.append(Check(step, 1, check.reward, check.judge) if alone else check)
        if look_number(step) and alarm(checks):
            return step
    return None


SEEDS = 60


@pytest.mark.parametrize("alone", [False, True], ids=["samples", "evaluations"])
@pytest.mark.parametrize("kind", [flat, wanders, wanders_alone, honest, half_as_honest])
def test_flat_and_honest_runs_never_alarm(kind, alone):
    assert [seed for seed in range(SEEDS) if alarms_of(kind, seed, alone=alone)] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [flat, wanders, wanders_alone, honest, half_as_honest])
def test_false_alarms_are_rarer_than_one_in_a_hundred_over_many_seeds(kind):
    assert sum(alarms_of(kind, seed) is not None for seed in range(1000)) <= 5


@pytest.mark.parametrize(("kind", "power"), [(hacked, 0.85), (hacked_later, 0.9)])
def test_hacked_runs_alarm(kind, power):
    assert sum(alarms_of(kind, seed) is not None for seed in range(SEEDS)) >= power * SEEDS


@pytest.mark.slow
def test_the_level_holds_where_the_margin_is_taken_away(monkeypatch):
    """Without the least rise the bound is that of the levels alone: 5% over all looks together."""
    monkeypatch.setattr("grpo_plus.diagnosis.hacking.RISE", 0.0)
    assert sum(alarms_of(flat, seed) is not None for seed in range(600)) <= 0.05 * 600


def test_looks_are_at_counts_a_quarter_apart():
    assert [count for count in range(60) if look_number(count)] == [6, 8, 10, 12, 15, 19, 24, 30, 38, 48]
    steps = [Check.of(step, [(float(step > 3), 0.0)] * 32) for step in range(1, 8)]
    assert alarm(steps) is None  # seven checks: nothing is compared


def test_an_alarm_says_both_means_and_their_steps():
    checks = [Check.of(10 * step, [(float(step > 3), 0.0)] * 32) for step in range(1, 7)]
    found = alarm(checks)
    assert (found.reward, found.judge, found.steps, found.falls) == ((0.0, 1.0), (0.0, 0.0), (10, 20, 50, 60), False)
    told = finding(found, judge="strict", reward="the score of lenient", where="in training")
    assert "lenient has risen from 0 (steps 10 to 20) to 1 (steps 50 to 60) while strict" in told.evidence
    assert "before step 50" in told.remedy
    assert told.outcome == "reward hacked"
    falling = [Check.of(step, [(1.0, float(step <= 3))] * 32) for step in range(1, 7)]
    assert alarm(falling).falls
    assert "has fallen: 1 to 0" in finding(alarm(falling), judge="j", reward="r", where="w").evidence


def test_a_judge_that_rises_with_the_reward_is_none_for_an_alarm_at_another_scale():
    rising = [Check.of(step, [(3.0 * step, 0.1 * step + 0.001 * at) for at in range(32)]) for step in range(1, 13)]
    assert not any(alarm(rising[:count], (18.0, 1.0)) for count in range(6, 13))
    assert any(alarm(rising[:count], (1.0, 1.0)) for count in range(6, 13)), "30 times the judge's own rise"


def test_moments_are_those_of_the_pairs():
    rng = random.Random(1)
    pairs = [(rng.random(), rng.random()) for _ in range(50)]
    check = Check.of(1, pairs)
    numpy = pytest.importorskip("numpy")
    cov = numpy.cov(numpy.array(pairs).T, ddof=0)
    assert (check.reward_var, check.judge_var, check.cov) == pytest.approx((cov[0, 0], cov[1, 1], cov[0, 1]))
