"""What an environment itself gave for each turn, as scores of steps."""

from collections.abc import Sequence

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.steps.aggregate import Aggregate, step_verdict
from grpo_verifiers.turns import Turn
from grpo_verifiers.verdict import Verdict


@Traits(home="inline", pure=True, steps=True)
def turn_reward(
    completion: str,  # noqa: ARG001 - every check takes it
    turns: Sequence[Turn] = (),
    *,
    aggregate: Aggregate = "mean",
) -> Verdict:
    """Score each turn as the environment's ``get_turn_reward`` does; a turn that it gave nothing for has no score.

    >>> from grpo_verifiers.turns import Turn
    >>> turn_reward("", [Turn(0, 1, "a", reward=1.0), Turn(2, 3, "b", reward=0.0)]).score
    0.5

    Use it when an environment rewards turns (``get_turn_reward``), and credit should go turn by turn.

    Scores: that of the turns by ``aggregate``; each turn is a step with the environment's reward; None, not applicable,
    where it gave none.

    Config:
        advantage: {name: process, credit: turn}
        environment: ./game.py:Treasure
        verifiers: [{name: turn_reward, weight: 0.0}]

    Args:
        completion: the model's text, which is not looked at.
        turns: what the model did.
        aggregate: the completion's score from those of its turns: min, mean, last or product.
    """
    spans = [turn.span for turn in turns]
    scores = [turn.reward for turn in turns]
    return step_verdict(spans, scores, aggregate, f"{sum(score is not None for score in scores)} turns with a reward")
