"""The gradients of PPO and SAO, of the policy and of the critic, in real runs beside a plain loop in float64."""

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

from grpo_plus.training.hooks import Hook
from tests.critic.conftest import vowels
from tests.device import DEVICE

pytestmark = pytest.mark.slow

METHODS = {
    "ppo": {
        "critic": {"on": "model", "learning_rate": 0.02, "lam": 0.9},
        "advantage_kwargs": {"gamma": 0.95, "lam": 0.8},
        "objective": "ppo_clip",
        "objective_kwargs": {"epsilon_low": 0.2, "dual": None},
    },
    "sao": {
        "critic": {"on": "model", "learning_rate": 0.02, "lam": 1.0, "updates": 2, "freeze": ["attention"]},
        "advantage_kwargs": {"length_alpha": 1.5},
        "objective": "dis",
        "objective_kwargs": {"epsilon_low": 0.1, "epsilon_high": 0.3},
    },
}


def copies(parameters):
    return {name: one.detach().clone() for name, one in parameters}


class Watch(Hook):
    """Keeps weights and gradients where the policy and the critic step, and each batch with the weights that drew it."""

    def __init__(self):
        self.policy, self.critic, self.batches = [], [], []

    def after_loading(self, host):
        super().after_loading(host)
        owner = host.critic
        update = owner.optimizer.step

        def step():
            parameters = owner.optimizer.parameters
            gradients = {name: one.grad.clone() for name, one in parameters.items() if one.grad is not None}
            self.critic.append((copies(parameters.items()), gradients, len(self.batches) - 1))
            return update()

        owner.optimizer.step = step

    def batch(self, output):
        values = copies(self.host.critic.optimizer.parameters.items())
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


def rows_of(batch):
    """Ids of each row without padding, how many are the prompt, and the reward."""
    for row in range(len(batch["completion_ids"])):
        prompt = batch["prompt_ids"][row][batch["prompt_mask"][row].bool()]
        completion = batch["completion_ids"][row][batch["completion_mask"][row].bool()]
        yield torch.cat([prompt, completion])[None], len(prompt)


def log_probabilities(model, batch):
    found = []
    for ids, start in rows_of(batch):
        logits = model(input_ids=ids).logits[0, start - 1 : -1]
        found.append(logits.log_softmax(-1).gather(-1, ids[0, start:, None])[:, 0])
    return found


def values(trunk, weights, batch):
    found = []
    for ids, start in rows_of(batch):
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


@pytest.mark.parametrize("method", METHODS)
def test_every_gradient_of_a_run_is_that_of_a_plain_loop_in_float64(build, tiny_model, method):
    settings, watch = dict(METHODS[method]), Watch()
    critic = settings.pop("critic")
    steps = {"optim": "sgd", "learning_rate": 1.0, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    sizes = {"num_iterations": 2, "per_device_train_batch_size": 8, "max_steps": 4, "rows": 16}
    trainer = build(critic, hooks=[watch], **steps, **sizes, **settings)
    trainer.train()
    assert (len(watch.batches), len(watch.policy), len(watch.critic)) == (2, 4, 4 * critic.get("updates", 1))
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64).to(DEVICE)
    trunk = AutoModel.from_pretrained(tiny_model, dtype=torch.float64).to(DEVICE)
    keywords = settings["advantage_kwargs"]
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
