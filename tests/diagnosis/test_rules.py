"""Every rule finds what it is for in series that show it, says so with figures and remedy, and nothing in sound ones."""

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_plus.diagnosis import RULES, Curves, Finding, diagnose
from grpo_plus.diagnosis.facts import facts_of
from grpo_plus.diagnosis.reading import rising
from grpo_plus.diagnosis.trend import change
from grpo_plus.diagnosis.watch import FindingTracker

MATH = {"label": "math", "settings": {"name": "math", "required_columns": {"answer": "answer"}}}
FORM = {"label": "form", "settings": {"name": "think_format"}}


def curves(steps=30, facts=(), **metrics):
    """Series by name, ``__`` for the slash: a number, or a function of the step."""
    series = {}
    for name, value in metrics.items():
        at = range(1, steps + 1)
        series[name.replace("__", "/")] = list(at), [value(step) if callable(value) else value for step in at]
    return Curves(series, dict(facts))


def status(label="math", **shares):
    return {f"verifiers__{label}__status__{name}": share for name, share in shares.items()}


DEAD = {"advantages__dead_group_fraction": 1.0, "reward_std": 0.0}
FLAT = {"reward": 0.3, "reward_std": 0.4, "advantages__dead_group_fraction": 0.1}
LORA = {"lora": True, "learning_rate": 1e-6}
OF_MATH = facts_of({"max_completion_length": 48, "num_generations": 8}, verifiers=[MATH, FORM])

