"""Completions with tools and environments that begin with the same turns: TRL's gradient, from fewer tokens."""

import copy
import math
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import utils

from . import tools_of_tests as own
from .conftest import capture

FILE = Path(own.__file__)
SETTINGS = {"max_completion_length": 400, "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4}
SETTINGS |= {"gradient_accumulation_steps": 2, "mask_truncated_completions": True}


class Gradients(TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        self.kept.append({name: p.grad.double().clone() for name, p in model.named_parameters() if p.grad is not None})


def speak(name, key):
    """Rows in pairs make the same first turn, all four the same call before it; the last one never ends its answer."""

    def script(prompt, row):
        at = own.turn_of(prompt)
        if at < 2:
            return own.called(name, **{key: row % 4 // 2 if at else 1}) + "<|im_end|>"
        return f"it is {row}" * 60 if row == 3 else f"it is {row}<|im_end|>"

    return script


@pytest.fixture
def steps(build, tool_tokenizer, monkeypatch):
    """The gradients of one step's optimizer steps, its log, and how many nodes the branchiest tree shares."""

    def steps(classes, trainer, before=lambda _: None, **settings):
        prompts = [{"prompt": [{"role": "user", "content": f"q{n}"}], "goal": 3} for n in range(8)]
        kept, plans = Gradients(), []
        given = {
            "train_dataset": Dataset.from_list(prompts), "processing_class": copy.deepcopy(tool_tokenizer),
            "reward_funcs": [lambda completions, **_: [float(k * k % 5) for k in range(len(completions))]], "callbacks": [kept], **trainer,
        }  # fmt: skip
        if not classes:
            from grpo_plus.engine import engine

            # However small these models are: a call of attention more costs nothing, a pass as little as on a CPU.
            monkeypatch.setattr("grpo_plus.engine.cost._BUNDLE_OVERHEAD", 0.0)
            monkeypatch.setattr("grpo_plus.engine.cost._LAYER_OVERHEAD", {"other": 2e8})
            choose = engine.choose
            monkeypatch.setattr(engine, "choose", lambda *a, **k: plans.append(choose(*a, **k)) or plans[-1])
        made = build(*classes, trainer=given, **{**SETTINGS, **settings})
        before(made)
        made.train()
        trees = [tree for plan in plans for part in plan.passes for tree in part]
        shared = [sum(len(node.rows) > 1 for node in tree.nodes) for tree in trees]
        return kept.kept, made.state.log_history[0], max(shared, default=0)

    return steps


def off(found, truth):
    assert set(found) == set(truth)
    size = sum(float(value.square().sum()) for value in truth.values())
    assert size > 0
    return math.sqrt(sum(float((found[n] - value).square().sum()) for n, value in truth.items()) / size)


CASES = {
    "tools": ({}, {}), "by sequence, with a KL term": ({"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": 0.1}, {}),
    "the most uncertain tokens": ({"top_entropy_quantile": 0.5}, {}), "an entropy bonus": ({"entropy_coef": 0.1}, {}),
    "inner iterations": ({"num_iterations": 2}, {}), "a bound on the tokens of a pass": ({}, {"engine": {"layout": "packed", "tokens_per_pass": 1300}}),
}  # fmt: skip


@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("case", CASES)
def test_completions_that_called_alike_have_trls_gradient(steps, say, case):
    settings, ours = CASES[case]
    say(speak("double", "number"))
    truth, log, _ = steps((GRPOTrainer, GRPOConfig), {"tools": [own.double]}, **settings)
    ours = {"tools": [f"{FILE}:double"], "engine": "packed", **ours}
    found, ours_log, shared = steps((), {}, **settings, **ours)
    assert off(found[0], truth[0]) < 1e-5
    assert shared >= 3  # what all four begin with, and what either pair does
    assert ours_log["loss"] == pytest.approx(log["loss"], abs=1e-6)
    assert ours_log["entropy"] == pytest.approx(log["entropy"], rel=1e-3)  # a mean over other micro-batches
    assert ours_log["engine/tokens_saved"] > 0.5


@pytest.mark.slow
def test_an_environment_whose_observations_differ_has_trls_gradient(steps, say):
    say(speak("add", "number"))
    own.Moody.opened = 0
    truth, log, _ = steps((GRPOTrainer, GRPOConfig), {"environment_factory": own.Moody})
    own.Moody.opened = 0
    found, ours_log, shared = steps((), {"environment_factory": own.Moody}, engine="packed")
    assert off(found[0], truth[0]) < 1e-5
    assert shared == 3  # the prompt, and each opening with the same calls behind it
    assert (ours_log["loss"], ours_log["reward"]) == (pytest.approx(log["loss"], abs=1e-6), log["reward"])


@pytest.mark.skipif(not hasattr(utils, "add_fused_lm_head"), reason="this release of TRL has no fused head")
def test_logits_are_made_of_each_written_token_once_and_of_no_result(steps, say, monkeypatch):
    kernel, made = utils._ChunkedLogProbFunction, []

    class Counted:
        @staticmethod
        def apply(hidden, *rest):
            if torch.is_grad_enabled():
                made.append(len(hidden))
            return kernel.apply(hidden, *rest)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", Counted)
    say(speak("double", "number"))
    one = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    one |= {"tools": [f"{FILE}:double"], "engine": "packed", "mask_truncated_completions": False}
    batches = []
    steps((), {}, before=lambda trainer: batches.append(capture(trainer)), **one)
    ((batch,),) = batches
    written = set()  # every token that the model wrote, with all that stands before it
    for ids, own_words in zip(batch["completion_ids"], batch["completion_mask"] * batch["tool_mask"], strict=True):
        places = own_words.nonzero()[:, 0].tolist()
        written |= {tuple(ids[: place + 1].tolist()) for place in places}
    assert sum(made) == len(written) < int((batch["completion_mask"] * batch["tool_mask"]).sum()) / 2
