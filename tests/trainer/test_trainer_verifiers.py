"""Verifiers of a config inside a real step: beside reward functions, routed, weighted, and as a source of steps."""

import json
import math

import pytest
import torch
import yaml
from datasets import Dataset, IterableDataset

from grpo_plus.recipe.entries import read_entries
from grpo_plus.training.hooks import Completions
from grpo_plus.training.scoring.verifiers import LiveVerifier, Verifiers
from grpo_verifiers import Step, Verdict, get_verifier, verifier
from grpo_verifiers.errors import ColumnError, ConfigError, VerifierFailedError
from grpo_verifiers.verifying import REGISTRY

WORDS = ["12 ab 3c<|im_end|>", "a1 5<|im_end|>", "zz", "?<|im_end|>"]
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
    """A worker may come back to this file."""
    own = dict(zip(("test_length", "test_words", "test_fails"), (length, words, fails), strict=True))
    for name, one in own.items():
        REGISTRY.register(name, one)
    yield
    for name in own:
        REGISTRY.unregister(name)


@pytest.fixture
def sums():
    row = {"answer": "42", "gold": "7"}
    kinds = ["test_length", "exact"] * 4
    return Dataset.from_list([{"prompt": f"{n}=", **row, "kind": kind} for n, kind in enumerate(kinds)])


@pytest.fixture(autouse=True)
def _texts(say):
    say(lambda prompt, row: TEXTS[row % 4])


def one(completions, **_):
    return [float(len(text)) for text in completions]


def test_verifiers_stand_beside_reward_functions(checked):
    long = {"name": "test_length", "label": "long", "weight": 0.5, "unit": 2}
    trainer = checked("exact", long, trainer={"reward_funcs": [one]}, advantage="raw")
    assert (trainer.reward_func_names, trainer.reward_weights.tolist()) == (["one", "exact", "long"], [1.0, 1.0, 0.5])
    lengths = [2, 4, 10, 4]
    expected = [n + exact + 0.5 * n / 2 for n, exact in zip(lengths, [1, 0, 0, 0], strict=True)]
    assert trainer.generated[0]["advantages"].tolist() == pytest.approx(expected * 2)
    logged = trainer.state.log_history[0]
    assert (logged["rewards/exact/mean"], logged["verifiers/exact/mean"]) == (0.25, 0.25)
    assert logged["verifiers/exact/status/wrong"] == 0.75
    assert list(trainer._logs["extra"]["exact_status"])[:4] == ["correct", "wrong", "wrong", "wrong"]
    assert list(trainer._logs["extra"]["long_reason"]) == [""] * 8


def test_verifiers_among_the_reward_functions_are_those_of_the_config(build):
    exact, lengths = get_verifier("exact"), get_verifier("test_length", unit=2)
    trainer = build(trainer={"reward_funcs": [exact, one, lengths]}, verifiers=["numeric"])
    assert trainer.reward_func_names == ["one", "exact", "test_length", "numeric"]
    assert trainer.pipeline.verifiers.labels == ["exact", "test_length", "numeric"]
    weighted = build(trainer={"reward_funcs": [exact, one]}, reward_weights=[1.0, 0.5])  # their places count
    assert (weighted.reward_func_names, weighted.pipeline.verifiers.labels) == (["exact", "one"], [])
    assert weighted.pipeline.recorder is not None
    assert build(trainer={"reward_funcs": [exact]}, report=False).pipeline.recorder is None
    with pytest.raises(ConfigError, match="no column 'nowhere'"):
        build(trainer={"model": "/no/model", "reward_funcs": get_verifier("exact", columns={"answer": "nowhere"})})


TURN = {"from": "human", "value": "1+1"}
PROMPTS = {
    "named otherwise": ({"question": "1+1"}, r"rename_column\('question', 'prompt'\)"),
    "of ShareGPT": ({"prompt": [TURN]}, "turns with from and value"), "a number": ({"prompt": 3}, "expected text or messages"),
    "of other keys": ({"prompt": [{"speaker": "a", "text": "b"}]}, "role and content"), "empty": ({"prompt": []}, "is \\[\\]"),
}  # fmt: skip


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts_that_no_trainer_reads_are_named_before_the_model_loads(build, trained, case):
    row, expected = PROMPTS[case]
    with pytest.raises(ConfigError, match=expected):
        build(trainer={"model": "/no/model", "train_dataset": Dataset.from_list([row] * 8)})
    stream = IterableDataset.from_generator(lambda: iter([row] * 8))
    with pytest.raises(ColumnError, match=expected):
        trained(trainer={"train_dataset": stream})


def test_a_transform_may_make_the_prompts(build):
    rows = Dataset.from_list([{"question": "1+1="}] * 16)
    rows.set_transform(lambda batch: {"prompt": batch["question"]})
    build(trainer={"train_dataset": rows}, max_steps=1).train()


