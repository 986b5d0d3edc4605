"""Process supervision: z-scores of steps over all steps of all completions of a group.

Credit "return" is the paper's: a token carries the sum over its own and all later steps, each times ``gamma`` for every
step between (1 in the paper). Credit "step" gives it its own step's score only, so that good steps before a mistake are
not blamed for it. Credit "turn" compares a step with the steps of equal number only, the second with the second ones
(MT-GRPO); ``gamma``, if set, adds later ones as in "return". Outcome rewards never gate the steps. The
outcome counts by ``outcome_weight`` times its z-score, added to every token, without a discount.

Use it when a verifier scores the steps of a completion (``math_steps``, ``prm``) or its turns, and
tokens should get the credit of their own step rather than of the completion.

Paper: DeepSeekMath, arXiv:2402.03300, section 4.1.3; credit "turn": MT-GRPO, arXiv:2505.11821.

Assumes that the scores of steps can be trusted: an easy step that always scores 1 is paid like a hard one.

Degenerate case: a step without a score is out of the statistics and adds 0, but counts as a step; fewer than
two scored steps, or all equal, give 0.

Deviation: the paper has rewards at the ends of steps; here steps carry spans, so tokens outside any step get 0 with
credit "step". With credit "turn": MT-GRPO's last turn has no score and carries the outcome's z-score A undivided; here
it has its own score and ``outcome_weight`` times A like all turns, the same at 1, as in the paper's runs. The paper's
code multiplies the turn's score in place of A.

Config:
    advantage: {name: process, credit: step, outcome_weight: 1.0}
    verifiers: [math, {name: math_steps, weight: 0.0}]
"""

from typing import Literal

from torch import Tensor

from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Ddof, Eps, Groups, zscores
from grpo_plus.advantages.spread import steps_of
from grpo_plus.advantages.steps import StepScores
from grpo_plus.advantages.table import RewardTable


def process(
    table: RewardTable,
    *,
    credit: Literal["step", "return", "turn"] = "step",
    eps: Eps = 1e-4,
    ddof: Ddof = 1,
    steps_from: str | None = None,  # noqa: ARG001 - the verifier of the steps: read where the table is built
    aggregate: Literal["min", "mean", "last", "product"] | None = None,  # noqa: ARG001 - of its reward column: same
) -> Tensor:
    """(r − μ)/(σ + eps) of steps over those of the group (credit turn: of equal number) + outcome_weight·outcome's.

    >>> from grpo_plus.advantages import RewardTable, compute_advantages
    >>> table = RewardTable.of([1, 0], steps=[[(1.0, 0, 1), (0.0, 1, 2)], [(1.0, 0, 1), (0.0, 1, 2)]])
    >>> compute_advantages("process", table, ddof=0, eps=0.0)
    tensor([[ 1., -1.],
            [ 1., -1.]])

    Args:
        table: the rewards and the scored steps.
        credit: ``step``: a token has its own step's value; ``return``: that and all later ones; ``turn``: steps are
            compared with those of equal number only.
        eps: added to the standard deviation before dividing by it.
        ddof: 0: standard deviation of the population, 1: of a sample.
        steps_from: the verifier whose steps count, by its label, if several give steps.
        aggregate: the reduction of step scores to that verifier's own reward; overrides its own setting.
    """
    steps = steps_of(table)
    groups = same_turn(table, steps) if credit == "turn" else Groups.of(table.groups[steps.rows])
    return zscores(steps.scores, ~steps.scores.isnan(), groups, eps=eps, ddof=ddof)


def same_turn(table: RewardTable, steps: StepScores) -> Groups:
    """Group the steps of equal number in a prompt's group, for credit "turn".

    Later steps are usually harder or easier, so a step is compared with those at the same position only. A step
    without a score counts in the number.

    >>> table = RewardTable.of([1, 0], steps=[[(1.0, 0, 2), (0.5, 2, 4)], [(0.0, 0, 3)]])
    >>> same_turn(table, table.steps).index
    tensor([0, 1, 0])
    """
    ordinals_S = steps.ordinals()
    most = int(ordinals_S.max()) + 1 if len(steps) else 1
    return Groups.of(Groups.of(table.groups[steps.rows]).index * most + ordinals_S)


ESTIMATOR = Estimator("process", process, per="step")