SITUATIONS = {
    "all zero": ("dead_groups", DEAD | {"reward": 0.0}, {"num_generations": 8}, "severe", ["100%", "reward 0", "num_generations"]),
    "all zero and cut off": (
        "dead_groups", DEAD | {"reward": 0.0, "completions__clipped_ratio": 0.28}, OF_MATH, "severe",
        ["28% of the completions are cut off", "max_completion_length (now 48) to 96"],
    ),
    "all zero and unparsable": (
        "dead_groups", DEAD | {"reward": 0.0} | status(correct=0.0, unparsable=1.0), OF_MATH, "severe",
        ["math can read no answer in 100%", "prompt does not state the expected format", "template: boxed"],
    ),
    "all one from the start": ("dead_groups", DEAD | {"reward": 1.0}, {}, "severe", ["highest reward, from the start", "stricter verifier"]),
    "all equal otherwise": ("dead_groups", DEAD | {"reward": 0.4}, {}, "severe", ["all get the same reward (0.40", "finer steps"]),
    "most": ("dead_groups", {"frac_reward_zero_std": 0.6, "reward": 0.2, "reward_std": 0.2}, {}, "warning", ["60% of the groups"]),
    "solved": (
        "solved", {"advantages__dead_group_fraction": lambda step: step / 30, "reward": lambda step: step / 30}
        | status(correct=lambda step: min(1.0, step / 20)), OF_MATH, "note", ["nearly every completion is right", "stop_on: solved"],
    ),
    "cut off": ("truncated", {"completions__clipped_ratio": 0.4}, {"max_completion_length": 64}, "warning", ["40%", "(64) is too short", "to 128"]),
    "never ends": ("truncated", {"completions__clipped_ratio": 1.0, "completions__mean_terminated_length": 0.0}, {}, "severe", ["no completion ends by itself", "eos_token_id"]),
    "longer for nothing": ("length_growth", FLAT | {"completions__mean_length": lambda step: 100 + 10 * step}, {}, "warning", ["while the reward has not risen", "dr_grpo"]),
    "entropy falls": ("entropy_collapse", FLAT | {"entropy": lambda step: 0.5 if step < 8 else 0.01}, {}, "warning", ["from 0.5 to 0.01", "temperature: 1.0"]),
    "entropy rises": ("entropy_rise", FLAT | {"entropy": lambda step: 0.3 + step / 10}, {"learning_rate": 1e-4}, "warning", ["risen from 0.6", "2e-05 instead of 0.0001"]),
    "kl": ("kl_explodes", {"kl": lambda step: step / 10}, {"beta": 0.04}, "warning", ["2.8 nats", "0.2 instead of 0.04"]),
    "no gradient": ("no_gradient", {"grad_norm": 0.0, "loss": 0.0, "frac_reward_zero_std": 0.1}, {}, "severe", ["exactly 0", "use_peft"]),
    "no gradient, all cut off": ("no_gradient", {"grad_norm": 0.0, "loss": 0.0, "completions__clipped_ratio": 1.0}, {"mask_truncated_completions": True}, "severe", ["mask_truncated_completions leaves"]),
    "no gradient, rewards of 0 without groups": (
        "no_gradient", DEAD | {"grad_norm": 0.0, "loss": 0.0, "reward": 0.0}, {"grouped": False}, "severe", ["as every reward is"],
    ),
    "stuck after a rise": ("dead_groups", DEAD | {"reward": lambda step: min(0.6, step / 20)}, {}, "severe", ["has risen from", "contrast"]),
    "nan": ("nan", {"grad_norm": lambda step: math.nan if step > 25 else 1.0}, {}, "severe", ["grad_norm is not finite", "bf16"]),
    "infinite": ("nan", {"loss": math.inf, "grad_norm": math.nan}, {}, "severe", ["loss and grad_norm are not finite"]),
    "nan for good in fp16": (
        "nan", {"grad_norm": lambda step: math.inf if step > 27 else 1.0, "loss": 0.1}, {"fp16": True}, "severe", ["3 entries of the log in a row", "skips every step"],
    ),
    "nan once without a scaler": ("nan", {"grad_norm": lambda step: math.inf if step == 30 else 1.0}, {"fp16": False}, "severe", ["grad_norm is not finite"]),
    "nan of a reward": ("nan", {"reward": math.nan}, {}, "severe", ["a reward function gives NaN"]),
    "clipped": ("ratio_clipped", {"clip_ratio__region_mean": 0.4}, {"num_iterations": 4}, "warning", ["40% of the trained tokens", "(now 4)"]),
    "clipped by TRL": ("ratio_clipped", {"clip_ratio__low_mean": 0.2, "clip_ratio__high_mean": 0.1}, {}, "warning", ["30% of"]),
    "ratio": ("ratio_off", {"sampling__importance_sampling_ratio__mean": 0.5}, {}, "warning", ["0.50 instead of 1", "vllm_sync"]),
    "drift": ("ratio_off", {"rollout__logp_drift": 0.4}, {}, "warning", ["0.40 nats"]),
    "errors": ("verifier_errors", status(correct=0.5, error=0.1, timeout=0.0), OF_MATH, "warning", ["math fails on 10%", "repair it"]),
    "timeouts": ("verifier_errors", status(correct=0.2, error=0.0, timeout=0.8), OF_MATH, "severe", ["80% too late", "longer timeout of math"]),
    "unparsable": ("verifier_unparsable", status(correct=0.1, unparsable=0.9), OF_MATH, "warning", ["90%", "does not state the expected format"]),
    "idle": ("verifier_idle", status(correct=0.0, not_applicable=1.0), OF_MATH | {"verifier_column": "kind"}, "warning", ["math returned None for all", "'kind'"]),
    "flat": (
        "reward_flat", {"reward": lambda step: 0.4 + 0.01 * (-1) ** step, "reward_std": 0.5, "frac_reward_zero_std": 0.2}, {"learning_rate": 1e-6}, "warning",
        ["ruled out", "5e-06 instead of 1e-06"],
    ),
    "form without answers": (
        "format_saturated", status(correct=0.1) | status("form", correct=1.0) | {"rewards__form__mean": 1.0}, OF_MATH, "warning",
        ["form is at 1.00 while math finds 10%", "gdpo"],
    ),
    "slow adapter": ("learning_rate_low", FLAT, LORA, "warning", ["1e-06 with LoRA", "learning_rate: 1e-4"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SITUATIONS)
def test_a_situation_is_found_with_figures_and_remedy(case):
    name, metrics, facts, severity, words = SITUATIONS[case]
    steps = 45 if name == "reward_flat" else 30
    found = {one.name: one for one in diagnose(curves(steps, facts, **metrics))}
    assert name in found, found
    one = found[name]
    assert one.severity == severity
    for word in words:
        assert word.lower() in one.text.lower()
    assert one.text.endswith(".")
    assert ".." not in one.text
    if name != "nan":
        assert one.values.keys()
        assert all(math.isfinite(value) for value in one.values.values())
        assert 1 <= one.steps[0] <= one.steps[-1] <= steps


def test_where_nothing_has_a_reward_only_the_idle_verifier_is_at_fault():
    still = {"loss": 0.0, "grad_norm": 0.0, "frac_reward_zero_std": 0.0} | status(correct=0.0, not_applicable=1.0)
    assert [one.name for one in diagnose(curves(30, {}, **still))] == ["verifier_idle"]
    assert "no_gradient" in [one.name for one in diagnose(curves(30, {}, **still, reward=0.5))]


@pytest.mark.parametrize("facts", [{"fp16": True}, {}], ids=["fp16", "unknown"])
@pytest.mark.parametrize("lost", [math.inf, math.nan])
def test_steps_that_a_loss_scaler_skips_are_sound(facts, lost):
    skipped = {"grad_norm": lambda step: lost if step in (1, 2, 20, 22, 23) else 1.0, "loss": 0.1, "reward": 0.3}
    for step in range(1, 31):
        assert "nan" not in [one.name for one in diagnose(Curves(curves(30, facts, **skipped).series, facts, step))]
    for name in ("loss", "reward"):
        once = skipped | {name: lambda step: math.nan if step == 30 else 0.1}
        assert [one.name for one in diagnose(curves(30, facts, **once))] == ["nan"]


def grave(share, groups, seed, values=50):
    """Whether a run whose groups are dead with this chance is ever called severe."""
    rng = random.Random(seed)
    dead = [sum(rng.random() < share for _ in range(groups)) / groups for _ in range(values)]
    of_run = facts_of({"num_generations": 8, "generation_batch_size": 8 * groups, "logging_steps": 1})
    for facts in (of_run, {}) if groups == 1 else (of_run,):
        series = curves(values, facts, frac_reward_zero_std=lambda step: dead[step - 1], reward=0.4).series
        for step in range(1, values + 1):
            found = {one.name: one for one in diagnose(Curves(series, facts, step))}
            if "dead_groups" in found and found["dead_groups"].severity == "severe":
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2, 4, 16])
@pytest.mark.parametrize("share", [0.2, 0.4])
def test_a_few_groups_that_are_dead_by_chance_are_not_severe(share, groups):
    assert sum(grave(share, groups, seed) for seed in range(40)) == 0


