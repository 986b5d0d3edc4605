import pytest
import torch

from grpo_plus.advantages import RewardTable, StepScores
from tests.advantages.on_device import compute_advantages

NAN = float("nan")


def table(**changes):
    given = {
        "rewards": torch.tensor([[1.0, 0.5], [0.0, NAN], [NAN, NAN]]),
        "weights": torch.tensor([1.0, 2.0]),
        "groups": torch.tensor([0, 0, 1]),
        "lengths": torch.tensor([3, 2, 4]),
    }
    return RewardTable(**given | changes)


def steps(rows=(0, 0), scores=(1.0, 0.0), spans=((0, 1), (1, 3))):
    return StepScores(torch.tensor(rows), torch.tensor(scores), torch.tensor(spans))


def test_totals_leave_out_what_does_not_apply_and_of_reads_lists_with_none_and_nested_steps():
    made = table()
    assert made.totals()[:2].tolist() == [2.0, 0.0]
    assert made.totals()[2].isnan()
    assert RewardTable.of([[NAN, 1.0], [1.0, NAN]], weights=[1.0, 0.0]).totals().tolist() == [0.0, 1.0]
    assert made.scorable().tolist() == [True, True, False]
    assert made.trainable().tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    made = RewardTable.of([[1, None], [0, 2]], steps=[[(1.0, 0, 2), (None, 2, 5)], []], names=["a", "b"])
    assert made.rewards[0, 1].isnan()
    assert (made.lengths.tolist(), made.steps.rows.tolist()) == ([5, 1], [0, 0])
    assert made.steps.scores[1].isnan()
    assert made.steps.spans.tolist() == [[0, 2], [2, 5]]


def test_numbers_of_any_kind_are_taken_float64_is_kept():
    assert table(rewards=torch.ones(3, 2, dtype=torch.bfloat16)).rewards.dtype is torch.float32
    assert table(rewards=torch.ones(3, 2, dtype=torch.int32)).rewards.dtype is torch.float32
    made = table(rewards=torch.ones(3, 2).double(), groups=torch.tensor([0, 0, 1], dtype=torch.int32), steps=steps())
    assert made.rewards.dtype is made.weights.dtype is made.steps.scores.dtype is torch.float64
    assert made.groups.dtype is torch.long
    assert made.to(dtype=torch.float32).steps.scores.dtype is torch.float32


INFINITE = torch.tensor([[1.0, 2], [3, 4], [5, float("inf")]])
BAD = [
    (lambda: table(rewards=torch.ones(3)), ValueError, "rewards: expected 2 dimensions"),
    (lambda: table(rewards=[[1.0]]), TypeError, "RewardTable.of"),
    (lambda: table(rewards=torch.ones(3, 2, dtype=torch.complex64)), ValueError, "real numbers"),
    (lambda: table(rewards=INFINITE, names=("a", "b")), ValueError, r"inf from reward 1 \(b\) for completion 2"),
    (lambda: table(weights=torch.tensor([1.0])), ValueError, "weights: expected 2 values"),
    (lambda: table(weights=torch.tensor([1.0, NAN])), ValueError, "nan for reward 1"),
    (lambda: table(groups=torch.tensor([0.0, 0, 1])), ValueError, "groups: expected integers"),
    (lambda: table(groups=torch.tensor([0, 1])), ValueError, "groups: expected 3 values"),
    (lambda: table(lengths=torch.tensor([3, -1, 4])), ValueError, "-1 for completion 1"),
    (lambda: table(names=("a",)), ValueError, "2 names"),
    (lambda: table(truncated=torch.tensor([0, 1, 0])), ValueError, "bool tensor"),
    (lambda: table(extras={"x": torch.ones(2)}), ValueError, r"extras\['x'\]: expected a tensor of 3 rows"),
    (lambda: table(extras={"trainable": torch.ones(3, 3, dtype=torch.bool)}), ValueError, "at least 4 columns"),
    (lambda: table(extras={"trainable": torch.ones(3, 4)}), ValueError, "expected bool"),
    (lambda: table(steps=[(0, 1.0)]), TypeError, "expected StepScores"),
    (lambda: table(steps=steps(rows=(0, 3))), ValueError, "completions 0 to 2, got 3 for step 1"),
    (lambda: table(steps=steps(rows=(-1, 0))), ValueError, "got -1 for step 0"),
    (lambda: steps(spans=((0, 1), (3, 1))), ValueError, r"\[3, 1\] for step 1"),
    (lambda: steps(spans=((-1, 1), (1, 2))), ValueError, "positions from 0"),
    (lambda: steps(spans=((0, 1),)), ValueError, r"shape \(2, 2\)"),
    (lambda: steps(scores=(1.0,)), ValueError, "one score for each of the 2 rows"),
    (lambda: steps(scores=(1.0, float("-inf"))), ValueError, "-inf for step 1"),
    (lambda: steps(spans=((1, 3), (0, 2))), ValueError, "overlap"),
    (lambda: RewardTable.of([[1, 2], [3]]), ValueError, "equally many"),
    (lambda: RewardTable.of(["good"]), ValueError, "numbers or None"),
]


