"""A critic in real runs: its gradient, what it leaves alone, warm-up, resumption, ranks, learning."""

import itertools
import json
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import BitsAndBytesConfig

from grpo_plus.heads.passes import rows_of
from grpo_plus.memory.errors import StepTooLargeError
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.critic import CRITIC_FEATURES, CRITIC_RETURNS, Critic, CriticError
from grpo_plus.training.hooks import Hook
from grpo_plus.training.reward_table import CRITIC_VALUES
from grpo_plus.training.state import Frozen, StateError
from tests.device import DEVICE
from tests.memory.live import OnDevice

KINDS = ("trunk", "adapter", "model")


def micro_batches(seed=0):
    """Two micro-batches with padding, tool results and a row without a reward."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for part in range(2):
        ids = torch.randint(3, 90, (3, 13), generator=generator)
        mask = torch.ones(3, 13, dtype=torch.long)
        mask[0, :2] = 0  # the prompt is the first five columns
        mask[1, 10:] = 0
        mask[2, 5:] = 0 if part else 1
        tool = torch.ones(3, 8, dtype=torch.long)
        tool[0, 2:5] = 0
        returns = torch.randn(3, 8, generator=generator)
        returns[1 + part] = math.nan
        found.append({
            "prompt_ids": ids[:, :5], "prompt_mask": mask[:, :5], "completion_ids": ids[:, 5:], "completion_mask": mask[:, 5:],
            "tool_mask": tool, CRITIC_RETURNS: returns, CRITIC_VALUES: 0.3 * torch.randn(3, 8, generator=generator),
            "advantages": torch.zeros(3),
        })  # fmt: skip
    return [{name: column.to(DEVICE) for name, column in micro.items()} for micro in found]


def plain_gradients(critic, batches, clip):
    """Gradients of the loss over all trained tokens, token after token; the values are those of the critic's passes."""
    total, count = 0.0, 0
    for micro in batches:
        values = critic.passes.values(*rows_of(micro)).double()
        for place in itertools.product(range(3), range(8)):
            target = micro[CRITIC_RETURNS][place].double()
            if not micro["completion_mask"][place] or not micro["tool_mask"][place] or target.isnan():
                continue
            value, old = values[place], micro[CRITIC_VALUES][place].double()
            error = (value - target) ** 2
            if clip is not None:
                error = torch.maximum(error, (old + (value - old).clamp(-clip, clip) - target) ** 2)
            total, count = total + 0.5 * error, count + 1
    assert count == 5 + 8 + 5 + 5
    (total / count).backward()
    return gradients_of(critic)


def gradients_of(critic):
    found = {name: p.grad.clone() for name, p in critic.optimizer.parameters.items() if p.grad is not None}
    critic.optimizer.zero_grad()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_an_update_is_that_of_a_plain_loop_over_its_tokens(build, kind, clip, monkeypatch):
    critic, batches = build({"on": kind, "clip": clip}).critic, micro_batches()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in critic.optimizer.parameters.values():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(DEVICE))
    with critic.trunk.active():
        expected = plain_gradients(critic, batches, clip)
        if kind == "trunk":
            with torch.no_grad():
                for micro in batches:
                    _, micro[CRITIC_FEATURES] = critic.passes.features(*rows_of(micro))
    found = {}
    monkeypatch.setattr(critic.optimizer, "step", lambda: found.update(gradients_of(critic)) or 1.0)
    critic._learn(batches)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-5, rtol=2e-3)
    assert sum(bool(gradient.abs().max() > 1e-4) for gradient in found.values()) >= (2 if kind == "trunk" else 10)


