"""The presets that TRL has give TRL's loss, gradient and metrics, computed by TRL's own trainers on the same batch."""

import gc
import itertools

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.objectives import build_objective
from grpo_plus.training.update.loss import ObjectiveLoss
from tests.device import DEVICE
from tests.objectives.runs import RUN

SEQUENCES = {"gspo": "grpo", "luspo": "luspo"}
# What TRL's trainer is set to for each preset.
TRL = {name: {"loss_type": name} for name in ("grpo", "dr_grpo", "dapo", "sapo", "vespo")}
TRL |= {"cispo": {"loss_type": "cispo", "epsilon_high": 5.0}, "gmpo": None}  # gmpo: a trainer of its own
TRL |= {name: {"loss_type": loss, "importance_sampling_level": "sequence"} for name, loss in SEQUENCES.items()}
SETTINGS = {**RUN, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_completion_length": 12}
SETTINGS |= {"beta": 0.04}


def reward(completions, **_):
    return [sum(map(ord, text)) % 17 / 17 + 0.1 * len(text) for text in completions]


class Pair:
    """TRL's trainers and ours, fed the same micro-batch."""

    def __init__(self, model, folder):
        tokenizer = AutoTokenizer.from_pretrained(model)
        prompts = Dataset.from_dict({"prompt": ["1+1=", "say it", "x", "a b c"]})

        def build(trainer, config, **settings):
            config = config(output_dir=str(folder), **SETTINGS, **settings)
            policy = AutoModelForCausalLM.from_pretrained(model)
            return trainer(policy, reward, args=config, train_dataset=prompts, processing_class=tokenizer)

        self.stock = build(GRPOTrainer, GRPOConfig)
        self.gmpo = build(GMPOTrainer, GMPOConfig)
        self.ours = build(GRPOPlusTrainer, GRPOPlusConfig, objective="grpo", engine="stock")
        for trainer in (self.stock, self.gmpo, self.ours):
            trainer.model.train()
            trainer.current_gradient_accumulation_steps = SETTINGS["gradient_accumulation_steps"]
        gc.freeze()
        batches = [self.stock._prepare_inputs([prompts[row // 4] for row in range(16)])]
        self.on_policy = batches[0]
        self.on_policy.pop("ref_per_token_logps")
        generator = torch.Generator().manual_seed(0)
        shape = self.on_policy["completion_ids"].shape
        noise = [0.4 * torch.randn(shape, generator=generator).to(DEVICE) for _ in range(2)]
        logps = self.on_policy.pop("old_per_token_logps")
        # A tool's words in one completion, and one that is masked out as a whole.
        tool_mask = torch.ones(shape, dtype=torch.long, device=DEVICE)
        tool_mask[0, 2:5] = 0
        completion_mask = self.on_policy["completion_mask"].clone()
        completion_mask[3] = 0
        self.on_policy |= {"ref_per_token_logps": logps + noise[1]}
        self.off_policy = self.on_policy | {"old_per_token_logps": logps + noise[0]}
        self.masked = self.off_policy | {"tool_mask": tool_mask, "completion_mask": completion_mask}

    def trl(self, name, beta, **fields):
        trainer = self.gmpo if TRL[name] is None else self.stock
        settings = {"importance_sampling_level": "token", "epsilon_high": 0.2, **(TRL[name] or {"epsilon_high": 0.4})}
        for key, value in {**settings, "beta": beta, **fields}.items():
            setattr(trainer, key, value)
        return trainer

    def plus(self, name, beta, **kwargs):
        update = ObjectiveLoss(build_objective(name, kwargs, beta=beta), self.ours.pipeline.inner)
        update.after_loading(self.ours)
        self.ours.pipeline.objective = update
        return self.ours


def step(trainer, batch):
    """Loss, gradient and metrics of one micro-batch."""
    trainer.model.zero_grad()
    trainer._metrics["train"].clear()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in trainer.model.parameters()])
    return loss.item(), gradient, {name: values[-1] for name, values in trainer._metrics["train"].items()}


@pytest.fixture(scope="module")
def pair(tiny_model, tmp_path_factory):
    return Pair(tiny_model, tmp_path_factory.mktemp("pair"))


def assert_equal(theirs, ours, *, scale=1.0):
    loss, gradient, metrics = theirs
    # On-policy the terms of a mean cancel: what is left is no more exact than the terms were.
    assert abs(ours[0] - loss) <= 1e-6 * max(abs(loss), scale)
    assert gradient.norm() > 1e-3
    assert (ours[1] - gradient).norm() <= 1e-6 * gradient.norm()
    for name, value in metrics.items():
        assert ours[2][name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "beta"), [*itertools.product(TRL, (0.0, 0.04))])
def test_loss_gradient_and_metrics_are_those_of_trl(pair, name, beta):
    on_policy = [step(trainer, pair.on_policy) for trainer in (pair.trl(name, beta), pair.plus(name, beta))]
    # The weights of one completion's terms: the largest is the number of tokens, where they are summed.
    assert_equal(*on_policy, scale=0.1)
    theirs, ours = (step(trainer, pair.off_policy) for trainer in (pair.trl(name, beta), pair.plus(name, beta)))
    assert_equal(theirs, ours, scale=0.0)
    assert theirs[1].sub(on_policy[0][1]).norm() > 1e-3  # off-policy is another gradient


@pytest.mark.parametrize("name", TRL)
def test_masks_of_tools_and_whole_completions(pair, name):
    theirs, ours = (step(trainer, pair.masked) for trainer in (pair.trl(name, 0.04), pair.plus(name, 0.04)))
    if name == "gmpo":  # TRL's loss has a constant without gradient for a completion without tokens; here it is 0
        theirs = (ours[0], theirs[1], {})
    assert_equal(theirs, ours)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo", "luspo", "vespo"])
def test_importance_weights_off_policy_masks_and_top_entropy(pair, name, monkeypatch):
    mask = pair.off_policy["completion_mask"].bool()
    drawn = torch.rand(mask.shape, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    weights = torch.where(mask, drawn + 0.5, 1.0)
    extras = {"importance_sampling_ratio": weights, "sampling_per_token_logps": pair.off_policy["old_per_token_logps"]}
    batch = pair.off_policy | extras
    fields = {"use_vllm": True, "vllm_importance_sampling_correction": True}
    fields |= {"off_policy_mask_threshold": 0.05, "top_entropy_quantile": 0.5}
    trainers = (pair.trl(name, 0.04), pair.plus(name, 0.04))
    for trainer, (key, value) in itertools.product(trainers, fields.items()):
        monkeypatch.setattr(trainer, key, value)
    assert_equal(*(step(trainer, batch) for trainer in trainers))


@pytest.mark.parametrize("name", ["grpo", "dapo", "sapo", "cispo"])
def test_advantages_per_token(pair, name):
    shape = pair.off_policy["completion_ids"].shape
    batch = pair.off_policy | {"advantages": torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(DEVICE)}
    assert_equal(*(step(trainer, batch) for trainer in (pair.trl(name, 0.04), pair.plus(name, 0.04))))


@pytest.mark.parametrize(("accumulation", "generation"), [(1, 4), (4, 1), (2, 2), (3, 4)])
def test_any_ratio_of_accumulation_and_generation(pair, accumulation, generation, monkeypatch):
    for name in ("grpo", "dapo", "dr_grpo"):
        trainers = (pair.trl(name, 0.04), pair.plus(name, 0.04))
        for trainer in trainers:
            monkeypatch.setattr(trainer, "current_gradient_accumulation_steps", accumulation)
            monkeypatch.setattr(trainer.args, "steps_per_generation", generation)
        assert_equal(*(step(trainer, pair.off_policy) for trainer in trainers))


@pytest.mark.parametrize("kwargs", [{"delta": 1.1}, {"epsilon_low": 0.05, "epsilon_high": 0.3}])
def test_clip_keywords_are_trls_fields(pair, kwargs, monkeypatch):
    trainer = pair.trl("dapo", 0.0)
    monkeypatch.setattr(trainer, "epsilon_low", kwargs.get("epsilon_low", 0.2))
    monkeypatch.setattr(trainer, "epsilon_high", kwargs.get("epsilon_high", 0.2))
    monkeypatch.setattr(trainer.args, "delta", kwargs.get("delta"))
    theirs = step(trainer, pair.off_policy)
    assert_equal(theirs, step(pair.plus("dapo", 0.0, **kwargs), pair.off_policy))


def test_evaluation_neither_splits_nor_accumulates(pair):
    for name in ("grpo", "dapo", "dr_grpo", "luspo"):
        losses = []
        for trainer in (pair.trl(name, 0.04), pair.plus(name, 0.04)):
            trainer.model.eval()
            with torch.no_grad():
                tokens = pair.masked["completion_mask"] * pair.masked["tool_mask"]
                losses.append(trainer.compute_loss(trainer.model, {**pair.masked, "num_items_in_batch": tokens.sum()}))
            trainer.model.train()
        assert torch.allclose(*losses, rtol=1e-6, atol=0), name


def test_the_entropy_bonus_is_trls_where_one_micro_batch_is_everything(pair, monkeypatch):
    batch = pair.off_policy | {"num_items_in_batch": pair.off_policy["completion_mask"].sum()}
    results = []
    for trainer in (pair.trl("dapo", 0.0), pair.plus("dapo", 0.0)):
        fields = {"entropy_coef": 0.3, "_entropy_bonus_enabled": True, "current_gradient_accumulation_steps": 1}
        for key, value in fields.items():
            monkeypatch.setattr(trainer, key, value)
        monkeypatch.setattr(trainer.args, "steps_per_generation", 1)
        results.append(step(trainer, batch))
    assert_equal(*results)
    assert results[0][2].keys() == results[1][2].keys()
