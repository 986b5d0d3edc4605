"""Third-party parts from a package that pip really installed, in a run that really launches."""

import os

import pytest

from grpo_plus.advantages import RewardTable, compute_advantages
from tests.cli.commands import install

pytestmark = pytest.mark.slow

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "third-party-parts"
version = "2.5"

[project.entry-points."grpo_plus.advantages"]
third_party = "third_party_parts:third_party"

[project.entry-points."grpo_plus.objectives"]
third_party_loss = "third_party_parts:third_party_loss"

[project.entry-points."grpo_plus.verifiers"]
third_party_check = "third_party_parts:third_party_check"
"""

MODULE = '''
def third_party(table, *, gain: float = 1.0):
    """gain · (R − mean of the batch)."""
    totals = table.totals().nan_to_num()
    return gain * (totals - totals.mean())


def third_party_loss(batch):
    return batch.logps


def third_party_check(completion: str) -> float:
    return len(set(completion)) / 8
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    source = tmp_path_factory.mktemp("source")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "third_party_parts.py").write_text(MODULE)
    return install(source, tmp_path_factory.mktemp("site"))


def test_its_parts_are_found_by_name(site, monkeypatch, cli, config):
    monkeypatch.syspath_prepend(str(site))
    assert compute_advantages("third_party", RewardTable.of([1.0, 0.0]), gain=2.0).tolist() == [1.0, -1.0]
    out = cli.done("plugins")
    assert out.count("(third-party-parts 2.5)") == 3
    for name in ("third_party", "third_party_loss", "third_party_check"):
        (line,) = [line for line in out.splitlines() if f" {name} " in line]
        assert "entry point" in line
    err = cli.refused("check", "--only=config", config(advantage={"name": "third_party", "gian": 2.0}))
    assert "Did you mean 'gain'?" in err


def test_it_trains_on_two_ranks(site, config, folder, ranked):
    checks = [{"name": "third_party_check"}]
    path = config(advantage="third_party", reward_funcs=None, verifiers=checks, per_device_train_batch_size=2)
    path_first = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    codes, text = ranked("train", path, environment={"PYTHONPATH": path_first})
    assert codes == [0, 0], text[-3000:]
    assert text.count("The model is in") == 1
    assert text.count("'rewards/third_party_check/mean'") == 2
    assert (folder / "out" / "model.safetensors").exists()