@pytest.mark.parametrize(("make", "kind", "message"), BAD)
def test_what_cannot_be_right_is_refused(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_states_go_with_their_steps_which_overlap_neither_across_completions_nor_where_empty():
    table = RewardTable.of([1, 0], steps=[[(1.0, 0, 2, 5), (0.5, 2, 4, None)], [(0.0, 0, 3, 5)]])
    assert table.steps.states.tolist() == [5, -1, 5]
    assert table.steps.select(torch.tensor([False, True, True])).states.tolist() == [-1, 5]
    assert table.to(dtype=torch.float64).steps.states.tolist() == [5, -1, 5]
    assert RewardTable.of([1], steps=[[(1.0, 0, 2)]]).steps.states is None
    with pytest.raises(ValueError, match=r"StepScores.states: expected one key for each of the 1 rows"):
        StepScores(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([[0, 1]]), torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"StepScores.states: expected integers"):
        StepScores(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([[0, 1]]), torch.tensor([0.5]))
    assert len(steps(rows=(0, 1), spans=((0, 3), (1, 2)))) == 2
    assert len(steps(rows=(0, 0), spans=((0, 3), (1, 1)))) == 2


def test_an_empty_table_gives_nothing_and_without_step_scores_process_says_so():
    empty = RewardTable.of(torch.zeros(0, 1), steps=[])
    for name in ("zscore", "gdpo", "passk", "gpg", "opo", "batch_whiten"):
        assert compute_advantages(name, empty).shape == (0,)
    assert compute_advantages("process", empty).shape == (0, 0)
    with pytest.raises(ValueError, match=r"table\.steps is None"):
        compute_advantages("process", RewardTable.of([1, 0]))


def test_steps_beyond_the_text_or_among_tool_tokens_are_out_of_the_statistics():
    """They would pull the mean of the steps that can learn."""
    held = [[(1.0, 0, 2), (0.0, 2, 4), (9.0, 4, 6), (9.0, 6, 8), (9.0, 2, 2)]]
    mask = torch.tensor([[1, 1, 0, 1, 0, 0]]).bool()
    made = RewardTable.of([0], lengths=[6], steps=held, extras={"trainable": mask})
    got = compute_advantages("process", made, ddof=0, eps=0)
    torch.testing.assert_close(got, torch.tensor([[1.0, 1, 0, -1, 0, 0]]))
    got = compute_advantages("process", made, ddof=0, eps=0, credit="return")
    torch.testing.assert_close(got, torch.tensor([[0.0, 0, 0, -1, 0, 0]]))
    made = RewardTable.of([0, 0], lengths=[2, 3], steps=[[(1.0, 0, 9)], [(0.0, 1, 9)]])  # past the end: cut there
    got = compute_advantages("process", made, ddof=0, eps=0)
    torch.testing.assert_close(got, torch.tensor([[1.0, 1, 0], [0, -1, -1]]))
