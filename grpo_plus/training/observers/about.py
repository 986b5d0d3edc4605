"""The record's description of a run: the resolved parts, the versions and the config."""

import importlib.metadata
import os
import platform
import socket
from contextlib import suppress
from functools import cache
from typing import Any

from grpo_plus import __version__
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.recipe.rewards import equivalent_advantage
from grpo_plus.record.files import SCHEMA, plain
from grpo_plus.training.observers.run import RunHost
from grpo_plus.trl.ranks import adapter_configs
from grpo_verifiers.redaction import redact as without_secrets


def about(trainer: RunHost) -> dict[str, Any]:
    """Return the constant part of ``run.json``."""
    args = trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        "schema": SCHEMA,
        "name": os.path.basename(os.path.normpath(args.output_dir)) or str(args.output_dir),  # noqa: PTH119 - text
        "model": {
            "name": getattr(model.config, "_name_or_path", "") or type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
            "adapter": bool(adapter_configs(trainer)),
        },
        "parts": parts(trainer),
        "versions": versions(),
        "processes": trainer.accelerator.num_processes,
        "device": str(trainer.accelerator.device),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "config": without_secrets(plain(args.to_dict())),
        "command": without_secrets(plain(trainer.command)) or None,
    }


def parts(trainer: RunHost) -> dict[str, Any]:
    """Describe estimator, objective, selection, verifiers, engine and rollout by name, keywords and formula."""
    args = trainer.args
    recipe = recipe_of(args)
    if trainer.estimator is None:
        name, keywords = equivalent_advantage(args)
        advantage = {"name": name, "keywords": keywords, "formula": "", "host": True}
    else:
        estimator, keywords = trainer.estimator
        advantage = {"name": estimator.name, "keywords": keywords, "formula": estimator.formula, "host": False}
        advantage["grouped"] = any(part.group_relative for part, _ in recipe.estimator_parts)
    if trainer.objective is None:
        objective = {"name": args.loss_type, "keywords": {"beta": args.beta}, "formula": "", "host": True}
    else:
        formula = trainer.objective.formula()
        name, words = recipe.names["objective"], dict(recipe.keywords["objective"])
        objective = {"name": name, "keywords": words, "formula": formula, "host": False}
    selection = None
    if recipe.selection is not None:
        chosen, keywords = recipe.selection
        selection = {"name": chosen.name, "keywords": keywords, "formula": chosen.formula, "host": not chosen.draws}
    weights = trainer.reward_weights.tolist()
    rewards = [
        {"name": name, "weight": weight} for name, weight in zip(trainer.reward_func_names, weights, strict=True)
    ]
    verifiers, evaluating = (
        [{"label": one.verifier.label, "weight": one.weight, "settings": one.verifier.describe()} for one in live]
        for live in (trainer.pipeline.verifiers.live, trainer.pipeline.verifiers.evaluation)
    )
    named: dict[str, Any] = {"advantage": advantage, "objective": objective, "selection": selection, "rewards": rewards}
    named |= {"verifiers": verifiers, "eval_verifiers": evaluating}
    named |= {"engine": recipe.engine.layout, "rollout": recipe.rollout.how}
    described: dict[str, Any] = without_secrets(plain(named))
    return described


def versions() -> dict[str, str]:
    """Return the versions of the packages that can change a result."""
    own = {"grpo_plus": __version__, "python": platform.python_version()}
    return own | installed("trl", "transformers", "torch", "accelerate", "peft")


@cache
def installed(*names: str) -> dict[str, str]:
    """Return the versions of the installed ones of these packages."""
    versions = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
