"""Turn-level credit: a turn against the same turn of the group's other completions (MT-GRPO, arXiv:2505.11821).

The paper's advantage of turn k of completion i is A_ik = z_ik + λ·A_i. z_ik is the z-score of the turn's score over the
k-th turns of the group, A_i that of the outcome over the group. A turn is compared with equally many turns before it,
so that later turns, which are harder or easier as a rule, are not blamed or praised for where they stand.

Assumes that turns of equal number have the same task. Fewer than two scored turns of that number, or all equal, give 0;
a turn without a score gives 0 and counts in the number.

Deviations: the paper's last turn has no score of its own and carries A_i undivided. Here it has the score that there is
(0 without one), and λ·A_i like every other turn; with λ = 1, as in the paper's runs, the two are the same. Its code
multiplies z_ik by λ instead of A_i, which is this times a constant with 1/λ.
"""

from grpo_plus.advantages.grouping import Groups
from grpo_plus.advantages.steps import StepScores
from grpo_plus.advantages.table import RewardTable


def same_turn(table: RewardTable, steps: StepScores) -> Groups:
    """Steps that are compared: those of equal number of one group.

    >>> table = RewardTable.of([1, 0], steps=[[(1.0, 0, 2), (0.5, 2, 4)], [(0.0, 0, 3)]])
    >>> same_turn(table, table.steps).index
    tensor([0, 1, 0])
    """
    ordinals_S = steps.ordinals()
    most = int(ordinals_S.max()) + 1 if len(steps) else 1
    return Groups.of(Groups.of(table.groups[steps.rows]).index * most + ordinals_S)
