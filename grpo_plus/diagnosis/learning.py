"""Learning: a flat reward, form without answers, steps too small for an adapter."""

from grpo_plus.diagnosis import reading
from grpo_plus.diagnosis.curves import MOST, Curves
from grpo_plus.diagnosis.finding import WINDOW, Finding, rule
from grpo_plus.diagnosis.trend import change

FLAT, FLAT_AFTER = 0.1, 40
SATURATED, FORM_AFTER = 0.95, 12
LOW_RATE, RATE_AFTER = 1e-5, 20


@rule("reward_flat", ("reward", "reward_std"), FLAT, window=0, least=FLAT_AFTER)
def _flat(curves: Curves) -> Finding | None:
    curves = reading.trained(curves)
    window, spread = curves.full("reward"), curves.full("reward_std").mean
    changed, lifeless = reading.reward_change(curves), reading.dead(curves, MOST)
    if len(window.values) < FLAT_AFTER or changed is None or not spread > 0 or lifeless.mean >= reading.HALF:
        return None
    if max(abs(changed.low), abs(changed.high)) > FLAT * spread or reading.learned(curves):
        return None
    return Finding(
        "reward_flat",
        "warning",
        f"over {len(window.values)} log entries the reward has moved from {changed.before:.3f} to {changed.after:.3f}: "
        f"a change of more than {FLAT:.0%} of its spread ({spread:.2g}) is ruled out at 99%",
        "steps are too small to show, or the reward is noise",
        f"a larger learning_rate{_rate(curves)}, larger batches, more steps; look at rewards of equal completions",
        {"reward": changed.after, "reward_std": spread},
        window.ends,
        "reward flat",
    )


def _rate(curves: Curves) -> str:
    rate = curves.number("learning_rate")
    return "" if rate is None else f" ({5 * rate:.1g} instead of {rate:.2g})"


@rule(
    "format_saturated", ("rewards/NAME/mean", "verifiers/LABEL/status/correct"), SATURATED, window=0, least=FORM_AFTER
)
def _form(curves: Curves) -> Finding | None:
    curves = reading.trained(curves)
    for name in sorted(curves.names("rewards/", "/mean")):
        form = curves.last(f"rewards/{name}/mean", WINDOW)
        if not reading.is_form(curves, name) or len(form.values) < WINDOW or form.mean < SATURATED:
            continue
        for label in reading.answering(curves):
            window = curves.full(f"verifiers/{label}/status/correct")
            right, changed = reading.status(curves, label, "correct"), change(window.values)
            if changed is None or len(window.values) < FORM_AFTER or changed.rises or right.mean >= reading.HALF:
                continue
            return Finding(
                "format_saturated",
                "warning",
                f"the reward {name} is at {form.mean:.2f} while {label} finds {right.mean:.0%} right, as before",
                "the form is learned, and the rest of the reward does not teach the answers",
                f"a smaller weight of {name} (0.1), advantage: gdpo (each reward by itself), easier prompts",
                {f"rewards/{name}/mean": form.mean, f"verifiers/{label}/status/correct": right.mean},
                window.ends,
            )
    return None


@rule("learning_rate_low", ("reward",), LOW_RATE, window=0, least=RATE_AFTER)
def _low_rate(curves: Curves) -> Finding | None:
    curves = reading.trained(curves)
    rate, window = curves.number("learning_rate"), curves.last("reward", RATE_AFTER)
    if not curves.fact("lora") or rate is None or not 0 < rate < LOW_RATE or len(window.values) < RATE_AFTER:
        return None
    if reading.rising(curves) or reading.learned(curves):
        return None
    return Finding(
        "learning_rate_low",
        "warning",
        f"learning_rate is {rate:.2g} with LoRA, and the reward does not rise",
        "adapters need rates ten times those of a model",
        "learning_rate: 1e-4 (adapters: 5e-5 to 5e-4)",
        {"reward": window.mean},
        window.ends,
    )
