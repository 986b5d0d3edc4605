"""Splitting a batch differently never changes the gradient: real trainers, one process and two."""

import json
from pathlib import Path

import pytest
import torch

from grpo_plus.recipe.table import config_notes
from tests.objectives import split_runs

SHARES = ", shares"


@pytest.fixture(scope="module")
def whole(tiny_model, tmp_path_factory):
    """Gradients of a composition with all eight rows in one micro-batch, computed once."""
    kept, folder = {}, tmp_path_factory.mktemp("whole")

    def gradients(name):
        if name not in kept:
            composition = split_runs.WITH_SHARES[name.removesuffix(SHARES)]
            shares = split_runs.SHARES if name.endswith(SHARES) else None
            kept[name] = split_runs.gradients(tiny_model, folder, shares=shares, **composition)[0]
        return kept[name]

    return gradients


def assert_same(found, expected):
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        assert other.norm() > 0.1
        assert (one - other).norm() <= 1e-6 * other.norm()


@pytest.mark.sample(1, 5)
@pytest.mark.parametrize("name", split_runs.COMPOSITIONS)
def test_one_row_eight_times_is_eight_rows_once(name, whole, tiny_model, tmp_path):
    composition = split_runs.COMPOSITIONS[name]
    found, _ = split_runs.gradients(tiny_model, tmp_path, rows=1, accumulation=8, **composition)
    assert_same(found, whole(name))


@pytest.mark.sample(1, 2)
@pytest.mark.parametrize("name", ["grpo", "dapo", "target", "prompt_mean", "entropy", "TRL's grpo", "TRL's dapo"])
def test_shares_weigh_rows_alike_in_every_split(name, whole, tiny_model, tmp_path):
    settings = {"rows": 1, "accumulation": 8, "shares": split_runs.SHARES, **split_runs.WITH_SHARES[name]}
    found, _ = split_runs.gradients(tiny_model, tmp_path, **settings)
    expected = whole(name + SHARES)
    assert_same(found, expected)
    plain = whole(name)
    assert all((one - other).norm() > 0.05 * other.norm() for one, other in zip(expected, plain, strict=True))


@pytest.mark.sample(1, 2)
@pytest.mark.parametrize("name", split_runs.OWN)
def test_with_shares_the_hosts_own_loss_has_the_gradient_of_our_objective(name, whole, tiny_model, tmp_path):
    """TRL's own defaults are not always those of the paper."""
    as_host = {"cispo": {"epsilon_max": 0.2}, "luspo": {"ratio": "token"}}.get(name, {})
    own = {"objective": {"name": name, **as_host}, "advantage": None}
    ours, _ = split_runs.gradients(tiny_model, tmp_path, shares=split_runs.SHARES, **own)
    assert_same(whole(f"TRL's {name}{SHARES}"), ours)


@pytest.mark.slow
def test_the_entropy_bonus_is_a_sum_over_rows_by_their_shares(tiny_model, tmp_path):
    def numerator(shares):
        settings = split_runs.COMPOSITIONS["entropy"]
        found, trainer = split_runs.gradients(tiny_model, tmp_path, shares=shares, **settings)
        return found[0] * trainer.pipeline.hooks[-1].tokens

    some, others = (2.0, 0.5, 0.0, 1.0, 1.5, 4.0, 0.25, 1.0), (1.0, 0.0, 3.0, 0.5, 0.5, 1.0, 2.0, 0.25)
    both = tuple(one + other for one, other in zip(some, others, strict=True))
    apart = numerator(some) + numerator(others)
    assert (numerator(both) - apart).norm() <= 1e-5 * apart.norm()


OWN = {"objective": None, "beta": 0.1}
DEPEND = {
    "top_entropy_quantile": {"objective": "grpo", "top_entropy_quantile": 0.4},
}
DO_NOT = {name: {**OWN, "loss_type": name} for name in split_runs.OWN}


@pytest.mark.sample(2, 3)
@pytest.mark.parametrize("case", [*DEPEND, *DO_NOT])
def test_the_gradient_depends_on_the_split_just_where_a_note_says_so(case, tiny_model, tmp_path):
    settings = (DEPEND | DO_NOT)[case]
    whole, trainer = split_runs.gradients(tiny_model, tmp_path, **settings)
    split, _ = split_runs.gradients(tiny_model, tmp_path, rows=1, accumulation=8, **settings)
    off = max(float((one - other).norm() / other.norm()) for one, other in zip(split, whole, strict=True))
    noted = any("how a batch is split" in note for note in config_notes(trainer.args))
    assert noted == (case in DEPEND)
    assert off > 1e-3 if noted else off < 1e-6


@pytest.mark.slow
@pytest.mark.cpu
def test_two_ranks_with_four_rows_each_are_one_with_eight_and_stop_together(whole, tiny_model, tmp_path, two_ranks):
    script = Path(split_runs.__file__)
    with two_ranks(script, tiny_model, tmp_path, log=tmp_path / "log", cwd=tmp_path):
        pass
    found = torch.load(tmp_path / "gradients.pt")
    assert len(found) == len(split_runs.IN_TWO_RANKS) + len(split_runs.SHARED_IN_TWO_RANKS)
    for name, seen in found.items():
        assert_same(seen, whole(name))
    first, second = (json.loads((tmp_path / f"stopped_{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["skipped"][0] is False
    assert first["skipped"][-1] is True
    assert first["rate"] == pytest.approx(1e-2 * first["skipped"].count(True) / len(first["skipped"]))
