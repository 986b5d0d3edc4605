"""What is remembered of a prompt: decayed counts, told by hand."""

import math

import pytest
import torch

from grpo_plus.selection.history import PromptHistory, digest_of
from tests.device import DEVICE

NAN = math.nan


def after(*batches, prompts=2, size=4, decay=0.5):
    """The history after batches, each a list of (prompt, total)."""
    history = PromptHistory.empty([1] * prompts, size)
    for batch in batches:
        totals = torch.tensor([total for _, total in batch], device=DEVICE)
        history = history.observed([prompt for prompt, _ in batch], totals, decay=decay)
    return history


def group(prompt, *totals):
    return [(prompt, total) for total in totals]


def test_evidence_decays_by_visits_and_a_completion_without_a_score_counts_for_nothing():
    history = after(group(0, 1, 1, 1, 0), group(1, 0, 0, 0, 0), group(0, 1, 0, 0, 0))
    assert (history.counts.tolist(), history.passes().tolist()) == ([4 * 0.5 + 4, 4], [3 * 0.5 + 1, 0])
    assert (history.groups.tolist(), history.live.tolist(), history.drawn.tolist()) == ([1.5, 1], [1.5, 0], [2, 1])
    assert history.pass_rates().tolist() == pytest.approx([2.5 / 6, 0])
    history = after(group(0, 1, NAN, 0, NAN) + group(1, NAN, NAN, NAN, NAN))
    assert (history.counts.tolist(), history.passes().tolist()) == ([2, 0], [1, 0])
    assert (history.seen.tolist(), history.drawn.tolist()) == ([True, False], [1, 1])
    # And a batch without any leaves earlier evidence whole.
    assert after(group(0, 1, 1, 0, 0), group(0, NAN, NAN, NAN, NAN)).counts.tolist() == [4, 0]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 2.5), (-3, -1)])
def test_any_two_totals_are_a_fail_and_a_pass(low, high):
    history = after(group(0, high, low, low, low), group(1, low, low, low, low))
    assert not history.graded
    assert history.passes().tolist() == pytest.approx([1, 0])
    before = history.counts.clone()
    history.observed([0, 0], torch.tensor([1.0, 1.0]), decay=0.5)
    assert torch.equal(history.counts, before)  # the old history is left as it was


@pytest.mark.parametrize(("value", "passes"), [(1.0, 4), (0.0, 0), (-1.0, 0), (2.0, 4)])
def test_one_value_alone_is_a_pass_above_0(value, passes):
    assert after(group(0, value, value, value, value)).passes().tolist() == [passes, 0]


def test_a_third_value_makes_rewards_graded_for_good():
    history = after(group(0, 0, 1, 0, 1), group(0, 0.5, 0.5, 0.5, 0.5), group(0, 0, 1, 1, 1))
    assert history.graded
    assert (history.low, history.high, history.live.tolist()) == (0, 1, [1 * 0.25 + 0 + 1, 0])
    assert history.groups.tolist() == [1.75, 0]
    assert not after(group(0, 0.1 + 0.2, 0.3, 0, 0)).graded  # rounding is no third value


def test_rounds_of_one_batch_make_whole_groups_and_a_prompt_drawn_twice_is_two_groups():
    """Two of four completions first, two more later: one group, of which neither half has contrast by itself."""
    history = after(group(0, 1, 1) + group(1, 0, 0) + group(0, 0, 0))
    assert (history.live.tolist(), history.groups.tolist(), history.drawn.tolist()) == ([1, 0], [1, 0.5], [1, 0.5])
    history = after(group(0, 1, 1, 1, 1) + group(0, 0, 0, 0, 0))
    assert (history.groups.tolist(), history.live.tolist(), history.pass_rates()[0]) == ([2, 0], [0, 0], 0.5)


def test_contrast_is_told_by_the_columns_that_are_read(device):
    history = PromptHistory.empty([1], 2)
    totals, columns = (torch.tensor(given, device=device) for given in ([1.0, 1.0], [[1.0, 0.0], [0.0, 1.0]]))
    assert history.observed([0, 0], totals, decay=1.0, read_NK=columns).live.tolist() == [1]
    assert history.observed([0, 0], totals, decay=1.0).live.tolist() == [0]


def test_impossible_died_out_and_in_between():
    history = PromptHistory.of([[0] * 8, [1] * 8, [1, 0] * 4, []])
    assert history.impossible().tolist() == [True, False, False, False]
    assert history.died_out().tolist() == [False, True, False, False]
    graded = PromptHistory.of([[0.1] * 4, [0.9] * 4, [0.2, 0.9] * 2, [0.5] * 4, []])
    assert graded.impossible().tolist() == [True, False, False, False, False]
    assert graded.died_out().tolist() == [False, True, False, True, False]


def test_a_digest_is_that_of_the_plain_json():
    chat = [{"role": "user", "content": "é"}]
    assert digest_of(chat) == digest_of([{"content": "é", "role": "user"}])
    assert digest_of("a") != digest_of(["a"])
    assert len(digest_of("1+1=")) == 16
