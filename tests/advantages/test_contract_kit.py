import sys
import textwrap
from dataclasses import replace
from functools import partial

import pytest
import torch

from grpo_plus.advantages import Estimator, advantages, get_advantage
from grpo_plus.testing import check_advantage, parametrize_with_checks
from grpo_plus.testing.advantages import KIT
from tests import started

ALL = [name for name in advantages if name != "mix"]
ALL += [("zscore", {"scale": "batch"}), ("zscore", {"ddof": 0, "eps": 0.0}), ("sign", {"band": 0.5})]
ALL += [("process", given) for given in ({"credit": "return"}, {"credit": "turn"}, {"outcome_weight": 0.5})]
ALL += [("process", {"credit": "return", "gamma": 0.5}), ("gigpo", {"gamma": 1.0, "scale": "none"})]
ALL += [("process", {"credit": "turn", "gamma": 0.5, "outcome_weight": 0.5})]
ALL += [("mix", {"parts": {"sign": 1.0, "zscore": -0.5}})]
ALL += [("mix", {"parts": {"sign": 1.0, "process": 0.5}, "process": {"credit": "return"}})]


@pytest.mark.sample(31)
@parametrize_with_checks(
    ALL,
    expected_failures={
        "zscore(scale='batch')": {"no_leak_between_groups": "one standard deviation for the whole batch, by choice"},
        "batch_whiten": {"no_leak_between_groups": "the mean over the tokens of the batch, as in its paper"},
    },
)
def test_built_ins_keep_the_contract(check):
    check()


def mutating(table):
    table.rewards.mul_(2)
    return table.totals()


def own_rule_over_std(table):
    """Eight rewards of .7 have a mean that is not .7, and a deviation of 1e-8 that is divided by itself."""
    out = table.totals().clone()
    for group in table.groups.unique():
        mine = table.groups == group
        values = table.totals()[mine]
        out[mine] = (values - values.mean()) / (values.std(correction=0) + 1e-9)
    return out.nan_to_num()


def own_rule_alone(table):
    """A leave-one-out baseline of nobody: the reward itself."""
    out = table.totals().clone()
    for group in table.groups.unique():
        mine = (table.groups == group) & table.scorable()
        values = table.totals()[mine]
        others = max(1, len(values) - 1)
        if values.max() - values.min() > 1e-6 or len(values) == 1:
            out[mine] = values - (values.sum() - values) / others
        else:
            out[mine] = 0.0
    return out


def by_reshape(table):
    blocks = table.totals().reshape(-1, 4)
    return (blocks - blocks.nanmean(dim=1, keepdim=True)).flatten()


def none_is_zero(table):
    """An unscorable completion pulls the baseline down as if it had scored 0."""
    totals = table.totals().nan_to_num()
    sums = torch.zeros(1000).to(totals).index_add(0, table.groups, totals)
    return totals - (sums / table.groups.bincount(minlength=1000).clamp(min=1))[table.groups]


def centred(table, totals):
    totals = totals.masked_fill(~table.scorable(), torch.nan)
    alone = replace(table, rewards=totals[:, None], weights=torch.ones(1).to(totals), names=("total",))
    return get_advantage("center").fn(alone)


def weighing(change, table):
    """Other weights in the place of the table's."""
    return centred(table, (table.rewards.nan_to_num(0) * change(table.weights)).sum(dim=1))


WEIGHINGS = {
    "the first weight is forgotten": lambda weights: weights.index_fill(0, torch.tensor(0), 1.0),
    "the second weight is forgotten": lambda weights: weights.index_fill(0, torch.tensor(1), 1.0),
    "weights are squared": torch.square,
    "only the size of weights counts": torch.abs,
    "the heaviest alone": lambda weights: torch.eye(len(weights))[weights.argmax()].to(weights),
}


def alone(column, table):
    return centred(table, table.rewards.nan_to_num(0)[:, column] * table.weights[column])


def nan_counts(table):
    return table.steps.scores.nan_to_num() - table.steps.scores.nan_to_num().mean()


def wrong_below_zero(table):
    out = get_advantage("zscore").fn(table)
    return torch.where(table.totals() < 0, -out, out)


