"""What a run is made of: the resolved parts, the versions and the whole config, as the record holds them."""

import importlib.metadata
import os
import platform
import socket
from functools import cache
from typing import Any

from grpo_plus import __version__
from grpo_plus.recipe.advantage import equivalent_advantage
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.record.files import SCHEMA, plain
from grpo_plus.training.observers.run import RunHost
from grpo_plus.trl.ranks import adapter_configs
from grpo_verifiers.redaction import redact as without_secrets


def about(trainer: RunHost) -> dict[str, Any]:
    """Everything of ``run.json`` that does not change while a run goes on."""
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
        "golds": trainer.pipeline.verifiers.golds,
        "versions": versions(),
        "processes": trainer.accelerator.num_processes,
        "device": str(trainer.accelerator.device),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "config": without_secrets(plain(args.to_dict())),
        "command": without_secrets(plain(trainer.command)) or None,
    }


def parts(trainer: RunHost) -> dict[str, Any]:
    """The estimator, objective, selection, verifiers, engine and rollout that run, by name, keywords and formula."""
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
    found: dict[str, Any] = without_secrets(
        plain(
            {
                "advantage": advantage,
                "objective": objective,
                "selection": selection,
                "rewards": rewards,
                "verifiers": verifiers,
                "eval_verifiers": evaluating,
                "engine": recipe.engine.layout,
                "rollout": recipe.rollout.how,
            }
        )
    )
    return found


def versions() -> dict[str, str]:
    """Of what decides how a run goes."""
    own = {"grpo_plus": __version__, "python": platform.python_version()}
    return own | installed("trl", "transformers", "torch", "accelerate", "peft")


@cache
def installed(*names: str) -> dict[str, str]:
    """Versions of the packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
