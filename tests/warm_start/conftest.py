"""A config with a warm start, on a tiny model, and the trainer that it describes."""

import json

import pytest
import yaml

from tests.warm_start.sums import solutions


@pytest.fixture
def write(tmp_path):

    def write(rows, name="solutions.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    return write


@pytest.fixture
def config(tmp_path, tiny_model, write):
    """Writes a config, some of its options changed; gives the path."""

    def config(name="run.yaml", **changes):
        values = {
            "model_name_or_path": tiny_model, "dataset_name": write(solutions()), "output_dir": str(tmp_path / "out"),
            "prompt": {"column": "question", "system": "Add."}, "warm_start": {"steps": 2, "learning_rate": 1e-3},
            "verifiers": ["math"], "max_steps": 1, "per_device_train_batch_size": 8, "num_generations": 4,
            "max_completion_length": 8, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
            "report_to": "none", "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "beta": 0.0,
        }  # fmt: skip
        path = tmp_path / name
        path.write_text(yaml.safe_dump({**values, **changes}))
        return str(path)

    return config


@pytest.fixture
def build(config, capsys):
    """The trainer that a config describes, and what was printed."""
    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli.train import build_trainer

    def build(**changes):
        capsys.readouterr()
        trainer = build_trainer(parse("grpo-plus train", [config(**changes)]))
        return trainer, capsys.readouterr().out

    return build
