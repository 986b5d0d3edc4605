"""Third-party parts from a package that pip really installed, in a run that really launches."""

import os
import subprocess
import sys

import pytest

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
    """A folder that the package is installed in."""
    source = tmp_path_factory.mktemp("source")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "third_party_parts.py").write_text(MODULE)
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--no-index", "--target", str(target), str(source)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


def test_its_parts_are_found_by_name(site, monkeypatch, cli, config):
    monkeypatch.syspath_prepend(str(site))
    from grpo_plus.advantages import RewardTable, compute_advantages

    assert compute_advantages("third_party", RewardTable.of([1.0, 0.0]), gain=2.0).tolist() == [1.0, -1.0]
    code, out, err = cli("plugins")
    assert code == 0, err
    assert out.count("(third-party-parts 2.5)") == 3
    for name in ("third_party", "third_party_loss", "third_party_check"):
        (line,) = [line for line in out.splitlines() if f" {name} " in line]
        assert "entry point" in line
    code, _, err = cli("explain", config(advantage="third_party", advantage_kwargs={"gian": 2.0}))
    assert code == 2
    assert "Did you mean 'gain'?" in err


def test_it_trains_on_two_launched_ranks(site, config, folder, beside, port):
    """Launch arguments in the YAML, a part from the package, a verifier from it: the command starts the ranks itself."""
    path = config(
        advantage="third_party",
        reward_funcs=None,
        verifiers=[{"name": "third_party_check"}],
        per_device_train_batch_size=2,
        num_processes=2,
        main_process_port=port(),
    )
    path_first = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "grpo_plus.cli", "train", path]
    with beside(command, folder / "log", environment={"PYTHONPATH": path_first}):
        pass
    text = (folder / "log").read_text()
    assert text.count("The model is in") == 1
    assert text.count("'rewards/third_party_check/mean'") == 2
    assert (folder / "out" / "model.safetensors").exists()
