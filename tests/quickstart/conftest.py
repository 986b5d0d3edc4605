from pathlib import Path

import pytest

from benchmarks.small_model import warm_start
from grpo_plus.cli import quickstart

YAML = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
REDUCED = {
    "max_steps": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 4,
    "logging_steps": 1, "disable_tqdm": "true", "measure": '{"split": "test", "n": 2, "limit": 6}',
}  # fmt: skip


VARIED = """
from grpo_verifiers import verifier

@verifier("quickstart_test_share", isolation="inline")
def share(completion: str) -> float:
    return sum(c.isdigit() for c in completion) / max(1, len(completion))
"""


def flags(**changes):
    words = []
    for key, value in (REDUCED | changes).items():
        words += [f"--{key}", *(value if isinstance(value, list) else [str(value)])]
    return words


@pytest.fixture
def varied(tmp_path):
    """Options for a second verifier that a model without any training gives it contrast with."""
    (tmp_path / "varied.py").write_text(VARIED)
    yield {"plugins": [str(tmp_path / "varied.py")], "verifiers": ["math", "quickstart_test_share"]}
    from grpo_verifiers.exec.runner import close_shared_runners
    from grpo_verifiers.verifying import REGISTRY

    close_shared_runners()  # its workers have imported the file
    if any(entry.name == "quickstart_test_share" for entry in REGISTRY.entries()):
        REGISTRY.unregister("quickstart_test_share")


@pytest.fixture(scope="session")
def warm_home(tmp_path_factory):
    """A folder with a model that has had a few steps of warm start, which tests take in its place."""
    home = tmp_path_factory.mktemp("quickstart")
    warm_start(home / "model", steps=3, hidden=64)
    return home


@pytest.fixture
def train(warm_home, monkeypatch, capsys):
    """Trains from the quickstart's own lines, some of them changed; gives exit code, output and errors."""
    if not YAML.is_file():
        pytest.skip("the examples are not beside the tests")

    monkeypatch.setattr(quickstart, "FOLDER", warm_home)
    kept = {"model_name_or_path": str(warm_home / "model"), "warm_start": "null"}

    def train(out, line="", **changes):
        from grpo_plus.cli import main

        path = Path(out).parent / "changed.yaml"
        key = line.partition(":")[0]
        lines = YAML.read_text().splitlines()
        text = [line if line and each.startswith(f"{key}:") else each for each in lines]
        assert not line or text != lines
        path.write_text("\n".join(text))
        capsys.readouterr()
        code = main(["train", str(path), *flags(output_dir=out, **{**kept, **changes})])
        found = capsys.readouterr()
        return code, found.out, found.err

    return train
