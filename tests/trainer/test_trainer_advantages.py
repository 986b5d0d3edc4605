"""Estimators inside a real step: TRL's numbers where TRL has them, exact ones where it has none."""

import math

import pytest
import torch
from trl import GRPOConfig, GRPOTrainer

from grpo_plus.advantages import RewardTable, StepScores, compute_advantages
from grpo_plus.training.hooks import CRITIC_VALUES
from grpo_verifiers.errors import ConfigError
from tests.device import DEVICE
from tests.trainer.conftest import capture, keep_tables, weights
from tests.trainer.tools_of_tests import double


def first(completions, **_):
    return [float(sum(map(ord, text)) % 7) for text in completions]


def second(completions, **_):
    return [None if sum(map(ord, text)) % 3 == 0 else float(text.count("a") + len(text) % 4) for text in completions]


def fixed(*rewards):
    def fixed(completions, **_):
        return [rewards[row % len(rewards)] for row in range(len(completions))]

    return fixed


@pytest.fixture
def step(trained):
    def step(*classes, reward=None, trainer=None, **settings):
        given = {**({"reward_funcs": [reward]} if reward else {}), **(trainer or {})}
        made = trained(*classes, trainer=given, **{"max_steps": 1, **settings})
        (batch,) = made.generated
        return made, batch

    return step


HOST = {
    "group": ({"scale_rewards": "group"}, "zscore", {}),
    "batch": ({"scale_rewards": "batch"}, "zscore", {"scale": "batch"}),
    "none": ({"scale_rewards": "none"}, "center", {}),
    "normalize_then_sum": ({"multi_objective_aggregation": "normalize_then_sum"}, "gdpo", {}),
}


@pytest.mark.parametrize("name", HOST)
def test_the_named_equivalents_give_the_hosts_numbers(step, name):
    """Two rewards with weights, one of which leaves completions out; captured from real steps on one seed."""
    host_fields, advantage, kwargs = HOST[name]
    rewards = {"trainer": {"reward_funcs": [first, second]}, "reward_weights": [1.0, 0.5]}
    host, theirs = step(GRPOTrainer, GRPOConfig, **rewards, **host_fields)
    ours, mine = step(**rewards, advantage={"name": advantage, **kwargs}, rollout="stock")
    assert torch.equal(mine["completion_ids"], theirs["completion_ids"])
    assert theirs["advantages"].abs().max() > 0.5
    torch.testing.assert_close(mine["advantages"], theirs["advantages"], rtol=1e-5, atol=1e-6)
    assert list(ours._logs["advantages"]) == pytest.approx(list(host._logs["advantages"]), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("advantage", "rewards", "expected"), [
    ("center", [(None, 1.0, 0.0, 0.0, 2.0, None, None, None)], [0.0, 4 / 3, -2 / 3, -2 / 3, *[0.0] * 4]), ("zscore", [(None,)], [0.0] * 8),
    ("raw", [(1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0)], [2.0, -1.0, 0.0, 0.0] * 2),
])  # fmt: skip
def test_weights_reach_the_estimator_and_what_has_no_score_gets_nothing(step, build, advantage, rewards, expected):
    given = {"reward_funcs": [fixed(*each) for each in rewards]}
    trainer, output = step(trainer=given, reward_weights=[2.0, -1.0][: len(rewards)], advantage=advantage)
    assert output["advantages"].tolist() == pytest.approx(expected, abs=1e-6)
    assert list(trainer._logs["advantages"]) == pytest.approx(expected, abs=1e-6)
    assert torch.equal(weights(trainer), weights(build())) is not any(expected)


@pytest.mark.sample(1)
def test_what_is_trained_with_is_what_is_logged(step):
    trainer, output = step(reward=fixed(1, 1, 1, 0, 0.7, 0.7, 0.7, 0.7), advantage="sign")
    expected = [1.0, 1.0, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0]
    assert output["advantages"].tolist() == list(trainer._logs["advantages"]) == expected
    logged = trainer.state.log_history[0]
    names = ("advantages/zero_fraction", "advantages/dead_group_fraction", "advantages/abs_mean")
    assert [logged[name] for name in (*names, "frac_reward_zero_std")] == [0.5] * 4


