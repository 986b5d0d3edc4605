"""A critic in real runs: its gradient and that of PPO and SAO, what it leaves alone, warm-up, resumption, ranks, learning."""

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
from transformers import AutoModel, AutoModelForCausalLM, BitsAndBytesConfig

from grpo_plus.heads.passes import rows_of
from grpo_plus.memory.errors import StepTooLargeError
from grpo_plus.testing import make_tiny_model
from grpo_plus.training.hooks import CRITIC_VALUES, Completions, Hook, ScoredBatch
from grpo_plus.training.resume.state import StateError
from grpo_plus.training.update.critic import CRITIC_FEATURES, CRITIC_RETURNS, CriticError
from tests.critic.conftest import vowels
from tests.device import DEVICE
from tests.memory.live import OnDevice
from tests.packaging.test_metrics import documented, fits
from tests.trainer.conftest import logged

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


def policy_of(trainer):
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters() if ".critic." not in n}


@pytest.mark.slow
@pytest.mark.parametrize("clip", [None, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_of_an_update_is_that_of_a_plain_loop_over_its_tokens(build, kind, clip, monkeypatch):
    critic, batches = build({"on": kind, "clip": clip}).pipeline.critic, micro_batches()
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
        states = sum(len(state) for state in inner.state.values())
        self.seen.append((policy_of(self.host), states, lr_scheduler.get_last_lr()[0]))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def evaluating():
    rows = Dataset.from_dict({"prompt": ["1+1=", "2+2=", "3+3=", "4+4="]})
    settings = {"eval_strategy": "steps", "per_device_eval_batch_size": 4, "num_generations_eval": 1}
    return {"evaluation": rows, **settings}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_warm_up_trains_the_critic_alone(build, kind):
    watch, critic = Watch(), {"on": kind, "warmup_steps": 2, "learning_rate": 0.01}
    trainer = build(critic, hooks=[watch], max_steps=5, lr_scheduler_type="linear")
    start = policy_of(trainer)
    before = trainer.pipeline.critic.optimizer.parameters["head/weight"].detach().clone()
    trainer.train()
    (first, none, rate), (second, nothing, same_rate), (third, some, next_rate) = watch.seen[:3]
    assert same(first, start)
    assert same(second, start)
    assert not same(third, second)
    assert (none, nothing) == (0, 0)
    assert some > 0
    assert rate == same_rate == 0.01 > next_rate  # the schedule waits
    assert (logged(trainer, "critic/warmup"), trainer.pipeline.critic.updates) == ([1.0, 1.0, 0.0, 0.0, 0.0], 5)
    assert not torch.equal(trainer.pipeline.critic.head.weight, before)


@pytest.mark.parametrize("advantage", ["gae", "reinforce_pp"])
def test_a_kl_term_in_the_reward_is_the_reward_of_its_token_for_the_policy_and_the_critic(build, advantage):
    """By hand: returns to go of -beta * k1 of each token, with the reward on the last one; the critic's values are 0."""
    seen = []

    def score(completions, **_):
        return [sum(map(ord, text)) % 7 / 7 for text in completions]

    class Watch(Hook):
        def batch(self, batch):
            seen.append({name: one.clone() for name, one in batch.output.items() if isinstance(one, torch.Tensor)})

    critic = {"on": "trunk", "learning_rate": 1e-9} if advantage == "gae" else None
    terms = {"objective": {"name": "ppo_clip", "kl": {"placement": "reward"}}, "beta": 5.0, "max_steps": 2}
    trainer = build(critic, advantage=advantage, hooks=[Watch()], rewards=score, learning_rate=0.1, **terms)
    trainer.train()
    logged_names = {name for entry in trainer.state.log_history[:-1] for name in entry} - {"step"}
    assert not {name for name in logged_names if not any(fits(each, name) for each in documented())}
    batch = seen[-1]
    mask = batch["completion_mask"].bool()
    rewards = torch.where(mask, 5.0 * (batch["ref_per_token_logps"] - batch["old_per_token_logps"]), 0.0)
    assert rewards.abs().max() > 0.1
    texts = trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
    rewards[range(len(texts)), mask.sum(1) - 1] += torch.tensor(score(texts))
    returns = torch.where(mask, rewards.flip(1).cumsum(1).flip(1), 0.0)
    if advantage == "gae":
        torch.testing.assert_close(batch["critic_returns"], returns, atol=1e-4, rtol=1e-4)
    else:
        returns = torch.where(mask, (returns - returns[mask].mean()) / (returns[mask].std() + 1e-4), 0.0)
    torch.testing.assert_close(batch["advantages"], returns, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("warmup", [5, 6])
def test_a_rule_that_ends_inner_iterations_lets_the_warm_up_be_and_judges_whole_iterations_only(build, warmup):
    """Three iterations of two steps on a batch, of which the first settles a token."""
    sizes = {"num_iterations": 3, "steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_steps": 12}
    rule = {"objective": {"name": "grpo", "stop_fraction": 0.01}, "diagnosis": {"stop_on": ["no_gradient"]}}
    trainer = build({"on": "trunk", "warmup_steps": warmup, "learning_rate": 0.01}, learning_rate=0.1, **rule, **sizes)
    trainer.train()
    assert logged(trainer, "critic/warmup") == [1.0] * warmup + [0.0] * (12 - warmup)
    assert len(logged(trainer, "inner/skipped")) == 4  # the last two iterations on the second batch
    assert (trainer.pipeline.critic.updates, trainer.pipeline.inner.passed) == (8, warmup + 4)
    assert len(logged(trainer, "inner/settled")) == 1  # of iterations that the policy was trained in throughout


def ones(batch):
    return batch.adding(advantages=torch.ones_like(batch.output["advantages"]))


@pytest.mark.sample(0, 2)
@pytest.mark.parametrize("kind", KINDS)
def test_critic_passes_change_nothing_of_the_policy(build, kind):
    """With the same advantages, a run whose critic updates ten times is the run whose critic never does, bit for bit."""
    runs = []
    for learns in (True, False):
        trainer = build({"on": kind, "updates": 10, "learning_rate": 0.05}, seed=3)
        compute = trainer.pipeline.advantages.compute
        trainer.pipeline.advantages.compute = lambda *given, of=compute: ones(of(*given))
        if not learns:
            trainer.pipeline.critic._learn = lambda rows: None
        trainer.train()
        runs.append(policy_of(trainer))
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
    assert again.pipeline.critic.updates == whole.pipeline.critic.updates == 12
    assert same(again.pipeline.critic.tensors(), whole.pipeline.critic.tensors())
    assert len(whole.pipeline.critic.tensors()) >= (8 if kind == "trunk" else 40)
    assert same(policy_of(whole), policy_of(again))
    folder = tmp_path / "out" / "checkpoint-3"
    assert (folder / "grpo_plus_critic.safetensors").exists()
    assert not list(folder.glob("critic"))
    other = build({**critic, "on": "trunk" if kind == "model" else "model"}, lora=kind == "adapter", **settings)
    with pytest.raises(StateError, match=r"  critic\.on +\| "):
        other.train(resume_from_checkpoint=str(folder))


@pytest.mark.slow
def test_a_checkpoint_names_tensors_as_it_always_did_and_one_of_models_alone_has_no_moments(build, tmp_path):
    critic, other = (build({"on": "trunk"}).pipeline.critic for _ in range(2))
    critic.head.weight.grad = torch.ones_like(critic.head.weight)
    critic.optimizer.step()
    moments = [f"adamw/head/{name}/{kind}" for name in ("bias", "weight") for kind in ("exp_avg", "exp_avg_sq", "step")]
    assert sorted(critic.tensors()) == [*moments, "head/bias", "head/weight"]
    other.load_tensors(critic.tensors())
    assert same(other.tensors(), critic.tensors())
    trainer = build({"on": "trunk"}, save_strategy="steps", save_steps=2, max_steps=2, save_only_model=True)
    trainer.train()
    kept = load_file(tmp_path / "out" / "checkpoint-2" / "grpo_plus_critic.safetensors")
    assert sorted(kept) == ["head/bias", "head/weight"]
    assert torch.equal(kept["head/weight"], trainer.pipeline.critic.head.weight.cpu())


def test_a_warm_up_needs_an_optimizer_whose_steps_can_be_marked(build):
    trainer = build({"on": "model", "warmup_steps": 2})
    critic = trainer.pipeline.critic
    with critic.collecting():
        pass
    with pytest.raises(RuntimeError, match="this version of accelerate: remove critic warmup_steps"):
        critic.on_optimizer_step(optimizer=SimpleNamespace(step_was_skipped=None))


@pytest.mark.slow
def test_the_saved_policy_has_nothing_of_the_critics_adapter(build, tmp_path):
    trainer = build({"on": "adapter", "learning_rate": 0.05}, learning_rate=0.0, max_steps=2)
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    weights = load_file(tmp_path / "model" / "adapter_model.safetensors")
    trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    for names in (weights, trained):
        assert names
        assert not [name for name in names if "critic" in name]
    assert not (tmp_path / "model" / "critic").exists()
    critics = {id(p) for p in trainer.pipeline.critic.optimizer.parameters.values()}
    assert not [p for group in trainer.optimizer.param_groups for p in group["params"] if id(p) in critics]


@pytest.mark.slow
def test_evaluations_have_values_and_no_updates(build):
    critic = {"on": "trunk", "learning_rate": 0.01, "warmup_steps": 1}
    trainer = build(critic, max_steps=2, eval_steps=1, **evaluating())
    trainer.train()
    assert (trainer.pipeline.critic.updates, len(logged(trainer, "eval_critic/value"))) == (2, 2)
    assert logged(trainer, "eval_loss")[0] != 0.0  # the loss of the policy, in the warm-up as well


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_values_that_are_no_numbers_end_the_run_before_the_policy_trains_on_them(build, kind):
    trainer = build({"on": kind})
    with torch.no_grad():
        trainer.pipeline.critic.head.weight.fill_(math.nan)
    start = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    with pytest.raises(CriticError, match=r"the critic's values of \d+ of \d+ tokens are NaN or infinite"):
        trainer.train()
    assert same(dict(trainer.model.state_dict()), start)


@pytest.mark.slow
def test_several_completions_of_a_prompt_are_packed_for_the_critic_too(build, monkeypatch):
    """The engine's layouts give the same values, and the same critic after training, to float rounding."""
    weights, values = [], []
    for engine in ("packed", "stock"):
        more = {"num_generations": 4, "learning_rate": 0.0, "rollout": "stock"}
        trainer = build({"on": "model", "learning_rate": 1e-3}, engine=engine, **more)
        trainer.train()
        weights.append(trainer.pipeline.critic.tensors())
        values.append(logged(trainer, "critic/value"))
    assert values[0] == pytest.approx(values[1], abs=1e-5)
    for name, tensor in weights[0].items():
        if not name.startswith("adamw"):
            torch.testing.assert_close(tensor, weights[1][name], atol=2e-3, rtol=0.1)


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_critic_learns_to_explain_the_returns(build, kind):
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
            torch.testing.assert_close(first[name], tensor, atol=2e-5, rtol=2e-3)
    assert len(json.loads((tmp_path / "trunk_0.json").read_text())) == 3


def test_features_of_a_batch_wait_in_main_memory_and_the_device_holds_those_of_a_pass(build):
    trainer = build({"on": "trunk"})
    trainer.model.train()
    (micro, _), peaks = micro_batches(), {}
    for count in (4, 120):
        output = {name: micro[name][:1].repeat(count, 1) for name in micro if name.startswith(("prompt", "completion"))}
        with OnDevice() as live:
            scored = ScoredBatch(Completions([], [], [], []), torch.zeros(0, 0), output=output)
            output = trainer.pipeline.critic.add_values(scored).output
        assert live.in_main_memory(output[CRITIC_FEATURES])
        assert not live.in_main_memory(output[CRITIC_VALUES])
        peaks[count] = live.peak
    hidden = output[CRITIC_FEATURES]
    assert hidden.shape == (120, 8, trainer.pipeline.critic.trunk.hidden_size)
    assert hidden.any(-1).all()
    assert peaks[120] - peaks[4] < 0.5 * hidden.nbytes


@pytest.mark.slow
def test_a_run_in_4_bits_has_its_critic_on_the_same_base(build, tmp_path):
    """With evaluations and activation checkpointing; the base stays what it was, and the critic learns."""
    make_tiny_model(tmp_path / "base", hidden=64)
    quantisation = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    critic = {"on": "adapter", "learning_rate": 0.02, "updates": 2, "clip": None}
    settings = {"gradient_checkpointing": True, "max_steps": 4, "learning_rate": 1e-4, "eval_steps": 2, **evaluating()}
    settings["model_init_kwargs"] = {"quantization_config": quantisation}
    trainer = build(critic, model=str(tmp_path / "base"), **settings)
    base = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if "lora" not in name}
    assert any(tensor.dtype == torch.uint8 for tensor in base.values())
    trainer.train()
    now = dict(trainer.model.named_parameters())
    assert all(torch.equal(now[name], tensor) for name, tensor in base.items())
    own = trainer.pipeline.critic.trunk.named_parameters()
    assert len([name for name, p in own.items() if "lora_B" in name and p.abs().sum() > 0]) >= 14
    assert len(logged(trainer, "eval_critic/value")) == 2
    assert logged(trainer, "critic/loss")[-1] < logged(trainer, "critic/loss")[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_runs_out_in_the_critic_says_what_to_lower_and_leaves_the_policy_active(build, kind, monkeypatch):
    trainer = build({"on": kind})

    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(trainer.pipeline.critic.trunk, "hidden", full)
    trained = [name for name, p in trainer.model.named_parameters() if p.requires_grad]
    with pytest.raises(StepTooLargeError, match=r"out of memory while the critic's values were .*lower per_device"):
        trainer.train()
    assert [name for name, p in trainer.model.named_parameters() if p.requires_grad] == trained


PPO = {"critic": {"on": "model", "learning_rate": 0.02, "lam": 0.9}}
PPO |= {"advantage": {"name": "gae", "gamma": 0.95, "lam": 0.8}}
SAO = {"critic": {"on": "model", "learning_rate": 0.02, "lam": 1.0, "updates": 2, "freeze": ["attention"]}}
METHODS = {
    "ppo": {**PPO, "objective": {"name": "ppo_clip", "epsilon_low": 0.2, "dual": None}},
    "sao": {**SAO, "objective": {"name": "dis", "epsilon_low": 0.1, "epsilon_high": 0.3}},
}
METHODS["sao"]["advantage"] = {"name": "gae", "length_alpha": 1.5}


def copies(parameters):
    return {name: one.detach().clone() for name, one in parameters}


class Updates(Hook):
    """Keeps weights and gradients where the policy and the critic step, and each batch with the weights that drew it."""

    def __init__(self):
        self.policy, self.critic, self.batches = [], [], []

    def after_loading(self, host):
        super().after_loading(host)
        owner = host.pipeline.critic
        update = owner.optimizer.step

        def step():
            parameters = owner.optimizer.parameters
            gradients = {name: one.grad.clone() for name, one in parameters.items() if one.grad is not None}
            self.critic.append((copies(parameters.items()), gradients, len(self.batches) - 1))
            return update()

        owner.optimizer.step = step

    def batch(self, batch):
        output = batch.output
        values = copies(self.host.pipeline.critic.optimizer.parameters.items())
        kept = {name: one.clone() for name, one in output.items() if isinstance(one, torch.Tensor)}
        self.batches.append((kept, copies(self.host.model.named_parameters()), values))

    def on_pre_optimizer_step(self, *_, **__):
        named = list(self.host.model.named_parameters())
        gradients = {name: one.grad.clone() for name, one in named if one.grad is not None}
        self.policy.append((copies(named), gradients, len(self.batches) - 1))


def filled(model, weights, prefix=""):
    """The model in float64 with these weights."""
    with torch.no_grad():
        for name, one in model.named_parameters():
            if f"{prefix}{name}" in weights:
                one.copy_(weights[f"{prefix}{name}"])
    return model


def unpadded(batch):
    """Ids of each row without padding, how many are the prompt, and the reward."""
    for row in range(len(batch["completion_ids"])):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
        completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
        yield torch.cat([prompt, completion])[None], len(prompt)


def log_probabilities(model, batch):
    found = []
    for ids, start in unpadded(batch):
        logits = model(input_ids=ids).logits[0, start - 1 : -1]
        found.append(logits.log_softmax(-1).gather(-1, ids[0, start:, None])[:, 0])
    return found


def values(trunk, weights, batch):
    found = []
    for ids, start in unpadded(batch):
        hidden = trunk(input_ids=ids).last_hidden_state[0, start - 1 : -1]
        found.append(hidden @ weights["head/weight"] + weights["head/bias"])
    return found


def generalised(reward, old, gamma, lam):
    got = [0.0] * len(old)
    for t in range(len(old)):
        for k in range(t, len(old)):
            last = k == len(old) - 1
            error = (reward if last else gamma * float(old[k + 1])) - float(old[k])
            got[t] += (gamma * lam) ** (k - t) * error
    return torch.tensor(got, dtype=torch.float64, device=old.device)


def gap(found, wanted):
    """Relative distance of all gradients together."""
    off = sum(float((found[name].double() - one).square().sum()) for name, one in wanted.items())
    return (off / sum(float(one.square().sum()) for one in wanted.values())) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_gradient_of_a_run_is_that_of_a_plain_loop_in_float64(build, tiny_model, method):
    settings, watch = dict(METHODS[method]), Updates()
    critic = settings.pop("critic")
    steps = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    sizes = {"num_iterations": 2, "per_device_train_batch_size": 8, "max_steps": 4, "rows": 16}
    trainer = build(critic, hooks=[watch], **steps, **sizes, **settings)
    trainer.train()
    assert (len(watch.batches), len(watch.policy), len(watch.critic)) == (2, 4, 4 * critic.get("updates", 1))
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64).to(DEVICE)
    trunk = AutoModel.from_pretrained(tiny_model, dtype=torch.float64).to(DEVICE)
    keywords = settings["advantage"]
    gamma = keywords.get("gamma", 1.0)
    known = []
    for batch, drawing, valuing in watch.batches:
        texts = trainer.processing_class.batch_decode(batch["completion_ids"], skip_special_tokens=True)
        with torch.no_grad():
            old = log_probabilities(filled(policy, drawing), batch)
            before = values(filled(trunk, valuing, "trunk/"), {n: w.double() for n, w in valuing.items()}, batch)
        advantages, returns = [], []
        for reward, states in zip(vowels(texts), before, strict=True):
            alpha = keywords.get("length_alpha")
            lam = keywords.get("lam", 1.0) if alpha is None else min(1.0, max(0.0, 1 - 1 / (alpha * len(states))))
            advantages.append(generalised(reward, states, gamma, lam))
            returns.append(generalised(reward, states, gamma, critic["lam"]) + states)
        known.append((batch, old, before, advantages, returns))
    assert float(torch.cat(known[1][2]).abs().max()) > 0.01  # the critic has learned something to compare with

    left_out = 0
    for weights, found, number in watch.policy:
        batch, old, _, advantages, _ = known[number]
        filled(policy, weights).zero_grad()
        logps, total, count = log_probabilities(policy, batch), 0.0, 0
        for lp, before, advantage in zip(logps, old, advantages, strict=True):
            for now, then, worth in zip(lp, before, advantage, strict=True):
                ratio, count = (now - then).exp(), count + 1
                if method == "ppo":
                    term = torch.min(ratio * worth, ratio.clamp(0.8, 1.2) * worth)
                    left_out += bool((ratio > 1.2) & (worth > 0) | (ratio < 0.8) & (worth < 0))
                else:
                    inside = 0.9 <= float(ratio.detach()) <= 1.3
                    left_out += not inside
                    term = ratio.detach() * worth * now * inside
                total = total + term
        (-total / count).backward()
        wanted = {name: one.grad for name, one in policy.named_parameters() if one.grad is not None}
        assert gap(found, wanted) < 1e-4
    assert left_out > 3

    clipped = 0
    for weights, found, number in watch.critic:
        batch, _, before, _, returns = known[number]
        filled(trunk, weights, "trunk/").zero_grad()
        head = {name: weights[name].double().requires_grad_() for name in ("head/weight", "head/bias")}
        total, count = 0.0, 0
        for now, then, wish in zip(values(trunk, head, batch), before, returns, strict=True):
            for value, old_value, target in zip(now, then, wish, strict=True):
                far = (value - target) ** 2
                near = (old_value + (value - old_value).clamp(-0.2, 0.2) - target) ** 2
                total, count = total + 0.5 * torch.maximum(far, near), count + 1
                clipped += bool(near > far)
        (total / count).backward()
        wanted = {name: one.grad for name, one in head.items()}
        wanted |= {f"trunk/{name}": one.grad for name, one in trunk.named_parameters() if f"trunk/{name}" in weights}
        wanted = {name: one for name, one in wanted.items() if one is not None}
        assert gap(found, wanted) < 1e-4
        assert any("mlp" in name for name in found)
        assert any("self_attn" in name for name in found) == (method == "ppo")
    assert clipped > 0
