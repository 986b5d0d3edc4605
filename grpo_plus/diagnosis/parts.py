"""Ineffective parts: a critic, a reward model."""

from grpo_plus.diagnosis.curves import Curves
from grpo_plus.diagnosis.finding import Finding, rule
from grpo_plus.diagnosis.reading import learned, trained

ENOUGH, TRAININGS = 20, 3
CHANCE = 0.52
"""A ranking accuracy up to here may be chance."""
EXPLAINED = "critic/explained_variance"
RANKED = "reward_model/accuracy"


@rule("critic_useless", (EXPLAINED, "critic/warmup"), 0.0, window=0, least=ENOUGH)
def _critic(curves: Curves) -> Finding | None:
    window = trained(curves).full(EXPLAINED)
    if len(window.values) < ENOUGH or window.end > 0 or learned(curves):
        return None
    return Finding(
        "critic_useless",
        "warning",
        f"the critic explains nothing of the returns (explained variance {window.end:.2f} over the last tenth of "
        "the run)",
        "its advantages are noisier than those against a constant",
        "warmup_steps or more updates of critic, another learning_rate, or a critic with more weights of its own (on: "
        "adapter or model)",
        {EXPLAINED: window.end},
        window.ends,
    )


@rule("reward_model_chance", (RANKED,), CHANCE, window=0, least=TRAININGS)
def _reward_model(curves: Curves) -> Finding | None:
    window = curves.full(RANKED)
    if len(window.values) < TRAININGS or window.end > CHANCE:
        return None
    return Finding(
        "reward_model_chance",
        "warning",
        f"the reward model orders held-out pairs no better than chance (ranking accuracy {window.end:.2f} over its "
        "last trainings)",
        "its reward is noise",
        "look at the verifiers' order, give it more pairs (pairs, every) or another learning_rate, and weight: 0 "
        "meanwhile",
        {RANKED: window.end},
        window.ends,
    )