BROKEN = [
    ("better_is_never_worse", Estimator("b", lambda t: -get_advantage("zscore").fn(t))),
    ("better_is_never_worse", Estimator("b", lambda t: get_advantage("center").fn(t).square())),
    ("better_is_never_worse", Estimator("b", lambda t: -get_advantage("process").fn(t), per="step")),
    ("weight_zero_is_absent", Estimator("b", lambda t: t.rewards.nan_to_num(0).sum(dim=1))),
    ("weight_zero_is_absent", Estimator("b", lambda t: t.rewards.nanmean(dim=1).nan_to_num())),
    ("weights_count", Estimator("b", lambda t: t.rewards.nan_to_num(0).sum(dim=1))),
    ("weights_count", Estimator("b", lambda t: t.rewards.nanmean(dim=1).nan_to_num())),
    ("weights_count", Estimator("b", lambda t: (t.rewards.nan_to_num(0) * (t.weights != 0)).sum(dim=1))),
    ("weights_count", Estimator("b", partial(alone, 0))),
    ("weights_count", Estimator("b", partial(alone, -1))),
    ("weights_count", Estimator("b", lambda t: centred(t, t.totals().nan_to_num().abs()))),
    ("weights_count", Estimator("b", wrong_below_zero)),
    *(("weights_have_a_sign", Estimator("b", partial(weighing, change))) for change in WEIGHINGS.values()),
    ("shape_and_dtype", Estimator("b", lambda t: t.rewards)),
    ("float64", Estimator("b", lambda t: t.totals().float())),
    ("leaves_table_alone", Estimator("b", mutating)),
    ("constant_group_is_zero", Estimator("b", own_rule_over_std, own_zero_rule=True)),
    ("group_of_one_is_zero", Estimator("b", own_rule_alone, own_zero_rule=True)),
    ("groups_by_id", Estimator("b", lambda t: t.totals() * torch.arange(1, 1 + len(t.totals())))),
    ("groups_by_id", Estimator("b", by_reshape)),
    ("no_leak_between_groups", Estimator("b", lambda t: t.totals() - t.totals().nanmean())),
    ("no_leak_between_groups", Estimator("b", lambda t: t.totals() - t.totals().nanmean(), scope="batch")),
    ("unscorable_is_zero_and_absent", Estimator("b", none_is_zero)),
    ("unscorable_is_zero_and_absent", Estimator("b", nan_counts, per="step")),
    ("partial_nan_is_finite", Estimator("b", lambda t: (t.rewards * t.weights).sum(dim=1))),
    ("deterministic", Estimator("b", lambda t: t.totals() + torch.rand(len(t.groups)))),
    ("pickles", Estimator("b", lambda t: t.totals())),
    ("unknown_keyword_raises", Estimator("b", lambda t, **anything: t.totals())),
]


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "estimator"), BROKEN)
def test_every_check_catches_its_bug(name, estimator):
    (check,) = [check for check in KIT.checks if check.name == name]
    subject = KIT.resolve(estimator)
    assert check.applies(subject)
    with pytest.raises(AssertionError):
        check.run(subject)
    with pytest.raises(AssertionError, match=f"(?s)b breaks.*{name}: "):
        check_advantage(estimator)


def test_a_correct_function_passes_with_its_keywords():
    check_advantage(half_of_center, factor=0.25)
    with pytest.raises(TypeError, match="'facto'"):
        check_advantage(half_of_center, facto=0.25)


def from_nowhere(table):
    """A baseline for comparisons: no reward is looked at."""
    return (table.lengths % 3 - 1).to(table.rewards)


def per_token_of_length(table, *, factor: float = 0.5):
    """Short completions count more, and R may be anything."""
    rewards = (table.rewards.nan_to_num(0) * table.weights).sum(dim=1)
    return factor * rewards / table.lengths.clamp(min=1)


def softmax(table, *, heat: float = 1.0):
    """The group's softmax less its mean: bounded, never linear."""
    out = torch.zeros_like(table.totals())
    for group in table.groups.unique():
        mine = (table.groups == group) & table.scorable()
        if mine.any():
            share = (table.totals()[mine] / heat).softmax(dim=0)
            out[mine] = share - share.mean()
    return out


def mean_of_rewards(table):
    """A constant factor beside the sum."""
    return centred(table, (table.rewards.nan_to_num(0) * table.weights).mean(dim=1))


def share_of_weights(table):
    rewards = table.rewards.nan_to_num(0) * table.weights
    return centred(table, rewards.sum(dim=1) / table.weights.abs().sum())


def places(table):
    """How many of its group a completion beats, less by how many it is beaten."""
    totals = table.totals()
    rivals = (table.groups[:, None] == table.groups) & table.scorable() & table.scorable()[:, None]
    return ((totals[:, None] - totals).sign() * rivals).nan_to_num().sum(dim=1)


FREE = [Estimator(fn.__name__, fn, group_relative=False) for fn in (from_nowhere, per_token_of_length)]
CALLED = [
    "best_of_n", "raw", ("mix", {"parts": {"best_of_n": 1.0, "opo": 0.0}}), ("passk", {"k": 1}), ("passk", {"k": 9}),
]  # fmt: skip


@pytest.mark.sample(20)
@parametrize_with_checks([mean_of_rewards, share_of_weights, places, *FREE, softmax, *CALLED])
def test_what_is_unusual_but_right_is_not_refused(check):
    check()


def half_of_center(table, *, factor: float = 0.5):
    return factor * get_advantage("center").fn(table)


@pytest.mark.slow
def test_expected_failures_are_strict_and_checked(tmp_path):
    file = tmp_path / "test_third_party.py"
    file.write_text(
        textwrap.dedent("""
        from grpo_plus.testing import parametrize_with_checks

        @parametrize_with_checks(
            [("zscore", {"scale": "batch"}), "center"], expected_failures={
            "zscore(scale='batch')": {"no_leak_between_groups": "by choice"}, "center": {"deterministic": "not true"}},
        )
        def test_contract(check):
            check()
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    done = started.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False)
    assert "FAILED test_third_party.py::test_contract[center-deterministic]" in done.stdout
    assert "[XPASS(strict)]" in done.stdout
    assert "1 failed, 30 passed, 1 xfailed" in done.stdout


@pytest.mark.parametrize(("keywords", "message"), [
    ({"expected_failures": {"centre": {}}}, "Did you mean 'center'"),
    ({"expected_failures": {"center": {"determinstic": "x"}}}, "Did you mean 'deterministic'"),
    ({"kind": "advantages"}, "Did you mean 'advantage'"),
])  # fmt: skip
def test_a_misspelt_expectation_or_kind_is_an_error(keywords, message):
    with pytest.raises(ValueError, match=message):
        parametrize_with_checks(["center"], **keywords)


def test_parts_of_the_same_name_are_all_tested():
    def twins():
        for factor in (1.0, 2.0):
            yield Estimator("twin", partial(half_of_center, factor=factor))

    mark = parametrize_with_checks(twins())
    assert len({id(case.values[0].args[0].part) for case in mark.args[1]}) == 2