def test_verifiers_alone_reward_a_run_with_the_hosts_advantages(checked):
    trainer = checked({"name": "exact", "weight": 2.0})
    assert trainer.state.log_history[0]["reward"] == 0.5
    assert list(trainer._logs["advantages"])[:4] == pytest.approx([1.4997, -0.4999, -0.4999, -0.4999], abs=1e-3)


@pytest.mark.parametrize("mixed", [True, False])
def test_a_column_routes_each_row_to_one_verifier(checked, sums, mixed):
    routed = {"verifier_column": "kind", "advantage": "raw", "shuffle_dataset": False}
    rows = sums if mixed else sums.sort("kind")
    trainer = checked("exact", "test_length", trainer={"train_dataset": rows}, **routed)
    log, rewards = trainer.state.log_history[0], trainer._logs["rewards"]
    if not mixed:  # a batch without a row for some verifier
        assert (log["rewards/exact/mean"], log["rewards/test_length/mean"]) == (0.25, None)
        return
    assert trainer.generated[0]["advantages"].tolist() == pytest.approx([0.2, 0.4, 1.0, 0.4, 1.0, 0.0, 0.0, 0.0])
    assert [math.isnan(value) for value in rewards["exact"]] == [True] * 4 + [False] * 4
    assert [math.isnan(value) for value in rewards["test_length"]] == [False] * 4 + [True] * 4
    assert log["verifiers/exact/status/not_applicable"] == 0.5


@pytest.mark.slow
def test_all_verifiers_work_before_the_first_reward_and_none_is_left_when_it_fails(build):
    under_way = []

    def looking(completions, **_):
        under_way.append([live._pending is not None for live in trainer.pipeline.verifiers.live])
        raise KeyError("mine")

    trainer = build(trainer={"reward_funcs": [looking]}, verifiers=["exact", "test_length"])
    with pytest.raises(KeyError, match="mine"):
        trainer.train()
    assert under_way == [[True, True]]
    assert [live._pending for live in trainer.pipeline.verifiers.live] == [None, None]
    trainer = build(trainer={"reward_funcs": None}, verifiers=["test_fails", "exact"])
    with pytest.raises(VerifierFailedError, match="the checker's own fault"):
        trainer.train()
    assert [live._pending for live in trainer.pipeline.verifiers.live] == [None, None]


@pytest.mark.parametrize(("settings", "expected"), [
    ({"verifiers": [{"name": "exact", "columns": {"answer": "anwser"}}]}, "'anwser'. Did you mean 'answer'?"),
    ({"verifiers": [{"name": "code", "columns": {"solution": "solutoin"}}]}, "no column 'solutoin'"),
    ({"verifiers": ["exact"], "verifier_column": "kinds"}, "no column 'kinds', which verifier_column needs"),
    ({"verifiers": ["exact"], "verifier_column": "kind"}, "routes rows to 'test_length'"),
    ({"verifiers": ["exact"], "advantage": {"name": "process", "steps_from": "exakt"}}, "mean 'exact'?"),
])  # fmt: skip
def test_what_is_missing_is_found_before_the_model_loads(build, sums, settings, expected):
    with pytest.raises(ConfigError) as caught:
        build(trainer={"model": "/no/such/model"}, **settings)
    assert expected in str(caught.value)
    sets = {"eval_dataset": {"a": sums, "b": sums.remove_columns("answer")}}  # an evaluation set is looked at too
    with pytest.raises(ConfigError, match=r"eval_dataset\['b'\] has no column 'answer'"):
        build(trainer={**sets, "model": "/no/such/model"}, verifiers=["exact"])


@pytest.mark.parametrize(("routed", "expected"), [(None, "has no column 'answer'"), ("kind", "routes rows to 'elsewhere'")])  # fmt: skip
def test_a_stream_is_looked_at_before_its_first_generation_or_check(trained, sums, say, routed, expected):
    asked = []
    say(lambda prompt, row: asked.append(row) or "x<|im_end|>")
    rows = sums.remove_columns("answer") if routed is None else sums.map(lambda row: {"kind": "elsewhere"})
    given = {"reward_funcs": None, "train_dataset": IterableDataset.from_generator(lambda: iter(list(rows)))}
    with pytest.raises(ColumnError, match=expected):
        trained(trainer=given, verifiers=["exact"], verifier_column=routed)
    assert (asked == []) == (routed is None)


