"""Remarks about valid configs: each where it is true, and nowhere else."""

import logging

import pytest

from grpo_plus import GRPOPlusConfig
from grpo_plus.notes import config_notes

BASE = {"output_dir": "unused", "use_cpu": True, "bf16": False, "report_to": "none"}
STEPS = {"verifiers": [{"name": "math_steps", "weight": 1.0}], "advantage": "process"}
ONE = {"steps_per_generation": 1}
MORE = {"num_iterations": 2}
NOTED = {
    "top_entropy_quantile": ({"top_entropy_quantile": 0.5}, ["top_entropy_quantile (0.5)", "how a batch is split"]),
    "with an objective": (
        {"top_entropy_quantile": 0.5, "objective": "dapo"},
        ["top_entropy_quantile (0.5)", "how a batch is split"],
    ),
    "a router": ({"router_aux_loss_coef": 0.01, "objective": "dapo"}, ["router_aux_loss_coef (0.01)", "split"]),
    "bnpo": ({"loss_type": "bnpo"}, ["'bnpo'", "how a batch is split"]),
    "the host's entropy bonus": ({"entropy_coef": 0.1}, ["entropy bonus", "how a batch is split"]),
    "opo": ({"advantage": "opo", **MORE}, ["'opo'", "on-policy", "num_iterations 2"]),
    "a mix with opo": (
        {"advantage": "mix", "advantage_kwargs": {"parts": {"opo": 1.0, "zscore": 1.0}}, **MORE},
        ["'opo'", "on-policy"],
    ),
    "reinforce": ({"objective": "reinforce", **MORE}, ["'reinforce'", "no ratio", "on-policy"]),
    "logp by name": (
        {"objective": "grpo", "objective_kwargs": {"surrogate": "logp"}, "steps_per_generation": 4},
        ["'grpo'", "no ratio", "steps_per_generation 4"],
    ),
    "k2": (
        {"objective": "grpo", "beta": 0.1, "objective_kwargs": {"kl": "k2"}, **MORE},
        ["'k2'", "without the ratio", "on-policy"],
    ),
    "a mask of completions": (
        {**STEPS, "off_policy_mask_threshold": 0.5},
        ["off_policy_mask_threshold", "per step", "single tokens"],
    ),
}
SILENT = {
    "nothing set": {},
    "inner iterations with a ratio": {"objective": "grpo", "beta": 0.1, **MORE},
    "opo on-policy": {"advantage": "opo"},
    "reinforce on-policy": {"objective": "reinforce"},
    "reinforce, one step on all looks": {"objective": "reinforce", "gradient_accumulation_steps": 2, **ONE, **MORE},
    "k2 on-policy": {"objective": "grpo", "beta": 0.1, "objective_kwargs": {"kl": "k2"}},
    "our entropy bonus": {"objective": "dapo", "entropy_coef": 0.1},
    "a mask of completions": {"off_policy_mask_threshold": 0.5, "advantage": "zscore"},
    "bnpo replaced": {"objective": "dapo"},
}


@pytest.mark.parametrize("case", NOTED)
def test_what_may_surprise_is_noted(case):
    settings, words = NOTED[case]
    (note,) = config_notes(GRPOPlusConfig(**BASE, **settings))
    assert all(word in note for word in words), note


@pytest.mark.parametrize("case", SILENT)
def test_nothing_is_noted_where_nothing_surprises(case):
    assert config_notes(GRPOPlusConfig(**BASE, **SILENT[case])) == []


def test_notes_are_logged_when_training_starts(build, caplog):
    trainer = build(advantage="opo", objective="reinforce", num_iterations=2)
    with caplog.at_level(logging.WARNING, logger="grpo_plus"):
        trainer.train()
    said = [record.getMessage() for record in caplog.records if record.name == "grpo_plus"]
    assert [("'opo'" in text, "'reinforce'" in text) for text in said] == [(True, False), (False, True)]
