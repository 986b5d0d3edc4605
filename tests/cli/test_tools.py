"""Tools and an environment from a YAML file: what the commands show of them, and a run."""

import json
import shutil
from pathlib import Path

import pytest
import trl
import yaml

from grpo_plus.cli._tool_use import code_in
from grpo_verifiers.tools.registry import TOOLS
from tests.cli.test_check_parts import of_tokens

GAME = '''
class Game:
    """A number to guess."""

    def reset(self, secret: int) -> str:
        self.secret = secret
        return "Guess."

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: the guess.
        """
        return "right" if number == self.secret else "wrong"

    def get_reward(self) -> float:
        return 0.5

    def get_turn_reward(self) -> float:
        return 0.25
'''
KEYED = GAME + "\n    def state_key(self):\n        return self.secret\n"


@pytest.fixture
def playing(tmp_path, tiny_model):
    """A YAML file with a tool and an environment, its model's template knowing tools, beside its data."""
    shutil.copytree(tiny_model, tmp_path / "model")
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    shutil.copy(template, tmp_path / "model" / "chat_template.jinja")
    (tmp_path / "game.py").write_text(GAME)
    rows = [json.dumps({"prompt": f"round {number}", "secret": number}) for number in range(8)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))

    def write(**settings):
        given = {
            "model_name_or_path": str(tmp_path / "model"), "dataset_name": str(tmp_path / "data.jsonl"), "prompt": {"chat": True},
            "tools": [{"name": "calculator", "timeout": 5}], "environment": "./game.py:Game", "output_dir": str(tmp_path / "out"),
            "use_cpu": True, "bf16": False, "max_steps": 1, "num_generations": 2, "per_device_train_batch_size": 2,
            "max_completion_length": 8, "report_to": "none", **settings,
        }  # fmt: skip
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(given))
        return str(file)

    return write


def logged(folder):
    lines = (folder / "out" / "grpo_plus" / "metrics.jsonl").read_text().splitlines()
    return {name: value for line in lines for name, value in json.loads(line).get("values", {}).items()}


def test_explain_shows_the_schema_that_the_model_sees(cli, playing):
    out = cli.done("check", "--only=config", playing())
    assert "tool: calculator (grpo_verifiers.tools.calculator:calculator), 5 s a call" in out
    assert "for all rows; gives a reward" in out
    schemas = [json.loads(line) for line in out.splitlines() if line.startswith('    {"type": "function"')]
    assert [schema["function"]["name"] for schema in schemas] == ["calculator", "guess"]


def test_explain_credits_turns_with_the_environments_reward_as_the_outcome(cli, playing, tmp_path):
    keywords = {"steps_from": "turn_reward", "credit": "turn", "gamma": 0.5, "outcome_weight": 0.5}
    keywords |= {"ddof": 0, "eps": 0.0}
    turns = {"advantage": {"name": "process", **keywords}, "verifiers": [{"name": "turn_reward", "weight": 0}]}
    out = cli.done("check", "--only=config", playing(**turns), "--rewards", "1,0", "--steps", "1,0;0,1,0")
    assert "rewards are the weighted sum: 0·turn_reward + 1·Game" in out
    assert of_tokens(out) == [[1.0, -0.5], [-1.0, 0.5, -0.5]]

    assert "needs an environment with state_key" in cli.refused("check", "--only=config", playing(advantage="gigpo"))
    (tmp_path / "keyed.py").write_text(KEYED)
    gigpo = playing(advantage={"name": "gigpo", "gamma": 0.5, "scale": "none"}, environment="./keyed.py:Game")
    code, out, err = cli("check", "--only=config", gigpo)
    assert (code, err) == (0, "")
    assert "its numbers need the states before the steps, which a run has" in out


def test_a_wrong_tool_is_named_before_anything_loads(cli, playing):
    err = cli.refused("train", playing(tools=["calculater"], environment="./game.py:Gme"))
    assert "tools[0]: unknown tool 'calculater'. Did you mean 'calculator'?" in err
    assert "Gme" in err


@pytest.mark.slow
def test_a_run_is_rewarded_by_its_environment_and_shows_the_tools_in_its_prompt(cli, playing, tmp_path):
    out = cli.done("train", playing())
    shown = out[out.index("A prompt, as the model reads it:") :]
    assert '"name": "guess"' in shown
    config = json.loads((tmp_path / "out" / "grpo_plus" / "run.json").read_text())["config"]
    assert config["environment"].endswith("game.py:Game")
    assert (logged(tmp_path)["rewards/Game/mean"], logged(tmp_path)["tools/turns"]) == (0.5, 1.0)


@pytest.mark.slow
def test_gigpo_trains_from_yaml_and_says_how_many_turns_met_a_state_again(cli, playing, tmp_path):
    (tmp_path / "again.py").write_text(KEYED)
    cli.done("train", playing(advantage="gigpo", environment="./again.py:Game", tools=None))
    # Both completions of the prompt begin alike, and end there.
    assert logged(tmp_path)["advantages/anchored_fraction"] == 1.0
    info = json.loads((tmp_path / "out" / "grpo_plus" / "run.json").read_text())
    assert info["parts"]["advantage"]["name"] == "gigpo"


def test_a_record_is_data_until_it_is_trusted(cli, tmp_path, tiny_model):
    run = tmp_path / "theirs"
    shutil.copytree(tiny_model, run)
    (run / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (run / "grpo_plus").mkdir()
    config = {"tools": ["calculator"], "plugins": [f"{run}/evil.py"]}
    (run / "grpo_plus" / "run.json").write_text(json.dumps({"schema": 1, "status": "done", "config": config}))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "hi", "answer": "1"}) + "\n")
    command = ("eval", run, "--dataset", tmp_path / "rows.jsonl", "--split", "train", "--verifier", "exact")
    assert f"names code: {run}/evil.py" in cli.refused(*command)
    assert not (tmp_path / "ran").exists()
    cli(*command, "--trust-run", "--max-completion-length", "3")
    assert (tmp_path / "ran").exists()


def test_records_name_built_in_tools_with_harmless_keywords_or_ask():
    """Not by a prefix: whatever else an entry says is shown, and waits for --trust-run."""
    names = [each.name for each in TOOLS.entries() if each.way == "built-in"]
    assert {name for name in names if code_in({"tools": [name]})} == {"search_documents"}
    for field, entry, asks in [
        ("tools", "grpo_verifiers.x/../stranger/evil.py:look", True),
        ("tools", ["grpo_verifiers.tools.python:python"], True),
        ("tools", {"name": "python", "level": "none", "memory": 1}, True),
        ("tools", [{"name": "python", "kwargs": ["level"]}], True),
        ("tools", [{"name": "python", "isolation": "inline"}], True),
        ("tools", ["theirs/of-a-hub"], True),
        ("tools", [["python"]], True),
        ("environment", "python", True),
        ("environment", {"a": "theirs:Env"}, True),
        ("plugins", ["python"], True),
        ("tools", {"name": "python", "timeout": 2, "memory": 0.5}, False),
    ]:
        assert bool(code_in({field: entry})) is asks, entry