@pytest.mark.parametrize("groups", [1, 2, 4, 16])
def test_groups_that_are_all_dead_are_severe_after_ten_of_them(groups):
    assert grave(1.0, groups, 0)
    facts = facts_of({"num_generations": 8, "generation_batch_size": 8 * groups, "logging_steps": 1})
    severe = [
        step for step in range(1, 31)
        if [one.severity for one in diagnose(Curves(curves(30, facts, **DEAD, reward=0.0).series, facts, step)) if one.name == "dead_groups"] == ["severe"]
    ]  # fmt: skip
    assert severe[0] == max(3, math.ceil(10 / groups))


def test_groups_of_a_value_are_counted():
    base = {"num_generations": 8, "generation_batch_size": 64}
    for settings, groups in (
        ({}, 8),
        ({"logging_steps": 10}, 80),
        ({"logging_steps": 10, "num_iterations": 4, "steps_per_generation": 1}, 16),
        ({"logging_steps": 1, "num_iterations": 4, "steps_per_generation": 1}, 8),
        ({"logging_steps": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 4}, 16),
        ({"generation_batch_size": None}, None),
    ):
        assert facts_of(base | settings)["groups"] == groups, settings


def test_a_finding_that_grows_graver_is_told_again_and_only_then():
    watch = FindingTracker()
    warning, severe = (Finding("dead_groups", level, "told", "a cause", "a remedy") for level in ("warning", "severe"))
    told, new = [], []
    for step, found in enumerate([warning, warning, severe, severe, warning, severe], 1):
        fresh, _gone = watch.update(step, [found])
        told.append([one.severity for one in fresh])
        new.append([watch.is_new(one) for one in fresh])
        again = FindingTracker()
        again.load_state_dict(json.loads(json.dumps(watch.state_dict())))
        assert again == watch
        watch = again  # resumed
    assert told == [["warning"], [], ["severe"], [], [], []]
    assert new == [[True], [], [True], [], [], []]
    assert watch.current["dead_groups"].since == 1


