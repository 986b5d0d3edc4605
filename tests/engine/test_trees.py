"""Rows that share more than their prompt: each token sees its own row, is run once, and is read by all that have it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from grpo_plus.engine.branches import branches_of, install
from grpo_plus.engine.forward import Head, score_packed
from grpo_plus.engine.pack import IGNORED, lay_out, tree_mask
from grpo_plus.engine.rows import read_rows
from grpo_plus.engine.trees import grow
from tests.device import DEVICE

TOKEN = st.integers(1, 2)  # so few that rows share much, are equal, or begin others
ROW = st.tuples(
    st.lists(TOKEN, min_size=1, max_size=4), st.lists(st.tuples(TOKEN, st.booleans()), min_size=0, max_size=7)
)
ROWS = st.lists(ROW, min_size=1, max_size=8)


def padded(found):
    """Ids, mask, which completion tokens are scored, and the completion columns of rows of a prompt and a completion."""
    left, right = max(len(prompt) for prompt, _ in found), max(1, *(len(completion) for _, completion in found))
    ids, mask = torch.zeros(len(found), left + right, dtype=torch.long), torch.zeros(len(found), left + right).long()
    scored = torch.zeros(len(found), right, dtype=torch.bool)
    for row, (prompt, completion) in enumerate(found):
        tokens = [*prompt, *(token for token, _ in completion)]
        here = slice(left - len(prompt), left + len(completion))
        ids[row, here], mask[row, here] = torch.tensor(tokens), 1
        scored[row, : len(completion)] = torch.tensor([wanted for _, wanted in completion], dtype=torch.bool)
    return ids.to(DEVICE), mask.to(DEVICE), scored.to(DEVICE), right


def seen_in(packed, branches):
    """For each token of a pass, the places in its row that it sees, in order."""
    if branches is None:
        visible = tree_mask(packed.until)[:, 0]
        return [
            visible[tree, place].nonzero()[:, 0] for tree in range(len(visible)) for place in range(len(visible[0]))
        ]
    found, queries = [], torch.cat([bundle.query.flatten() for bundle in branches.bundles])
    assert queries[branches.back].tolist() == list(range(len(branches.back)))
    for bundle in branches.bundles:
        assert bundle.visible.any(-1).all()  # a query that sees nothing would be NaN
        for member, keys in enumerate(bundle.key):
            found += [keys[bundle.visible[member, 0, query]] for query in range(bundle.query.shape[1])]
    return [found[place] for place in branches.back.tolist()]


@pytest.mark.slow
@given(ROWS, st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, 1.0, 3.0, 6.0]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_every_row_is_read_off_the_tokens_of_its_own(found, branches, least, joined):
    ids, mask, scored, right = padded(found)
    rows = read_rows(ids, mask, right, scored)
    chosen = [row for row in range(len(found)) if rows.completions[row]]
    if not chosen:
        return
    trees = grow(rows, chosen, branches, least)
    assert branches is None or all(len(tree.rows) <= branches for tree in trees)
    packed = lay_out(trees, rows, DEVICE, joined=joined)
    if joined:
        packed = replace(packed, branches=branches_of(trees, packed.input_ids.device))
        assert packed.input_ids.shape == (1, sum(tree.size for tree in trees))
    seen, width = seen_in(packed, packed.branches), packed.input_ids.shape[1]
    wanted = {(row, column) for row in chosen for column in scored[row].nonzero()[:, 0].tolist()}
    assert {divmod(target, right) for target in packed.target.tolist()} == wanted
    assert len(packed.target) == len(wanted)
    for place, target in zip(packed.scored.tolist(), packed.target.tolist(), strict=True):
        row, column = divmod(target, right)
        context = ids[row][mask[row].bool()][: rows.prompts[row] + column]
        index = place // width
        assert torch.equal(packed.input_ids[index, seen[place]], context)
        assert packed.position_ids[index, seen[place]].tolist() == list(range(len(context)))
        assert packed.labels.view(-1)[place] == ids[row, ids.shape[1] - right + column]
    # A token that nothing reads is not scored either: tool results and prompts cost no logits.
    assert (packed.labels != IGNORED).sum() == len(set(packed.scored.tolist()))


@pytest.mark.slow
@given(ROWS)
@example([([1, 2], [(1, True)] * 3)] * 2)
@example([([1, 2], [(1, True)] * 3), ([1, 2], [(1, True)] * 2)])
@example([([1, 2], [(1, False), (2, True)]), ([1, 2, 1], [(2, True)])])
@settings(max_examples=150, deadline=None)
def test_what_rows_begin_with_is_run_once(found):
    ids, mask, scored, right = padded(found)
    rows = read_rows(ids, mask, right, scored)
    chosen = [row for row in range(len(found)) if rows.completions[row]]
    beginnings = set()  # of a row with what is scored behind each token of it: each is one token to run
    for row in chosen:
        prompt, completion = found[row]
        completion = completion[: rows.completions[row]]
        tokens = [*((token, False) for token in prompt), *completion]
        steps = [(tokens[k][0], *(tokens[k + 1] if tokens[k + 1][1] else ())) for k in range(len(tokens) - 1)]
        beginnings |= {tuple(steps[: k + 1]) for k in range(len(steps))}
    assert sum(tree.size for tree in grow(rows, chosen, None, 1.0)) == len(beginnings) if chosen else not beginnings


def test_a_beginning_is_shared_where_that_saves_as_many_tokens_as_asked_for():
    games = [([1] * 5, [(token, True) for token in tokens]) for tokens in ([1, 1, 1], [1, 1, 2], [2, 1, 1])]
    ids, mask, scored, right = padded(games)  # all begin with 4 steps, the first two with 2 more, each has 7
    rows = read_rows(ids, mask, right, scored)
    sizes = [sum(tree.size for tree in grow(rows, range(3), None, least)) for least in (2.0, 3.0, 4.0, 5.0, 6.0, 7.0)]
    assert sizes == [11, 13, 13, 15, 15, 21]


@pytest.fixture(scope="module")
def precise(bench):
    """Tiny models in float64, and each row's log-probabilities by running it alone."""
    install()

    def made(attention):
        return AutoModelForCausalLM.from_pretrained(
            bench.model(), dtype=torch.float64, attn_implementation=attention, device_map=DEVICE
        ).train()

    return {attention: made(attention) for attention in ("sdpa", "eager")}