def test_the_log_holds_the_last_generation_batch_only(trained):
    """Several generations in a run: TRL's table keeps one batch, and ours replaces exactly that."""
    trainer = trained(trainer={"reward_funcs": [first]}, advantage="rloo", max_steps=3)
    assert len(trainer.generated) == 3
    assert list(trainer._logs["advantages"]) == pytest.approx(trainer.generated[-1]["advantages"].tolist())
    assert len(trainer._logs["advantages"]) == len(trainer._logs["completion"]) == 8


def test_an_estimator_in_evaluation(build, sums):
    given = {"eval_dataset": sums.select(range(4)), "reward_funcs": [fixed(1.0, 0.0)]}
    trainer = build(trainer=given, advantage="center", num_generations_eval=2, per_device_eval_batch_size=4)
    kept = capture(trainer)
    found = trainer.evaluate()
    assert kept[0]["advantages"].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert found["eval_advantages/abs_mean"] == 0.5
    assert "eval_advantages/zero_fraction" in found


TEXTS = ["abcdefgh<|im_end|>", "abc<|im_end|>", "abcdef", "a<|im_end|>"]
LENGTHS = [9, 4, 6, 2]
STEPS = [[(0, 2, 1.0), (2, 5, 0.0)], [(0, 1, 1.0), (1, 3, None)], [(0, 1, 1.0), (1, 3, 1.0), (3, 4, 0.0)], []]


@pytest.fixture
def scored(step, say):
    """A step of those texts with those scores, and a reward of 1 for the first of each group."""
    say(lambda prompt, row: TEXTS[row % 4])

    def scored(advantage, trainer=None, **settings):
        given = {"step_scorer": scorer, **(trainer or {})}
        return step(reward=fixed(1, 0, 0, 0), trainer=given, advantage=advantage, **settings)

    return scored


def scorer(prompts, completions, completion_ids, **columns):
    assert len(columns["answer"]) == len(prompts) == len(completions)
    assert [len(ids) for ids in completion_ids] == [LENGTHS[row % 4] for row in range(len(prompts))]
    return [STEPS[row % 4] for row in range(len(prompts))]


def table(rewards, trainable):
    rows = [row for row in range(4) for _ in STEPS[row]]
    flat = [step for steps in STEPS for step in steps]
    scores = torch.tensor([math.nan if score is None else score for *_, score in flat])
    steps = StepScores(torch.tensor(rows), scores, torch.tensor([step[:2] for step in flat]))
    return RewardTable.of(list(rewards), lengths=LENGTHS, steps=steps, extras={"trainable": trainable})


def brute(credit, weight=0.0, outcome=(0.0, 0.0, 0.0, 0.0)):
    scores = [score for steps in STEPS for *_, score in steps if score is not None]
    mean = sum(scores) / len(scores)
    deviation = math.sqrt(sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)) + 1e-4
    values = torch.zeros(4, 9, dtype=torch.float64)
    for row, steps in enumerate(STEPS):
        for token in range(LENGTHS[row]):
            for start, end, score in steps:
                inside = start <= token < end if credit == "step" else token < end
                if score is not None and inside:
                    values[row, token] += (score - mean) / deviation
            values[row, token] += weight * outcome[row]
    return values.float()


@pytest.mark.parametrize("credit", ["step", "return"])
def test_step_scores_become_token_advantages_in_a_real_step(scored, credit):
    trainer, output = scored({"name": "process", "credit": credit, "outcome_weight": 0.5})
    outcome = compute_advantages("zscore", RewardTable.of([1, 0, 0, 0])).tolist()
    expected = brute(credit, 0.5, outcome).repeat(2, 1)
    assert output["advantages"].shape == output["completion_ids"].shape == (8, 9)
    torch.testing.assert_close(output["advantages"], expected, rtol=1e-5, atol=1e-6)
    means = [expected[row].sum().item() / LENGTHS[row % 4] for row in range(8)]
    assert list(trainer._logs["advantages"]) == pytest.approx(means, abs=1e-5)
    beside = list(trainer._logs["extra"]["advantages_per_token"])
    assert [len(row) for row in beside] == LENGTHS * 2
    assert beside[1] == pytest.approx(expected[1, :4].tolist(), abs=1e-5)
    logged = trainer.state.log_history[0]
    assert logged["steps/per_completion"] == 7 / 4
    assert math.isfinite(logged["loss"])


