import math

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from grpo_plus.reward_model.fit import FitError, Plan, fit, split_by_group
from grpo_plus.reward_model.preferences import read_pairs
from grpo_plus.reward_model.process_labels import label_grid, process_losses
from grpo_plus.reward_model.reading import padded, step_ids, token_ids
from grpo_plus.reward_model.stepwise import read_stepwise
from grpo_plus.reward_model.tasks import PairTask, StepTask
from grpo_plus.testing import make_tiny_tokenizer
from tests.reward_model.conftest import pairs, steps

TOKENIZER = make_tiny_tokenizer()


def model_of(folder, tiny=False):
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    model.config.pad_token_id = TOKENIZER.pad_token_id
    if not tiny:
        torch.nn.init.zeros_(model.score.weight)
    return model


def task_of(rows):
    read = read_pairs(rows)
    sides = [[token_ids(TOKENIZER, getattr(pair, name)) for pair in read] for name in ("chosen", "rejected")]
    return PairTask(*sides, [pair.margin for pair in read], [pair.group for pair in read], TOKENIZER.pad_token_id)


def step_task_of(rows):
    read = read_stepwise(rows)
    ids, ends = zip(*(step_ids(TOKENIZER, row) for row in read), strict=True)
    return StepTask(ids, ends, [row.labels for row in read], [row.question for row in read], TOKENIZER.pad_token_id)


PLAN = Plan(learning_rate=1e-2, batch=8, accumulation=2)


def test_a_step_is_that_of_a_plain_loop_in_as_many_passes_as_one_likes(base):
    """Rows of other lengths are padded differently; the gradient is that of the mean over all pairs of the step."""
    sides = [{"chosen": "4" * (1 + at % 3), "rejected": "56" * (1 + at % 2)} for at in range(6)]
    task = task_of([{"prompt": "?", **side, "margin": at / 4} for at, side in enumerate(sides)])
    plain, ours, apart = (model_of(base).eval() for _ in range(3))
    with torch.no_grad():
        for model in (plain, ours, apart):
            torch.nn.init.normal_(model.score.weight, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0)
    loss = 0
    for at in range(6):
        best, worst = (plain(input_ids=torch.tensor([side[at]])).logits[0, 0] for side in (task.chosen, task.rejected))
        loss = loss - torch.log(torch.sigmoid(best - worst - at / 4)) / 6
    loss.backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    optimizer.step()
    told = fit(ours, task, None, Plan(learning_rate=1e-2, batch=6, max_steps=1))
    assert told.losses[0] == pytest.approx(loss.item(), rel=1e-5)
    fit(apart, task, None, Plan(learning_rate=1e-2, batch=2, accumulation=3, max_steps=1))
    for wanted, one, other in zip(plain.parameters(), ours.parameters(), apart.parameters(), strict=True):
        assert torch.allclose(one, wanted, atol=2e-4)  # Adam's first step is the sign of what may be almost nothing
        assert torch.allclose(other, wanted, atol=2e-4)
    assert not torch.equal(ours.score.weight, model_of(base).score.weight)


@pytest.mark.slow
def test_two_equal_runs_are_equal_bit_for_bit_and_another_seed_is_not(base):
    task = task_of(pairs(48))
    made = []
    for seed in (3, 3, 4):
        model = model_of(base)
        fit(model, task, None, Plan(learning_rate=1e-2, batch=8, max_steps=4, seed=seed))
        made.append(torch.cat([one.detach().flatten() for one in model.parameters()]))
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


@pytest.mark.slow
def test_training_stops_early_and_keeps_the_best(base):
    """Held-out pairs are ordered the other way round: every step makes them worse."""
    turned = [{**row, "chosen": row["rejected"], "rejected": row["chosen"]} for row in pairs(32, seed=1)]
    task, other = task_of(pairs(64)), task_of(turned)
    model, seen = model_of(base), []
    plan = Plan(learning_rate=1e-2, batch=8, max_steps=40, eval_steps=2, patience=3)
    fitted = fit(model, task, other, plan, lambda step, steps, loss, judged: seen.append((step, judged)))
    asked = {step: judged for step, judged in seen if judged is not None}
    assert fitted.stopped
    assert len(fitted.losses) == fitted.kept + 3 * 2 < 40
    assert max(asked) == len(fitted.losses)
    assert fitted.held == asked[fitted.kept]
    assert fitted.held.accuracy == max(judged.accuracy for judged in asked.values())
    assert other.judge(model, 8).scores == fitted.held.scores  # the weights are those of then


