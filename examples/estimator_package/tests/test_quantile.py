"""The contract of every estimator, and what this one promises beside it."""

from collections.abc import Callable

from grpo_quantile import quantile

from grpo_plus.advantages import RewardTable, compute_advantages
from grpo_plus.testing import parametrize_with_checks


@parametrize_with_checks([quantile, (quantile, {"at": 0.75})])
def test_contract(check: Callable[[], None]) -> None:
    """Constant groups, groups of one, NaN, order, sizes, types, pickling and more."""
    check()


def test_one_lucky_completion_moves_nobody_else() -> None:
    """The mean would: that is what the median is for."""
    plain = compute_advantages(quantile, RewardTable.of([0.0, 1.0, 2.0, 3.0, 4.0]))
    lucky = compute_advantages(quantile, RewardTable.of([0.0, 1.0, 2.0, 3.0, 400.0]))
    assert plain.tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0]
    assert lucky.tolist()[:4] == plain.tolist()[:4]
