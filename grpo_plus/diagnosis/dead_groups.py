"""Dead groups: without contrast nothing is learned. Rewards, statuses and lengths show the cause.

A few groups may all be dead by chance. A finding therefore needs `GROUPS` groups, or a count whose probability, if half
of all groups were dead, is below `EARLY`. "Nearly all" needs a probability below `CHANCE`.
"""

from math import isnan

from grpo_plus.diagnosis import reading
from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import LEAST, WINDOW, Finding, rule

MOST = 0.5
NEARLY = 0.02
WRONG = 0.1
"""Below this share of wrong completions, dead groups are no loss."""
LITTLE = 0.1
"""Above this reward, cut-off completions are not the cause."""
CUT = 0.2
NAMES = ("reward", "reward_std", "completions/clipped_ratio", "verifiers/LABEL/status/STATUS")


def _succeeds(curves: Curves, share: float) -> bool:
    """Return True if the dead groups are mostly right, because the model learned: few wrong completions are in them.

    If half of the completions of live groups are wrong, 1 − level − (1 − share)/2 of all are wrong and in dead groups.
    """
    wrong = 1 - reading.level(curves) - (1 - share) / 2
    return wrong < WRONG and not reading.level(curves, first=True) >= reading.LEARNED


def _cause(curves: Curves) -> tuple[str, str, dict[str, float]]:
    reward, cut = curves.last("reward", WINDOW), curves.last("completions/clipped_ratio", WINDOW)
    judging = reading.answering(curves) or reading.labels(curves)
    shares = {label: reading.status(curves, label, "unparsable") for label in judging}
    unread = {label: window.mean for label, window in shares.items() if window.values and window.mean >= MOST}
    values = {} if isnan(cut.mean) else {"completions/clipped_ratio": cut.mean}
    values |= {f"verifiers/{label}/status/unparsable": share for label, share in unread.items()}
    causes, remedies = [], []
    limit = curves.number("max_completion_length")
    if cut.values and cut.mean >= CUT and abs(reward.mean) <= LITTLE:
        causes.append(f"{cut.mean:.0%} of the completions are cut off before they can state an answer")
        longer = "" if limit is None else f" (now {limit:.0f}) to {2 * limit:.0f}"
        remedies.append(f"raise max_completion_length{longer}")
    if unread:
        label, share = max(unread.items(), key=lambda item: item[1])
        causes.append(f"the verifier {label} can read no answer in {share:.0%} of the completions: the prompt does not "
                      "state the expected format, or the model does not follow it")  # fmt: skip
        remedies.append("ask for the format in the prompt (prompt: {template: boxed}, say), or start from examples of "
                        "it (warm_start)")  # fmt: skip
    if causes:
        return ", and ".join(causes), "; ".join(remedies), values
    if abs(reward.mean) <= NEARLY:
        cause = (
            "every completion gets reward 0: the prompts are too hard for the model, or no answer passes the verifier"
        )
        remedy = (
            "look at a few completions in the report and run grpo-plus verify on right answers; then a prompt with the "
            "expected form, easier prompts, more num_generations, a reward with partial credit, or warm_start"
        )
        return cause, remedy, values
    if reading.learned(curves):
        cause = "every completion gets the highest reward, from the start: the prompts are too easy, or anything passes"
        return cause, "harder prompts, or a stricter verifier; try it with grpo-plus verify on wrong answers", values
    if reading.rising(curves) and (gain := reading.reward_change(curves)):
        cause = f"the reward has risen from {gain.before:.2f} to {gain.after:.2f}: the rest is too hard, or learned"
        return cause, "prompts between the two (selection: contrast), dead_groups: resample, or another reward", values
    cause = f"the completions of a prompt all get the same reward ({reward.mean:.2f} on average)"
    remedy = "a reward with finer steps, a higher temperature (1.0 or more), dead_groups: resample, selection: contrast"
    return cause, remedy, values


@rule("dead_groups", ("advantages/dead_group_fraction", "frac_reward_zero_std", *NAMES), MOST)
def _judge(curves: Curves) -> Finding | None:
    recent, (window, groups) = reading.dead(curves), reading.groups_of(curves)
    if len(recent.values) < LEAST or min(recent.mean, window.mean) < MOST or _succeeds(curves, recent.mean):
        return None
    many = groups >= reading.GROUPS or reading.sure(round(window.mean * groups), groups, reading.EARLY)
    if not many or reading.failing(curves):
        return None
    full, reward = curves.full(reading.dead_key(curves)), curves.last("reward", WINDOW)
    cause, remedy, values = _cause(curves)
    every = recent.mean >= reading.ALL and reading.nearly_all(curves)
    evidence = f"{recent.mean:.0%} of the groups are dead (all their advantages are 0)"
    if reward.values:
        evidence += f" at a mean reward of {reward.mean:.3g}"
        values = {"reward": reward.mean, **values}
    return Finding(
        "dead_groups",
        "severe" if every else "warning",
        evidence,
        cause,
        remedy,
        {reading.dead_key(curves): recent.mean, **values},
        recent.ends,
        ("learned nothing" if full.mean >= 0.9 else "stopped learning") if every else "",
    )


@rule("solved", ("advantages/dead_group_fraction", "frac_reward_zero_std", *NAMES), reading.LEARNED)
def _judge_solved(curves: Curves) -> Finding | None:
    recent = reading.dead(curves)
    if len(recent.values) < LEAST or recent.mean < MOST:
        return None
    if not (reading.learned(curves) and _succeeds(curves, recent.mean)):
        return None
    return Finding(
        "solved",
        "note",
        f"{recent.mean:.0%} of the groups are dead, because nearly every completion is right by now",
        "the model has learned all that these prompts can teach",
        "stop here (stop_on: solved), continue with harder prompts, or set selection: curriculum",
        {reading.dead_key(curves): recent.mean},
        recent.ends,
    )
