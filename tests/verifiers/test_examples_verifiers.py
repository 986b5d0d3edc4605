"""The examples that show verifiers, run for real: in a stock trainer, and from a config with a plug-in."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.skipif(not (ROOT / "examples").is_dir(), reason="the sources are not here"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture
def registry():
    """The names of the registry, put back afterwards."""
    from grpo_verifiers.verifying import REGISTRY

    before = set(REGISTRY.names())
    yield REGISTRY
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


def test_a_config_with_a_plug_in_weights_and_a_gated_format(registry, tmp_path, tiny_model, monkeypatch, capsys):
    from grpo_plus.cli import main

    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"prompt": "{n}+1=", "answer": "{n + 1}"}}\n' for n in range(16)))
    monkeypatch.chdir(tmp_path)
    given = {
        "model_name_or_path": tiny_model,
        "dataset_name": data,
        "output_dir": tmp_path / "out",
        "save_strategy": "no",
    }
    flags = [str(part) for name, value in given.items() for part in (f"--{name}", value)]
    assert main(["train", str(ROOT / "examples" / "verifiers.yaml"), *flags]) == 0
    rows = table(tmp_path / "out")
    assert len(rows) == 16
    near = registry.get("near").fn
    think = registry.get("think_format").fn
    for _, row in rows.iterrows():
        answer = str(int(row["prompt"].partition("+")[0]) + 1)
        expected = near(row["completion"], answer, reach=50)
        assert row["near"] == pytest.approx(expected.score)
        assert (row["near_status"], row["near_reason"]) == (expected.status.value, expected.detail)
        gate = near(row["completion"], answer).score >= 0.5
        assert row["format"] == (think(row["completion"]).score if gate else 0.0)
        assert row["exact"] == float(row["completion"].strip() == answer)
    found = capsys.readouterr().out
    assert "'verifiers/near/latency_p95'" in found
