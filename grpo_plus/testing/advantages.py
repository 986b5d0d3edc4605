"""The contract of advantage estimators, as checks for any estimator, built in or not.

All checks look at the advantages of `compute_advantages`, which are used in training.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from grpo_plus.advantages.checking import keyword_problems, parts_of, require_keywords
from grpo_plus.advantages.compute import compute_advantages
from grpo_plus.advantages.registry import estimator_of
from grpo_plus.advantages.table import RewardTable, StepScores
from grpo_plus.testing.contract import Kit, Part, Subject, checks_of, label_of, leaves_alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from grpo_plus.advantages.estimator import Estimator

_NAN = float("nan")
_MORE = 0.25
_SLACK = 1e-9


def check_advantage(part: "str | Estimator | Callable[..., Any]", /, **keywords: Any) -> None:
    """Run all checks of the contract on an advantage estimator.

    >>> check_advantage("rloo")

    A plain function counts as per completion and group-relative, unless it is registered otherwise.

    Raises:
        AssertionError: lists every check that failed.
    """
    KIT.run((part, keywords))


def sample_table() -> RewardTable:
    """A batch with uneven groups in mixed order, two rewards, ties, steps, values, an empty completion."""
    random = torch.Generator().manual_seed(0)
    groups = torch.tensor([7, 3, 7, 12, 3, 7, 12, 7, 3, 12, 12, 12])
    count = len(groups)
    lengths = torch.randint(4, 9, (count,), generator=random)
    lengths[4] = 0
    rewards = torch.randint(0, 9, (count, 2), generator=random) / 8 + 0.125
    rows = torch.arange(count).repeat_interleave(2)[torch.arange(2 * count) // 2 != 4]
    middle = (lengths[rows] // 2) * (torch.arange(len(rows)) % 2)
    last = torch.where(torch.arange(len(rows)) % 2 == 0, lengths[rows] // 2, lengths[rows])
    scores = torch.randint(0, 9, (len(rows),), generator=random) / 8
    return RewardTable(
        rewards=rewards,
        weights=torch.tensor([1.0, 0.5]),
        groups=groups,
        lengths=lengths,
        steps=StepScores(rows, scores, torch.stack([middle, last], dim=1), states=torch.arange(len(rows)) % 2),
        names=("first", "second"),
        truncated=torch.arange(count) % 5 == 0,
        values=torch.rand(count, int(lengths.max()), generator=torch.Generator().manual_seed(0)),
    )


def take(table: RewardTable, order: Tensor) -> RewardTable:
    """Return the completions ``order`` of a table, in that order, with their steps."""
    new_of_old = torch.full((len(table.rewards),), -1)
    new_of_old[order] = torch.arange(len(order))
    steps = table.steps
    if steps is not None:
        rows = new_of_old[steps.rows]
        chosen = rows >= 0
        steps = replace(steps.select(chosen), rows=rows[chosen])
    return replace(
        table,
        rewards=table.rewards[order],
        groups=table.groups[order],
        lengths=table.lengths[order],
        steps=steps,
        truncated=None if table.truncated is None else table.truncated[order],
        extras={name: extra[order] for name, extra in table.extras.items()},
        values=None if table.values is None else table.values[order],
    )


def _with_values(table: RewardTable, chosen: Tensor, reward: Any, score: Any) -> RewardTable:
    rewards = table.rewards.clone()
    rewards[chosen] = torch.as_tensor(reward, dtype=rewards.dtype)
    assert table.steps is not None
    scores = table.steps.scores.clone()
    scores[chosen[table.steps.rows]] = torch.as_tensor(score, dtype=scores.dtype)
    return replace(table, rewards=rewards, steps=replace(table.steps, scores=scores))


def _run(subject: Subject, table: RewardTable) -> Tensor:
    if table.values is None and any(leaf.reads_values for leaf, _ in parts_of(subject.part, subject.keywords)):
        table = replace(table, values=torch.zeros(len(table.rewards), table.width, device=table.rewards.device))
    try:
        return compute_advantages(subject.part, table, **subject.keywords)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"raised {type(error).__name__}: {error}") from error


def _same(got: Tensor, expected: Tensor, title: str, tolerance: float = 1e-5) -> None:
    if got.dim() == 2:  # completions of one table may be shorter
        width = max(got.shape[1], expected.shape[1])
        got, expected = (torch.nn.functional.pad(one, (0, width - one.shape[1])) for one in (got, expected))
    if not torch.allclose(got, expected, rtol=tolerance, atol=tolerance):
        raise AssertionError(f"{title}: got {got.tolist()}, expected {expected.tolist()}")


def _zero(values: Tensor, title: str) -> None:
    if bool((values != 0).any()):
        raise AssertionError(f"{title} must give exactly 0, got {values.tolist()}")


def check_shape_and_dtype(subject: Subject) -> None:
    """One finite float32 value a completion, or a token, and nothing past a completion's end."""
    table = sample_table()
    got = _run(subject, table)
    count, width = len(table.rewards), table.width
    allowed: list[tuple[int, ...]] = [(count,), (count, width)]
    if subject.part.per != "parts":
        allowed = [(count,)] if subject.part.per == "completion" else [(count, width)]
    if tuple(got.shape) not in allowed:
        raise AssertionError(f"shape is {tuple(got.shape)}, expected {' or '.join(map(str, allowed))}")
    if got.dtype is not torch.float32 or got.requires_grad:
        raise AssertionError(f"expected float32 without gradient, got {got.dtype}, requires_grad={got.requires_grad}")
    if not bool(got.isfinite().all()):
        raise AssertionError(f"values are not finite: {got.tolist()}")
    if got.dim() == 2:
        _zero(got[~table.trainable()], "tokens past the end of a completion")


