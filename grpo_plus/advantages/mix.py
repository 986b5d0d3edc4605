"""A weighted sum of estimators, each with its own keywords.

``mix(parts={"sign": 1.0, "process": 0.5}, sign={"band": 0.25}, process={"credit": "return"})``. With one part
of values per token the sum is per token, and the value of a completion counts for each of its trainable tokens.

Use it when no single estimator combines two signals, such as the outcome's sign and the z-scores of steps.

Degenerate case: each part has its own rules for groups without contrast. Weights that are all 0 are refused.

Config:
    advantage: {name: mix, parts: {sign: 1.0, process: 0.5}, sign: {band: 0.25}, process: {credit: return}}
    verifiers: [math, {name: math_steps, weight: 0.0}]
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from grpo_plus.advantages.checking import keyword_problems
from grpo_plus.advantages.compute import compute_advantages
from grpo_plus.advantages.estimator import Estimator, NotAnEstimatorError
from grpo_plus.advantages.registry import get_advantage
from grpo_plus.advantages.table import RewardTable
from grpo_verifiers.errors import DuplicateNameError, UnknownNameError
from grpo_verifiers.errors.messages import unknown


def mix(table: RewardTable, *, parts: Mapping[str, float], **keywords: Mapping[str, Any]) -> Tensor:
    """Σ_j λ_j · A^(j) over the parts {name: λ}; further keywords are the names of parts, with their keywords.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> compute_advantages("mix", RewardTable.of([1, 1, 1, 0]), parts={"sign": 1.0, "center": 2.0})
    tensor([ 1.5000,  1.5000,  1.5000, -2.5000])

    Args:
        table: the rewards.
        parts: the weight of each estimator, by its name.
        **keywords: of each part, under the part's name.
    """
    values = [weight * compute_advantages(name, table, **keywords.get(name, {})) for name, weight in parts.items()]
    if any(a.dim() == 2 for a in values):
        trainable_NT = table.trainable()
        values = [a if a.dim() == 2 else torch.where(trainable_NT, a[:, None], 0.0) for a in values]
    return torch.stack(values).sum(dim=0)


def check_mix(keywords: Mapping[str, Any]) -> list[str]:
    """Return problems of the parts, of their weights and of their keywords."""
    title, parts = "advantage estimator 'mix'", keywords["parts"]
    if not parts:
        return [f"{title}: keyword 'parts' is empty, expected at least one {{name: weight}}."]
    if not any(parts.values()):
        return [f"{title}: the weights of all parts ({', '.join(parts)}) are 0, so nothing is learned."]
    problems = [
        f"{title}: {unknown('part', name, parts)} Keywords of mix are named after its parts."
        for name in keywords
        if name != "parts" and name not in parts
    ]
    for name, weight in parts.items():
        if not math.isfinite(weight):
            problems.append(f"{title}: the weight of part {name!r} is {weight!r}, expected a finite number.")
        try:
            part = get_advantage(name)
        except (UnknownNameError, DuplicateNameError, NotAnEstimatorError) as error:
            problems.append(f"{title}: {error}")
            continue
        if part.per == "parts":
            problems.append(f"{title}: part {name!r} is a mix itself: list its parts here instead.")
            continue
        problems += [f"{title}, part of it: {text}" for text in keyword_problems(part, keywords.get(name, {}))]
    return problems


ESTIMATOR = Estimator("mix", mix, per="parts", group_relative=False, check=check_mix)
