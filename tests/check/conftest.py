"""Runs of `grpo-plus check` on configs, models and data that are made on the spot."""

import json
import shutil
from dataclasses import dataclass

import pytest
import yaml

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'][0] }}{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)
VALUES = {
    "dataset_name": "./data.jsonl", "verifiers": ["exact"], "max_steps": 2, "num_generations": 4,
    "per_device_train_batch_size": 8, "max_completion_length": 64, "save_strategy": "no", "report_to": "none",
    "use_cpu": True, "bf16": False, "learning_rate": 1e-3, "loss_type": "dapo",
}  # fmt: skip
ROWS = [{"prompt": [{"role": "user", "content": f"{n}+1="}], "answer": str(n + 1)} for n in range(8)]


@dataclass
class Report:
    """The exit code, the report as data, and what else was printed."""

    code: int
    data: dict
    err: str

    def codes(self, *severities):
        return {one["code"] for one in self.data["findings"] if not severities or one["severity"] in severities}

    def one(self, code):
        found = [one for one in self.data["findings"] if one["code"] == code]
        assert len(found) == 1, (code, [(one["code"], one["value"]) for one in self.data["findings"]])
        return found[0]


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory):
    from grpo_plus.testing import make_tiny_model

    folder = tmp_path_factory.mktemp("chat")
    model, tokenizer = make_tiny_model(architecture="llama")  # a tokenizer that is as its files say
    tokenizer.chat_template = CHATML
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def check(cli):

    def check(*arguments):
        code, out, err = cli("check", *arguments, "--json")
        assert "Traceback" not in out + err
        return Report(code, json.loads(out), err)

    return check


class Case:
    """A folder with a config, data and a model, each as the last call left it."""

    def __init__(self, folder, chat_model):
        self.folder, self.model = folder, folder / "model"
        shutil.copytree(chat_model, self.model)
        self.rows(ROWS)

    def rows(self, rows, name="data.jsonl"):
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    def edit(self, name, **changes):
        """Change a JSON file of the model; None takes a key out."""
        path = self.model / name
        values = json.loads(path.read_text()) if path.exists() else {}
        values |= changes
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    def template(self, text):
        (self.model / "chat_template.jinja").write_text(text)

    def config(self, **changes):
        values = {"model_name_or_path": str(self.model), "output_dir": str(self.folder / "out"), **VALUES, **changes}
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in values.items() if value is not None}))
        return path


@pytest.fixture
def case(tmp_path, chat_model):
    return Case(tmp_path, chat_model)


@pytest.fixture
def config_only(monkeypatch):
    """Leaves the machine out, which other tests look at: its workers and boxes take a second each."""
    from grpo_plus.check import examination

    monkeypatch.setattr(examination, "examine_machine", lambda examination, output_dir=None: None)


@pytest.fixture
def look(case, check, config_only):
    """Runs the command on the case's config with these changes, without the machine."""

    def look(*flags, **changes):
        return check(case.config(**changes), *flags)

    return look
