"""Losses of whole groups, `tpo` and `real`: pulls against the formulas in plain Python and their finite differences."""

import dataclasses
import math

import pytest
import torch
from transformers import TrainerCallback

from grpo_plus.objectives import Counts, GroupScores, TokenBatch, build_objective
from grpo_plus.objectives.compose import compose_objective
from grpo_plus.objectives.group import row_pulls
from grpo_plus.objectives.tpo import tpo_pulls
from grpo_verifiers.errors import ConfigError
from tests.objectives.on_device import on_device
from tests.objectives.runs import flat, logps_of


def softmax(values):
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return [weight / sum(weights) for weight in weights]


def tpo_loss(now, old, lengths, advantages, *, eta=1.0, score="sum"):
    """The cross-entropy of one group; ``now`` and ``old`` are sums over tokens."""
    per = lengths if score == "mean" else [1] * len(now)
    p = softmax([x / n for x, n in zip(now, per, strict=True)])
    p_old = softmax([x / n for x, n in zip(old, per, strict=True)])
    q = [x * math.exp(a / eta) for x, a in zip(p_old, advantages, strict=True)]
    return -sum(x / sum(q) * math.log(y) for x, y in zip(q, p, strict=True))


def real_loss(now, old, lengths, advantages, *, tau=0.5, at_zero="none"):
    """The two logarithms of one group."""
    s = [(x - y) / n for x, y, n in zip(now, old, lengths, strict=True)]
    right = [math.exp(-x / tau) for x, a in zip(s, advantages, strict=True) if a > 0]
    wrong = [math.exp(x / tau) for x, a in zip(s, advantages, strict=True) if a < 0 or (a == 0 and at_zero == "wrong")]
    return math.log1p(sum(right)) + math.log1p(sum(wrong))