def check_float64(subject: Subject) -> None:
    """A table in float64 gives float64, unrounded; one in float32 gives the same up to rounding."""
    table = sample_table()
    exact = table.to(dtype=torch.float64)
    _same(_run(subject, table).double(), _run(subject, exact), "float32 against float64", 1e-4)
    if subject.part.per in ("completion", "token"):
        returned = subject.part.fn(exact, **subject.keywords)
        if returned.dtype is not torch.float64:
            raise AssertionError(f"a float64 table, as estimators get it, gives {returned.dtype}")


def check_leaves_table_alone(subject: Subject) -> None:
    """The table is the same afterwards."""
    table = sample_table().to(dtype=torch.float64)  # the precision that estimators get: other tables are copied
    assert table.steps is not None
    values = vars(table) | {f"steps.{name}": part for name, part in vars(table.steps).items()}
    leaves_alone("table", values, lambda: _run(subject, table))


def check_constant_group_is_zero(subject: Subject) -> None:
    """A group whose rewards, and step scores, are all equal gets exactly 0."""
    table = sample_table().to(dtype=torch.float64)
    constant = table.groups == 12
    for value in (0.7, 0.1, 1e6 / 3):  # the float mean of equal values is not exactly that value
        table = _with_values(table, constant, [value, value / 7], value)
        _zero(_run(subject, table)[constant], f"a group of equal rewards ({value})")


def check_group_of_one_is_zero(subject: Subject) -> None:
    """A completion alone in its group gets exactly 0, with any number of equal step scores."""
    table = sample_table()
    groups = table.groups.clone()
    groups[3] = 99
    alone = groups == 99
    table = _with_values(replace(table, groups=groups), alone, [0.7, 0.3], 0.7)
    _zero(_run(subject, table)[alone], "a group of one")


def check_groups_by_id(subject: Subject) -> None:
    """Neither the order of completions, in their groups or across them, nor the numbers of the groups matter."""
    table = sample_table()
    order = torch.randperm(len(table.groups), generator=torch.Generator().manual_seed(1))
    other = take(table, order)
    other = replace(other, groups=1000 - 3 * other.groups)
    _same(_run(subject, other), _run(subject, table)[order], "completions in another order, groups under other ids")


def check_better_is_never_worse(subject: Subject) -> None:
    """A completion that scores higher, or whose last step does, never gets a lower advantage for it."""
    table = sample_table().to(dtype=torch.float64)
    assert table.steps is not None
    before = _run(subject, table)
    for row in range(len(table.groups)):
        for kind in range(table.rewards.shape[1]):
            rewards = table.rewards.clone()
            rewards[row, kind] += _MORE
            gain = (_run(subject, replace(table, rewards=rewards)) - before)[row].sum()
            if float(gain) < -_SLACK:
                raise AssertionError(f"{_MORE} more of reward {kind} takes {-float(gain):.3g} from completion {row}")
        steps = (table.steps.rows == row).nonzero().squeeze(1)
        if before.dim() == 2 and len(steps):
            last = steps[table.steps.spans[steps, 1].argmax()]
            scores = table.steps.scores.clone()
            scores[last] += _MORE
            after = _run(subject, replace(table, steps=replace(table.steps, scores=scores)))
            gain = (after - before)[row, slice(*table.steps.spans[last].tolist())].sum()
            if float(gain) < -_SLACK:
                raise AssertionError(f"{_MORE} more for its last step takes {-float(gain):.3g} from completion {row}")


def check_weight_zero_is_absent(subject: Subject) -> None:
    """The values of a reward of weight 0 change nothing."""
    table = replace(sample_table(), weights=torch.tensor([1.0, 0.0]))
    rewards = table.rewards.clone()
    rewards[:, 1] = torch.rand(len(rewards), generator=torch.Generator().manual_seed(3)) * 5 - 2
    _same(_run(subject, replace(table, rewards=rewards)), _run(subject, table), "other values of a reward of weight 0")


