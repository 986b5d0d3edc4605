"""Whole training runs: targets that are reached and held, steps that are skipped, coefficients and references."""

import ast
import importlib.util
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate import Accelerator
from accelerate.utils import DistributedType
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.cli import main
from grpo_plus.recipe.choice import ConfigFacts
from grpo_plus.recipe.launch import moves_in_batch
from grpo_plus.recipe.table import parts_of
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.update import reference
from grpo_plus.training.update.inner import check_clean_steps
from grpo_plus.trl.rollout import mark_optimizer_step
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.rules import broken_rules
from tests.device import DEVICE, ON_CPU
from tests.objectives import split_runs
from tests.objectives.runs import SETTINGS, flat, letters, logps_of


def column(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


class Watch(TrainerCallback):
    """Notes the weights and the optimizer's state after each step."""

    def __init__(self, seen):
        self.seen = seen

    def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
        sums = [
            {key: float(torch.as_tensor(value).double().sum()) for key, value in each.items()}
            for each in optimizer.state.values()
        ]
        self.seen.append((flat(model).clone(), json.dumps(sums)))


@pytest.mark.slow
def test_target_moves_probabilities_to_their_targets_and_stops_there(build):
    seen, settings = [], {"num_iterations": 40, "max_steps": 40, "learning_rate": 3e-3}
    trainer = build(objective={"name": "target", "stop_fraction": 0.95}, callbacks=[Watch(seen)], **settings)
    trainer.train()
    batches = trainer._buffered_inputs
    there, moved, signed = 0, 0.0, 0
    trainer.model.train()
    for batch in batches:
        with torch.no_grad():
            logps = logps_of(trainer, batch)
        sign, goal, old = batch["target_sign"], batch["target_logps"], batch["old_per_token_logps"]
        pulled = sign != 0
        assert torch.where(pulled, sign * (goal - old), 0.0).min() >= -1e-6
        signed += int(pulled.sum())
        there += int((pulled & (sign * (goal - logps) <= 0.01)).sum())
        moved += float(torch.where(pulled, sign * (logps - old), 0.0).sum())
    assert signed > 10
    assert there / signed > 0.9
    assert moved / signed > 0.3  # nats, on average, in the direction wanted
    shares = column(trainer, "inner/settled")
    assert shares[0] < 0.2
    assert shares[-1] >= 0.95
    assert all(share < 0.95 for share in shares[:-1])
    assert not any("iteration_1/kl" in entry for entry in trainer.state.log_history)
    # From there on nothing runs and nothing moves: neither weights nor the optimizer's moments and step counts.
    skipped = len(column(trainer, "inner/skipped"))
    assert skipped == 40 - len(shares) > 0
    stopped = seen[len(shares) - 1 :]
    assert all(torch.equal(weights, stopped[0][0]) and moments == stopped[0][1] for weights, moments in stopped)
    assert not torch.equal(seen[0][0], seen[1][0])
    assert all(weight.grad is None for weight in trainer.model.parameters())
    assert column(trainer, "grad_norm")[-1] == 0


SPLITS = [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 4), (1, 2, 4), (1, 4, 2), (1, 3, 2), (1, 2, 3), (2, 1, 1), (3, 1, 2)]


