"""Run an estimator on a table, and enforce the rules of all estimators.

Estimators see float64: no sum, weighted sum or square of float32 rewards overflows there. The result is converted back
to the precision of the table; advantages beyond its range are set to its largest number.
"""

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_plus.advantages.checking import require_keywords
from grpo_plus.advantages.estimator import Estimator, EstimatorFailedError, EstimatorOutputError
from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.registry import estimator_of
from grpo_plus.advantages.spread import SPREAD_KEYWORDS, spread, states_of, steps_of, with_trainable_steps
from grpo_plus.advantages.table import RewardTable, values_of
from grpo_verifiers.exec.failure import error_fields
from grpo_verifiers.options import keywords_of


@torch.no_grad()
def compute_advantages(name: str | Estimator | Callable[..., Any], table: RewardTable, **keywords: Any) -> Tensor:
    """Return the advantages of every completion of the table.

    >>> compute_advantages("rloo", RewardTable.of([1, 1, 1, 0]))
    tensor([ 0.3333,  0.3333,  0.3333, -1.0000])
    >>> compute_advantages("zscore", RewardTable.of([1, 1, 1, 0]), ddof=0, eps=0.0)
    tensor([ 0.5774,  0.5774,  0.5774, -1.7321])

    For a group-relative estimator a completion without any applicable reward, a group of one and a group whose rewards
    are all equal give exactly 0. Step estimators look at scored steps only: fewer than two in a group, or all equal,
    give 0; steps without a trainable token are dropped before the estimator sees them.

    Args:
        name: a name or reference, an `Estimator`, or a function.
        table: rewards of all ranks' completions.
        **keywords: of the estimator; a step estimator also takes ``credit``, ``gamma`` and
            ``outcome_weight``.

    Returns:
        (N,), or (N, T) with T = ``table.lengths.max()`` for step and token estimators; in the precision of the table.

    Raises:
        EstimatorKeywordError: wrong keywords, all of them listed.
        EstimatorOutputError: the estimator returned no valid advantages.
        EstimatorFailedError: the estimator raised; its exception is the cause.
    """
    estimator = estimator_of(name)
    if not isinstance(table, RewardTable):
        raise TypeError(f"{estimator.title} takes a RewardTable, not {type(table).__name__}: RewardTable.of([...]).")
    require_keywords(estimator, keywords)
    no_float64 = table.rewards.device.type == "mps"  # a few numbers: the CPU is as fast
    exact = table.to(device="cpu" if no_float64 else None, dtype=torch.float64)
    values = _advantages(estimator, exact, keywords)
    largest = torch.finfo(table.rewards.dtype).max
    return values.clamp(-largest, largest).to(table.rewards)


def _advantages(estimator: Estimator, table: RewardTable, keywords: dict[str, Any]) -> Tensor:
    if estimator.reads_values:
        values_of(table)
    if estimator.reads_states:
        states_of(table)
    if estimator.reads_steps:
        table = replace(table, steps=steps_of(table).select(with_trainable_steps(table)))
    if estimator.per == "step":
        return _step_advantages(estimator, table, keywords)
    if estimator.per == "parts":
        values: Tensor = estimator.fn(table, **keywords)
        return values  # each part has been through here
    shape = (len(table.rewards),) if estimator.per == "completion" else (len(table.rewards), table.width)
    values = _check_tensor(estimator, _call(estimator, table, keywords), shape, table)
    live_N = table.scorable()
    if estimator.group_relative and not estimator.own_zero_rule:
        live_N = Groups.of(table.groups).live(table.totals(), live_N)
    live = live_N[:, None] & table.trainable() if estimator.per == "token" else live_N
    return _finite(estimator, values.masked_fill(~live, 0.0))


def _step_advantages(estimator: Estimator, table: RewardTable, keywords: dict[str, Any]) -> Tensor:
    steps = steps_of(table)
    shared = {name: value for name, value in keywords.items() if name in SPREAD_KEYWORDS}
    # The outcome's z-score is scaled like the steps', if the estimator has keywords for it.
    shared |= {name: value for name, value in keywords.items() if name in ("eps", "ddof")}
    if shared.get("credit") == "turn":  # values of turns: a discount adds later ones
        shared["credit"] = "step" if shared.get("gamma") is None else "return"
    declared = keywords_of(estimator.fn)
    if "gamma" in declared:  # it discounts by itself
        shared.pop("gamma", None)
    own = {name: value for name, value in keywords.items() if name in declared or name not in SPREAD_KEYWORDS}
    values_S = _check_tensor(estimator, _call(estimator, table, own), (len(steps),), table)
    live_S = ~steps.scores.isnan()
    if estimator.group_relative and not estimator.own_zero_rule:
        live_S = Groups.of(table.groups[steps.rows]).live(steps.scores, live_S)
    return spread(table, _finite(estimator, values_S.masked_fill(~live_S, 0.0)), **shared)


def _call(estimator: Estimator, table: RewardTable, keywords: dict[str, Any]) -> Any:
    try:
        return estimator.fn(table, **keywords)
    except (Exception, SystemExit) as error:  # sys.exit would end the run with the estimator's exit code
        *_, frame = traceback.extract_tb(error.__traceback__)
        text = "{type}: {message}".format_map(error_fields(error)).removesuffix(": ")
        raise EstimatorFailedError(
            f"{estimator.title} raised {text} (line {frame.lineno} of {frame.filename}). Its traceback is the cause."
        ) from error


def _check_tensor(estimator: Estimator, values: Any, shape: tuple[int, ...], table: RewardTable) -> Tensor:
    """The output of an estimator, in the precision of its table; float32 is allowed."""
    device = table.rewards.device
    expected = f"a float64 or float32 tensor of shape {shape} on {device}, one value a {estimator.per}"
    if not isinstance(values, Tensor):
        raise EstimatorOutputError(f"{estimator.title} returned {type(values).__name__}, expected {expected}.")
    floats = (torch.float64, torch.float32)
    if tuple(values.shape) != shape or values.dtype not in floats or values.device != device:
        raise EstimatorOutputError(
            f"{estimator.title} returned {values.dtype} of shape {tuple(values.shape)} on {values.device}, expected "
            f"{expected}. Create it with table.rewards.new_zeros(...) or .to(table.rewards), or register the estimator "
            "with another per=."
        )
    return values.to(table.rewards)


def _finite(estimator: Estimator, values: Tensor) -> Tensor:
    """The values; raises if one is not finite: it would turn every weight of the model into NaN."""
    bad = ~values.isfinite()
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        raise EstimatorOutputError(
            f"{estimator.title} returned {values[tuple(where)].item()} at {where} ({int(bad.sum())} of {bad.numel()} "
            "values are not finite). Guard its divisions, and leave NaN rewards out of its sums."
        )
    return values