def test_every_rule_has_a_situation():
    assert {case[0] for case in SITUATIONS.values()} == RULES.keys() - {"hacking"}  # which the monitor raises


def sound(rng, steps, rise):
    """What a run logs that learns (``rise``), or that has nothing wrong but learns nothing yet."""
    found = {}
    for step in range(1, steps + 1):
        share = 0.3 + rise * (1 - math.exp(-4 * step / steps)) + rng.gauss(0, 0.03)
        share = min(0.95, max(0.05, share))
        values = {
            "reward": share, "reward_std": math.sqrt(share * (1 - share)), "loss": rng.gauss(0, 0.01), "grad_norm": math.exp(rng.gauss(0, 0.5)),
            "entropy": 0.5 - 0.3 * rise * step / steps + rng.gauss(0, 0.01), "kl": 0.1 * step / steps, "completions/clipped_ratio": abs(rng.gauss(0, 0.03)),
            "completions/mean_length": 80 + rng.gauss(0, 5) + 60 * rise * step / steps, "completions/mean_terminated_length": 70.0,
            "advantages/dead_group_fraction": min(0.45, max(0.0, rng.gauss(0.25, 0.08))),
            "clip_ratio/region_mean": abs(rng.gauss(0.01, 0.01)), "verifiers/math/status/correct": share, "verifiers/math/status/unparsable": 0.1,
            "verifiers/math/status/error": 0.0, "verifiers/math/status/timeout": 0.0, "verifiers/math/status/not_applicable": 0.0,
            "rewards/form/mean": 0.9,
        }  # fmt: skip
        for name, value in values.items():
            found.setdefault(name, ([], []))[0].append(step)
            found[name][1].append(value)
    return found


def test_a_reward_rises_over_the_run_or_over_its_second_half():
    for rises, shape in ((1, lambda at: at), (0, lambda at: -at), (1, lambda at: abs(at - 20)), (0, lambda at: at % 2)):
        assert rising(curves(40, reward=shape)) == rises


@pytest.mark.slow
@pytest.mark.parametrize("rise", [0.0, 0.5], ids=["flat", "honest"])
def test_sound_runs_give_nothing_at_any_step(rise):
    facts = OF_MATH | {"reward_scale": 1.0, "lora": True, "learning_rate": 1e-4}
    for seed in range(12):
        series = sound(random.Random(seed), 60, rise)
        for step in range(1, 61):
            found = [one.name for one in diagnose(Curves(series, facts, step))]
            allowed = {"reward_flat"} if rise == 0 else set()  # which is what it is, and said of no shorter run
            assert set(found) <= allowed, (seed, step)


