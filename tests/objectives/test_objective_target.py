"""`target`: golden numbers, brute force over nodes, and what coherence promises."""

import math
from collections import defaultdict
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.objectives import Counts, TokenBatch, build_objective, make_targets
from tests.device import DEVICE

tensor = partial(torch.tensor, device=DEVICE)


def targets_of(tokens, old, advantages, *, prompts=None, trained=None, present=None, **exponents):
    tokens = tensor(tokens)
    everything = torch.ones_like(tokens, dtype=torch.bool)
    return make_targets(
        prompts_N=torch.zeros_like(tokens[:, 0]) if prompts is None else tensor(prompts),
        tokens_NT=tokens,
        present_NT=everything if present is None else tensor(present),
        trained_NT=everything if trained is None else tensor(trained),
        old_logps_NT=tensor(old, dtype=torch.float64).log(),
        advantages_NT=tensor(advantages, dtype=torch.float64).reshape(len(tokens), -1),
        **exponents,
    )


@pytest.mark.parametrize(("tokens", "old", "advantages", "expected"), [
    ([[0], [1], [2], [3]], [[0.25]] * 4, [1, 1, 1, -3], [0.3125, 0.3125, 0.3125, 0.0625]),
    ([[0], [1]], [[0.98], [0.01]], [1, 1], [0.98, 0.02]),  # a good token never falls below where it was
    ([[0], [1]], [[0.09], [0.3]], [1, -1], [0.3, 0.09]),  # alone it goes to its root or square
])  # fmt: skip
def test_golden_targets(tokens, old, advantages, expected):
    found = targets_of(tokens, old, advantages)
    assert found.logps.exp().flatten().tolist() == pytest.approx(expected)
    assert found.sign.flatten().tolist() == [math.copysign(1, each) for each in advantages]


def test_sums_that_cancel_up_to_rounding_leave_no_target_and_exponents_can_be_chosen():
    found = targets_of([[1], [1], [1]], [[0.5]] * 3, [0.1, 0.2, -0.3 + 1e-9])
    assert (found.sign == 0).all()
    assert (found.weights == 0).all()
    found = targets_of([[0], [1]], [[0.2], [0.3]], [1, -1], good_exponent=0.25, bad_exponent=3.0)
    assert found.logps.exp().flatten().tolist() == pytest.approx([0.2**0.25, 0.027])


@st.composite
def groups(draw):
    rows, width = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    tokens = draw(st.lists(st.lists(st.integers(0, 2), min_size=width, max_size=width), min_size=rows, max_size=rows))
    prompts = draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows))
    lengths = draw(st.lists(st.integers(0, width), min_size=rows, max_size=rows))
    holes = draw(st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=rows, max_size=rows))
    advantages = draw(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0]), min_size=rows, max_size=rows))
    return tokens, prompts, lengths, holes, advantages, draw(st.integers(0, 10**6))


@settings(max_examples=80, deadline=None)
@given(groups())
def test_targets_equal_brute_force_over_nodes(drawn):
    tokens, prompts, lengths, holes, advantages, seed = drawn
    rows, width = len(tokens), len(tokens[0])
    generator = torch.Generator().manual_seed(seed)
    tables = {}

    def probability(prompt, prefix, token):
        key = (prompt, tuple(prefix))
        if key not in tables:
            tables[key] = torch.softmax(2 * torch.randn(3, generator=generator, dtype=torch.float64), 0).tolist()
        return tables[key][token]

    old = [[probability(prompts[r], tokens[r][:t], tokens[r][t]) for t in range(width)] for r in range(rows)]
    present = [[t < lengths[r] for t in range(width)] for r in range(rows)]
    trained = [[present[r][t] and not holes[r][t] for t in range(width)] for r in range(rows)]
    found = targets_of(tokens, old, advantages, prompts=prompts, trained=trained, present=present)

    through = defaultdict(list)
    for r in range(rows):
        for t in range(width):
            if trained[r][t]:
                through[prompts[r], tuple(tokens[r][:t]), tokens[r][t]].append((r, t))
    contexts = defaultdict(list)
    for node, places in through.items():
        pulls = [advantages[r] for r, _ in places]
        sign = 0 if abs(sum(pulls)) <= 1e-5 * sum(map(abs, pulls)) else math.copysign(1, sum(pulls))
        p = old[places[0][0]][places[0][1]]
        contexts[node[:2]].append([node, sign, p, p**0.5 if sign > 0 else p**2 if sign < 0 else p])
    for nodes in contexts.values():
        good = [node for node in nodes if node[1] > 0]
        room = 1 - sum(node[3] for node in nodes if node[1] < 0)
        raw = {id(node): node[3] for node in good}
        if sum(raw.values()) > room:
            # One common factor by bisection, every good one held at its old probability at least.
            low, high = 0.0, 1.0
            for _ in range(200):
                middle = (low + high) / 2
                if sum(max(node[2], middle * raw[id(node)]) for node in good) > room:
                    high = middle
                else:
                    low = middle
            for node in good:
                node[3] = max(node[2], low * raw[id(node)])
        total = sum(node[3] for node in nodes if node[1])
        assert total <= 1 + 1e-9
        for node, sign, p, goal in nodes:
            for r, t in through[node]:
                assert found.sign[r, t] == sign
                assert found.weights[r, t].item() == pytest.approx(1 / len(through[node]) if sign else 0.0)
                assert found.logps[r, t].exp().item() == pytest.approx(goal, abs=1e-7)
                assert sign <= 0 or goal >= p - 1e-12
    outside = ~torch.tensor(trained)
    assert (found.sign[outside] == 0).all()


def test_the_loss_is_the_distance_left_and_stops_at_the_target():
    found = targets_of([[1, 2], [1, 3]], [[0.25, 0.16], [0.25, 0.5]], [[1.0, 1.0], [1.0, -1.0]])
    goals = [0.5, 0.4, 0.25]
    for at, expected in (([0.25, 0.16, 0.5], True), ([0.5, 0.4, 0.25], False), ([0.9, 0.9, 0.01], False)):
        logps = tensor([[at[0], at[1]], [at[0], at[2]]], dtype=torch.float64).log().requires_grad_()
        ones, counts = torch.ones_like(found.logps), Counts(2.0, float(found.weights.sum()))
        batch = TokenBatch(logps, logps.detach(), ones, ones > 0, counts)
        batch = replace(batch, target_logps=found.logps, target_sign=found.sign, target_weights=found.weights)
        loss, unreduced = build_objective("target", beta=0.0).loss(batch)
        (gradient,) = torch.autograd.grad(loss, logps)
        if expected:
            left = math.log(goals[0] / at[0]) + math.log(goals[1] / at[1]) + math.log(at[2] / goals[2])
            assert loss.item() == pytest.approx(left / 3)
            assert gradient.tolist() == [pytest.approx([-1 / 6, -1 / 3]), pytest.approx([-1 / 6, 1 / 3])]
            assert not unreduced.terms.settled.any()
        else:
            assert loss.item() == pytest.approx(0.0, abs=1e-12)
            assert unreduced.terms.settled.all()
        if at[0] == 0.9:
            assert (gradient == 0).all()
