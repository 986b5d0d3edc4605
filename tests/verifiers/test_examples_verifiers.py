"""The examples that show verifiers, run for real: in a stock trainer, and from a config with a plug-in."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from grpo_verifiers import get_verifier

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="the sources are not here"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def registry():
    """The names of the registry, put back afterwards, with the plug-in files that gave them forgotten."""
    from grpo_verifiers.verifying import REGISTRY

    before, modules = set(REGISTRY.names()), set(sys.modules)
    yield REGISTRY
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(ROOT / "examples")):
            del sys.modules[name]
    for name in set(REGISTRY.names()) - before:
        REGISTRY.unregister(name)


def table(folder):
    """TRL's completions table of all steps."""
    import pandas as pd

    files = sorted(folder.rglob("completions_*.parquet"))
    assert len(files) == 2
    return pd.concat([pd.read_parquet(file) for file in files])


def test_the_stock_trainer_of_the_host_takes_verifiers(registry, tmp_path):
    spec = importlib.util.spec_from_file_location("stock_trainer_example", ROOT / "examples" / "stock_trainer.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    trainer = example.main(tmp_path)
    assert type(trainer).__module__.startswith("trl.")
    logs = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logs) == 2
    names = ["math", "format_when_right", "share_of_digits"]
    for entry in logs:
        parts = [weight * entry[f"rewards/{name}/mean"] for weight, name in zip([1.0, 0.2, 0.5], names, strict=True)]
        assert entry["reward"] == pytest.approx(sum(parts), abs=1e-5)
        for name in names:
            shares = [value for key, value in entry.items() if key.startswith(f"verifiers/{name}/status/")]
            assert sum(shares) == pytest.approx(1.0)
            assert 0 <= entry[f"verifiers/{name}/latency_p50"] <= entry[f"verifiers/{name}/latency_p95"] < 60
    rows = table(tmp_path / "out")
    assert len(rows) == 16
    assert set(rows["math_status"]) <= {"unparsable", "wrong", "correct"}
    assert all(rows["math_reason"][rows["math_status"] != "correct"])


def test_a_config_with_a_plug_in_weights_and_a_gated_format(registry, tmp_path, tiny_model, monkeypatch):
    from grpo_plus.cli import main
    from grpo_plus.record.files import FOLDER, METRICS, read_lines

    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(16)))
    monkeypatch.chdir(tmp_path)
    given = {"model_name_or_path": tiny_model, "dataset_name": data, "output_dir": tmp_path / "out"}
    given |= {"save_strategy": "no", "max_steps": 2, "num_generations": 4, "per_device_train_batch_size": 8}
    given |= {"max_completion_length": 16, "logging_steps": 1}
    flags = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
    assert main(["train", str(ROOT / "examples" / "verifiers.yaml"), *flags]) == 0
    rows = table(tmp_path / "out")
    assert len(rows) == 16
    near = registry.get("near").fn
    math = get_verifier("math")
    for _, row in rows.iterrows():
        answer = str(int(row["prompt"].partition("+")[0]) + 1)
        expected = near(row["completion"], answer, reach=50)
        assert row["near"] == pytest.approx(expected.score)
        assert (row["near_status"], row["near_reason"]) == (expected.status.value, expected.detail)
        gate = near(row["completion"], answer).score >= 0.5
        assert row["format"] == float(gate and re.search(r"\\boxed\{-?\d+\}\s*\Z", row["completion"]) is not None)
        assert row["math"] == math.verify(row["completion"], answer=answer).score
    lines = read_lines(tmp_path / "out" / FOLDER / METRICS)
    last = [each["values"] for each in lines if "reward" in each.get("values", {})][-1]
    assert last["verifiers/near/latency_p95"] >= last["verifiers/near/latency_p50"] >= 0
