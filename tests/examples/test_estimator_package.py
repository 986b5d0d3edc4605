"""The example of an estimator in a package of its own: installed by pip, its own tests, two steps by its name."""

import shutil
import sys

import pytest

from grpo_plus.cli import main
from grpo_plus.record import open_run
from tests import started
from tests.cli.commands import install

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(examples, tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "estimator_package"
    shutil.copytree(examples / "estimator_package", source, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    target = install(source, tmp_path_factory.mktemp("site"))
    assert sorted(path.name for path in target.iterdir() if path.suffix == ".py") == ["grpo_quantile.py"]
    return target


def test_its_own_tests_pass(site, examples, tmp_path, clean_environment):
    folder = tmp_path / "estimator_package"
    (folder / "tests").mkdir(parents=True)
    shutil.copy(examples / "estimator_package" / "tests" / "test_quantile.py", folder / "tests")
    path = f"{site}:{clean_environment.get('PYTHONPATH', '')}".rstrip(":")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "estimator_package"]
    done = started.run(
        command, cwd=tmp_path, env=clean_environment | {"PYTHONPATH": path},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
    assert "xfailed" not in done.stdout


def test_it_trains_by_the_name_of_its_entry_point(site, examples, place, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    flags = ["--model_name_or_path", place.model, "--dataset_name", str(place.data), "--output_dir", str(place.out)]
    flags += ["--per_device_train_batch_size", "16", "--max_completion_length", "12", "--logging_steps", "1"]
    flags += ["--advantage.at", "0.75", "--gradient_accumulation_steps", "1", "--max_steps", "2"]
    assert main(["train", str(examples / "estimator_package" / "train.yaml"), *flags]) == 0
    run = open_run(place.out)
    assert len(run.series("advantages/abs_mean")[0]) == 2
    chosen = run.info["parts"]["advantage"]
    assert (chosen["name"], chosen["keywords"]) == ("quantile", {"at": 0.75})
