"""Remarks about valid configs: each where it is true, and nowhere else."""

import logging

import pytest
import torch

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.table import config_notes
from tests.trainer.conftest import BASE, weights

STEPS = {"verifiers": [{"name": "math_steps", "weight": 1.0}], "advantage": "process"}
MORE, FOUR = {"num_iterations": 2}, {"steps_per_generation": 4}
VLLM = {"use_vllm": True, "vllm_importance_sampling_mode": "token_mask"}


def chosen(objective, **kwargs):
    return {"objective": {"name": objective, **kwargs}}


NOTED = {
    "a quantile": ({"top_entropy_quantile": 0.5, "objective": "dapo"}, ["top_entropy_quantile (0.5)", "split"]),
    "a router": ({"router_aux_loss_coef": 0.01, "objective": "dapo"}, ["router_aux_loss_coef (0.01)", "split"]),
    "opo": ({"advantage": "opo", **MORE}, ["'opo'", "on-policy", "num_iterations 2"]),
    "a mix with opo": ({"advantage": {"name": "mix", "parts": {"opo": 1.0, "raw": 1.0}}, **MORE}, ["'opo'"]),
    "reinforce": ({"objective": "reinforce", **MORE}, ["'reinforce'", "no ratio", "on-policy"]),
    "logp by name": (chosen("grpo", surrogate="logp") | FOUR, ["'grpo'", "no ratio", "steps_per_generation 4"]),
    "k2": ({**chosen("grpo", kl="k2"), "beta": 0.1, **MORE}, ["'k2'", "without the ratio", "on-policy"]),
    "a mask of completions": ({**STEPS, "off_policy_mask_threshold": 0.5, **MORE}, ["off_policy_mask_threshold", "per step"]),
}  # fmt: skip
SILENT = {
    "nothing set": {}, "inner iterations with a ratio": {"objective": "grpo", "beta": 0.1, **MORE}, "opo on-policy": {"advantage": "opo"},
    "checkpoints between batches": {"num_iterations": 4, "save_steps": 8},
    "checkpoints after every step of its own batch": {"gradient_accumulation_steps": 4, "save_steps": 1},
    "no checkpoints": {"num_iterations": 7, "save_strategy": "no"}, "reinforce on-policy": {"objective": "reinforce"},
    "reinforce, one step on all looks": {"objective": "reinforce", "gradient_accumulation_steps": 2, "steps_per_generation": 1, **MORE},
    "k2 on-policy": {**chosen("grpo", kl="k2"), "beta": 0.1}, "our entropy bonus": {"objective": "dapo", "entropy_coef": 0.1},
    "a mask of completions": {"off_policy_mask_threshold": 0.5, "advantage": "zscore", **MORE},
    "a trust region around another sampler": {**chosen("dis", epsilon_low=0.3), **VLLM},
    "a region of probabilities around another sampler": {**chosen("dppo_kl", max_kl=0.1), **VLLM},
    "a mask and another sampler": {"off_policy_mask_threshold": 0.5, "use_vllm": True},
    "a clip with inner iterations": {**chosen("dapo", epsilon_high=0.28), **MORE}, "a preset's own keyword": {"objective": "ppo_clip"},
    "a cap below 1": chosen("cispo", epsilon_max=0.5),
    "known keys of the sampler": {"generation_kwargs": {"typical_p": 1.0, "stop_strings": ["x"], "renormalize_logits": True}},
    "the host's own": {"loss_type": "bnpo", "top_entropy_quantile": 0.5, "entropy_coef": 0.1, "epsilon": 0.01, "top_p": 0.9},
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_what_may_surprise_is_noted(case):
    settings, words = NOTED[case]
    (note,) = config_notes(GRPOPlusConfig(**BASE, **settings))
    assert all(word in note for word in words), note


@pytest.mark.sample(18)
@pytest.mark.parametrize("case", SILENT)
def test_nothing_is_noted_where_nothing_surprises(case):
    assert config_notes(GRPOPlusConfig(**BASE, **SILENT[case])) == []


MOOT = {
    "clip": chosen("dapo", epsilon_high=0.01, epsilon_low=0.01),
    "clip inside": {"objective": {"name": "gspo", "surrogate": {"name": "clip", "delta": 1.01}}},
    "dual": chosen("grpo", dual=1.01), "cispo": chosen("cispo", epsilon_max=1.0), "dis": chosen("dis", epsilon_low=0.01, epsilon_high=0.01),
    "dppo_tv": chosen("dppo_tv", max_tv=0.001, ratio_max=1.0), "dppo_kl": chosen("dppo_kl", max_kl=1e-6),
    "up": chosen("up", epsilon_low=0.001, dual=1.001), "fipo": chosen("fipo", influence=3.0, half_life=2.0),
    "sapo": chosen("sapo", temperature_neg=9.0, temperature_pos=5.0), "gmpo": chosen("gmpo", epsilon_low=0.01),
    "vespo": chosen("vespo", k_pos=1.0, lambda_neg=7.0),
}  # fmt: skip


@pytest.mark.sample(0, 5)
@pytest.mark.parametrize("case", MOOT)
def test_what_needs_a_ratio_other_than_1_is_noted_where_there_is_none(trained, case):
    settings = MOOT[case]
    written = dict(settings["objective"])
    plain = {"objective": written.pop("name")}

    def run(**settings):
        return trained(**settings, learning_rate=0.5, max_grad_norm=0.0, max_steps=4, gradient_accumulation_steps=2)

    once = run(**settings)
    notes = config_notes(once.args)
    assert all("ratio is 1" in note for note in notes)
    written = written.get("surrogate", written)
    said = " ".join(notes)
    assert all(f"{name} ({value})" in said for name, value in written.items() if name != "name")
    assert torch.allclose(weights(once), weights(run(**plain)), atol=1e-6)
    again = run(**settings, num_iterations=4)
    assert config_notes(again.args) == []
    assert not torch.allclose(weights(again), weights(run(**plain, num_iterations=4)), atol=1e-4)


@pytest.mark.slow
def test_notes_are_logged_when_training_starts(build, caplog):
    trainer = build(advantage="opo", objective="reinforce", num_iterations=2)
    with caplog.at_level(logging.WARNING, logger="grpo_plus"):
        trainer.train()
    said = [record.getMessage() for record in caplog.records if record.name == "grpo_plus"]
    assert [("'opo'" in text, "'reinforce'" in text) for text in said] == [(False, True), (True, False)]