def gradient_of(model, logps, pulls):
    model.zero_grad(set_to_none=True)
    (logps * pulls).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.slow
@given(ROWS.filter(lambda found: any(wanted for _, completion in found for _, wanted in completion)), st.data())
@settings(max_examples=25, deadline=None)
def test_log_probabilities_and_gradient_are_those_of_each_row_alone(bench, precise, found, data):
    attention = data.draw(st.sampled_from(["sdpa", "eager"]))
    joined = attention == "sdpa" and data.draw(st.booleans())
    model, (ids, mask, scored, right) = precise[attention], padded(found)
    rows = read_rows(ids, mask, right, scored)
    chosen = [row for row in range(len(found)) if rows.completions[row]]
    trees = grow(rows, chosen, None, data.draw(st.sampled_from([1.0, 3.0])))
    packed = lay_out(trees, rows, DEVICE, joined=joined)
    packed = replace(packed, branches=branches_of(trees, packed.input_ids.device)) if joined else packed
    pulls = torch.randn(scored.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(DEVICE)

    alone = torch.zeros_like(scored, dtype=torch.float64)
    for row in chosen:  # the truth: every row by itself, unpadded
        tokens, length = ids[row, mask[row].bool()], len(found[row][1])
        logps = model(tokens[None]).logits[0, -length - 1 : -1].log_softmax(-1)
        alone[row, :length] = torch.where(scored[row, :length], logps.gather(1, tokens[-length:, None])[:, 0], 0.0)
    truth = gradient_of(model, alone, pulls)

    read, _ = score_packed(model, packed, _autocast, attention=attention, head=Head(fused=False))
    together = (
        torch.zeros_like(scored, dtype=torch.float32).view(-1).index_copy(0, packed.target, read).view(scored.shape)
    )
    assert torch.allclose(together.double(), alone, atol=1e-5)
    assert bench.distance(gradient_of(model, together, pulls.float()), truth) < 1e-5


def _autocast():
    return torch.autocast(DEVICE, enabled=False)


@pytest.fixture(scope="module")
def trainers(bench):
    """TRL's trainer, and ours with trees that branch however little that saves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_plus.engine.cost._BUNDLE_OVERHEAD", 0.0)
        settings = {"loss_type": "dapo", "beta": 0.1}
        yield bench.trainer(**settings), bench.trainer("packed", **settings)


TURN = st.tuples(st.lists(st.integers(5, 6), min_size=1, max_size=3), st.booleans())
"""A few tokens, and whether the model wrote them."""
GAME = st.tuples(st.integers(0, 1), st.lists(TURN, max_size=4))
"""One of two prompts, of which one begins the other, and turns."""


@pytest.mark.slow
@given(st.lists(GAME, min_size=16, max_size=16), st.integers(0, 2**16))
@example([(row // 8, [([5, 6], True), ([6], False), ([5, 5], True)][: row % 4]) for row in range(16)], 0)
@example([(0, [([5, 6], True), ([6, 6], False), ([5 + row // 8], True)]) for row in range(16)], 1)
@example([(0, [([5], row % 5 > 0), ([6, 5], row % 2 > 0)]) for row in range(16)], 2)
@settings(max_examples=8, deadline=None)
def test_the_gradient_of_turns_is_that_of_trl(bench, trainers, games, seed):
    random = torch.Generator().manual_seed(seed)
    prompts = ([7, 8, 9, 5], [7, 8, 9, 5, 6])
    found = [(prompts[at], [(token, own) for tokens, own in turns for token in tokens]) for at, turns in games]
    ids, mask, own, right = padded(found)
    batch = {
        "prompt_ids": ids[:, :-right],
        "prompt_mask": mask[:, :-right],
        "completion_ids": ids[:, -right:],
        "completion_mask": mask[:, -right:],
        "tool_mask": own.long(),
        "advantages": torch.randn(len(found), generator=random).to(DEVICE),
        "num_items_in_batch": own.sum(),
    }
    batch["advantages"][::5] = 0
    truth, loss, _ = bench.gradient(trainers[0], batch, old=0.3, reference=0.3)
    ours, found_loss, reports = bench.gradient(trainers[1], batch, old=0.3, reference=0.3)
    assert found_loss == pytest.approx(loss, rel=1e-5, abs=1e-6)
    if not own.any():
        assert not any(value.any() for value in ours.values())
        return
    assert bench.distance(ours, truth) < 1e-5
    assert all(0 <= report["engine/tokens_saved"] < 1 for report in reports)
