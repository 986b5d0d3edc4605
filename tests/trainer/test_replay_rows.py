"""Rows that are kept for replay, through a checkpoint and back: nothing of them changes."""

from functools import partial

import torch

from grpo_plus.advantages import StepScores
from grpo_plus.selection.dead_groups.assemble import Source
from grpo_plus.training.advantages import Scored
from grpo_plus.training.drawn_rounds import Round, everywhere, rows_of
from grpo_plus.training.hooks import Completions
from grpo_plus.training.replaying import Memory, kept, round_of
from grpo_plus.training.reward_table import step_scores
from grpo_plus.training.turn_spans import state_number
from grpo_verifiers.turns import Call, Turn
from grpo_verifiers.verdict import Step, Verdict
from tests.device import DEVICE

LENGTHS = [3, 1, 2, 0]
STATE = state_number("a board")
tensor = partial(torch.tensor, device=DEVICE)


def drawn():
    """Two groups of two, as a run with vLLM, tools, truncated sampling and steps would draw them."""
    mask = (torch.arange(3, device=DEVICE) < tensor(LENGTHS)[:, None]).long()
    numbers = torch.arange(12.0, device=DEVICE).reshape(4, 3) / 7
    output = {
        "prompt_ids": tensor([[0, 5], [0, 5], [6, 7], [6, 7]]),
        "prompt_mask": tensor([[0, 1], [0, 1], [1, 1], [1, 1]]),
        "completion_ids": tensor([[11, 12, 13], [14, 0, 0], [15, 16, 0], [0, 0, 0]]),
        "completion_mask": mask,
        "tool_mask": tensor([[1, 0, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1]]),
        "old_per_token_logps": -numbers,
        "ref_per_token_logps": -2 * numbers,
        "sampling_per_token_logps": -3 * numbers,
        "importance_sampling_ratio": tensor([[1.5], [0.5], [2.0], [1.0]]),
        "advantages": tensor([1.0, -1.0, 0.5, -0.5]),
        "support": [torch.tensor([1, 2], dtype=torch.int32), *[torch.zeros(0, dtype=torch.int32)] * 3],
        "num_items_in_batch": mask.sum(),
    }
    ids = [[11, 12, 13], [14], [15, 16], []]
    rows = [{"prompt": f"p{row // 2}", "answer": None, "level": row // 2} for row in range(4)]
    behind = [[5], [5], [6, 7], [6, 7]]
    call = Call("add", {"number": 1}, "2", "late", 0.5)
    turns = [[Turn(0, 1, "a", (call,), "s", 0.25), Turn(2, 3, "c")], [Turn(0, 1, "d")], [Turn(0, 2, "ef")], []]
    tokens = [[(0, 1), (2, 3)], [(0, 1)], [(0, 2)], []]
    texts = ["abc", "d", "ef", ""]
    completions = Completions(rows, [row["prompt"] for row in rows], texts, ids, behind, turns, tokens)
    steps = StepScores(
        tensor([0, 0, 2]),
        tensor([1.0, float("nan"), 0.5]),
        tensor([[0, 1], [1, 3], [0, 2]]),
        tensor([STATE, -1, STATE]),
    )
    rewards, flags = tensor([[1.0], [0.0], [float("nan")], [0.25]]), tensor([True, False, False, True])
    scored = Scored(completions, rewards, tensor(LENGTHS), flags, steps)
    verdicts = [[Verdict(1.0, detail="x", steps=(Step(0, 1, 1.0), Step(1, 3, None)))], *[[Verdict(0.0)]] * 3]
    logged = {
        "prompt": list("ppqq"),
        "completion": ["abc", "d", "ef", ""],
        "images": [],
        "advantages": [1, -1, 0.5, -0.5],
    }
    logged |= {"rewards": {"r": [1.0, 0.0, None, 0.25]}, "extra": {}}
    return Round(output, scored, mask.bool(), verdicts, logged, {"reward": [0.5]})


def assert_alike(found, expected):
    assert found.values.keys() == expected.values.keys()
    for name, value in expected.values.items():
        assert torch.equal(found.values[name], value), name
        assert found.values[name].dtype == value.dtype
    assert found[1:] == expected[1:]


def test_what_comes_back_from_a_checkpoint_is_what_was_drawn():
    one = drawn()
    memory, resumed = Memory(age=2, groups=8), Memory(age=2, groups=8)
    memory.buffer.begin()
    memory.buffer.put(kept(one, [0, 1], 2, rank=0))
    resumed.load(*memory.packed())
    assert resumed.buffer.batch == 1
    back = resumed.buffer.take(2)  # the newest first: the second group
    rows = [row for held in back for row in held.group]
    again = round_of(rows, rank=0, ranks=1, pad=0, multiple=None, device=torch.device(DEVICE))
    turned = [2, 3, 0, 1]
    for found, place in zip(rows_of(again), turned, strict=True):
        assert_alike(found, rows_of(one)[place])
    assert again.scored.rewards.nan_to_num(nan=7).tolist() == [[7], [0.25], [1], [0]]
    assert again.scored.lengths.tolist() == [2, 0, 3, 1]
    assert again.scored.truncated.tolist() == [False, True, True, False]
    assert again.scored.steps.rows.tolist() == [0, 2, 2]
    assert again.scored.steps.scores.nan_to_num(nan=7).tolist() == [0.5, 1, 7]
    assert again.scored.steps.spans.tolist() == [[0, 2], [0, 1], [1, 3]]
    assert again.scored.steps.states.tolist() == [STATE, STATE, -1]
    assert torch.equal(again.trainable, one.trainable[turned])
    assert again.table == {
        "prompt": list("qqpp"),
        "completion": ["ef", "", "abc", "d"],
        "images": [],
        "extra": {},
        "advantages": [0.5, -0.5, 1, -1],
        "rewards": {"r": [None, 0.25, 1.0, 0.0]},
    }
    assert again.metrics == {}


def test_rows_of_a_round_keep_the_states_of_their_steps_and_older_ones_have_none():
    one = drawn()
    sources = [Source(0, row) for row in (2, 3, 0, 1)]
    assert everywhere([one], sources, one.scored.completions).steps.states.tolist() == [STATE, STATE, -1]
    older = step_scores([[(0, 1, 1.0)], [(0, 2, None)]], device=torch.device(DEVICE), dtype=torch.float32)
    assert older.states.tolist() == [-1, -1]
    assert step_scores([[], []], device=torch.device(DEVICE), dtype=torch.float32).states.tolist() == []


def test_what_is_kept_holds_no_more_memory_than_its_own():
    (group,) = kept(drawn(), [0], 2, rank=0)
    for row in group:
        values = [value for value in row.drawn.values.values() if isinstance(value, torch.Tensor)]
        for tensor in (*values, row.rewards, row.trainable):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
