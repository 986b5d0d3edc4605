"""Process supervision: z-scores of steps over all steps of all completions of a group (DeepSeekMath, section 4.1.3).

Credit "return" is the paper's: a token carries the sum over its own and all later steps, each times ``gamma`` for every
step between (1 in the paper). Credit "step" gives it its own step's score only, so that good steps before a mistake are
not blamed for it. Credit "turn" compares a step with the steps of equal number only, the second with the second ones
(`turns.py`, MT-GRPO); ``gamma``, if set, adds later ones as in "return". Outcome rewards never gate the steps; a step
without a score is out of the statistics and adds 0, but is a step between others; fewer than two scored steps, or all
equal, give 0. The outcome counts by ``outcome_weight`` times its z-score, added to every token, without a discount.

Deviation: the paper has rewards at the ends of steps; here steps carry spans, so tokens outside any step get 0 with
credit "step".
"""

from typing import Literal

from torch import Tensor

from grpo_plus.advantages.constraints import Ddof, Eps
from grpo_plus.advantages.estimator import Estimator
from grpo_plus.advantages.grouping import Groups, zscores
from grpo_plus.advantages.spread import steps_of
from grpo_plus.advantages.table import RewardTable
from grpo_plus.advantages.turns import same_turn


def process(
    table: RewardTable,
    *,
    credit: Literal["step", "return", "turn"] = "step",
    eps: Eps = 1e-4,
    ddof: Ddof = 1,
    steps_from: str | None = None,  # noqa: ARG001 - which verifier's steps: whoever fills the table reads it
    aggregate: Literal["min", "mean", "last", "product"] | None = None,  # noqa: ARG001 - of its reward column: same
) -> Tensor:
    """(r − μ)/(σ + eps) of steps over those of the group (credit turn: of equal number) + outcome_weight·outcome's."""
    steps = steps_of(table)
    groups = same_turn(table, steps) if credit == "turn" else Groups.of(table.groups[steps.rows])
    return zscores(steps.scores, ~steps.scores.isnan(), groups, eps=eps, ddof=ddof)


ESTIMATOR = Estimator("process", process, per="step")