LOSSES = {"tpo": tpo_loss, "real": real_loss}
CASES = [("tpo", {}), ("tpo", {"eta": 0.3}), ("tpo", {"eta": 4.0, "score": "mean"})]
CASES += [("real", {}), ("real", {"tau": 0.1}), ("real", {"tau": 3.0, "at_zero": "wrong"})]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def group_batch(seed=0, *, moved=0.4):
    """Twelve completions in three groups, the last one without contrast; one has no trained token."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (12,), generator=random)
    lengths[5] = 0
    mask = torch.arange(6) < lengths[:, None]
    old = -torch.rand(12, 6, generator=random, dtype=torch.float64)
    logps = old + moved * torch.randn(12, 6, generator=random, dtype=torch.float64)
    advantages = torch.randn(12, 1, generator=random, dtype=torch.float64)
    advantages[8:] = 0
    counts = Counts(12.0, float(lengths.sum()), 3.0)
    return on_device(TokenBatch(logps.requires_grad_(), old, advantages, mask, counts))


def scores_of(batch, groups=GROUPS):
    return GroupScores(
        groups=torch.tensor(groups, device=batch.mask.device),
        logps=torch.where(batch.mask, batch.logps.detach(), 0.0).sum(1),
        old_logps=torch.where(batch.mask, batch.old_logps, 0.0).sum(1),
        lengths=batch.mask.sum(1),
        advantages=batch.advantages[:, 0],
    )


def with_pulls(objective, batch, groups=GROUPS):
    pull, loss, metrics = objective.pulls(scores_of(batch, groups))
    return dataclasses.replace(batch, pull=pull, group_loss=loss), metrics


def whole_loss(name, keywords, batch, logps):
    """The mean over groups of the formula, in plain Python."""
    rows, losses = batch.mask.sum(1).tolist(), []
    for group in (0, 1, 2):
        here = [row for row in range(12) if GROUPS[row] == group and rows[row]]
        now, old = ([x[row, : rows[row]].sum().item() for row in here] for x in (logps, batch.old_logps))
        advantages = [batch.advantages[row, 0].item() for row in here]
        losses.append(LOSSES[name](now, old, [rows[row] for row in here], advantages, **keywords))
    return sum(losses) / 3


@pytest.mark.parametrize(("name", "keywords"), CASES)
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_those_of_the_formula_by_finite_differences(name, keywords, seed):
    objective = build_objective(name, keywords, beta=0.0)
    batch, _ = with_pulls(objective, group_batch(seed))
    loss, _ = objective.loss(batch)
    (gradient,) = torch.autograd.grad(loss, batch.logps)
    at = batch.logps.detach()
    assert loss.item() == pytest.approx(whole_loss(name, keywords, batch, at), abs=1e-12)
    for row in range(12):
        for token in range(6):
            step = torch.zeros_like(at)
            step[row, token] = 1e-6
            ends = [whole_loss(name, keywords, batch, at + sign * step) for sign in (1, -1)]
            expected = (ends[0] - ends[1]) / 2e-6 if batch.mask[row, token] else 0.0
            assert gradient[row, token].item() == pytest.approx(expected, abs=1e-8), (row, token)
    assert gradient.abs().max() > 1e-3


@pytest.mark.parametrize(("name", "keywords"), CASES)
def test_the_order_of_completions_changes_nothing(name, keywords):
    """Nor does the cut into micro-batches, as the contract says."""
    scores = scores_of(group_batch(3))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1)).to(scores.groups.device)
    mixed = GroupScores(*(values[order] for values in vars(scores).values()))
    pulls = build_objective(name, keywords, beta=0.0).pulls
    for found, expected in zip(pulls(mixed)[:2], pulls(scores)[:2], strict=True):
        assert torch.allclose(found, expected[order], atol=1e-12)


def test_a_group_without_contrast_pulls_a_policy_that_has_not_moved_nowhere():
    old = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    for row in old:
        scores = GroupScores(
            torch.zeros(5, dtype=torch.long), row, row, torch.ones(5, dtype=torch.long), torch.zeros(5)
        )
        assert not build_objective("tpo", beta=0.0).pulls(scores)[0].any()  # not even by a rounding
        one = dataclasses.replace(scores, advantages=torch.eye(5)[0])
        assert build_objective("tpo", beta=0.0).pulls(one)[0].all()


def test_tpo_ends_where_the_policy_is_the_target():
    random = torch.Generator().manual_seed(0)
    old = torch.randn(4, generator=random, dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5], dtype=torch.float64)
    now = old + advantages / 0.5 + 7.0  # the target up to a constant, which a distribution over the group does not see
    ones = torch.ones(4, dtype=torch.long)
    scores = on_device(GroupScores(torch.zeros(4, dtype=torch.long), now, old, ones, advantages))
    pull, _, metrics = row_pulls(scores, lambda scores: tpo_pulls(scores, eta=0.5))
    assert pull.abs().max() < 1e-12
    assert metrics["tpo/distance"].item() == pytest.approx(0, abs=1e-12)
    assert build_objective("tpo", beta=0.0).pulls(scores)[0].abs().max() > 0.1


def test_tpo_tilts_the_odds_as_the_paper_says():
    """Appendix B: one right of ten, u = 3 and -1/3, so its odds grow by exp(10/3)."""
    rewards = torch.tensor([1.0] + [0.0] * 9, dtype=torch.float64)
    u = (rewards - rewards.mean()) / rewards.std(correction=0)
    assert u.tolist() == pytest.approx([3.0] + [-1 / 3] * 9)
    zeros = torch.zeros(10, dtype=torch.float64)
    scores = on_device(
        GroupScores(torch.zeros(10, dtype=torch.long), zeros, zeros, torch.ones(10, dtype=torch.long), u)
    )
    pull, _, metrics = build_objective("tpo", beta=0.0).pulls(scores)
    grown = math.exp(10 / 3) * 0.1
    assert -pull[0].item() / 10 == pytest.approx(grown / (0.9 + grown) - 0.1, abs=1e-12)
    assert round(-pull[0].item() / 10 / 0.9, 2) == 0.73  # its coefficient of (e_y − π) at p = .1
    assert metrics["tpo/candidates"].item() == pytest.approx(10)


@pytest.mark.parametrize("name", ["tpo", "real"])
def test_a_group_without_contrast_is_left_exactly_alone_before_the_policy_moves(name):
    objective = build_objective(name, beta=0.0)
    still, _ = with_pulls(objective, group_batch(1, moved=0.0))
    assert (still.pull[8:] == 0).all()
    assert still.pull[:4].abs().min() > 0
    moved, _ = with_pulls(objective, group_batch(1))
    assert (moved.pull[8:] != 0).any() == (name == "tpo")  # tpo pulls it back to where it was drawn
    assert moved.pull[5] == 0


def test_real_gives_bounded_weights_that_grow_on_the_wrong_side():
    tau, lengths = 0.5, torch.ones(3, dtype=torch.long)
    old = torch.zeros(3, dtype=torch.float64)
    pulls = []
    for s in (-9.0, -1.0, 0.0, 1.0, 9.0):
        now = torch.tensor([s, 0.0, 0.0], dtype=torch.float64)
        scores = GroupScores(torch.zeros(3, dtype=torch.long), now, old, lengths, torch.tensor([1.0, -1.0, -1.0]))
        pulls.append(build_objective("real", {"tau": tau}, beta=0.0).pulls(on_device(scores))[0] / 3)
    right = [-pull[0].item() for pull in pulls]
    assert right == sorted(right, reverse=True)
    assert right == pytest.approx([1 / tau / (1 + math.exp(s / tau)) for s in (-9, -1, 0, 1, 9)])
    assert all(pull[1].item() == pytest.approx(1 / tau / 3) for pull in pulls)


@pytest.mark.parametrize("scale", [20.0, 1000.0, 1e5])
@pytest.mark.parametrize("name", ["tpo", "real"])
def test_completions_thousands_of_nats_apart_stay_finite(name, scale):
    random = torch.Generator().manual_seed(0)
    for _ in range(20):
        now, old = (-scale * torch.rand(8, generator=random) for _ in range(2))
        lengths = torch.randint(0, 5, (8,), generator=random)
        groups = torch.tensor([3, 3, 3, 3, 9, 9, 9, 9])
        scores = GroupScores(groups, now, old, lengths, torch.randn(8, generator=random))
        pull, loss, _ = build_objective(name, beta=0.0).pulls(on_device(scores))
        assert pull.isfinite().all()
        assert loss.isfinite().all()
        assert (pull[lengths == 0] == 0).all()


@pytest.mark.parametrize(("name", "keywords", "words"), [
    ("tpo", {}, ["advantages per token", "one number a completion"]),
    ("real", {}, ["advantages per token", "one number a completion"]),
    ("tpo", {"eta": 0}, ["eta", "more than 0"]),
    ("tpo", {"score": "median"}, ["score", "median", "mean"]),
    ("real", {"tau": -1}, ["tau", "more than 0"]),
    ("real", {"at_zero": "right"}, ["at_zero", "wrong"]),
    ("tpo", {"reduce": "token_mean"}, ["mean over groups", "sequence_sum", "Remove reduce"]),
    ("real", {"ratio": "token"}, ["reads no ratio", "Remove ratio"]),
    ("tpo", {"stop_fraction": 0.9}, ["'tpo' always pulls all"]),
])  # fmt: skip
def test_what_does_not_go_with_a_loss_of_groups_is_refused(name, keywords, words):
    per = "completion" if keywords else "token"
    (problem,) = compose_objective(name, keywords, beta=0.0, advantage_per=per)[1]
    assert all(word in problem for word in words), problem


def test_a_batch_without_pulls_says_who_makes_them():
    batch = group_batch()
    with pytest.raises(ValueError, match="needs pull and group_loss, which this batch lacks"):
        build_objective("tpo", beta=0.0).loss(batch)


THIRDS = {"num_iterations": 3, "steps_per_generation": 4, "max_steps": 7, "max_grad_norm": 0.0}


def group_losses(name, columns):
    """The losses of the groups by the formula, differentiable, in float64."""
    found = []
    for group in columns["groups"].unique():
        here = (columns["groups"] == group) & (columns["lengths"] > 0)
        now, old, lengths, advantages = (columns[name][here] for name in ("now", "old", "lengths", "advantages"))
        if name == "tpo":
            q = (old.log_softmax(0) + advantages.double()).softmax(0)
            found.append(-(q * now.log_softmax(0)).sum())
        else:
            s = (now - old) / lengths
            right, wrong = (-s[advantages > 0] / 0.5).exp(), (s[advantages < 0] / 0.5).exp()
            found.append(torch.log1p(right.sum()) + torch.log1p(wrong.sum()))
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["stock", "packed"])
@pytest.mark.parametrize("name", ["tpo", "real"])
def test_every_step_of_a_run_has_the_gradient_of_the_loss_over_whole_groups(name, engine, build):
    """Twice as many micro-batches as an optimizer step has, so each step sees parts of groups, under moved weights."""
    compared = []

    class Compare(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **_):
            found = torch.cat([weight.grad.flatten() for weight in model.parameters()]).clone()
            parts = trainer._buffered_inputs
            ran = {(trainer._step - back) % 4 for back in (1, 2)}  # the two micro-batches of this step
            columns = {key: [] for key in ("now", "old", "lengths", "advantages", "groups")}
            for place, part in enumerate(parts):
                mask, logps = part["completion_mask"].bool(), logps_of(trainer, part)
                logps = logps if place in ran else logps.detach()  # the other rows are of other steps
                columns["now"].append(torch.where(mask, logps.double(), 0.0).sum(1))
                columns["old"].append(torch.where(mask, part["old_per_token_logps"].double(), 0.0).sum(1))
                columns["lengths"].append(mask.sum(1))
                columns["advantages"].append(part["advantages"])
                columns["groups"].append(part["group_numbers"])
            losses = group_losses(name, {key: torch.cat(value) for key, value in columns.items()})
            # a step is half of the rows, and a mean over its completions: twice that over the whole batch
            expected = torch.autograd.grad(2 * losses.mean(), list(model.parameters()), allow_unused=True)
            pairs = zip(expected, model.parameters(), strict=True)
            expected = torch.cat([(torch.zeros_like(w) if given is None else given).flatten() for given, w in pairs])
            compared.append(float((found - expected).norm() / expected.norm()))
            assert found.norm() > 1e-3

    trainer = build(**THIRDS, objective=name, callbacks=[Compare()], engine=engine)
    trainer.train()
    assert len(compared) == 7
    assert max(compared) < 1e-4, compared


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tpo", "real"])
def test_a_run_that_resumes_inside_a_generation_batch_is_the_run_that_was_not_stopped(name, build, tmp_path):
    weights, saving = [], {"save_strategy": "steps", "save_steps": 3}
    for resumed in (False, True):
        trainer = build(**THIRDS, objective=name, **saving)
        trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-3") if resumed else None)
        weights.append(flat(trainer.model))
    assert torch.equal(*weights)


@pytest.mark.parametrize(("settings", "words"), [
    ({"num_generations": 1}, ["num_generations of 2 or more"]),
    ({"top_entropy_quantile": 0.5}, ["completions of a group", "top_entropy_quantile (0.5)"]),
    ({"off_policy_mask_threshold": 0.5}, ["off_policy_mask_threshold (0.5)"]),
    ({"use_vllm": True}, ["vllm_importance_sampling_correction", "Set it to false"]),
])  # fmt: skip
@pytest.mark.parametrize("name", ["tpo", "real"])
def test_what_would_weigh_or_drop_parts_of_a_group_is_refused(name, settings, words, build):
    with pytest.raises(ConfigError) as raised:
        build(objective=name, **settings)
    assert all(word in str(raised.value) for word in words), raised.value