class Watch(Hook):
    """Keeps the policy's weights, its optimizer's state and its rate at each step."""

    def __init__(self):
        self.seen = []

    def on_step_end(self, *_, optimizer=None, lr_scheduler=None, **__):
        inner = getattr(optimizer, "optimizer", optimizer)
        weights = {n: p.detach().clone() for n, p in self.host.model.named_parameters() if ".critic." not in n}
        rate = lr_scheduler.get_last_lr()[0]
        self.seen.append((weights, sum(len(state) for state in inner.state.values()), rate))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_warm_up_trains_the_critic_alone(build, logged, kind):
    watch = Watch()
    trainer = build(
        {"on": kind, "warmup_steps": 2, "learning_rate": 0.01}, hooks=[watch], max_steps=5, lr_scheduler_type="linear"
    )
    start = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if ".critic." not in n}
    before = trainer.critic.optimizer.parameters["head/weight"].detach().clone()
    trainer.train()
    (first, none, rate), (second, nothing, same_rate), (third, some, next_rate) = watch.seen[:3]
    assert same(first, start)
    assert same(second, start)
    assert not same(third, second)
    assert (none, nothing) == (0, 0)
    assert some > 0
    assert rate == same_rate == 0.01 > next_rate  # the schedule waits
    assert logged(trainer, "critic/warmup") == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert trainer.critic.updates == 5
    assert not torch.equal(trainer.critic.head.weight, before)


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [5, 6])
def test_a_rule_that_ends_inner_iterations_lets_the_warm_up_be_and_judges_whole_iterations_only(build, logged, warmup):
    """Three iterations of two steps on a batch, ended where the objective does not rise twofold, say: always."""
    sizes = {"num_iterations": 3, "steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_steps": 12}
    rule = {"objective": "grpo", "objective_kwargs": {"stop_rise": 100.0}}
    trainer = build({"on": "trunk", "warmup_steps": warmup, "learning_rate": 0.01}, **rule, **sizes)
    trainer.train()
    assert logged(trainer, "critic/warmup") == [1.0] * warmup + [0.0] * (12 - warmup)
    assert len(logged(trainer, "inner/skipped")) == 2  # the last iteration on the second batch
    assert trainer.critic.updates == 10
    assert trainer.inner.passed == warmup + 2
    assert len(logged(trainer, "inner/objective")) == 2  # of iterations that the policy was trained in throughout


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize("kind", KINDS)
def test_critic_passes_change_nothing_of_the_policy(build, kind, monkeypatch):
    """With the same advantages, a run whose critic updates ten times is the run whose critic never does, bit for bit."""
    runs = []
    for learns in (True, False):
        trainer = build({"on": kind, "updates": 10, "learning_rate": 0.05}, seed=3)
        advantages = trainer._advantages._advantages
        monkeypatch.setattr(
            trainer._advantages, "_advantages", lambda *given, of=advantages: torch.sign(of(*given) * 0 + 1.0)
        )
        if not learns:
            monkeypatch.setattr(trainer.critic, "_learn", lambda rows: None)
        trainer.train()
        runs.append({n: p.detach().clone() for n, p in trainer.model.named_parameters() if ".critic." not in n})
    assert same(*runs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one(build, kind, tmp_path):
    """In the middle of a generation batch and of the warm-up's successor, bit for bit."""
    critic = {"on": kind, "updates": 2, "warmup_steps": 1, "learning_rate": 0.01}
    settings = {"save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    settings |= {"steps_per_generation": 2, "num_iterations": 2, "gradient_accumulation_steps": 1}
    whole = build(critic, **settings)
    whole.train()
    again = build(critic, **settings, output_dir=str(tmp_path / "again"))
    again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3"))
    assert again.critic.updates == whole.critic.updates == 12
    assert same(again.critic.tensors(), whole.critic.tensors())
    assert len(whole.critic.tensors()) >= (8 if kind == "trunk" else 40)
    policy = [{n: p.detach() for n, p in trainer.model.named_parameters()} for trainer in (whole, again)]
    assert same(*policy)
    folder = tmp_path / "out" / "checkpoint-3"
    assert (folder / "grpo_plus_critic.safetensors").exists()
    assert not list(folder.glob("critic"))
    other = build({**critic, "on": "trunk" if kind == "model" else "model"}, lora=kind == "adapter", **settings)
    with pytest.raises(StateError, match="its state of 'critic' belongs to 'a critic on"):
        other.train(resume_from_checkpoint=str(folder))


def test_a_checkpoint_names_tensors_as_it_always_did(build):
    critic = build({"on": "trunk"}).critic
    critic.head.weight.grad = torch.ones_like(critic.head.weight)
    critic.optimizer.step()
    moments = [f"adamw/head/{name}/{kind}" for name in ("bias", "weight") for kind in ("exp_avg", "exp_avg_sq", "step")]
    assert sorted(critic.tensors()) == [*moments, "head/bias", "head/weight"]
    other = build({"on": "trunk"}).critic
    other.load_tensors(critic.tensors())
    assert same(other.tensors(), critic.tensors())


def test_a_note_of_the_last_step_copies_no_weights_of_a_critic(build, monkeypatch):
    """It is made at every step with a vLLM server; a model of its own would go to main memory each time."""
    critic = build({"on": "model"}).critic
    made = []
    copied = type(critic.trunk).tensors
    monkeypatch.setattr(type(critic.trunk), "tensors", lambda trunk: made.append(1) or copied(trunk))
    frozen = Frozen(critic)
    assert not made
    assert same(frozen.tensors(), critic.tensors())


@pytest.mark.slow
def test_the_saved_policy_has_nothing_of_the_critics_adapter(build, tmp_path):
    trainer = build({"on": "adapter", "learning_rate": 0.05}, learning_rate=0.0, max_steps=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    weights = load_file(tmp_path / "model" / "adapter_model.safetensors")
    assert weights
    assert not [name for name in weights if "critic" in name]
    assert not (tmp_path / "model" / "critic").exists()
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert trained
    assert not [name for name in trained if "critic" in name]
    groups = trainer.optimizer.param_groups
    critics = {id(p) for p in trainer.critic.optimizer.parameters.values()}
    assert not [p for group in groups for p in group["params"] if id(p) in critics]


@pytest.mark.slow
def test_evaluations_have_values_and_no_updates(build, logged):
    rows = Dataset.from_dict({"prompt": ["1+1=", "2+2=", "3+3=", "4+4="]})
    settings = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4, "num_generations_eval": 1}
    trainer = build({"on": "trunk", "learning_rate": 0.01, "warmup_steps": 1}, evaluation=rows, max_steps=2, **settings)
    trainer.train()
    assert trainer.critic.updates == 2
    assert len(logged(trainer, "eval_critic/value")) == 2
    assert logged(trainer, "eval_loss")[0] != 0.0  # the loss of the policy, in the warm-up as well


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_no_numbers_end_the_run_before_the_policy_trains_on_them(build, kind):
    trainer = build({"on": kind})
    with torch.no_grad():
        trainer.critic.head.weight.fill_(math.nan)
    start = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    with pytest.raises(CriticError, match=r"the critic's values of \d+ of \d+ tokens are no numbers"):
        trainer.train()
    assert same(dict(trainer.model.state_dict()), start)


@pytest.mark.slow
def test_several_completions_of_a_prompt_are_packed_for_the_critic_too(build, logged, monkeypatch):
    """The engine's layouts give the same values, and the same critic after training, to float rounding."""
    weights, values = [], []
    for engine in ("packed", "stock"):
        trainer = build(
            {"on": "model", "learning_rate": 1e-3}, engine=engine, num_generations=4, learning_rate=0.0, rollout="stock"
        )
        trainer.train()
        weights.append(trainer.critic.tensors())
        values.append(logged(trainer, "critic/value"))
    assert values[0] == pytest.approx(values[1], abs=1e-5)
    for name, tensor in weights[0].items():
        if not name.startswith("adamw"):
            torch.testing.assert_close(tensor, weights[1][name], atol=2e-3, rtol=0.1)


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_critic_learns_to_explain_the_returns(build, logged, kind):
    """Rewards that a prompt decides: a critic can know them from the first token on."""

    def by_prompt(prompts, **_):
        return [float(int(prompt[0]) % 2) for prompt in prompts]

    settings = {"trunk": (0.003, 20, 30, 0.3), "adapter": (0.02, 4, 25, 0.7), "model": (0.01, 4, 25, 0.7)}
    rate, updates, steps, enough = settings[kind]
    critic = {"on": kind, "updates": updates, "learning_rate": rate, "clip": None}
    settings = {"learning_rate": 0.0, "max_steps": steps, "per_device_train_batch_size": 8}
    trainer = build(critic, rewards=by_prompt, **settings)
    trainer.train()
    explained = logged(trainer, "critic/explained_variance")
    assert abs(explained[0]) < 0.2
    assert sum(explained[-3:]) / 3 > enough


@pytest.mark.slow
def test_two_ranks_train_the_critic_of_one_process(tmp_path, tiny_model, two_ranks):
    script = Path(__file__).with_name("critic_ranks.py")
    run = runpy.run_path(str(script))["run"]
    with two_ranks(script, tmp_path, tiny_model, log=tmp_path / "log"):
        pass
    for kind in KINDS:
        one = run(str(tmp_path / "alone"), tiny_model, kind, 8)
        first, second = (load_file(tmp_path / f"{kind}_{rank}.safetensors") for rank in range(2))
        assert same(first, second)
        assert one.keys() == first.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(
                first[name], tensor, atol=2e-5, rtol=2e-3, msg=lambda text, name=name: f"{name}: {text}"
            )
    logs = json.loads((tmp_path / "trunk_0.json").read_text())
    assert len(logs) == 3


def test_the_hook_stands_before_the_advantages(build):
    trainer = build({"on": "trunk"})
    names = [hook.name for hook in trainer.hooks]
    assert names.index("critic") < names.index("advantages") < names.index("critic_returns")
    assert isinstance(trainer.critic, Critic)


def test_an_accelerate_that_cannot_hold_the_schedule_is_told_by_the_warm_up(build):
    trainer = build({"on": "trunk", "warmup_steps": 2})
    trainer.critic.step(lambda: torch.zeros(()))
    with pytest.raises(RuntimeError, match="this version of accelerate: remove critic warmup_steps"):
        trainer.critic.on_optimizer_step(optimizer=SimpleNamespace(step_was_skipped=None))


def test_features_of_a_batch_wait_in_main_memory_and_the_device_holds_those_of_a_pass(build):
    trainer = build({"on": "trunk"})
    trainer.model.train()
    (micro, _), peaks = micro_batches(), {}
    for count in (4, 120):
        output = {name: micro[name][:1].repeat(count, 1) for name in micro if name.startswith(("prompt", "completion"))}
        with OnDevice() as live:
            trainer.critic.batch(output)
        assert live.in_main_memory(output[CRITIC_FEATURES])
        assert not live.in_main_memory(output[CRITIC_VALUES])
        peaks[count] = live.peak
    hidden = output[CRITIC_FEATURES]
    assert hidden.shape == (120, 8, trainer.critic.trunk.hidden_size)
    assert hidden.any(-1).all()
    assert peaks[120] - peaks[4] < 0.5 * hidden.nbytes


@pytest.mark.slow
def test_a_run_in_4_bits_has_its_critic_on_the_same_base(build, logged, tmp_path):
    """With evaluations and activation checkpointing; the base stays what it was, and the critic learns."""
    make_tiny_model(tmp_path / "base", hidden=64)
    quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    rows = Dataset.from_dict({"prompt": ["1+1=", "2+2=", "3+3=", "4+4="]})
    settings = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "num_generations_eval": 1}
    trainer = build(
        {"on": "adapter", "learning_rate": 0.02, "updates": 2, "clip": None},
        model=str(tmp_path / "base"), evaluation=rows, model_init_kwargs={"quantization_config": quantisation},
        gradient_checkpointing=True, max_steps=4, learning_rate=1e-4, **settings,
    )  # fmt: skip
    base = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if "lora" not in name}
    assert any(tensor.dtype == torch.uint8 for tensor in base.values())
    trainer.train()
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(now[name], tensor) for name, tensor in base.items())
    own = trainer.critic.trunk.named_parameters()
    assert len([name for name, p in own.items() if "lora_B" in name and p.abs().sum() > 0]) >= 14
    assert len(logged(trainer, "eval_critic/value")) == 2
    assert logged(trainer, "critic/loss")[-1] < logged(trainer, "critic/loss")[0]


@pytest.mark.slow
def test_a_checkpoint_of_models_alone_has_the_critics_weights_without_its_optimizer(build, tmp_path):
    trainer = build({"on": "trunk"}, save_strategy="steps", save_steps=2, max_steps=2, save_only_model=True)
    trainer.train()
    kept = load_file(tmp_path / "out" / "checkpoint-2" / "grpo_plus_critic.safetensors")
    assert sorted(kept) == ["head/bias", "head/weight"]
    assert torch.equal(kept["head/weight"], trainer.critic.head.weight.cpu())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_runs_out_in_the_critic_says_what_to_lower_and_leaves_the_policy_active(build, kind, monkeypatch):
    trainer = build({"on": kind})

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(trainer.critic.trunk, "hidden", full)
    trained = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    with pytest.raises(StepTooLargeError, match=r"out of memory while the critic's values were .*lower per_device"):
        trainer.train()
    assert [name for name, p in trainer.model.named_parameters() if p.requires_grad] == trained
