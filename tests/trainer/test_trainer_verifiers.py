"""Verifiers of a config inside a real step: beside reward functions, routed, weighted, and as a source of steps."""

import json
import math

import pytest
import torch
from datasets import Dataset, IterableDataset

from grpo_plus.training.verification import LiveVerifier, Verification
from grpo_verifiers import Status, Step, Verdict, get_verifier, verifier
from grpo_verifiers.errors import ColumnError, ConfigError, VerifierFailedError
from grpo_verifiers.verifying import REGISTRY

TEXTS = ["42<|im_end|>", "so 7<|im_end|>", "<b>x</b>42<|im_end|>", "none"]


@verifier("test_length", isolation="inline")
def length(completion: str, *, unit: float = 10.0) -> float:
    return len(completion) / unit


@verifier("test_words", isolation="inline")
def words(completion: str, completion_text: str) -> Verdict:
    """Scores each word 1 when it starts with a digit, and leaves words of letters only unjudged."""
    steps, start = [], 0
    for word in completion_text.split(" "):
        steps.append(Step(start, start + len(word), None if word.isalpha() else float(word[:1].isdigit())))
        start += len(word) + 1
    return Verdict(0.5, steps=tuple(steps))


@verifier("test_fails", isolation="inline", on_error="raise")
def fails(completion: str) -> float:
    raise RuntimeError("the checker's own fault")


@pytest.fixture(scope="module", autouse=True)
def _registered():
    yield
    for name in ("test_length", "test_words", "test_fails"):
        REGISTRY.unregister(name)


@pytest.fixture
def data():
    rows = [
        {"prompt": f"{n}=", "answer": "42", "gold": "7", "kind": "exact" if n % 2 else "test_length"} for n in range(8)
    ]
    return Dataset.from_list(rows)


def one(completions, **_):
    return [float(len(text)) for text in completions]


def test_verifiers_stand_beside_reward_functions(build, data, say, capture):
    say(lambda prompt, row: TEXTS[row % 4])
    trainer = build(
        trainer={"reward_funcs": [one], "train_dataset": data},
        verifiers=["exact", {"name": "test_length", "label": "long", "weight": 0.5, "kwargs": {"unit": 2}}],
        advantage="raw",
        max_steps=1,
    )
    kept = capture(trainer)
    trainer.train()
    assert trainer.reward_func_names == ["one", "exact", "long"]
    assert trainer.reward_weights.tolist() == [1.0, 1.0, 0.5]
    lengths = [2, 4, 10, 4]
    expected = [n + exact + 0.5 * n / 2 for n, exact in zip(lengths, [1, 0, 0, 0], strict=True)]
    assert kept[0]["advantages"].tolist() == pytest.approx(expected * 2)
    logged = trainer.state.log_history[0]
    assert logged["rewards/exact/mean"] == 0.25
    assert logged["verifiers/exact/mean"] == 0.25
    assert logged["verifiers/exact/status/wrong"] == 0.75
    assert list(trainer._logs["extra"]["exact_status"])[:4] == ["correct", "wrong", "wrong", "wrong"]
    assert list(trainer._logs["extra"]["long_reason"]) == [""] * 8


@pytest.mark.slow
def test_verifiers_alone_reward_a_run_with_the_hosts_advantages(build, data, say):
    say(lambda prompt, row: TEXTS[row % 4])
    trainer = build(
        trainer={"reward_funcs": None, "train_dataset": data}, verifiers=[{"name": "exact", "weight": 2.0}], max_steps=1
    )
    trainer.train()
    assert trainer.state.log_history[0]["reward"] == 0.5
    assert list(trainer._logs["advantages"])[:4] == pytest.approx([1.4997, -0.4999, -0.4999, -0.4999], abs=1e-3)