def check_weights_count(subject: Subject) -> None:
    """Two rewards that say the opposite: the one with the larger weight decides."""
    one = torch.tensor([0.0, 0.25, 0.5, 1.0, 0.75, 0.0, 1.0, 0.25])
    other = 1 - one
    table = RewardTable.of(
        torch.stack([one, other], dim=1), groups=[5] * 4 + [2] * 4, steps=[[(0.5, 0, 1, 0), (1.0, 1, 2, 1)]] * len(one)
    )

    def with_weights(first: float, second: float) -> Tensor:
        return _run(subject, replace(table, weights=torch.tensor([first, second])))

    alone, opposite = (_run(subject, replace(table, rewards=torch.stack([r, r], dim=1))) for r in (one, other))
    if torch.equal(alone, opposite):
        return  # it does not look at rewards, so it has nothing to weigh
    heavier_first, heavier_second = with_weights(1.0, 0.25), with_weights(0.25, 1.0)
    if torch.allclose(heavier_first, heavier_second, rtol=1e-5, atol=1e-5):
        raise AssertionError(
            f"weights (1, 0.25) and (0.25, 1) of rewards that say the opposite both give {heavier_first.tolist()}: "
            "sum table.rewards * table.weights, or use table.totals()"
        )
    for shift in (0.0, -2.0):  # rewards below 0 (penalties) rank completions like any rewards
        table = replace(table, rewards=torch.stack([one, other], dim=1) + shift)
        for weights, favoured in (((1.0, 0.25), one), ((0.25, 1.0), other)):
            each = with_weights(*weights).reshape(len(one), -1).sum(dim=1)
            if float(each @ (favoured - favoured.reshape(2, 4).mean(dim=1).repeat_interleave(4))) < -_SLACK:
                raise AssertionError(
                    f"rewards {table.rewards.tolist()} of weights {weights} say the opposite, and the advantages "
                    f"{each.tolist()} follow the one of the smaller weight"
                )


def check_weights_have_a_sign(subject: Subject) -> None:
    """A reward times -1 with its weight times -1 is the same reward: a negative weight punishes."""
    table = sample_table().to(dtype=torch.float64)
    before = _run(subject, table)
    for kind, name in enumerate(table.names):
        sign = torch.ones_like(table.weights)
        sign[kind] = -1.0
        turned = replace(table, rewards=table.rewards * sign, weights=table.weights * sign)
        _same(_run(subject, turned), before, f"the {name} reward and its weight times -1, against as they were")


def check_no_leak_between_groups(subject: Subject) -> None:
    """Other groups' rewards change nothing; if the scope is the batch, they rescale by one positive factor."""
    table = sample_table()
    mine = table.groups == 7
    assert table.steps is not None
    theirs = len(table.groups) - int(mine.sum())
    their_steps = int((~mine[table.steps.rows]).sum())
    random = torch.Generator().manual_seed(5)
    other = _with_values(
        table, ~mine, torch.rand((theirs, 2), generator=random) * 3, torch.rand(their_steps, generator=random) * 3
    )
    before, after = _run(subject, table)[mine], _run(subject, other)[mine]
    if any(leaf.scope == "batch" for leaf, _ in parts_of(subject.part, subject.keywords)):
        at = before.abs().argmax()
        factor = after.flatten()[at] / before.flatten()[at]
        if not bool(factor > 0):
            raise AssertionError(f"other groups' rewards turned {before.tolist()} into {after.tolist()}")
        before = before * factor
    _same(after, before, "a group after the rewards of other groups changed")


def check_unscorable_is_zero_and_absent(subject: Subject) -> None:
    """A completion without reward and step scores gets exactly 0, and does not affect the rest."""
    table = sample_table()
    chosen = torch.zeros(len(table.groups), dtype=torch.bool)
    chosen[[2, 6]] = True
    unscored = _with_values(table, chosen, _NAN, _NAN)
    got = _run(subject, unscored)
    _zero(got[chosen], "a completion without any reward")
    rest = (~chosen).nonzero().squeeze(1)
    _same(got[rest], _run(subject, take(table, rest)), "the rest, against a table without the unscorable ones")


def check_partial_nan_is_finite(subject: Subject) -> None:
    """Rewards and steps that do not apply to some completions leave finite advantages."""
    table = sample_table()
    assert table.steps is not None
    rewards, scores = table.rewards.clone(), table.steps.scores.clone()
    rewards[::3, 0] = _NAN
    rewards[1::4, 1] = _NAN
    scores[::5] = _NAN
    got = _run(subject, replace(table, rewards=rewards, steps=replace(table.steps, scores=scores)))
    if not bool(got.isfinite().all()):
        raise AssertionError(f"values are not finite: {got.tolist()}")


def _praises(subject: Subject) -> bool:
    """Return True if a higher reward should give a higher advantage: a mix needs weights of at least 0."""
    return subject.part.per != "parts" or all(weight >= 0 for weight in subject.keywords["parts"].values())


def _group_relative(subject: Subject) -> bool:
    return all(leaf.group_relative for leaf, _ in parts_of(subject.part, subject.keywords))


def _resolve(part: Part) -> Subject:
    source, keywords = part if isinstance(part, tuple) else (part, {})
    estimator = estimator_of(source)
    require_keywords(estimator, keywords)
    return Subject(estimator, dict(keywords), label_of(estimator.name, keywords))


KIT = Kit(
    _resolve,
    checks_of(
        globals(),
        lambda subject: _run(subject, sample_table()),
        keyword_problems,
        constant_group_is_zero=_group_relative,
        group_of_one_is_zero=_group_relative,
        better_is_never_worse=_praises,
        no_leak_between_groups=_group_relative,
    ),
)
