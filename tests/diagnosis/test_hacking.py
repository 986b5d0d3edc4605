"""The test for hacked rewards: how often flat, wandering and honest runs alarm, and hacked ones, over many seeds."""

import math
import random

import pytest

from grpo_plus import GRPOPlusConfig
from grpo_plus.diagnosis.hacking import RewardCheck, alarm, finding, look_number
from grpo_plus.training.observers.monitor import HackingMonitor

CHECKS = 40
UNITS = 32


def flat(rng, _at):
    return rng.p, rng.p * rng.q


def wanders(rng, _at):
    rng.drift = 0.9 * rng.drift + rng.gauss(0, 0.013)
    return rng.p + rng.drift, (rng.p + rng.drift) * rng.q


def wanders_alone(rng, _at):
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


def hacked_later(_rng, at):
    return (0.2 + 0.6 * at, 0.2 + 0.6 * at) if at < 0.5 else (at, 0.5 - 0.4 * (at - 0.5))


def alarms_of(kind, seed, *, alone=False, units=UNITS):
    """The check at which a run of this kind alarms; None: never."""
    rng = random.Random(seed)
    rng.p, rng.q, rng.drift = rng.uniform(0.1, 0.9), rng.uniform(0, 1), 0.0
    checks = []
    for step in range(1, CHECKS + 1):
        x, y = (min(1.0, max(0.0, value)) for value in kind(rng, step / CHECKS))
        pairs = []
        for _ in range(units):
            liked = rng.random() < x
            right = min(1.0, y / x) if liked and x > 0 else max(0.0, y - x) / max(1e-9, 1 - x)
            pairs.append((float(liked), float(rng.random() < right)))
        check = RewardCheck.of(step, pairs)
        checks.append(RewardCheck(step, 1, check.reward, check.judge) if alone else check)
        if look_number(step) and alarm(checks):
            return step
    return None


SEEDS = 60


@pytest.mark.parametrize("alone", [False, True], ids=["samples", "evaluations"])
@pytest.mark.parametrize("kind", [flat, wanders, wanders_alone, honest, half_as_honest])
def test_flat_and_honest_runs_never_alarm(kind, alone):
    assert [seed for seed in range(SEEDS) if alarms_of(kind, seed, alone=alone)] == []


@pytest.mark.slow
@pytest.mark.parametrize("units", [UNITS, 1, 2, 4, 8])
@pytest.mark.parametrize("kind", [flat, wanders, wanders_alone, honest, half_as_honest])
def test_false_alarms_are_rarer_than_one_in_a_hundred_over_many_seeds(kind, units):
    seeds = 1000 if units == UNITS else 400
    assert sum(alarms_of(kind, seed, units=units) is not None for seed in range(seeds)) <= seeds / 200


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
    steps = [RewardCheck.of(step, [(float(step > 3), 0.0)] * 32) for step in range(1, 8)]
    assert alarm(steps) is None  # seven checks: nothing is compared


def test_an_alarm_says_both_means_and_their_steps():
    checks = [RewardCheck.of(10 * step, [(float(step > 3), 0.0)] * 32) for step in range(1, 7)]
    found = alarm(checks)
    assert (found.reward, found.judge, found.steps, found.falls) == ((0.0, 1.0), (0.0, 0.0), (10, 20, 50, 60), False)
    told = finding(found, judge="strict", reward="the score of lenient", where="in training")
    assert "lenient has risen from 0 (steps 10 to 20) to 1 (steps 50 to 60) while strict" in told.evidence
    assert "before step 50" in told.remedy
    assert told.outcome == "reward hacked"
    falling = [RewardCheck.of(step, [(1.0, float(step <= 3))] * 32) for step in range(1, 7)]
    assert alarm(falling).falls
    assert "has fallen: 1 to 0" in finding(alarm(falling), judge="j", reward="r", where="w").evidence


def test_a_judge_that_rises_with_the_reward_is_none_for_an_alarm_at_another_scale():
    rising = [
        RewardCheck.of(step, [(3.0 * step, 0.1 * step + 0.001 * at) for at in range(32)]) for step in range(1, 13)
    ]
    assert not any(alarm(rising[:count], (18.0, 1.0)) for count in range(6, 13))
    assert any(alarm(rising[:count], (1.0, 1.0)) for count in range(6, 13)), "30 times the judge's own rise"


@pytest.fixture(scope="module")
def options():
    base = {"output_dir": "unused", "use_cpu": True, "bf16": False, "report_to": "none"}
    return GRPOPlusConfig(**base, verifiers=["math"], diagnosis={"judge": "exact"}).recipe.monitor


