"""What TRL would notice too late: the best model's metric, columns of reward functions, packages that are missing."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trl import GRPOConfig
from trl.rewards import accuracy_reward, think_format_reward

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.best_metric import best_metric_notes, best_metric_problems, logs_metrics, metric_names
from grpo_plus.recipe.functions import function_problems
from grpo_plus.recipe.packages import attention_problems, package_problems
from grpo_verifiers.errors import ConfigError
from tests.trainer.conftest import BASE

EVALUATING = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
BEST = {**EVALUATING, "load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 1}


def letter_e(completions, **_):
    return [text.count("e") / 12 for text in completions]


@pytest.fixture
def accepts(build, sums):
    def accepts(metric, *, trainer=None, **settings):
        given = {"eval_dataset": sums.select(range(4)), **(trainer or {})}
        return build(metric_for_best_model=metric, trainer=given, **EVALUATING, **settings)

    return accepts


@pytest.mark.parametrize(("metric", "expected"), [
    ("accuracy", "'verifiers/exact/status/correct'"), ("eval_accuracy", "'verifiers/exact/status/correct'"),
    ("exact", "Did you mean 'rewards/exact/mean'?"), ("numric", "Did you mean 'rewards/numeric/mean'?"),
    ("rewards/exat/mean", "Did you mean 'rewards/exact/mean'?"),
    ("eval_rewards/numeric/std", "rewards/numeric/mean"),  # what only evaluates has no spread
    ("rewrad", "Did you mean 'reward'?"),
    ("advantages/std", "no evaluation of this run logs"),  # TRL's own advantages are not looked at
    ("critic/value", "no evaluation of this run logs"),
])  # fmt: skip
def test_a_metric_that_nothing_logs_is_refused_with_what_there_is(accepts, metric, expected):
    with pytest.raises(ConfigError) as refused:
        accepts(metric, verifiers=["exact"], eval_verifiers=["numeric"])
    assert f"metric_for_best_model is {metric!r}" in str(refused.value)
    assert expected in str(refused.value)


@pytest.mark.parametrize(("metrics", "settings"), [
    ("score eval_rewards/numeric/mean rewards/digits/mean verifiers/exact/status/correct loss", {}),
    ("eval_completions/mean_length advantages/std kl", {"advantage": "sign", "beta": 0.1}),
])  # fmt: skip
def test_what_an_evaluation_logs_is_let_in_and_without_one_nobody_asks(accepts, build, metrics, settings):
    for metric in metrics.split():
        accepts(metric, verifiers=["exact"], eval_verifiers=["numeric"], **settings)
    build(metric_for_best_model="accuracy")


def test_a_function_that_logs_metrics_of_its_own_may_log_any(accepts):
    def logging(completions, log_metric, **_):
        log_metric("own", 1.0)
        return [1.0] * len(completions)

    def by_keyword(completions, **more):
        more["log_metric"]("own", 1.0)
        return [1.0] * len(completions)

    for function in (logging, by_keyword):
        assert logs_metrics(function)
        accepts("own", trainer={"reward_funcs": [function]})
    assert not logs_metrics(letter_e)
    with pytest.raises(ConfigError, match="names log_metric in its parameters"):
        accepts("own", trainer={"reward_funcs": [letter_e]})


def test_several_evaluation_sets_have_a_loss_each(accepts, sums):
    sets = {"easy": sums.select(range(4)), "hard": sums.select(range(4, 8))}
    accepts("eval_hard_loss", trainer={"eval_dataset": sets})
    with pytest.raises(ConfigError, match="Did you mean 'hard_loss'"):
        accepts("har_loss", trainer={"eval_dataset": sets})
    with pytest.raises(ConfigError, match="easy_loss, hard_loss"):
        accepts("loss", trainer={"eval_dataset": sets})


@pytest.mark.parametrize("settings", [
    {}, {"eval_verifiers": ["numeric"], "beta": 0.1}, {"advantage": "sign", "rollout": "stock"},
    {"advantage": "process", "verifiers": ["exact", {"name": "math_steps", "weight": 0}]}, {"advantage": "gae", "critic": {}},
    {"objective": "target", "num_iterations": 2, "max_steps": 2}, {"loss_type": "cispo", "dead_groups": "resample"},
], ids=str)  # fmt: skip
def test_the_names_are_those_of_a_real_evaluation(trained, sums, settings):
    """All that is logged is let in, and all that is called sure is logged."""
    settings = {"verifiers": ["exact"], **settings}
    trainer = trained(trainer={"eval_dataset": sums.select(range(4))}, **EVALUATING, **{"max_steps": 1, **settings})
    logged = next(line for line in trainer.state.log_history if "eval_loss" in line)
    names = {name.removeprefix("eval_") for name in logged if name.startswith("eval_")}
    rewards = ["digits", *(part.label for part in trainer.recipe.verifiers)]
    sure = {name for name in metric_names(trainer.recipe, rewards) if not name.startswith("verifiers/math_steps")}
    assert sure <= names
    for name in names:
        trainer.args.metric_for_best_model = name
        assert best_metric_problems(trainer.args, trainer.recipe, rewards) == [], name
        assert trainer._determine_best_metric(logged, None) in (True, False)


@pytest.mark.parametrize(("metric", "best"), [("rewards/letters/mean", max), ("eval_score", max), ("loss", min)])
def test_the_best_model_is_that_of_the_best_evaluation_and_is_loaded_at_the_end(trained, sums, tmp_path, metric, best):
    plugin = tmp_path / "letters.py"
    plugin.write_text("def letters(completion):\n    return min(1.0, sum(c.isalpha() for c in completion) / 12)\n")
    long = {"learning_rate": 2.0, "max_steps": 5, "num_generations_eval": 4}
    given = {"eval_dataset": sums.select(range(8))}
    trainer = trained(trainer=given, eval_verifiers=[f"{plugin}:letters"], **BEST, **long, metric_for_best_model=metric)
    name = f"eval_{metric.removeprefix('eval_')}"
    found = {line["step"]: line[name] for line in trainer.state.log_history if name in line}
    assert list(found) == [1, 2, 3, 4, 5]
    assert len(set(found.values())) > 1
    value = best(found.values())
    step = next(step for step, each in found.items() if each == value)
    assert trainer.state.best_metric == value
    assert Path(trainer.state.best_model_checkpoint).name == f"checkpoint-{step}"
    assert trainer.args.greater_is_better is (best is max)
    weights = {name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()}
    same = []
    for path in tmp_path.glob("out/checkpoint-*/model.safetensors"):
        alike = all(torch.equal(weights[key], tensor) for key, tensor in load_file(path).items())
        same.append(alike)
        assert alike is (path.parent.name == f"checkpoint-{step}")
    assert len(same) > 1


def test_an_evaluation_without_the_value_is_passed_over(trained, sums, caplog, tmp_path):
    plugin = tmp_path / "never.py"
    plugin.write_text(
        "import grpo_verifiers as g\ndef never(completion):\n    return g.Verdict(None, 'not_applicable')\n"
    )
    chosen = {"verifiers": [f"{plugin}:never"], "metric_for_best_model": "rewards/never/mean", "max_steps": 1}
    trainer = trained(trainer={"eval_dataset": sums.select(range(4))}, **BEST, **chosen)
    assert trainer.state.best_metric is None
    assert "'rewards/never/mean') applied to no row of this evaluation" in caplog.text


@pytest.mark.parametrize(("metric", "noted"), [("kl", True), ("reward", False), ("loss", False), ("eval_verifiers/exact/status/wrong", True)])  # fmt: skip
def test_less_is_better_is_noted_where_the_default_takes_the_most(metric, noted):
    chosen = {**BASE, **BEST, "metric_for_best_model": metric, "num_generations": 2, "beta": 0.1}
    assert bool(best_metric_notes(GRPOPlusConfig(**chosen))) is noted
    assert best_metric_notes(GRPOPlusConfig(**chosen, greater_is_better=False)) == []


def needs_gold(completions, gold, **_):
    return [1.0 for _ in completions]


def closed(completions, answer):
    return [1.0 for _ in completions]


def optional(completions, gold=None, **_):
    return [1.0 for _ in completions]


class Called:
    def __call__(self, completions, gold, **_):
        return [1.0 for _ in completions]


@pytest.mark.parametrize(("function", "expected"), [
    (needs_gold, "train_dataset has no column 'gold', which the reward function 'needs_gold' needs"),
    (Called(), "the reward function 'Called' needs"),
    (closed, "takes no prompts, completion_ids, trainer_state, log_extra, log_metric, which TRL passes it by name"),
])  # fmt: skip
def test_reward_functions_are_looked_at_before_a_model_loads(build, function, expected):
    build(trainer={"reward_funcs": [optional, letter_e]})
    with pytest.raises(ConfigError) as refused:
        build(trainer={"reward_funcs": [function], "model": "no/such-model"})  # a model that loads would be missed
    assert expected in str(refused.value)


def test_functions_of_trl_say_what_they_read(build, chats, sums):
    with pytest.raises(ConfigError, match="reads completions of conversations, but the prompts are plain text"):
        build(trainer={"reward_funcs": [think_format_reward], "train_dataset": sums})
    with pytest.raises(ConfigError, match="no column 'solution', which the reward function 'accuracy_reward' needs"):
        build(trainer={"reward_funcs": [accuracy_reward], "train_dataset": chats})
    [problem] = function_problems([needs_gold], {"train_dataset": ["prompt", "golds"]}, conversations=None)
    assert "Did you mean 'golds'?" in problem
    sets = {"train_dataset": sums.add_column("gold", ["1"] * len(sums)), "eval_dataset": {"a": sums}}
    with pytest.raises(ConfigError, match=r"eval_dataset\['a'\] has no column 'gold'"):
        build(trainer={"reward_funcs": [needs_gold], **sets}, **EVALUATING)
    build(config_class=GRPOConfig, trainer={"reward_funcs": [needs_gold]})  # a plain config is left to TRL


FLASH = {"attn_implementation": "flash_attention_2"}


def without(monkeypatch, *missing):
    import importlib.util

    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in missing else there(name, *a))


@pytest.mark.parametrize(("settings", "missing", "expected"), [
    ({"use_vllm": True}, ["vllm"], "vLLM is not installed: pip install 'trl[vllm]'"),
    ({"report_to": "wandb"}, ["wandb"], "report_to is 'wandb', but wandb is not installed"),
    ({"report_to": ["trackio", "none"]}, ["trackio"], "pip install trackio"),
    ({"deepspeed": {"zero_optimization": {"stage": 2}}}, ["deepspeed"], "pip install deepspeed, or remove the"),
    ({"use_liger_kernel": True}, ["liger_kernel"], "liger-kernel is not installed"),
    ({"model_init_kwargs": FLASH}, ["flash_attn", "kernels"], "pip install flash-attn (or kernels"),
])  # fmt: skip
def test_a_missing_package_is_said_before_a_model_loads(build, monkeypatch, settings, missing, expected):
    without(monkeypatch, *missing)
    with pytest.raises(ConfigError) as refused:
        build(trainer={"model": "no/such-model"}, **settings)
    assert expected in str(refused.value)
    assert str(refused.value).count("not installed") == 1


def test_a_server_of_vllm_needs_no_package_here_and_kernels_of_the_hub_need_theirs(build, monkeypatch):
    config = build(vllm_mode="server").args
    config.use_vllm = True
    assert package_problems(config) == []
    without(monkeypatch, "kernels")
    for chosen, count in (("sdpa", 0), (None, 0), ("kernels-community/flash-attn2", 1), ("eager", 0)):
        assert len(attention_problems({"attn_implementation": chosen})) == count