def test_a_rollout_may_bring_the_columns(checked, sums):
    def rollout(prompts, trainer):
        encode = trainer.processing_class.encode
        answers = ["42" if row % 2 else "41" for row in range(len(prompts))]
        ids = {"prompt_ids": [*map(encode, prompts)], "completion_ids": [*map(encode, answers)]}
        return {**ids, "logprobs": None, "wanted": ["42"] * len(prompts)}

    given = {"train_dataset": sums.remove_columns("answer"), "rollout_func": rollout}
    trainer = checked({"name": "exact", "columns": {"answer": "wanted"}}, trainer=given)
    assert trainer.state.log_history[0]["rewards/exact/mean"] == 0.5


def test_steps_of_a_verifier_land_on_the_sampled_tokens(checked, say, tmp_path):
    """A token is a character, so words are token spans and spaces lie outside."""
    say(lambda prompt, row: WORDS[row % 4])
    steps = ("test_words", {"name": "test_length", "weight": 0})
    trainer = checked(*steps, advantage={"name": "process", "steps_from": "test_words"})
    written = json.loads((tmp_path / "out/grpo_plus/run.json").read_text())["parts"]["advantage"]
    assert written["keywords"] == {"steps_from": "test_words", "outcome_weight": 0.0}
    # Scored steps: "12" 1, "3c<|im_end|>" 1; "a1" 0, "5<|im_end|>" 1; "?<|im_end|>" 0. "ab" and "zz" are not judged.
    scores = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    high, low = ((value - scores.mean()) / (scores.std() + 1e-4) for value in (1.0, 0.0))
    first, second = [high, high, 0, 0, 0, 0, high, high, high], [low, low, 0, high, high, 0, 0, 0, 0]
    expected = torch.tensor([first, second, [0.0] * 9, [low, low, *[0.0] * 7]])
    torch.testing.assert_close(trainer.generated[0]["advantages"][:4], expected)
    assert trainer.state.log_history[0]["steps/per_completion"] == 7 / 4
    assert trainer.state.log_history[0]["steps/scored_fraction"] == pytest.approx(5 / 7)


def test_two_that_may_give_steps_must_be_told_apart(checked, say):
    say(lambda prompt, row: WORDS[row % 4])
    both = {"name": "test_words", "weight": 0}, "test_length"
    with pytest.raises(ConfigError, match=r"several verifiers give steps, or may: test_words, test_length\. Name one"):
        checked(*both, advantage="process")
    named = {"name": "process", "steps_from": "test_words"}
    assert checked(*both, advantage=named).estimator[1] == {"steps_from": "test_words", "outcome_weight": 1.0}
    with pytest.raises(ConfigError, match=r"'test_length' \(weight 1\) would be ignored"):
        checked(*both, advantage={**named, "outcome_weight": 0})


def test_verifiers_in_evaluation(build, sums):
    given = {"reward_funcs": None, "eval_dataset": sums.select(range(2))}
    found = build(trainer=given, verifiers=["exact"], per_device_eval_batch_size=8).evaluate()
    assert (found["eval_rewards/exact/mean"], found["eval_verifiers/exact/status/correct"]) == (0.25, 0.25)


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
    checks, logged = Verifiers(evaluation=live), {}
    completions = Completions([{"prompt": "p"}] * 4, ["p"] * 4, ["7", "ab", "", "9"], [[1]] * 4)
    checks.start(completions, None, training=False)
    checks.log_evaluation(lambda name, number: logged.setdefault(name, []).append(number))
    assert (logged["rewards/test_letters/mean"], logged["rewards/test_value/mean"]) == ([1, 2, 1], [7, 9])
    assert sorted(logged["score"]) == [-2, 6, 8]


@pytest.mark.parametrize(("entry", "name", "value"), [
    ("{name: exact, isolation: process}", "isolation", "process"), ("{name: math}", "on_error", "zero"),
    ("{name: math, on_error: null}", "on_error", "null"),  # without quotes, the policy of that name
    ('{name: math, on_error: "null"}', "on_error", "null"), ("{name: math, on_error: zero}", "on_error", "zero"),
])  # fmt: skip
def test_keys_of_the_entry_are_read(entry, name, value):
    (read,), problems = read_entries([yaml.safe_load(entry)])
    assert problems == []
    assert read.build().describe()[name] == value


@pytest.mark.parametrize(("key", "value"), [
    *(("weight", each) for each in (1e39, -1e39, 10**400, float("nan"), float("-inf"), True, "1")),
    *(("label", each) for each in ("\x00", "a\nb", "\ud800", " ", "x" * 300, 3)),
])  # fmt: skip
def test_a_weight_that_float32_and_a_label_that_no_table_can_hold_are_problems_of_the_entry(key, value):
    entries, (problem,) = read_entries([{"name": "math", key: value}])
    assert entries == []
    assert problem.startswith(f"verifiers[0] (math): {key} is ")
    assert key == "label" or "expected a finite number, of size 3.4e+38 at most" in problem