@pytest.mark.slow
def test_a_column_routes_each_row_to_one_verifier(build, data, say, capture):
    say(lambda prompt, row: TEXTS[row % 4])
    trainer = build(
        trainer={"reward_funcs": None, "train_dataset": data},
        verifiers=["exact", "test_length"],
        verifier_column="kind",
        advantage="raw",
        shuffle_dataset=False,
        max_steps=1,
    )
    kept = capture(trainer)
    trainer.train()
    assert kept[0]["advantages"].tolist() == pytest.approx([0.2, 0.4, 1.0, 0.4, 1.0, 0.0, 0.0, 0.0])
    rewards = trainer._logs["rewards"]
    assert [math.isnan(value) for value in rewards["exact"]] == [True] * 4 + [False] * 4
    assert [math.isnan(value) for value in rewards["test_length"]] == [False] * 4 + [True] * 4
    assert trainer.state.log_history[0]["verifiers/exact/status/not_applicable"] == 0.5


@pytest.mark.slow
def test_a_batch_without_a_row_for_some_verifier(build, data, say):
    say(lambda prompt, row: TEXTS[row % 4])
    rows = data.sort("kind")
    trainer = build(
        trainer={"reward_funcs": None, "train_dataset": rows},
        verifiers=["exact", "test_length"],
        verifier_column="kind",
        shuffle_dataset=False,
        max_steps=1,
    )
    trainer.train()
    assert trainer.state.log_history[0]["rewards/exact/mean"] == 0.25
    assert trainer.state.log_history[0]["rewards/test_length/mean"] is None


@pytest.mark.slow
def test_all_verifiers_work_before_the_first_reward_is_asked_for(build, data, say):
    say(lambda prompt, row: TEXTS[row % 4])
    under_way = []

    def looking(completions, **_):
        under_way.append([live._pending is not None for live in trainer.verification.live])
        return [0.0] * len(completions)

    trainer = build(
        trainer={"reward_funcs": [looking], "train_dataset": data}, verifiers=["exact", "test_length"], max_steps=1
    )
    trainer.train()
    assert under_way == [[True, True]]
    assert [live._pending for live in trainer.verification.live] == [None, None]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"verifiers": [{"name": "exact", "columns": {"answer": "anwser"}}]},
            "no column 'anwser', which exact needs. unknown column 'anwser'. Did you mean 'answer'?",
        ),
        (
            {"verifiers": [{"name": "code", "columns": {"solution": "solutoin"}}]},
            "no column 'solutoin', which code needs",
        ),
        ({"verifiers": ["exact"], "verifier_column": "kinds"}, "no column 'kinds', which verifier_column needs"),
        ({"verifiers": ["exact"], "verifier_column": "kind"}, "routes rows to 'test_length'"),
        (
            {"verifiers": ["exact"], "advantage": "process", "advantage_kwargs": {"steps_from": "exakt"}},
            "Did you mean 'exact'?",
        ),
    ],
)
def test_what_is_missing_is_found_before_the_model_loads(build, data, settings, expected):
    with pytest.raises(ConfigError) as caught:
        build(trainer={"model": "/no/such/model", "train_dataset": data}, **settings)
    assert expected in str(caught.value)


def test_an_evaluation_set_is_looked_at_too(build, data):
    with pytest.raises(ConfigError, match=r"eval_dataset\['b'\] has no column 'answer'"):
        build(
            trainer={
                "train_dataset": data,
                "eval_dataset": {"a": data, "b": data.remove_columns("answer")},
                "model": "/no/such/model",
            },
            verifiers=["exact"],
        )


def stream(rows):
    return IterableDataset.from_generator(lambda: iter(rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "expected"), [("answer", "has no column 'answer'"), ("kind", "routes rows to 'elsewhere'")]
)
def test_a_stream_is_looked_at_before_its_first_generation_or_check(build, data, say, column, expected):
    asked = []
    say(lambda prompt, row: asked.append(row) or "x<|im_end|>")
    rows = [
        {**row, "kind": "elsewhere"} if column == "kind" else {k: v for k, v in row.items() if k != column}
        for row in data
    ]
    trainer = build(
        trainer={"reward_funcs": None, "train_dataset": stream(rows)},
        verifiers=["exact"],
        verifier_column="kind" if column == "kind" else None,
    )
    with pytest.raises(ColumnError, match=expected):
        trainer.train()
    assert (asked == []) == (column == "answer")


