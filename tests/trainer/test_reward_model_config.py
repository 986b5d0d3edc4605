"""The options of a reward model in a config: what they become, and one clear error for each that cannot be."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import yaml
from datasets import Dataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from grpo_plus import GRPOPlusConfig
from grpo_plus.cli import main
from grpo_plus.heads.passes import distributed_problems
from grpo_plus.recipe.rewards import named_weights
from grpo_plus.recipe.settings import RewardModelOptions
from grpo_plus.training.scoring.reward_model import RewardModelStage
from grpo_plus.training.scoring.reward_model_files import make
from grpo_verifiers.errors import ConfigError
from tests.device import DEVICE, FLOAT32


def config(**settings):
    plain = {"output_dir": "unused", **FLOAT32, "report_to": "none", "num_generations": 4}
    return GRPOPlusConfig(**{**plain, "per_device_train_batch_size": 8, "verifiers": ["exact"], **settings})


def test_nothing_is_no_reward_model_and_an_empty_mapping_is_one_with_all_defaults():
    assert config().recipe.reward_model is None
    assert config(reward_model="null").recipe.reward_model is None
    options = config(reward_model={}).recipe.reward_model
    assert (options.every, options.replay, options.held_out) == (10, 0.1, 0.1)
    assert (options.weight, options.reward_scale) == (0.5, "wins")
    assert config(reward_model='{"every": 3, "learning_rate": 1e-3}').recipe.reward_model.learning_rate == 1e-3


def test_its_column_is_the_last_one_and_has_its_own_weight_or_the_last_of_reward_weights():
    assert named_weights(config(reward_model={}).recipe, ["f"]) == [("f", 1), ("exact", 1), ("reward_model", 0.5)]
    assert named_weights(config(reward_model={"weight": 0}).recipe, []) == [("exact", 1)]
    given = config(reward_model={}, reward_weights=[2.0, 0.25])
    assert named_weights(given.recipe, []) == [("exact", 2.0), ("reward_model", 0.25)]


def own(completions, **_):
    return [None for _ in completions]


def folder(tmp_path, **files):
    for name, value in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return str(tmp_path)


STEPS = {"verifiers": ["math_steps"]}
TWO = {"verifiers": ["math_steps", {"name": "math_steps", "label": "again"}]}
MAYBE = {"verifiers": [{"name": "tests.trainer.test_reward_model_config:own", "label": label} for label in "ab"]}
NAMED = [{"name": "exact", "label": "reward_model"}]
WRONG = {
    "an unknown option": ({"evry": 3}, {}, "unknown key 'evry'"), "no number of steps": ({"every": -1}, {}, "every is -1"),
    "a share of one": ({"replay": 1.0}, {}, "replay is 1.0"), "NaN": ({"replay": float("nan")}, {}, "replay"),
    "a strange place": ({"on": "trunk"}, {}, "on' is 'trunk'"),
    "weights twice": ({"weight": 0.5}, {"reward_weights": [1, 1]}, "Keep one of the two"),
    "no weight in its place": ({}, {"reward_weights": [1, 0]}, "has 0 in the last place"),
    "a scale of steps": ({"head": "process", "scale": "raw"}, STEPS, "scale ('raw'): its head scores steps"),
    "a scale without a weight": ({"weight": 0, "scale": "raw"}, {}, "its weight is 0"),
    "a model that is an adapter": ({"on": "adapter", "model": "x"}, {}, "it is no model of its own"),
    "the rank of a model": ({"on": "model", "lora_r": 4}, {}, "lora_r (4): it is a model of its own"),
    "a history that never comes again": ({"replay": 0, "history": 9}, {}, "history (9): replay is 0"),
    "never trained": ({"every": 0}, {}, "it would never learn anything"),
    "dead groups": ({}, {"dead_groups": "resample"}, "no group would be dead"),
    "a single completion": ({}, {"num_generations": 1, "advantage": "raw"}, "num_generations of 2 or more: it learns from pairs"),
    "a verifier of its name": ({}, {"verifiers": NAMED}, "Give the verifier another label"),
    "a verifier of evaluation of its name": ({}, {"eval_verifiers": NAMED}, "Give the verifier another label"),
    "a gradient scaler": ({}, {"fp16": True}, "fp16 (True): it has a loss of its own"),
    "no steps": ({"head": "process"}, {}, "no verifier gives any"),
    "steps of two": ({"head": "process"}, TWO, "several verifiers that give steps (math_steps, again)"),
    "steps of either": ({"head": "process"}, MAYBE, "needs one verifier that surely gives steps"),
    "no folder": ({"start": "/nowhere/at/all"}, {}, "which is no folder"), "no mapping": ("every", {}, "expected a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_one_clear_error(case):
    options, settings, message = WRONG[case]
    with pytest.raises(ConfigError) as caught:
        config(reward_model=options, **settings)
    assert message in str(caught.value)
    assert sum("reward_model" in one or "weights" in one for one in map(str, caught.value.problems)) == 1


def test_a_start_of_another_kind_is_refused_before_anything_loads(tmp_path):
    adapter = folder(tmp_path, adapter_config={"task_type": "TOKEN_CLS", "r": 4, "lora_alpha": 8})
    with pytest.raises(ConfigError, match="set head: process"):
        config(reward_model={"start": adapter})
    with pytest.raises(ConfigError, match="which is on 'adapter', but on is 'model'"):
        config(reward_model={"start": adapter, "on": "model", "head": "process"}, verifiers=["math_steps"])
    (tmp_path / "adapter_config.json").unlink()
    with pytest.raises(ConfigError, match="holds no reward model"):
        config(reward_model={"start": folder(tmp_path, config={"architectures": ["Qwen2ForCausalLM"]})})
    start = folder(tmp_path, config={"architectures": ["Qwen2ForSequenceClassification"]})
    assert config(reward_model={"start": start})
    assert config(reward_model={"start": start, "every": 0}).recipe.reward_model.every == 0
    with pytest.raises(ConfigError, match=r"epochs \(2\): every is 0"):  # it reads no option of training
        config(reward_model={"start": start, "every": 0, "epochs": 2})


def test_a_reward_that_compares_nothing_is_refused_with_one_completion_a_prompt(tmp_path):
    start = folder(tmp_path, config={"architectures": ["Qwen2ForSequenceClassification"]})
    single = {"num_generations": 1, "advantage": "raw"}
    with pytest.raises(ConfigError, match="Set scale to 'sigmoid' or 'raw'"):
        config(reward_model={"start": start, "every": 0}, **single)
    for options in ({"scale": "raw"}, {"weight": 0}):
        assert config(reward_model={"start": start, "every": 0, **options}, **single)


@pytest.mark.parametrize("name", ["DeepSpeed", "FSDP"])
def test_runs_in_which_it_cannot_be_trained_are_refused_in_a_config_and_in_a_trainer(monkeypatch, name):
    enabled = {f"is_{one.lower()}_enabled": one == name for one in ("DeepSpeed", "FSDP")}
    (problem,) = distributed_problems(SimpleNamespace(**enabled), "reward_model")
    assert problem.startswith("reward_model trains weights other than the policy's")
    with pytest.raises(ConfigError, match="does not work with"):
        make(SimpleNamespace(**enabled), RewardModelOptions(), "model")
    monkeypatch.setenv(f"ACCELERATE_USE_{name.upper()}", "true")
    with pytest.raises(
        ConfigError, match=f"reward_model does not go with {name}: it trains weights other than the policy's"
    ):
        config(reward_model={})


def test_explain_shows_it_with_its_defaults(cli, tmp_path):
    (tmp_path / "run.yaml").write_text("verifiers: [exact]\nreward_model: {every: 7}\noutput_dir: out\n")
    code, out, _ = cli("check", "--only=config", "--config", str(tmp_path / "run.yaml"))
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("  reward_model: "))
    assert all(words in line for words in ("every: 7", "weight: 0.5", "replay: 0.1"))


def test_labels_are_the_weighted_sum_of_all_rewards_but_its_own():
    hook = object.__new__(RewardModelStage)
    weights = torch.tensor([2.0, 5.0, 0.0, 1.0])
    hook.host = SimpleNamespace(reward_func_names=["a", "reward_model", "b", "c"], reward_weights=weights)
    nan = float("nan")
    rewards = torch.tensor([[1.0, 9.0, 9.0, 0.5], [nan, 9.0, 9.0, 0.5], [nan, 9.0, 9.0, nan]], device=DEVICE)
    totals = hook._totals(rewards)
    assert totals[:2].tolist() == [2.5, 0.5]
    assert totals[2].isnan()


DIGITS = {"name": "regex", "pattern": "(?s).*[0-9].*"}
TEXTS = ["42<|im_end|>", "so 7<|im_end|>", "4 2<|im_end|>", "none"]


@pytest.fixture(scope="module")
def judge(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("judge") / "my-judge"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def letters(completions, **_):
    return [sum(character.isalpha() for character in text) for text in completions]


def scores_of(folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        ids = [tokenizer(text, return_tensors="pt", add_special_tokens=False) for text in texts]
        return [model(**each).logits[0, 0].item() for each in ids]


@pytest.fixture
def data():
    return Dataset.from_list([{"prompt": f"{n}=", "answer": "42"} for n in range(8)])


@pytest.mark.parametrize("how", ["object", "path"])
def test_a_reward_model_counts_with_its_weight(trained, data, say, judge, how):
    say(lambda prompt, row: TEXTS[row % 4])
    given = {"reward_funcs": str(judge), "train_dataset": data}
    if how == "object":
        given["reward_funcs"] = AutoModelForSequenceClassification.from_pretrained(judge)
        given["reward_processing_classes"] = AutoTokenizer.from_pretrained(judge)
    more = {"verifiers": ["exact", DIGITS], "reward_weights": [0.25, 2.0, -1.0], "advantage": "raw", "max_steps": 1}
    trainer = trained(trainer=given, **more)
    assert trainer.reward_func_names == ["my-judge", "exact", "regex"]
    prompts = list(trainer._logs["prompt"])
    plain = [text.removesuffix("<|im_end|>") for text in TEXTS] * 2
    learned = scores_of(judge, [prompt + text for prompt, text in zip(prompts, plain, strict=True)])
    assert len(set(learned)) > 4
    exact, regex = [1.0, 0.0, 0.0, 0.0] * 2, [1.0, 1.0, 1.0, 0.0] * 2
    expected = [0.25 * m + 2 * e - r for m, e, r in zip(learned, exact, regex, strict=True)]
    assert trainer.generated[0]["advantages"].tolist() == pytest.approx(expected, abs=1e-5)
    assert trainer.state.log_history[0]["rewards/my-judge/mean"] == pytest.approx(sum(learned) / 8, abs=1e-5)


@pytest.mark.slow
def test_a_reward_model_by_path_in_a_config_file(judge, tiny_model, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("def mine(completions, **_):\n    return [1.0] * len(completions)\n")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
    values = {
        "model_name_or_path": tiny_model, "dataset_name": "./data.jsonl", "output_dir": str(tmp_path / "out"),
        "reward_model_name_or_path": str(judge), "reward_funcs": ["./mine.py:mine"],
        "verifiers": [DIGITS], "reward_weights": [0.5, 1.0, 3.0],
        "advantage": "raw", "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8,
        "max_completion_length": 8, "log_completions": True, "logging_steps": 1, "report_to": "none", **FLOAT32,
        "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.yaml"]) == 0
    (file,) = (tmp_path / "out").rglob("completions_*.parquet")
    rows = pd.read_parquet(file)
    learned = scores_of(judge, [row["prompt"] + row["completion"] for _, row in rows.iterrows()])
    assert list(rows["my-judge"]) == pytest.approx(learned, abs=1e-4)
    digits = [float(any(c.isascii() and c.isdigit() for c in text)) for text in rows["completion"]]
    assert list(rows["regex"]) == digits
    expected = [0.5 * m + 1 + 3 * d for m, d in zip(learned, digits, strict=True)]
    assert list(rows["advantage"]) == pytest.approx(expected, abs=1e-4)


def test_weights_of_another_number_than_rewards_are_named_before_a_model_loads(build, data):
    given = {"model": "/no/such/model", "reward_funcs": ["some/where/my-judge", letters], "train_dataset": data}
    with pytest.raises(ConfigError) as caught:
        build(trainer=given, verifiers=["exact"], reward_weights=[1.0, 2.0])
    assert "reward_weights holds 2 weights ([1.0, 2.0])" in str(caught.value)
    assert "3 rewards, in this order: my-judge, letters, exact" in str(caught.value)