def test_a_loss_that_is_no_number_ends_the_training_with_its_step(base):
    task = task_of(pairs(32))
    with pytest.raises(FitError, match=r"(loss|gradient) is (nan|inf) at step [2345] of 9"):
        fit(model_of(base), task, None, Plan(learning_rate=1e30, batch=4, max_steps=9))
    broken = model_of(base)
    torch.nn.init.constant_(broken.score.weight, math.nan)
    with pytest.raises(FitError, match="the loss is nan at step 1 of 9"):
        fit(broken, task, None, Plan(learning_rate=1e-3, batch=4, max_steps=9))
    with pytest.raises(FitError, match="nothing to train"):
        fit(model_of(base).requires_grad_(requires_grad=False), task, None, PLAN)


@pytest.mark.slow
def test_steps_that_a_rule_labels_are_learned_and_unlabelled_ones_teach_nothing(base):
    def learned(task):
        torch.manual_seed(0)
        model = AutoModelForTokenClassification.from_pretrained(base, num_labels=1)
        fit(model, task, None, Plan(learning_rate=1e-2, batch=8, epochs=4))
        return model

    judged = step_task_of(steps(48, seed=5)).judge(learned(step_task_of(steps(200))), 16)
    assert judged.accuracy > 0.9
    assert judged.separation > 0.95
    assert judged.margin > 1
    unjudged = [{**row, "labels": [*row["labels"][:-1], None]} for row in steps(32)]
    other = [{**row, "completions": [*row["completions"][:-1], "is 9"]} for row in unjudged]
    assert torch.equal(*(learned(step_task_of(rows)).score.weight for rows in (unjudged, other)))


def test_the_loss_of_steps_is_the_mean_over_labels_of_all_passes(base):
    task = step_task_of(steps(7))
    torch.manual_seed(0)
    model = AutoModelForTokenClassification.from_pretrained(base, num_labels=1).eval()
    rows = range(len(task))
    whole = task.loss(model, rows) / task.size(rows)
    apart = sum(task.loss(model, [row]) for row in rows) / task.size(rows)
    assert apart.item() == pytest.approx(whole.item(), rel=1e-5)
    batch = padded(task.ids, task.pad_token_id)
    logits = model(**batch).logits[..., 0]
    grid = label_grid(task.ends, task.labels, logits.shape[1])
    assert whole.item() == pytest.approx((process_losses(logits, grid).sum() / (~grid.isnan()).sum()).item())
    judged = task.judge(model, 3)
    assert judged.loss == pytest.approx(whole.item(), rel=1e-5)
    first = logits[0, task.ends[0]].sigmoid().tolist()
    assert judged.scores[0] == pytest.approx(first, rel=1e-5)


def test_what_is_held_out_shares_no_prompt_with_what_is_trained_on():
    groups = [f"prompt {at % 10}" for at in range(30)]
    ins, outs = split_by_group(groups, 0.3, seed=1)
    assert sorted([*ins, *outs]) == list(range(30))
    assert len({groups[row] for row in outs}) == 3
    assert not {groups[row] for row in ins} & {groups[row] for row in outs}
    assert split_by_group(groups, 0.3, seed=1) == (ins, outs) != split_by_group(groups, 0.3, seed=2)
    assert len(split_by_group(groups, 0.001, seed=0)[1]) == 3  # one prompt with all its rows, at least
    with pytest.raises(ValueError, match="one prompt"):
        split_by_group(["a", "a"], 0.5, seed=0)


def test_parts_of_what_was_judged_and_prompts_that_count_alike(base):
    rows = [{"prompt": "a", "chosen": "1", "rejected": "2"}] * 3 + [{"prompt": "b", "chosen": "1", "rejected": "3"}]
    judged = task_of(rows).judge(model_of(base, tiny=True), 2)
    right = dict(zip("aaab", judged.right, strict=True))
    assert judged.accuracy == (right["a"] + right["b"]) / 2
    part = judged.of_rows([3])
    assert part.accuracy == right["b"]
    assert part.margin == judged.margins[3]
    assert judged.of_rows([]) is None


class Slope:
    """A loss with the same gradient everywhere: a step of AdamW is then as long as its rate."""

    def __len__(self):
        return 4

    def size(self, rows):
        return len(rows)

    def loss(self, model, rows):
        assert not model.training  # dropout is off
        return model.weight.sum() * len(rows)


def test_the_rate_falls_to_zero_and_dropout_is_off():
    model = torch.nn.Linear(1, 1, bias=False).train()
    model.device, model.dtype = torch.device("cpu"), torch.float32
    before = model.weight.item()
    fit(model, Slope(), None, Plan(learning_rate=0.1, batch=4, max_steps=4))
    assert before - model.weight.item() == pytest.approx(0.1 * (4 + 3 + 2 + 1) / 4, rel=1e-4)
