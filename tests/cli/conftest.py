import json
import textwrap

import pytest

TRAINING = """
model_name_or_path: {model}
output_dir: {folder}/out
dataset_name: ./data.jsonl
reward_funcs: [./rewards.py:digits]
max_steps: 2
num_generations: 4
per_device_train_batch_size: 8
max_completion_length: 8
learning_rate: 1e-3
logging_steps: 1
save_strategy: no
report_to: none
use_cpu: true
bf16: false
disable_tqdm: true
gradient_checkpointing: false
"""

REWARDS = '''
def digits(completions, **columns):
    """Share of digits."""
    return [sum(c.isdigit() for c in str(text)) / 8 for text in completions]


def by_answer(completions, answer, **columns):
    assert len(answer) == len(completions)
    return [float(len(text) % len(wanted)) if (wanted := str(given) + "1") else 0.0 for text, given in zip(completions, answer)]


not_callable = 3
'''


@pytest.fixture(autouse=True)
def _parts_of_this_test_only(tmp_path):
    """What plug-in files of a test registered is gone after it."""
    yield
    from grpo_plus.advantages import advantages
    from grpo_verifiers.verifying import REGISTRY

    for registry in (advantages, REGISTRY):
        for entry in registry.entries():
            if entry.way == "registered" and str(tmp_path) in entry.source:
                registry.unregister(entry.name)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """The temporary folder: a model that cannot be saved in its own place is put there, and stays."""
    place = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


@pytest.fixture
def folder(tmp_path):
    """A folder with data and reward functions beside the config."""
    rows = [
        {"prompt": f"{number}+1=", "question": f"what is {number}?", "answer": str(number + 1)} for number in range(16)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "empty.jsonl").touch()
    return tmp_path


@pytest.fixture
def config(folder, tiny_model):
    """Writes a config that trains for two steps, with further lines; gives its path."""

    def config(text="", name="config.yaml", **changes):
        import yaml

        values = (
            yaml.safe_load(TRAINING.format(model=tiny_model, folder=folder))
            | (yaml.safe_load(textwrap.dedent(text)) or {})
            | changes
        )
        values = {key: value for key, value in values.items() if value is not None}
        path = folder / name
        path.write_text(yaml.safe_dump(values))
        return str(path)

    return config
