"""Recipes by paper: each is loaded, explained and trained for two updates; the page about them says what they set."""

import json
import math
import re

import pytest
import yaml

from grpo_plus.cli import main
from grpo_plus.cli.init import PAPERS
from grpo_plus.recipe.forms import read_form
from grpo_plus.record import open_run

FILES = sorted(f"{name}.yaml" for name in PAPERS if name not in ("gigpo", "mt_grpo", "ppo", "sao"))
"""Those that train on groups; ppo.yaml and sao.yaml have tests of their own."""
GAMES = ("gigpo.yaml", "mt_grpo.yaml")
"""Those that play a game of several turns, on a model of their own."""
SHOWN = (
    *("advantage", "critic", "objective", "beta", "dead_groups"),
    *("num_generations", "num_iterations", "learning_rate"),
)
"""The fields of a recipe that the page shows, in this order."""
SMALL = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}  # 8: passk's k is 4
SMALL |= {"max_completion_length": 8, "max_steps": 2, "warmup_steps": 0, "use_cpu": True, "bf16": False}
SMALL |= {"gradient_checkpointing": False, "disable_tqdm": True, "logging_steps": 1}
BESIDE = """
def letters(completions, **_):
    return [sum(map(ord, message[0]["content"])) % 7 / 7 for message in completions]
"""


def values_of(examples, name):
    return yaml.safe_load((examples / "papers" / name).read_text(encoding="utf-8"))


def head_of(examples, name):
    text = (examples / "papers" / name).read_text(encoding="utf-8")
    return " ".join(line.removeprefix("# ") for line in text.splitlines() if line.startswith("#"))


def flags_of(place, values):
    small = {key: value for key, value in SMALL.items() if key != "warmup_steps" or key in values}
    small |= {"steps_per_generation": 2} if "steps_per_generation" in values else {}
    where = {"model_name_or_path": place.model, "dataset_name": place.data, "output_dir": place.out}
    return [f"--{key}={value}" for key, value in (where | small).items()]


def cell(values):
    """What a recipe sets, as the page has it."""

    def words(value):
        if isinstance(value, dict):
            each = (f"{'on' if key is True else key}: {words(inner)}" for key, inner in value.items())
            return "{" + ", ".join(each) + "}"
        return json.dumps(value).strip('"')

    return ", ".join(f"`{key}: {words(values[key])}`" for key in SHOWN if key in values)


def trained_for_two_steps(out, values):
    run = open_run(out)
    entries = [entry["values"] for entry in run.entries if entry["kind"] == "train"]
    found = [each for each in entries if "loss" in each]
    assert len(found) == 2
    assert all(math.isfinite(each["loss"]) for each in found)
    parts = [run.info["parts"][kind]["name"] for kind in ("advantage", "objective")]
    assert parts == [read_form(field, values[field]).get("name") for field in ("advantage", "objective")]
    return found


def test_every_recipe_by_paper_has_a_file_and_a_line_of_the_page_with_what_it_sets(examples):
    found = {path.name for path in (examples / "papers").iterdir()}
    assert found == {*FILES, *GAMES, "ppo.yaml", "sao.yaml"} == {f"{name}.yaml" for name in PAPERS}
    page = (examples.parent / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = {}
    for line in page.splitlines():
        if match := re.match(r"\| \[`(\w+)`\]\(\.\./examples/papers/(\w+)\.yaml\) \| (.*?) \| (.*?) \| (.*) \|$", line):
            assert match[1] == match[2]
            rows[match[1]] = (match[3], match[4], match[5])
    assert set(rows) == set(PAPERS)
    for name, (paper, sets, when) in rows.items():
        (link,) = re.findall(r"\(https://arxiv\.org/abs/([\d.]+)\)", paper)
        assert link in head_of(examples, f"{name}.yaml"), name
        assert sets == cell(values_of(examples, f"{name}.yaml")), name
        assert len(when) > 10


@pytest.mark.sample(2, 5)
@pytest.mark.parametrize("name", FILES)
def test_a_recipe_by_paper_is_explained_and_trains(name, examples, place, capsys):
    values, path = values_of(examples, name), str(examples / "papers" / name)
    flags = flags_of(place, values)
    assert main(["check", "--only=config", path, *flags]) == 0
    told = capsys.readouterr().out
    for field in ("objective", "advantage"):
        assert f"{field}: {read_form(field, values[field]).get('name')}" in told
    # no answer of a model that knows nothing is right: a reward beside the recipe's own gives contrast
    (place.folder / "beside.py").write_text(BESIDE)
    assert main(["train", path, *flags, "--report=true", "--reward_funcs=./beside.py:letters"]) == 0
    assert trained_for_two_steps(place.out, values)[0]["grad_norm"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", GAMES)
def test_a_recipe_that_plays_is_explained_and_trains(name, examples, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", f"paper:{name.removesuffix('.yaml')}"]) == 0
    values, path = values_of(examples, name), f"papers/{name}"
    assert main(["check", "--only=config", path]) == 0
    told = capsys.readouterr().out
    advantage = dict(values["advantage"])
    assert f"advantage: {advantage.pop('name')}\n" in told
    for key, value in advantage.items():
        assert f"\n    {key} = {value}\n" in told
    assert "Treasure" in told
    small = ("--max_steps=2", "--warm_start.steps=15", "--warm_start.batch_size=20", "--warm_start.folder=warm")
    assert main(["train", path, *small, "--logging_steps=1", "--disable_tqdm=true", "--output_dir=out"]) == 0
    trained_for_two_steps(tmp_path / "out", values)


@pytest.mark.parametrize("name", [*FILES, *GAMES])
def test_a_recipe_says_of_each_value_whose_it_is_and_is_short(name, examples):
    lines = (examples / "papers" / name).read_text(encoding="utf-8").splitlines()
    settings = [line for line in lines if line and not line.startswith("#")]
    assert len(settings) <= 23
    shared = {"dataset_config", "prompt", "verifiers", "output_dir", "report_to"}
    for line in settings:
        if line.split(":")[0] not in shared:
            assert re.search(r"# .*\b(paper|ours|ScaleRL|its authors|ms-swift|TRL)\b", line), line
    assert re.search(r"https://arxiv\.org/abs/\d{4}\.\d{5}", head_of(examples, name))
