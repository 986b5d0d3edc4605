"""Samples of the policy: the lengths of completions, and the entropy."""

from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import LEAST, WINDOW, Finding, rule
from grpo_plus.diagnosis.reading import learned, rising, slower
from grpo_plus.diagnosis.trend import change

CUT = "completions/clipped_ratio"
LENGTH = "completions/mean_length"
ENDED = "completions/mean_terminated_length"
MANY = 0.2
NEARLY_ALL = 0.9
GROWTH = 1.5
ENTROPY = "entropy"
ENOUGH = 10
LOST = 0.1
LOW = 0.05
RISE = 1.0


@rule("truncated", (CUT, ENDED), MANY)
def _truncated(curves: Curves) -> Finding | None:
    recent, ended = curves.last(CUT, WINDOW), curves.last(ENDED, WINDOW)
    if len(recent.values) < LEAST or recent.mean < MANY:
        return None
    limit = curves.number("max_completion_length")
    longer = f" to {2 * limit:.0f}" if limit is not None else ""
    if ended.values and max(ended.values) == 0:
        cause = "no completion ends by itself: the model does not write its end token, or its template uses another one"
        remedy = "a chat model with its own template, warm_start, or generation_kwargs: {eos_token_id: …}"
    else:
        cause = f"max_completion_length{'' if limit is None else f' ({limit:.0f})'} is too short for the completions"
        remedy = (
            f"raise max_completion_length{longer}, chat_template_kwargs: {{enable_thinking: false}} for a model that "
            "thinks aloud, or the verifier length_overlong with a small weight"
        )
    return Finding(
        "truncated",
        "severe" if recent.mean >= NEARLY_ALL and not (rising(curves) or learned(curves)) else "warning",
        f"{recent.mean:.0%} of the completions are cut off",
        cause,
        remedy,
        {CUT: recent.mean},
        recent.ends,
    )


@rule("length_growth", (LENGTH, "reward"), GROWTH, window=0, least=12)
def _growth(curves: Curves) -> Finding | None:
    window = curves.full(LENGTH)
    grown = change(window.values)
    if grown is None or not grown.rises or grown.before <= 0 or grown.after < GROWTH * grown.before:
        return None
    if rising(curves) or learned(curves):
        return None
    return Finding(
        "length_growth",
        "warning",
        f"completions have grown from {grown.before:.0f} to {grown.after:.0f} tokens while the reward has not risen",
        "a loss that divides by each completion's own length favours long wrong ones",
        "objective: dr_grpo or dapo, a smaller max_completion_length, or the verifier length_overlong",
        {LENGTH: grown.after},
        window.ends,
    )


def _entropy(curves: Curves) -> tuple[float, float, tuple[int, ...]] | None:
    """Return the entropy at first and now with the steps, if enough of it is logged and the reward does not rise."""
    began, recent = curves.first(ENTROPY, WINDOW), curves.last(ENTROPY, WINDOW)
    if len(curves.last(ENTROPY, ENOUGH).values) < ENOUGH or learned(curves) or rising(curves):
        return None
    return began.median, recent.median, (*began.ends[:1], *recent.ends[-1:])


@rule("entropy_collapse", (ENTROPY, "reward", "verifiers/LABEL/status/correct"), LOST, least=ENOUGH)
def _collapse(curves: Curves) -> Finding | None:
    before, now, steps = _entropy(curves) or (0.0, 1.0, ())
    if now > min(LOW, LOST * before):
        return None
    return Finding(
        "entropy_collapse",
        "warning",
        f"the entropy has fallen from {before:.2g} to {now:.2g} nats, and the reward does not rise",
        "the policy is nearly deterministic, so all completions of a prompt are alike and nothing new is tried",
        "temperature: 1.0 or more, objective: dapo (clips upwards later: epsilon_high 0.28), entropy_coef: 0.001, a "
        "smaller learning_rate",
        {ENTROPY: now},
        steps,
    )


@rule("entropy_rise", (ENTROPY, "reward"), RISE, least=ENOUGH)
def _rise(curves: Curves) -> Finding | None:
    before, now, steps = _entropy(curves) or (0.0, 0.0, ())
    if not before or now < before + RISE or now < 2 * before:
        return None
    return Finding(
        "entropy_rise",
        "warning",
        f"the entropy has risen from {before:.2g} to {now:.2g} nats, and the reward does not rise",
        "the policy dissolves: steps are too large, or an entropy bonus outweighs the reward",
        f"a smaller {slower(curves)}, beta: 0.04, no entropy_coef",
        {ENTROPY: now},
        steps,
    )