@pytest.mark.sample(1, 8)
@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize("split", SPLITS)
def test_targets_are_refused_just_where_their_exponents_change_nothing(build, split, by_length, monkeypatch):
    iterations, steps, accumulation = split
    counts = {"num_iterations": iterations, "gradient_accumulation_steps": accumulation}
    settings = {"objective": "target", "max_steps": 3, "optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0}
    settings |= counts | ({"generation_batch_size": 4 * steps} if by_length else {"steps_per_generation": steps})
    try:
        build(**settings)
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
    if by_length:
        assert bool(refused) == (accumulation % (steps * iterations) == 0)
        return
    monkeypatch.setattr("grpo_plus.recipe.choice.moves_in_batch", lambda _: True)
    ends = []
    for exponents in ({}, {"good_exponent": 0.98, "bad_exponent": 1.02}):
        trainer = build(**{**settings, "objective": {"name": "target", **exponents}})
        trainer.train()
        ends.append(flat(trainer.model))
    assert torch.equal(*ends) == bool(refused)
    if refused:
        counts["steps_per_generation"] = steps
        assert all(f"{name} {count}" in refused for name, count in counts.items())
        enough = int(refused.split("Set num_iterations to ")[1].split()[0])
        monkeypatch.undo()
        build(**{**settings, "num_iterations": enough})


@pytest.mark.parametrize("value", [0, None, -3])
@pytest.mark.parametrize("field", ["num_iterations", "steps_per_generation", "gradient_accumulation_steps"])
def test_counts_that_are_none_do_not_end_the_check(field, value):
    fields = {"num_iterations": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 2}
    fields |= {"generation_batch_size": None, "per_device_train_batch_size": 4}
    assert moves_in_batch(SimpleNamespace(**fields))
    moves_in_batch(SimpleNamespace(**{**fields, field: value}))
    fields |= {"steps_per_generation": None, "generation_batch_size": 8, "per_device_train_batch_size": value}
    moves_in_batch(SimpleNamespace(**fields))


def schedule_of(trainer):
    """The learning rate at every step, which steps were trained, and the rate that stands at the end."""
    log = [entry for entry in trainer.state.log_history if "learning_rate" in entry]
    trained = ["inner/settled" in entry for entry in log]
    assert trained == ["inner/skipped" not in entry for entry in log]
    return [entry["learning_rate"] for entry in log], trained, trainer.lr_scheduler.get_last_lr()[0]


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 2])
def test_skipped_steps_advance_no_schedule(build, accumulation, tmp_path):
    seen = []
    stop = {"stop_fraction": 0.1, "kl": {"schedule": {"name": "warmup", "steps": 30}}}
    settings = {"objective": {"name": "grpo", **stop}, "beta": 1e-3}
    settings |= {"gradient_accumulation_steps": accumulation, "num_iterations": 6, "learning_rate": 0.05}
    settings |= {"lr_scheduler_type": "linear", "warmup_steps": 3, "weight_decay": 0.1}
    trainer = build(max_steps=18, save_strategy="steps", save_steps=12, callbacks=[Watch(seen)], **settings)
    trainer.train()
    rates, trained, last = schedule_of(trainer)
    assert 3 <= sum(trained) < 18
    assert False in trained[:6]
    assert True in trained[6:12]  # the next generation batch trains again
    assert trainer._step == 18 * accumulation
    assert max(column(trainer, "iteration_2/clip_ratio/region_mean")) > 0.1

    def rate(count):
        return 0.05 * (count / 3 if count < 3 else (18 - count) / 15)

    assert rates == pytest.approx([rate(sum(trained[:step])) for step in range(18)])
    assert last == pytest.approx(rate(sum(trained)))
    assert column(trainer, "beta") == pytest.approx([1e-3 * step / 30 for step in range(sum(trained))])
    moves = [not torch.equal(before[0], after[0]) for before, after in itertools.pairwise(seen)]
    assert moves == trained[1:]
    assert all((a[1] != b[1]) == moved for (a, b), moved in zip(itertools.pairwise(seen), moves, strict=True))
    again = build(max_steps=18, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-12"))
    rates, trained, last = schedule_of(again)
    assert rates == pytest.approx([rate(sum(trained[:step])) for step in range(18)])
    assert column(again, "beta") == pytest.approx([1e-3 * step / 30 for step in range(sum(trained))])
    assert last == pytest.approx(rate(sum(trained)))


def test_schedules_that_accelerate_drives_stay_too():
    accelerator = Accelerator(cpu=ON_CPU)
    weight = torch.nn.Parameter(torch.ones(1, device=DEVICE))
    plain = torch.optim.SGD([weight], lr=1.0)
    optimizer = accelerator.prepare(plain)
    schedule = accelerator.prepare(torch.optim.lr_scheduler.LambdaLR(plain, lambda step: 0.5**step))
    rates = []
    for skipped in (False, True, True, False):
        optimizer.step()
        mark_optimizer_step(optimizer, skipped=skipped, by="it")
        schedule.step()
        rates.append(schedule.get_last_lr()[0])
    assert rates == [0.5, 0.5, 0.5, 0.25]


def test_an_accelerate_without_the_mark_is_told_by_what_needs_it(build):
    trainer = build(objective={"name": "grpo", "stop_fraction": 0.1}, num_iterations=2, max_steps=1)
    (inner,) = (hook for hook in trainer.pipeline.stages if hook.name == "inner_iterations")
    with pytest.raises(RuntimeError, match="this version of accelerate: remove stop_fraction"):
        inner.on_optimizer_step(optimizer=SimpleNamespace(step_was_skipped=None))


def test_a_second_training_starts_with_a_schedule_that_moves(build):
    trainer = build(objective={"name": "grpo", "stop_fraction": 0.1}, num_iterations=6, max_steps=6,
                    learning_rate=0.05, lr_scheduler_type="linear")  # fmt: skip
    for _ in range(2):
        trainer.train()
        rates, trained, _ = schedule_of(trainer)
        assert trained[-1] is False
        assert rates[:2] == pytest.approx([0.05, 0.05 * 5 / 6])


def test_tokens_past_their_clip_have_no_gradient(build):
    trainer = build(objective="grpo", num_iterations=2)
    trainer.train()
    batch = dict(trainer._buffered_inputs[0])
    shift = torch.where(batch["advantages"] > 0, -0.5, 0.5)[:, None]  # every token is far past its clip
    trainer.model.zero_grad()
    batch["old_per_token_logps"] = logps_of(trainer, batch).detach() + shift
    trainer.compute_loss(trainer.model, batch).backward()
    assert max(float(weight.grad.abs().max()) for weight in trainer.model.parameters()) == 0.0


@pytest.mark.parametrize(("settings", "said"), [
    ({"num_iterations": 1}, "num_iterations of 2 or more"), ({"num_iterations": 2, "steps_per_generation": 3}, "steps_per_generation 3"),
    ({"num_iterations": 2, "generation_batch_size": 4}, "steps_per_generation 1"), ({"num_iterations": 2, "fp16": True}, "fp16"),
])  # fmt: skip
def test_stop_fraction_is_refused_where_a_step_without_gradients_is_not_clean(build, settings, said):
    with pytest.raises(ConfigError) as error:
        build(objective={"name": "target", "stop_fraction": 0.9}, **settings)
    assert said in str(error.value)
    assert "stop_fraction" in str(error.value)


def test_stop_fraction_is_refused_with_deepspeed_and_gradient_scalers():
    # Building a config with DeepSpeed's field would mark this whole process as a DeepSpeed one.
    config = GRPOPlusConfig(
        output_dir="unused", **SETTINGS | {"num_iterations": 2}, objective={"name": "grpo", "stop_fraction": 0.5}
    )
    config.deepspeed = "zero2.json"
    choice = ConfigFacts(config, config.recipe)
    (problem,) = broken_rules(parts_of(choice), choice)
    assert "deepspeed ('zero2.json'): stop_fraction leaves steps without gradients" in problem
    running = SimpleNamespace(scaler=None, distributed_type=DistributedType.MULTI_GPU)
    assert check_clean_steps(running) == []
    running.scaler = torch.amp.GradScaler("cpu")
    assert "gradient scaler" in check_clean_steps(running)[0]
    running.scaler, running.distributed_type = None, DistributedType.DEEPSPEED
    assert "DeepSpeed" in check_clean_steps(running)[0]


GRPO, TWICE = {"objective": "grpo"}, {"num_iterations": 2}
LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
KL = GRPO | {"beta": 0.1}
IN_REWARD = {**KL, "objective": {"name": "grpo", "kl": {"placement": "reward"}}}


@pytest.mark.parametrize(("settings", "said"), [
    ({"objective": "target", "max_steps": 1, **TWICE}, "needs max_steps (1): the first step knows the sign of each target only. Set it to 2"),
    (GRPO | {"objective": {"name": "grpo", "surrogate": "target"}}, "Set num_iterations to 2 or more"),
    ({**KL, "sync_ref_model": True, "peft_config": LORA}, "mixup_alpha is 0.6: with LoRA it must be 1.0"),
    ({"objective": "target", "top_entropy_quantile": 0.5}, "top_entropy_quantile (0.5): nothing may drop"),
    ({"objective": "target", "off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold (0.5): nothing may drop"),
    ({"objective": "target", "use_vllm": True}, "vllm_importance_sampling_correction"),
    ({"objective": "vespo", "use_vllm": True}, "token_truncate"), ({"sync_ref_model": True}, "sync_ref_model needs beta"),
    ({**KL, "sync_ref_model": True, "ref_model_mixup_alpha": 2.0}, "mixup_alpha is 2.0"), ({**IN_REWARD, "advantage": "gdpo"}, "(gdpo)"),
    ({**IN_REWARD, "multi_objective_aggregation": "normalize_then_sum"}, "normalize_then_sum"),
])  # fmt: skip
def test_fields_that_do_not_go_together_are_refused(build, settings, said):
    with pytest.raises(ConfigError) as error:
        build(**settings)
    assert said in str(error.value)


def test_what_is_refused_with_fewer_iterations_is_built_with_enough(build):
    build(objective={"name": "grpo", "surrogate": "target"}, num_iterations=2)


PARTS = """
from grpo_plus import register_objective


def score(completions, **columns):
    return [sum(map(ord, text)) % 7 / 7 for text in completions]


@register_objective("mine", kl="none")
def mine(batch, *, scale: float = 1.0):
    loss = -scale * batch.advantages * batch.logps
    return loss, {"mine/loss": loss, "mine/scale": batch.mask * scale}


def soft(batch, ratio, *, sharpness: float = 1.0):
    gate = (sharpness * (ratio - 1)).sigmoid()
    return gate * batch.advantages, {"soft/gate": gate}
"""


@pytest.mark.slow
def test_a_users_objective_from_a_file_trains_from_its_config(build, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    objective = {"name": "./mine.py:mine", "scale": 2.0, "reduce": "sequence_mean"}
    settings = {"objective": objective, "optim": "sgd", "max_grad_norm": 0.0}
    trainer = build(**settings)
    trainer.train()
    assert len(column(trainer, "mine/loss")) == 2
    # The same thing out of our own pieces.
    ours = {**settings, "objective": {"name": "reinforce", "reduce": "sequence_mean"}}
    weights = []
    for chosen in (settings, ours):
        run = build(**chosen, max_steps=1)
        start = flat(run.model).clone()
        run.train()
        weights.append(flat(run.model) - start)
    assert weights[0].norm() > 1e-3
    assert (weights[0] - 2 * weights[1]).norm() <= 1e-4 * weights[0].norm()


@pytest.mark.slow
def test_an_adaptive_coefficient_goes_on_where_a_checkpoint_left_it(build, tmp_path):
    kl = {"schedule": {"name": "adaptive", "target": 1e-4, "rate": 0.5}}
    settings = {"objective": {"name": "grpo", "kl": kl}, "beta": 0.05, "num_iterations": 2}
    settings |= {"save_strategy": "steps", "save_steps": 4}
    trainer = build(max_steps=4, **settings)
    trainer.train()
    betas = column(trainer, "beta")
    # The first step is on-policy with the reference: KL 0, down by the cap.
    assert betas[:2] == pytest.approx([0.05, 0.05 * 0.9])
    assert betas[3] > betas[2]  # the policy has moved far more than 1e-4 nats by then
    saved = trainer.pipeline.objective.coefficient.beta
    again = build(max_steps=6, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-4"))
    assert column(again, "beta")[4] == pytest.approx(saved)
    assert saved != pytest.approx(0.05)


def test_kl_in_the_reward_lessens_it_before_the_advantages(build):
    trainer = build(**{**IN_REWARD, "beta": 0.3}, advantage="center")
    trainer.train()
    batches = []
    inner = trainer._generate_and_score_completions

    def keep(rows):
        batches.append(inner(rows))
        return batches[-1]

    trainer._generate_and_score_completions = keep
    trainer.model.train()
    trainer._step, trainer._buffered_inputs = 0, None
    rows = [{"prompt": "1+1="}] * 4 + [{"prompt": "x"}] * 4
    trainer._prepare_inputs(rows)
    (batch,) = batches
    mask = batch["completion_mask"].bool()
    divergence = torch.where(mask, batch["old_per_token_logps"] - batch["ref_per_token_logps"], 0.0).sum(-1)
    assert divergence.abs().max() > 0.01
    texts = trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
    rewards = torch.tensor(letters(texts), device=DEVICE) - 0.3 * divergence
    expected = rewards - rewards.view(2, 4).mean(1).repeat_interleave(4)
    assert torch.allclose(batch["advantages"], expected, atol=1e-5)
    assert not trainer.objective.kl_in_loss


def adapter(model, name):
    return {
        key.replace(f".{name}.", "."): weight.detach().clone()
        for key, weight in model.named_parameters()
        if f".{name}." in key
    }


@pytest.mark.slow
def test_a_lora_reference_follows_the_policy_and_survives_a_resume(build, tmp_path):
    settings = {**KL, "sync_ref_model": True, "ref_model_sync_steps": 2, "ref_model_mixup_alpha": 1.0}
    settings |= {"save_strategy": "steps", "save_steps": 3, "learning_rate": 0.05, "num_iterations": 1}
    kept = []

    class Keep(TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **_):
            kept.append((adapter(model, "default"), adapter(model, "ref")))

        on_train_begin = on_step_end

    trainer = build(peft_config=LORA, callbacks=[Keep()], max_steps=3, **settings)
    base = {key: weight.clone() for key, weight in trainer.model.named_parameters() if "lora_" not in key}
    trainer.train()

    def same(one, other):
        return all(torch.equal(one[key], other[key]) for key in one)

    (start, first_ref), (one, ref_one), (two, _), (three, ref_three) = kept
    assert len(start) == len(first_ref) == 8
    assert same(start, first_ref)
    assert same(ref_one, start)
    assert not same(one, start)
    # Two steps in, the callbacks run in the order in which they were added: ours of the trainer comes last.
    assert same(ref_three, two)
    assert not same(three, two)
    assert column(trainer, "kl")[2] == pytest.approx(0.0, abs=1e-6)  # refreshed just before
    assert column(trainer, "kl")[1] > 1e-6
    trained = {key for key, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert trained == {key for key, _ in trainer.model.named_parameters() if ".default." in key}
    assert all(torch.equal(dict(trainer.model.named_parameters())[key], weight) for key, weight in base.items())
    kept.clear()
    again = build(peft_config=LORA, callbacks=[Keep()], max_steps=4, **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert same(kept[0][0], three)
    assert same(kept[0][1], ref_three)
    assert again.args.sync_ref_model


def test_a_lora_reference_in_pieces_is_gathered_for_a_checkpoint(build, monkeypatch):
    trainer = build(peft_config=LORA, **KL, sync_ref_model=True, ref_model_mixup_alpha=1.0, max_steps=1)
    (hook,) = [hook for hook in trainer.pipeline.stages if isinstance(hook, reference.AdapterReference)]
    count = []
    monkeypatch.setattr(reference, "gathered", lambda weight: count.append(1) or weight)
    monkeypatch.setattr(trainer, "is_fsdp_enabled", True)
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if ".default." in name:
                weight.add_(1.0)
    before = hook.tensors()
    hook.refresh()
    after = hook.tensors()
    assert len(count) == 16
    pairs = reference.pairs_of(trainer.model)
    assert all(torch.equal(after[name], weight.cpu()) for name, (weight, _) in pairs.items())
    hook.load_tensors(before)
    assert all(torch.equal(weight, before[name]) for name, weight in hook.tensors().items())
    assert not any(torch.equal(after[name], before[name]) for name in after)


def test_a_full_models_reference_is_refreshed_by_the_host(build):
    trainer = build(**KL, sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=1.0)
    trainer.train()
    weights = zip(trainer.model.parameters(), trainer.ref_model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_a_moe_auxiliary_loss_is_added(tmp_path):
    folder = tmp_path / "moe"
    make_tiny_model(folder, architecture="qwen3_moe", layers=1)
    config = GRPOPlusConfig(
        output_dir=str(tmp_path / "out"), **SETTINGS | {"max_steps": 1}, objective="dapo", router_aux_loss_coef=0.5
    )
    trainer = GRPOPlusTrainer(str(folder), letters, config, Dataset.from_dict({"prompt": ["1+1="] * 4}))
    trainer.train()
    assert column(trainer, "aux_loss")[0] > 0.1


SOFT = """
  name: grpo
  surrogate: {name: ./parts.py:soft, sharpness: 2}
  reduce: token_mean
  kl: {estimator: k2, unbiased: false}
beta: 0.1"""
CLIPPED = """{name: grpo, ratio: sequence, surrogate: {name: clip, epsilon_low: 3e-4, epsilon_high: 4e-4}}"""


@pytest.mark.sample(1)
@pytest.mark.parametrize(("objective", "logged"), [
    ("{name: mine, scale: 3e-1, reduce: prompt_mean}", {"mine/scale": 0.3}), (SOFT, {"soft/gate": 0.5, "kl": 0.0}),
    (CLIPPED, {"clip_ratio/region_mean": 0.0}),
])  # fmt: skip
def test_compositions_of_a_yaml_file_train(objective, logged, tmp_path, tiny_model, capsys):
    (tmp_path / "parts.py").write_text(PARTS)
    (tmp_path / "data.jsonl").write_text("".join(f'{{"prompt": "{number}+1="}}\n' for number in range(8)))
    fields = {**SETTINGS, "model_name_or_path": tiny_model, "dataset_name": "./data.jsonl", "max_steps": 1}
    fields |= {"output_dir": str(tmp_path / "out"), "reward_funcs": ["./parts.py:score"], "plugins": ["./parts.py"]}
    text = f"{yaml.safe_dump(fields)}objective: {objective}\n"
    (tmp_path / "config.yaml").write_text(text)
    assert main(["train", str(tmp_path / "config.yaml")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{'loss'")]
    found = ast.literal_eval(line)
    for name, value in logged.items():
        assert float(found[name]) == pytest.approx(value, abs=1e-6)
    assert float(found["grad_norm"]) > 1e-3


EVALUATED = [{"objective": "target"}, {"objective": {"name": "grpo", "reduce": "prompt_mean"}}]


@pytest.mark.sample(1)
@pytest.mark.parametrize("settings", [*EVALUATED, IN_REWARD | {"objective": "gspo"}])
def test_evaluation_runs_and_leaves_training_alone(build, settings, tmp_path):
    questions = Dataset.from_dict({"prompt": ["1+1=", "x"]})
    trainer = build(**settings, per_device_eval_batch_size=8, num_iterations=2, max_steps=3)
    trainer.train()
    step, weights = trainer._step, [weight.clone() for weight in trainer.model.parameters()]
    logs = trainer.evaluate(questions)
    assert math.isfinite(logs["eval_loss"])
    assert logs["eval_entropy"] > 0
    if settings["objective"] == "target":
        # Before any update the loss is the whole way from the old probabilities to the targets.
        assert logs["eval_loss"] == pytest.approx(logs["eval_target/distance"], rel=0.5)
        assert logs["eval_target/at_target"] < 0.2
    assert trainer._step == step
    assert all(torch.equal(one, other) for one, other in zip(weights, trainer.model.parameters(), strict=True))
    assert not any(name.startswith("eval_iteration") for name in logs)


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "luspo", "vespo", "gmpo", "target", "tpo", "real", "prompt_mean", "kl_reward"])  # fmt: skip
def test_a_batch_of_cut_off_completions_is_finite_and_moves_nothing(name, tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(split_runs, "ANSWERS", ["12345678", "abcdefgh", "7", "78a"] * 2)
    seen, trainer = split_runs.gradients(
        tiny_model, tmp_path, rows=4, accumulation=2, **split_runs.COMPOSITIONS[name], logging_steps=1
    )
    assert all((gradient == 0).all() for gradient in seen)
    numbers = [value for entry in trainer.state.log_history for value in entry.values() if isinstance(value, float)]
    assert all(math.isfinite(value) for value in numbers)
    assert column(trainer, "loss") == [0.0] * 3


@pytest.mark.slow
def test_the_example_of_targets(tmp_path, capsys):
    path = Path(__file__).parents[2] / "examples" / "target.py"
    spec = importlib.util.spec_from_file_location("example_of_targets", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    trainer = example.train(str(tmp_path))
    assert column(trainer, "inner/settled")[-1] >= 0.95
    assert len(column(trainer, "inner/skipped")) > 5
    capsys.readouterr()
    example.report(trainer)
    moved = [line.split()[-3:] + line.split()[:1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(moved) >= 2
    for before, goal, now, way in moved:
        sign = 1 if way == "up" else -1
        assert sign * (float(goal) - float(before)) > 0
        assert sign * (float(now) - float(before)) > 0.5 * abs(float(goal) - float(before))