def test_the_completions_table_holds_the_mean_and_beside_it_every_token(trained, say, sums, tmp_path):
    """Written by TRL after training steps and an evaluation of another size, so every column has one length."""
    import pandas as pd

    say(lambda prompt, row: TEXTS[row % 4])
    given = {"step_scorer": scorer, "reward_funcs": [fixed(1, 0, 0, 0)], "eval_dataset": sums.select(range(2))}
    evaluating = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 4}
    trained(trainer=given, advantage="process", log_completions=True, **evaluating)
    found = pd.read_parquet(tmp_path / "out" / "completions" / "completions_00001.parquet")
    assert [len(row) for row in found["advantages_per_token"]] == LENGTHS * (len(found) // 4)
    for mean, row, length in zip(found["advantage"], found["advantages_per_token"], LENGTHS * 2, strict=False):
        assert mean == pytest.approx(sum(row) / length, abs=1e-5)


def test_the_loss_sees_each_tokens_own_advantage(scored, build):
    """The gradient of a step with per-token advantages, against one written out from the model's own log-probs."""
    plain = {"learning_rate": 1.0, "max_grad_norm": 0.0, "loss_type": "dapo", "lr_scheduler_type": "constant"}
    trainer, output = scored("process", **plain)
    output = {name: value.to(DEVICE) for name, value in output.items()}
    start = build().model.to(DEVICE)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    width = output["completion_ids"].size(1)
    logps, _, _ = GRPOTrainer._get_per_token_logps_and_entropies(trainer, start, ids, mask, width)
    kept = output["completion_mask"]
    loss = -(output["advantages"] * torch.exp(logps - logps.detach()) * kept).sum() / kept.sum()
    loss.backward()
    for now, then in zip(trainer.model.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(now.detach() - then.detach(), -then.grad, rtol=1e-4, atol=1e-6)


def test_a_mix_reads_steps_and_outcomes(scored):
    _, output = scored({"name": "mix", "parts": {"process": 0.5, "sign": 2.0}})
    inside = torch.arange(9) < torch.tensor(LENGTHS)[:, None]
    expected = 0.5 * brute("step") + 2.0 * inside * torch.tensor([1.0, -1, -1, -1])[:, None]
    torch.testing.assert_close(output["advantages"], expected.repeat(2, 1), rtol=1e-5, atol=1e-6)


def test_completions_that_are_masked_have_no_steps(scored):
    """The third text never ends: with mask_truncated_completions its steps are out of the statistics."""
    _, output = scored("process", mask_truncated_completions=True)
    assert output["advantages"][2].abs().sum() == 0
    trainable = torch.ones(4, 9, dtype=torch.bool)
    trainable[2] = False
    expected = compute_advantages("process", table((1, 0, 0, 0), trainable), outcome_weight=1.0)
    torch.testing.assert_close(output["advantages"][:4], expected)


@pytest.fixture
def doubling(chats, tool_calls, tool_tokenizer):
    return {"train_dataset": chats, "tools": [double], "processing_class": tool_tokenizer}


def test_tool_results_are_never_credited(step, doubling):
    def whole(prompts, completions, completion_ids, **_):
        return [[(0, len(ids), float(row))] for row, ids in enumerate(completion_ids)]

    _, output = step(trainer={**doubling, "step_scorer": whole}, advantage="process", max_completion_length=160)
    trained = output["completion_mask"] * output["tool_mask"]
    assert (output["completion_mask"] - trained).sum() > 50
    assert torch.equal(output["advantages"] != 0, trained.bool())


def test_tool_results_are_no_length_to_opo(step, doubling):
    _, output = step(reward=fixed(1, 0, 0, 0.5), trainer=doubling, advantage="opo", max_completion_length=160)
    trained = (output["completion_mask"] * output["tool_mask"]).sum(dim=1)
    assert (output["completion_mask"].sum(dim=1) - trained).max() > 20
    rewards = torch.tensor([1.0, 0, 0, 0.5])
    expected = rewards - (trained[:4] * rewards).sum() / trained[:4].sum()
    torch.testing.assert_close(output["advantages"][:4], expected, rtol=1e-5, atol=1e-6)


GAMMA, LAM = 0.9, 0.8


def by_hand(reward, values):
    got, after, following = [], 0.0, 0.0
    for place, value in reversed(list(enumerate(values))):
        error = (reward if place == len(values) - 1 else 0.0) + GAMMA * following - value
        after = error + GAMMA * LAM * after
        got, following = [after, *got], value
    return got


def test_a_critics_values_step_over_tool_results(step, doubling):
    tables = []

    def stir(trainer):  # zeros would show nothing
        head = trainer.pipeline.critic.head.weight.data
        head.copy_(torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
        tables[:] = [keep_tables(trainer)]

    estimator = {"advantage": {"name": "gae", "gamma": GAMMA, "lam": LAM}, "critic": {"on": "trunk"}}
    _, batch = step(trainer=doubling, before=stir, **estimator, max_completion_length=160)
    trained = (batch["completion_mask"] * batch["tool_mask"]).bool()
    assert (batch["completion_mask"].sum() - trained.sum()) > 50
    totals = tables[0][-1].totals()
    for row, mask in enumerate(trained):
        wanted = by_hand(float(totals[row]), batch[CRITIC_VALUES][row][mask].tolist())
        assert batch["advantages"][row][mask].tolist() == pytest.approx(wanted, abs=1e-6)
        assert not batch["advantages"][row][~mask].any()


@pytest.mark.parametrize(("settings", "trainer", "expected"), [
    ({"advantage": "process"}, {}, "no verifier gives any"), ({"advantage": "sign"}, {"step_scorer": scorer}, "reads no steps"),
    ({}, {"step_scorer": scorer}, "reads no steps"),
    ({"advantage": {"name": "process", "steps_from": "math"}}, {"step_scorer": scorer}, "keep one"),
])  # fmt: skip
def test_steps_from_nowhere_or_for_nothing(build, settings, trainer, expected):
    with pytest.raises(ConfigError, match=expected):
        build(trainer=trainer, **settings)


def test_a_user_function_that_returns_nonsense_stops_the_run_by_name(trained, tmp_path):
    (tmp_path / "mine.py").write_text("def twice(table):\n    return table.rewards\n")
    with pytest.raises(ValueError, match=r"twice.*returned .*shape \(8, 1\)"):
        trained(advantage=f"{tmp_path / 'mine.py'}:twice")
    with pytest.raises(ValueError, match="returned steps for 7 completions, but 8 were given"):
        trained(trainer={"step_scorer": lambda prompts, **_: [[]] * (len(prompts) - 1)}, advantage="process")


def test_shuffled_and_split_rows_keep_their_advantages(build, trained):
    """After TRL's shuffle and split, each row's advantage is still that of its own completion."""
    split = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 2}
    trainer = build(trainer={"reward_funcs": [first]}, advantage="raw", **split)
    seen, inner = [], trainer._compute_loss

    def looking(model, inputs):
        rows = zip(inputs["completion_ids"], inputs["completion_mask"], strict=True)
        texts = [trainer.processing_class.decode(ids[mask.bool()], skip_special_tokens=True) for ids, mask in rows]
        seen.append((inputs["advantages"].tolist(), first(texts)))
        return inner(model, inputs)

    trainer._compute_loss = looking
    trainer.train()
    assert len(seen) == 4
    assert all(trained == expected for trained, expected in seen)
