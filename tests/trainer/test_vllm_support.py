"""The tokens that vLLM could draw from, out of what it tells beside each sampled one."""

import math

import pytest
import torch

from grpo_plus.sampling.support import Support, listed
from grpo_plus.sampling.vllm_support import LEAST, MOST, asked_about, from_json, kept_ids


def test_only_where_tokens_are_left_out_more_is_asked_for():
    assert asked_about({"top_p": 1.0, "top_k": 0, "min_p": 0.0}) == 0
    assert asked_about({"top_k": -1, "min_p": None}) == 0
    assert asked_about({"top_p": 0.9}) == asked_about({"min_p": 0.1}) == MOST
    assert asked_about({"top_p": 0.9, "top_k": 5}) == 6
    assert asked_about({"top_k": 200}) == 201
    assert asked_about({"top_k": 200, "min_p": 0.1}) == MOST  # which mostly leaves far fewer
    assert asked_about({"top_k": 10_000}) == LEAST  # more than anybody tells: nothing is gained by asking
    assert asked_about({"top_k": 200}, vocabulary=101) == 100
    assert asked_about({"top_p": 0.9}, vocabulary=101) == 100
    assert LEAST < MOST


def test_all_are_known_once_one_that_was_left_out_is_told():
    assert kept_ids({7: -0.1, 3: -2.5, 9: -math.inf}) == [3, 7]
    assert kept_ids({7: -0.1, 3: -2.5, 9: -9999.0}) == [3, 7]
    assert kept_ids({7: -0.1, 3: -2.5}) is None
    assert kept_ids({7: math.nan}) is None


def test_a_servers_answer_is_read_and_what_cannot_be_is_unknown():
    told = [
        {"token_id:7": -0.1, "token_id:9": -9999.0},
        {"token_id:7": -0.1},
        {"the": -0.1},
        None,
        {"token_id:1": None},
    ]
    assert from_json(told) == [[7], None, None, None, None]
    assert from_json(None) == []


@pytest.mark.parametrize("width", [2, 3])
def test_a_completions_support_is_scored_within_and_one_gap_makes_it_unknown(width, device):
    support = Support([listed([[1, 4], [2]]), listed([[1], None])], width, device)
    allowed = support.allowed(torch.arange(2 * width, device=device), 5).reshape(2, width, 5)
    assert allowed[0, 0].tolist() == [False, True, False, False, True]
    assert allowed[0, 1].tolist() == [False, False, True, False, False]
    assert allowed[0, 2:].all()
    assert allowed[1].all()
