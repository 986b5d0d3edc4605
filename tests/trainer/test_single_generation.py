"""One completion a prompt: which estimators can do with it, and that a run with it is REINFORCE."""

import dataclasses
import math
import pickle
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_plus import GRPOPlusConfig, register_advantage
from grpo_plus.advantages import advantages, get_advantage
from grpo_plus.record import open_run
from grpo_plus.report.write import write_report
from grpo_verifiers.errors import ConfigError
from tests.trainer import conftest
from tests.trainer.conftest import weights

from .ranks import COUNTER

BASE = {**conftest.BASE, "num_generations": 1}
EVERY = [entry.name for entry in advantages.entries() if entry.way == "built-in" and entry.name != "mix"]
ALONE = [name for name in EVERY if not get_advantage(name).group_relative]


@pytest.fixture
def mine():
    register_advantage("alone", group_relative=False)(lambda table: table.totals() - 0.5)
    register_advantage("together")(lambda table: table.totals())
    yield ("alone", "together")
    for name in ("alone", "together"):
        advantages.unregister(name)


def problems(**values):
    try:
        GRPOPlusConfig(**{**BASE, **values})
    except ConfigError as error:
        return list(error.problems)
    return []


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [None, *EVERY])
def test_every_estimator_takes_one_completion_or_says_which_ones_do(name, mine):
    steps = {"verifiers": [{"name": "math_steps", "weight": 0}, "math"]} if name == "process" else {}
    values = {"critic": {}} if name == "gae" else {"environment": COUNTER} if name == "gigpo" else {}
    found = problems(advantage=name, **steps, **values)
    if name in ALONE:
        assert found == []
        return
    (text,) = found
    assert "TRL's own" in text if name is None else repr(name) in text
    assert "num_generations of 2 or more" in text


def test_estimators_of_ones_own_and_mixes_are_asked_alike(mine):
    assert ALONE == ["gae", "raw", "reinforce_pp"]
    assert problems(advantage="alone") == []
    assert "'together'" in problems(advantage="together")[0]
    assert problems(advantage={"name": "mix", "parts": {"raw": 1.0, "alone": 0.5}}) == []
    assert "'mix'" in problems(advantage={"name": "mix", "parts": {"raw": 1.0, "rloo": 0.5}})[0]
    # A KL term in the reward brings TRL's own advantages with it where no estimator is named.
    in_reward = {"objective": {"name": "grpo", "kl": {"placement": "reward"}}, "beta": 0.1}
    assert "TRL's own" in problems(**in_reward)[0]
    assert problems(**in_reward, advantage="raw") == []
    (text,) = problems(advantage="raw", selection="contrast")  # a group of one has none
    assert "selection 'contrast' needs num_generations of 2 or more" in text
    assert problems(advantage="raw", selection="contrast", num_generations=2) == []


@pytest.mark.parametrize(("settings", "word"), [
    ({"generation_batch_size": 12}, "generation_batch_size (12)"),
    ({"generation_batch_size": 16, "steps_per_generation": 3}, "can not be both configured"),
    ({"eval_strategy": "steps", "do_eval": True, "num_generations_eval": 3}, "divisible by the number"),
    ({"vllm_importance_sampling_clip_min": 3.0, "vllm_importance_sampling_clip_max": 2.0}, "must be less than"),
    ({"auto_find_batch_size": True}, "auto_find_batch_size"),
])  # fmt: skip
def test_the_hosts_other_checks_are_made_all_the_same(settings, word):
    (text,) = problems(advantage="raw", **settings)
    assert word in text


@pytest.mark.sample(2)
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_a_config_with_one_is_kept_and_read_like_any_other(batch):
    config = GRPOPlusConfig(**BASE, advantage="raw", per_device_train_batch_size=batch, do_eval=True)
    assert type(config.num_generations) is int
    assert config.generation_batch_size == batch
    replaced = dataclasses.replace(config, steps_per_generation=None, generation_batch_size=None)
    for again in (pickle.loads(pickle.dumps(config)), replaced):
        assert (again.num_generations, again.to_dict()["num_generations"]) == (1, 1)


def half(completions, **_):
    return [(sum(map(ord, text)) % 7) / 7 for text in completions]


@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("split", [(8, 1, "auto"), (8, 1, "stock"), (2, 4, "auto")])
@pytest.mark.parametrize("objective", ["reinforce", "dapo", None])
def test_one_step_is_reinforce_in_double_precision(trained, tiny_model, objective, split):
    rows, accumulation, engine = split
    split = {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulation, "engine": engine}
    plain = {"num_generations": 1, "max_steps": 1, "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
    given = {"reward_funcs": [half]}
    trainer = trained(trainer=given, advantage="raw", objective=objective, **split, **plain)
    (batch,) = trainer.generated
    assert batch["advantages"].unique().numel() > 2
    assert len({tuple(row) for row in batch["prompt_ids"].tolist()}) == 8  # every prompt once
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    width = batch["completion_ids"].shape[1]
    places = (seen.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=seen, position_ids=places).logits[:, -width - 1 : -1]
    logps = logits.log_softmax(-1).gather(-1, batch["completion_ids"].unsqueeze(-1)).squeeze(-1)
    mask = batch["completion_mask"].bool()
    texts = trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
    rewards = torch.tensor(half(texts))
    assert torch.allclose(batch["advantages"], rewards)
    loss = -(rewards.double()[:, None] * logps)[mask].sum() / mask.sum()
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    moved = weights(trainer).double().cpu() - weights(SimpleNamespace(model=model))
    assert (moved + 0.05 * wanted).norm() <= 1e-4 * moved.norm()
    assert moved.norm() > 1e-4


@pytest.mark.parametrize("advantage", ["raw", "reinforce_pp"])
@pytest.mark.parametrize("rows", [1, 8])
def test_a_run_logs_numbers_and_its_groups_teach(trained, advantage, rows, sums):
    sizes = {"num_generations": 1, "per_device_train_batch_size": rows, "per_device_eval_batch_size": 2}
    given = {"reward_funcs": [half], "eval_dataset": sums.select(range(8))}
    evaluating = {"eval_strategy": "steps", "eval_steps": 1}
    trainer = trained(trainer=given, advantage=advantage, **sizes, **evaluating, report=True)
    logged = {key: value for entry in trainer.state.log_history for key, value in entry.items()}
    wrong = {key for key, value in logged.items() if isinstance(value, float) and not math.isfinite(value)}
    assert wrong <= ({"reward_std", "rewards/half/std"} if rows == 1 else set())  # of one number, as in TRL
    assert logged["eval_reward"] > 0
    if rows > 1 or advantage == "raw":
        assert logged["advantages/dead_group_fraction"] < 0.5
    groups = list(open_run(trainer.args.output_dir).groups())
    assert groups
    assert all(len(group["completions"]) == 1 for group in groups)
    assert write_report([trainer.args.output_dir]).stat().st_size > 10_000
