"""The update: KL, gradient norm, NaN and infinite values, and the ratio of the policies."""

import math
from bisect import bisect_right

from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import LEAST, WINDOW, Finding, rule
from grpo_plus.diagnosis.reading import CHANCE, IDLE, compares, failing, moving, nearly_all, slower, untaught

FAR = 1.0
LOOKED_AT = 50
REGION = 0.2
OFF = 0.2
ALL_CUT = 0.95
IN_A_ROW = 3
"""Entries in a row without a finite gradient: a loss scaler skips fewer."""
NUMBERS = ("loss", "grad_norm", "reward", "kl", "entropy")
RATIO = "sampling/importance_sampling_ratio/mean"
DRIFT = "rollout/logp_drift"


@rule("kl_explodes", ("kl",), FAR)
def _kl(curves: Curves) -> Finding | None:
    recent = curves.last("kl", WINDOW)
    if len(recent.values) < LEAST or recent.median < FAR:
        return None
    beta = curves.number("beta")
    return Finding(
        "kl_explodes",
        "warning",
        f"the KL to the reference is {recent.median:.3g} nats a token",
        "the policy is far from the reference: steps are too large, or the KL term is too weak",
        f"a smaller {slower(curves)}, a larger beta{'' if not beta else f' ({5 * beta:.2g} instead of {beta:.2g})'}, "
        "or sync_ref_model: true",
        {"kl": recent.median},
        recent.ends,
    )


@rule("no_gradient", ("grad_norm", "loss", "completions/clipped_ratio", *IDLE), 0.0, window=LOOKED_AT)
def _zero(curves: Curves) -> Finding | None:
    norms, losses = moving(curves, "grad_norm", LOOKED_AT), moving(curves, "loss", WINDOW)
    still = len(norms.values) - max((at for at, norm in enumerate(norms.values, 1) if norm), default=0)
    if still < max(LEAST, min(WINDOW, len(norms.values))) or any(losses.values) or failing(curves):
        return None
    chance = _of_dead_groups(curves, norms.steps[-still])
    if chance > CHANCE and (compares(curves) or not nearly_all(curves)):
        return None  # the rule dead_groups reports it with its cause
    cut = curves.last("completions/clipped_ratio", WINDOW)
    cause = "no trained parameter depends on the loss: no parameter is trainable, or all tokens are masked"
    remedy = "check that an adapter or the model is trainable (use_peft), and that completions are not empty"
    if curves.fact("mask_truncated_completions") and cut.values and cut.mean >= ALL_CUT:
        cause = "all completions are cut off, and mask_truncated_completions leaves cut-off ones out"
        remedy = "raise max_completion_length, or mask_truncated_completions: false"
    elif chance > CHANCE:
        cause, remedy = "every advantage is 0, as every reward is", "easier prompts, or a reward with partial credit"
    return Finding(
        "no_gradient",
        "severe",
        "the loss and the gradient norm are exactly 0" + (", though groups have contrast" * (chance <= CHANCE)),
        cause,
        remedy,
        {"grad_norm": 0.0, "loss": 0.0},
        (norms.steps[-still], norms.steps[-1]),
        "learned nothing",
    )


def _of_dead_groups(curves: Curves, since: int) -> float:
    """An upper bound of the chance that dead groups explain every gradient of 0 since a step; 0 if no share was logged.

    A batch is used from its own step until the next batch is generated.
    """
    shares = untaught(curves, LOOKED_AT)
    first = max(0, bisect_right(shares.steps, since) - 1)
    return math.prod(shares.values[first:]) if shares.values else 0.0


@rule("nan", NUMBERS, 0.0, least=1)
def _nan(curves: Curves) -> Finding | None:
    keys = [key for key in NUMBERS if any(_is_not_finite(value) for value in curves.raw(key, WINDOW))]
    if keys == ["grad_norm"] and _skips(curves):
        return None
    if not keys:
        return None
    evidence = f"{' and '.join(keys)} {'is' if len(keys) == 1 else 'are'} not finite"
    cause = "an overflow in the update, or in half precision: from here on the weights may hold NaN"
    if keys == ["grad_norm"] and curves.fact("fp16"):
        evidence += f" in {IN_A_ROW} entries of the log in a row"
        cause = "the loss scaler of fp16 finds no scale without an overflow, and skips every step"
    if keys == ["reward"]:
        cause = "a reward function gives NaN"
    return Finding(
        "nan",
        "severe",
        evidence,
        cause,
        f"continue from the last checkpoint before it with bf16 instead of fp16, a smaller {slower(curves)}, "
        "max_grad_norm: 0.2",
        {},
        (),
        "broken by NaN",
    )


def _skips(curves: Curves) -> bool:
    """Return True if the steps without a finite gradient are the few that fp16's loss scaler skips.

    Without fp16 there is no scaler. If the setting is missing, `IN_A_ROW` such entries rule it out.
    """
    if curves.fact("fp16") is False:
        return False
    lost = [_is_not_finite(value) for value in curves.raw("grad_norm", WINDOW)]
    return not any(all(lost[at : at + IN_A_ROW]) for at in range(len(lost) - IN_A_ROW + 1))


def _is_not_finite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


@rule("ratio_clipped", ("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"), REGION)
def _clipped(curves: Curves) -> Finding | None:
    sides = ["clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"]
    both, low, high = (curves.last(key, WINDOW) for key in sides)
    share = both.mean if both.values else low.mean + high.mean
    if max(len(both.values), len(low.values)) < LEAST or not share >= REGION:
        return None
    iterations = curves.number("num_iterations")
    return Finding(
        "ratio_clipped",
        "warning",
        f"{share:.0%} of the trained tokens have a ratio outside its bounds",
        "the policy moves so far within a generation batch that much of it no longer counts",
        f"a smaller {slower(curves)}, fewer num_iterations{'' if not iterations else f' (now {iterations:.0f})'} or "
        "steps_per_generation, a wider epsilon_high",
        {sides[0]: share},
        (both if both.values else low).ends,
    )


@rule("ratio_off", (RATIO, DRIFT), OFF)
def _ratio_off(curves: Curves) -> Finding | None:
    ratio, drift = curves.last(RATIO, WINDOW), curves.last(DRIFT, WINDOW)
    off = len(ratio.values) >= LEAST and abs(ratio.median - 1) > OFF
    drifts = len(drift.values) >= LEAST and drift.median > OFF
    if not off and not drifts:
        return None
    key, window = (RATIO, ratio) if off else (DRIFT, drift)
    evidence = "the mean ratio of sampling is {:.2f} instead of 1" if off else "log-probabilities differ by {:.2f} nats"
    return Finding(
        "ratio_off",
        "warning",
        f"{evidence.format(window.median)}: completions are sampled from another model than the trained one",
        "vLLM has older weights, another precision or a quantised copy",
        "one dtype in vLLM and in training, rollout: {vllm_sync: files}, vllm_importance_sampling_correction: true",
        {key: window.median},
        window.ends,
    )