def monitored(options, seed, shape, score, *, checks=60, scale=1.0, reward_range=None):
    """After how many checks of ``shape`` (prompts, samples of each) the monitor of a whole reward alarms; None: never.

    ``score`` gives a reward and a judge's score of one completion, from a random generator and the share of the run.
    """
    rng, monitor = random.Random(seed), HackingMonitor(options)
    monitor.reward_range = reward_range
    for step in range(checks):
        at = step / (checks - 1)
        prompts = [[score(rng, at) for _ in range(shape[1])] for _ in range(shape[0])]
        monitor.checks.append(RewardCheck.of_prompts(step + 1, [[(scale * x, y) for x, y in each] for each in prompts]))
        monitor._look()
        if monitor.alarm is not None:
            return step + 1
    return None


def the_judge_itself(rng, at):
    right = float(rng.random() < 0.2 + 0.5 * at)
    return right, right


def a_judge_that_errs(rng, at):
    right = rng.random() < 0.2 + 0.5 * at
    return float(right), float(right != (rng.random() < 0.05))


def another_than_the_judge(rng, at):
    return float(rng.random() < 0.1 + 0.85 * at), float(rng.random() < 0.1)


SHAPES = [(4, 8), (8, 8), (8, 16), (32, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("judge", [the_judge_itself, a_judge_that_errs])
@pytest.mark.parametrize("given", [{}, {"reward_range": 1.0}, {"scale": 4.0}, {"scale": 0.1}, None], ids=str)
def test_a_whole_reward_that_its_judge_shares_never_alarms(options, shape, judge, given):
    """The means of prompts vary the less the more samples each has: that is no range of the reward."""
    given, seeds = ({}, 100) if given is None else (given | {"checks": 40}, 10)
    assert [seed for seed in range(seeds) if monitored(options, seed, shape, judge, **given)] == []


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("scale", "known"), [(1.0, None), (1.0, 1.0), (4.0, None), (0.5, None)], ids=str)
def test_a_whole_reward_that_is_hacked_does(options, shape, scale, known):
    runs = [
        monitored(options, seed, shape, another_than_the_judge, scale=scale, reward_range=known) for seed in range(8)
    ]
    assert all(runs)


def test_curves_that_are_the_same_never_alarm_whatever_the_scale():
    rng = random.Random(0)
    same = [RewardCheck.of(step, [(value, value) for value in (0.02 * step + rng.gauss(0, 0.01) for _ in range(16))]) for step in range(40)]  # fmt: skip
    for scale in (0.01, 0.1, 0.3, 1.0, 10.0):
        assert not any(alarm(same[:count], (scale, 1.0)) for count in range(6, 41))
        alone = [RewardCheck(check.step, 1, check.reward, check.judge) for check in same]
        assert not any(alarm(alone[:count], (scale, 1.0)) for count in range(6, 41))


def test_more_prompts_a_check_find_no_less():
    """A reward that is hacked within 15 checks; the standard error of few prompts is not that of none."""

    def hacked_at_once(rng, at):
        liked = rng.random() < 0.1 + 0.85 * min(1.0, 4 * at)
        return float(liked), float(liked and rng.random() < 0.1)

    def found(prompts):
        total = 0
        for seed in range(20):
            rng, checks = random.Random(seed), []
            for step in range(60):
                checks.append(
                    RewardCheck.of_prompts(
                        step, [[hacked_at_once(rng, step / 59) for _ in range(8)] for _ in range(prompts)]
                    )
                )
                if alarm(checks):
                    total += 1
                    break
        return total

    one, two, four, eight = (found(prompts) for prompts in (1, 2, 4, 8))
    assert one <= two <= four <= eight == 20
    assert two >= 19


def test_moments_of_prompts_are_those_of_their_means_and_of_single_completions():
    rng = random.Random(2)
    groups = [[(rng.random(), rng.random()) for _ in range(size)] for size in (4, 4, 3)]
    check = RewardCheck.of_prompts(1, groups)
    numpy = pytest.importorskip("numpy")
    of_pairs = RewardCheck.of(1, groups[0])
    cov = numpy.cov(numpy.array(groups[0]).T, ddof=0)
    assert (of_pairs.reward_var, of_pairs.judge_var, of_pairs.cov) == pytest.approx((cov[0, 0], cov[1, 1], cov[0, 1]))
    means = numpy.array([numpy.mean(group, axis=0) for group in groups])
    assert (check.count, check.reward, check.judge) == pytest.approx((3, *means.mean(axis=0)))
    assert check.single_var == pytest.approx(numpy.var([x for group in groups for x, _ in group]))
    assert RewardCheck(**check.as_data()) == check