@pytest.mark.slow
def test_a_rollout_may_bring_the_columns(build, data):
    def rollout(prompts, trainer):
        encode = trainer.processing_class.encode
        answers = ["42" if row % 2 else "41" for row in range(len(prompts))]
        return {
            "prompt_ids": [encode(p) for p in prompts],
            "completion_ids": [encode(a) for a in answers],
            "logprobs": None,
            "wanted": ["42"] * len(prompts),
        }

    trainer = build(
        trainer={"reward_funcs": None, "train_dataset": data.remove_columns("answer"), "rollout_func": rollout},
        verifiers=[{"name": "exact", "columns": {"answer": "wanted"}}],
        max_steps=1,
    )
    trainer.train()
    assert trainer.state.log_history[0]["rewards/exact/mean"] == 0.5


@pytest.mark.slow
def test_a_verifier_that_cannot_work_stops_the_run_and_leaves_nothing_behind(build, data, say):
    say(lambda prompt, row: TEXTS[row % 4])
    trainer = build(trainer={"reward_funcs": None, "train_dataset": data}, verifiers=["test_fails", "exact"])
    with pytest.raises(VerifierFailedError, match="the checker's own fault"):
        trainer.train()
    assert [live._pending for live in trainer.verification.live] == [None, None]


@pytest.mark.slow
def test_a_reward_function_that_fails_leaves_no_check_behind(build, data, say):
    say(lambda prompt, row: TEXTS[row % 4])

    def broken(completions, **_):
        raise KeyError("mine")

    trainer = build(trainer={"reward_funcs": [broken], "train_dataset": data}, verifiers=["exact"])
    with pytest.raises(KeyError, match="mine"):
        trainer.train()
    assert trainer.verification.live[0]._pending is None


@pytest.mark.slow
def test_steps_of_a_verifier_land_on_the_sampled_tokens(build, data, say, capture, tmp_path):
    """Two completions of a group of four; a token is a character, so words are token spans and spaces lie outside."""
    texts = ["12 ab 3c<|im_end|>", "a1 5<|im_end|>", "zz", "?<|im_end|>"]
    say(lambda prompt, row: texts[row % 4])
    trainer = build(
        trainer={"reward_funcs": None, "train_dataset": data},
        verifiers=["test_words", {"name": "test_length", "weight": 0}],
        advantage="process",
        max_steps=1,
    )
    kept = capture(trainer)
    trainer.train()
    assert trainer.estimator[1] == {"outcome_weight": 0.0}  # which of the two gives steps was seen while running
    assert json.loads((tmp_path / "out/grpo_plus/run.json").read_text())["parts"]["advantage"]["keywords"] == {
        "outcome_weight": 0.0
    }
    # Scored steps: "12" 1, "3c<|im_end|>" 1; "a1" 0, "5<|im_end|>" 1; "?<|im_end|>" 0. "ab" and "zz" are not judged.
    scores = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    high, low = ((value - scores.mean()) / (scores.std() + 1e-4) for value in (1.0, 0.0))
    expected = torch.tensor(
        [
            [high, high, 0, 0, 0, 0, high, high, high],
            [low, low, 0, high, high, 0, 0, 0, 0],
            [0.0] * 9,
            [low, low, *[0.0] * 7],
        ]
    )
    torch.testing.assert_close(kept[0]["advantages"][:4], expected)
    assert trainer.state.log_history[0]["steps/per_completion"] == 7 / 4
    assert trainer.state.log_history[0]["steps/scored_fraction"] == pytest.approx(5 / 7)