def succeeding(rng, steps, groups, size, *, iterations=1, warmup=0, grouped=True):
    """A run whose prompts are learned one after the other, to 94%; gradients come from groups with contrast alone."""
    found = {}
    for step in range(1, steps + 1):
        fresh, done = (step - 1) % iterations == 0, 0.51 + 0.43 * min(1, max(0, 1.5 * (step - warmup) / steps))
        if fresh:
            right = [
                [rng.random() < (0.98 if rng.random() < 2 * done - 1 else 0.5) for _ in range(size)]
                for _ in range(groups)
            ]
            dead = sum(len(set(one)) == 1 for one in right) / groups if grouped else 0.0
            share = sum(map(sum, right)) / groups / size
            drawn = {"reward": share, "reward_std": 0.4, "frac_reward_zero_std": dead if size > 1 else 1.0}
        rests = step <= warmup or (step - 1) % iterations > 2
        values = {
            "loss": 0.0,
            "grad_norm": 0.0 if rests or dead == 1 else 1.0,
            "entropy": 0.4,
        }
        values |= drawn if fresh else {}
        values |= {"critic/warmup": float(step <= warmup)} if warmup else {}
        values |= {"inner/skipped": 1.0} if rests and step > warmup else {}
        for name, value in values.items():
            found.setdefault(name, ([], []))[0].append(step)
            found[name][1].append(value)
    return found


@pytest.mark.parametrize(("groups", "size", "phases"), [
    (1, 8, {}), (4, 8, {}), (16, 16, {}), (1, 4, {"iterations": 2}), (2, 8, {"iterations": 20}), (8, 1, {"warmup": 50, "grouped": False}),
    (2, 4, {"warmup": 30, "iterations": 8, "grouped": False}), (32, 1, {"grouped": False}),
])  # fmt: skip
def test_no_run_that_learns_is_alarmed_in_any_phase(groups, size, phases):
    facts = facts_of(
        {"num_generations": size, "generation_batch_size": groups * size},
        grouped=phases.get("grouped", True),
        lora=True,
    )
    for seed in range(4):
        series = succeeding(random.Random(seed), 120, groups, size, **phases)
        for step in range(1, 121, 3):
            found = [one.name for one in diagnose(Curves(series, facts, step)) if one.severity != "note"]
            assert not found, (seed, step)


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([0.0, 1.0, -1.0, math.nan, math.inf, 1e150, 1e-300, 0.5]),
    st.sampled_from([None, True, "x", 10**400, 3]),
)
NAMES = sorted({metric for rule in RULES.values() for metric in rule.metrics} | {"reward_std", "critic/warmup"})
KEYS = [name.replace("LABEL", "math").replace("NAME", "form").replace("STATUS", "correct") for name in NAMES]
FACTS = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": NUMBERS, "beta": NUMBERS, "max_completion_length": NUMBERS, "num_generations": NUMBERS, "lora": st.booleans(),
        "reward_scale": NUMBERS,
        "verifiers": st.sampled_from([{}, {"math": "math", "form": "think_format"}, None]), "mask_truncated_completions": st.booleans(),
    },
)  # fmt: skip


ALIKE = st.tuples(NUMBERS, st.integers(0, 60)).map(lambda pair: [pair[0]] * pair[1])
VALUES = st.one_of(st.lists(NUMBERS, max_size=25), ALIKE)


@pytest.mark.slow
@given(data=st.data())
def test_no_rule_raises_whatever_is_logged(data):
    names = data.draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=14))
    series = {}
    for name in names:
        values = data.draw(VALUES)
        series[name] = list(range(1, len(values) + 1)), values
    for one in diagnose(Curves(series, data.draw(FACTS), data.draw(st.sampled_from([math.inf, 0, 5, 20])))):
        assert one.text
        assert one.as_data()["name"] in RULES


def test_a_change_is_called_sure_as_often_as_its_confidence_says():
    rng = random.Random(0)
    found = {0.0: 0, 0.8: 0}
    for alike in found:
        for _ in range(1000):
            value, values = 0.0, []
            for _ in range(90):
                value = alike * value + rng.gauss(0, 1)
                values.append(value)
            found[alike] += change(values).rises
    assert found[0.0] <= 15  # 0.5% of 1000, and its spread
    assert found[0.8] <= 50  # of a strongly autocorrelated series some more
    assert change([0.1 * step + rng.gauss(0, 1) for step in range(90)]).rises