@pytest.mark.slow
def test_what_turns_out_to_be_the_outcome_counts_as_listed(build, data, say, capture):
    """Only running tells which of the two gives steps; either way the other one has a weight."""
    texts = ["12 ab 3c<|im_end|>", "a1 5<|im_end|>", "zz", "?<|im_end|>"]
    say(lambda prompt, row: texts[row % 4])
    settings = {"trainer": {"reward_funcs": None, "train_dataset": data}, "advantage": "process", "max_steps": 1}
    trainer = build(verifiers=[{"name": "test_words", "weight": 0}, "test_length"], **settings)
    trainer.train()
    assert trainer.estimator[1] == {"outcome_weight": 1.0}
    zero = {"advantage_kwargs": {"outcome_weight": 0}}
    refused = build(verifiers=[{"name": "test_words", "weight": 0}, "test_length"], **settings, **zero)
    with pytest.raises(ConfigError, match=r"'test_length' \(weight 1\) would be ignored"):
        refused.train()


@pytest.mark.slow
def test_two_sources_of_steps_must_be_told_apart(build, data, say, capture):
    say(lambda prompt, row: TEXTS[row % 4])
    both = ["test_words", {"name": "test_words", "label": "again"}]
    settings = {
        "trainer": {"reward_funcs": None, "train_dataset": data},
        "verifiers": both,
        "advantage": "process",
        "max_steps": 1,
    }
    with pytest.raises(ValueError, match=r"several verifiers give steps: again, test_words\. Name one"):
        build(**settings).train()
    build(**settings, advantage_kwargs={"steps_from": "again"}).train()


def test_verifiers_in_evaluation(build, data, say):
    say(lambda prompt, row: TEXTS[row % 4])
    trainer = build(
        trainer={"reward_funcs": None, "train_dataset": data, "eval_dataset": data.select(range(2))},
        verifiers=["exact"],
        per_device_eval_batch_size=8,
    )
    found = trainer.evaluate()
    assert found["eval_rewards/exact/mean"] == 0.25
    assert found["eval_verifiers/exact/status/correct"] == 0.25


@pytest.mark.slow
def test_a_reward_model_beside_verifiers(build, data, say, tiny_model, tmp_path):
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    config = AutoConfig.from_pretrained(tiny_model, num_labels=1)
    judge = AutoModelForSequenceClassification.from_config(config)
    say(lambda prompt, row: TEXTS[row % 4])
    trainer = build(
        trainer={
            "reward_funcs": judge,
            "reward_processing_classes": AutoTokenizer.from_pretrained(tiny_model),
            "train_dataset": data,
        },
        verifiers=["exact"],
        max_steps=1,
    )
    trainer.train()
    assert trainer.reward_func_names[1] == "exact"
    assert trainer.state.log_history[0]["rewards/exact/mean"] == 0.25


def test_statuses_are_those_of_the_package():
    assert {status.value for status in Status} >= {
        "correct",
        "wrong",
        "partial",
        "unparsable",
        "timeout",
        "error",
        "not_applicable",
    }


def test_evaluation_counts_rows_and_only_those_with_a_score():
    @verifier("test_letters", isolation="inline")
    def letters(completion: str) -> float | None:
        return len(completion) or None

    @verifier("test_value", isolation="inline")
    def value(completion: str) -> float | None:
        return float(completion) if completion.isdigit() else None

    try:
        live = [LiveVerifier(get_verifier("test_letters"), weight=-1.0), LiveVerifier(get_verifier("test_value"))]
    finally:
        REGISTRY.unregister("test_letters")
        REGISTRY.unregister("test_value")
    checks, logged = Verification(evaluation=live), {}
    completions = ["7", "ab", "", "9"]
    checks.start([{"prompt": "p"}] * 4, ["p"] * 4, completions, [[1]] * 4, None, training=False)
    checks.log_evaluation(lambda name, number: logged.setdefault(name, []).append(number))
    assert logged["rewards/test_letters/mean"] == [1, 2, 1]
    assert logged["rewards/test_value/mean"] == [7, 9]
    assert sorted(logged["score"]) == [-2, 6, 8]
