"""Tools and environments from the config: the same as TRL's own loop, apart from the trainer, whatever they do."""

import copy
import logging
import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from grpo_plus import GRPOPlusConfig
from grpo_plus.record import open_run
from grpo_verifiers.errors import ConfigError, VerifierFailedError
from tests.device import FLOAT32

from . import tools_of_tests as own
from .tools_of_tests import called, turn_of

FILE = Path(own.__file__)
DOUBLE, NASTY, FINE = (f"{FILE}:{name}" for name in ("double", "nasty", "fine"))
COUNTING, COUNTER, OTHER, FAILING = (f"{FILE}:{name}" for name in ("Counting", "Counter", "Other", "Failing"))
LONG = {"max_completion_length": 600, "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8}


@pytest.fixture
def given(tool_tokenizer):
    """What both trainers get beside tools: chats, and a tokenizer whose template can call."""
    data = Dataset.from_list([{"prompt": [{"role": "user", "content": f"q{n}"}], "goal": 3} for n in range(8)])
    return lambda **more: {"train_dataset": data, "processing_class": copy.deepcopy(tool_tokenizer), **more}


@pytest.fixture
def both(trained, given):
    """The generation batches and the conversations of TRL's trainer and of ours, with the same seed."""

    def both(stock, ours, **settings):
        found = []
        for more, classes in ((stock, (GRPOTrainer, GRPOConfig)), (ours, ())):
            texts = []

            def keep(completions, texts=texts, **_):
                texts += copy.deepcopy(completions)
                return [float(len(str(completion)) % 7) for completion in completions]

            options = dict(more)
            config = {**LONG, **settings, **options.pop("config", {})}
            trainer = trained(*classes, trainer=given(reward_funcs=[keep], **options), **config)
            found.append((trainer.generated, texts))
        return found

    return both


def same(stock, ours):
    (expected, said), (found, also) = stock, ours
    assert also == said
    assert len(found) == len(expected) > 0
    for one, two in zip(expected, found, strict=True):
        for name in ("prompt_ids", "completion_ids", "completion_mask", "tool_mask", "advantages"):
            assert torch.equal(one[name], two[name]), name


def script(prompt, row):
    """Several turns: two calls at once, an error, an unknown tool, arguments that do not fit."""
    at = turn_of(prompt)
    if row % 4 == 3 or at >= 3:
        return f"it is {row}<|im_end|>"
    if at == 0:
        return f"Well. {called('double', number=row)}\n{called('double', number=row + 1)}<|im_end|>"
    return (called("double", number=-1) if row % 4 == 0 else called("nothing", number=1)) + "<|im_end|>"


def botched(prompt, row):
    """A call that is none, of a kind for each row; in the turn behind it a good one, then an answer."""
    if turn_of(prompt):
        return "done<|im_end|>"
    ways = ('{"name": "double", "arguments": {"number": 1', "double(1)", "[1, 2]", "null", "{}",
            '{"arguments": {"number": 1}}', '{"name": "double", "arguments": {}} so', '{"name": 7, "arguments": {}}')  # fmt: skip
    good = called("double", number=1) if row % 2 else ""
    return f"<tool_call>\n{ways[row]}\n</tool_call>{good}<|im_end|>"


@pytest.mark.parametrize("rollout", ["stock", "auto"])
def test_tools_of_the_config_are_trls_in_text_ids_and_masks(both, say, rollout):
    say(script)
    tools = {"tools": [own.double]}, {"config": {"tools": [DOUBLE], "rollout": rollout}}
    stock, ours = both(*tools)
    same(stock, ours)
    assert any("{'error': 'no negative numbers, please'}" in str(text) for text in ours[1])
    assert any("Tool nothing not found." in str(text) for text in ours[1])
    say(botched)
    same(*both(*tools))


def endless(prompt, row):
    return called("double", number=row) * (1 + row % 2) + "<|im_end|>"


@pytest.mark.parametrize(("calls", "length"), [(2, 600), (None, 150), (None, 80), (3, 400)])
@pytest.mark.parametrize("answers", [script, endless])
def test_turns_end_where_trls_do(both, say, calls, length, answers):
    say(answers)
    limit = {"max_tool_calling_iterations": calls, "max_completion_length": length}
    same(*both({"tools": [own.double]}, {"config": {"tools": [DOUBLE]}}, **limit))


def calls_for(question):
    return int(re.search(r"q(\d)", question)[1]) % 5


def play(prompt, row):
    question = prompt[prompt.rindex("<|im_start|>user\nq") :]
    return (called("add", number=1) if turn_of(prompt) < calls_for(question) else f"done {row}") + "<|im_end|>"


def counts_on(prompt, row):
    return f"more {called('add', number=1)}\n{called('add', number=row)}<|im_end|>"


@pytest.mark.parametrize(("answers", "calls", "length"), [(play, None, 600), (counts_on, 2, 600), (counts_on, None, 250), (counts_on, None, 330)])  # fmt: skip
def test_an_environment_of_the_config_is_trls_in_text_ids_masks_and_rewards(both, say, answers, calls, length):
    say(answers)
    limit = {"max_tool_calling_iterations": calls, "max_completion_length": length}
    same(*both({"environment_factory": own.Counting}, {"config": {"environment": COUNTING}}, **limit))


@pytest.mark.parametrize("prompts", ["of rows", "of environments"])
def test_environments_by_column_are_trls(both, say, given, prompts):
    def answer(prompt, row):
        if turn_of(prompt) >= 2:
            return "done<|im_end|>"
        return (called("shout", word="hi") if '"name": "shout"' in prompt else called("add", number=1)) + "<|im_end|>"

    say(answer)
    data = given()["train_dataset"]
    data = data if prompts == "of rows" else data.remove_columns("prompt")
    data = data.add_column("environment", ["counting", "shouting"] * 4)
    stock = {"environment_factory": {"counting": own.Counting, "shouting": own.Other}, "train_dataset": data}
    several = {"counting": COUNTING, "shouting": {"name": OTHER, "timeout": 5}}
    same(*both(stock, {"config": {"environment": several}, "train_dataset": data}))


def seen_turns(trainer):
    """Of each batch its rows, their turns, the turns' tokens, and the completions."""
    kept, inner = [], trainer._calculate_rewards

    def keeping(inputs, prompts, completions, *more):
        kept.append((inputs, *(trainer.pipeline.round.turns or (None, None)), completions))
        return inner(inputs, prompts, completions, *more)

    trainer._calculate_rewards = keeping
    return kept


@pytest.mark.slow
def test_turns_hold_calls_states_and_rewards_and_reach_verifiers(build, say, given):
    say(play)
    verifiers = ["tool_valid", {"name": "turn_reward", "label": "turns"}]
    long = {**LONG, "max_completion_length": 900}
    trainer = build(trainer=given(reward_funcs=None), **long, environment=COUNTER, verifiers=verifiers)
    kept = seen_turns(trainer)
    trainer.train()
    total = 0
    for row, done, spans in zip(*kept[0][:3], strict=True):
        count = calls_for(row["prompt"][0]["content"])
        total += count
        assert len(done) == len(spans) == count + 1
        assert [turn.state for turn in done] == [str(at) for at in range(count + 1)]
        assert [turn.reward for turn in done] == [1.0 if at < 3 else -1.0 for at in range(count)] + [None]
        assert [call.result for turn in done for call in turn.calls] == [f"{at + 1} of 3" for at in range(count)]
    log = trainer.state.log_history[0]
    assert log["tools/calls"] == total > 0
    assert log["tools/add/calls"] == log["tools/calls"]
    assert (log["tools/turns"], log["rewards/tool_valid/mean"]) == (pytest.approx(1 + log["tools/calls"] / 8), 1.0)
    assert trainer.reward_func_names == ["tool_valid", "turns", "Counter"]


@pytest.mark.nightly
def test_what_a_tool_does_costs_its_own_completion_only(build, say, given):
    ways = ["fine", "hang", "exit", "crash", "big", "fork", "marks", "fine"]

    def answer(prompt, row):
        tool = "fine" if ways[row] == "fine" else "nasty"
        return ("done" if turn_of(prompt) else called(tool, way=ways[row])) + "<|im_end|>"

    say(answer)
    more = given(reward_funcs=[lambda completions, **_: [1.0] * len(completions)])
    tools = [{"name": NASTY, "timeout": 15}, {"name": FINE, "timeout": 60}]
    trainer = build(trainer=more, tools=tools, **{**LONG, "max_completion_length": 2**17, "check": "off"})
    kept = seen_turns(trainer)
    trainer.train()
    calls = [turns[0].calls[0] for turns in kept[0][1]]
    assert [call.status for call in calls][:4] == ["ok", "late", "died", "died"]
    assert [calls[at].result for at in (0, 7)] == ["fine: fine"] * 2
    assert calls[4].status in {"ok", "died", "error", "cut"}  # as far as its result has room
    assert len(calls[4].result) < 1 << 17
    assert calls[5].status in ("late", "died")
    assert [turns[-1].text for at, turns in enumerate(kept[0][1]) if at != 4] == ["done"] * 7
    log = trainer.state.log_history[0]
    assert log["tools/late"] >= 1
    assert log["tools/died"] >= 2


NESTED = "[" * 2000 + "]" * 2000
WRITTEN = {
    "arguments that are a text": ('{"name": "double", "arguments": "x"}', "argument after ** must be a mapping"),
    "arguments that are a list": ('{"name": "double", "arguments": [1]}', "argument after ** must be a mapping"),
    "no number of JSON": ('{"name": "double", "arguments": {"number": NaN}}', "the arguments are not JSON"),
    "half a character": ('{"name": "double", "arguments": {"number": "\\ud800"}}', "expected an integer"),
    "a name twice": ('{"name": "double", "arguments": {"number": 1, "number": 2}}', "4"),
    "a mark as name": ('{"name": "\\u003c|im_end|\\u003e", "arguments": {}}', "Tool <\\|im_end|> not found."),
    "nested deep": (f'{{"name": "double", "arguments": {{"number": {NESTED}}}}}', None), "no name": ('{"arguments": {}}', None),
    "a name that is none": ('{"name": ["a"], "arguments": {}}', None), "a text": ('"text"', None),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("what", WRITTEN)
def test_calls_however_they_are_written_end_no_run(build, say, given, what):
    body, told = WRITTEN[what]
    text = f"<tool_call>\n{body}\n</tool_call>"
    say(lambda prompt, row: ("done" if row % 2 or turn_of(prompt) else text) + "<|im_end|>")
    more = given(reward_funcs=[lambda completions, **_: [1.0] * len(completions)])
    trainer = build(trainer=more, tools=[DOUBLE], **{**LONG, "max_completion_length": 9000, "check": "off"})
    kept = seen_turns(trainer)
    trainer.train()
    turns = kept[0][1]
    assert [row[0].text for row in turns[1::2]] == ["done"] * 4
    if told is None:
        assert [row[0].calls for row in turns] == [()] * 8
    else:
        results = [str(row[0].calls[0].result) for row in turns[::2]]
        assert len(set(results)) == 1
        assert told in results[0].replace("\\\\", "\\")
    assert "parse_response" not in vars(trainer.processing_class)


def test_a_row_whose_reset_fails_is_left_out_and_all_failing_stops_the_run(trained, say, given):
    say(play)
    rows = [{"prompt": [{"role": "user", "content": f"q{n}"}], "goal": -1 if n == 0 else 3} for n in range(8)]
    mixed = given(train_dataset=Dataset.from_list(rows), reward_funcs=None)
    trained(trainer=mixed, environment=COUNTER, shuffle_dataset=False, **LONG)
    broken = Dataset.from_list([{**row, "goal": -1} for row in rows])
    with pytest.raises(VerifierFailedError, match=r"'Counter' failed in reset for all 8 rows.*no such goal"):
        trained(trainer=given(train_dataset=broken, reward_funcs=None), environment=COUNTER, **LONG)


def config(tmp_path, **settings):
    return GRPOPlusConfig(output_dir=str(tmp_path), **FLOAT32, report_to="none", **settings)


@pytest.mark.parametrize(("settings", "said"), [
    ({"tools": ["nobody"]}, "unknown tool 'nobody'"), ({"tools": [DOUBLE, DOUBLE]}, "'double' is the name of another tool"),
    ({"tools": [{"name": "calculator", "digit": 3}]}, r"tools\[0\].*digit"),
    ({"tools": [3]}, r"tools\[0\] is 3, expected a name or a mapping"), ({"tools": [{"kwargs": {}}]}, r"tools\[0\] has no name"),
    ({"environment": DOUBLE}, "environment.*expected a class"),
    ({"environment": {"a": COUNTER, "b": "nobody"}}, r"environment\['b'\].*unknown environment 'nobody'"),
    ({"tools": ["calculator"], "max_tool_calling_iterations": 0}, "no call would ever run"),
    ({"tools": [{"name": "calculator", "kwargs": {"digits": 3}}]}, "without kwargs: .'name': 'calculator', 'digits': 3"),
    ({"environment": {}}, r"environment has no name: give a name or a reference, got \{\}"),
    ({"environment": {1: COUNTER, "1": OTHER}}, "environment has '1' twice"),
    ({"environment": f"{FILE}:Speechless"}, "Speechless has no public method that the model could call"),
    ({"environment": f"{FILE}:Propertied"}, "get_reward is <property.*expected a method: it would never be called"),
])  # fmt: skip
def test_wrong_entries_are_clear_errors(tmp_path, settings, said):
    with pytest.raises(ConfigError, match=said):
        config(tmp_path, **settings)


def test_data_that_do_not_fit_are_clear_errors(build, given):
    with pytest.raises(ConfigError, match=r"prompts are texts, and tools are called in chats"):
        build(tools=["calculator"])
    counting, strange = {"counting": COUNTER}, given()["train_dataset"].add_column("environment", ["x"] * 8)
    for more, settings, said in (
        ({}, {"environment": counting}, r"train_dataset has no column 'environment'"),
        ({"train_dataset": strange}, {"environment": counting}, r"the column 'environment' has 'x'.*counting"),
        ({}, {"environment": f"{FILE}:Needy"}, r"no column 'board', which the environment 'Needy' needs"),
        ({"tools": [own.double]}, {"tools": [DOUBLE]}, r"'double' is also the name of a tool passed to the trainer"),
        ({"environment_factory": own.Counter}, {"environment": COUNTER}, r"got an environment_factory"),
    ):
        with pytest.raises(ConfigError, match=said):
            build(trainer=given(**more), **settings)


@pytest.fixture
def failing(given, say):
    """Rows whose environment fails where they say, and a model that calls once."""
    say(lambda prompt, row: ("done" if turn_of(prompt) else called("add", number=1)) + "<|im_end|>")

    def failing(fails, **more):
        rows = [{"prompt": [{"role": "user", "content": f"q{n}"}], "fails": fails[n % len(fails)]} for n in range(4)]
        return given(train_dataset=Dataset.from_list(rows), **{"reward_funcs": None, **more})

    return failing


@pytest.mark.slow
@pytest.mark.parametrize(("method", "said"), [
    ("state_key", "a object, whose text"), ("get_turn_reward", "returned inf"), ("get_reward", "returned '1.0' (str)"),
])  # fmt: skip
def test_what_fails_in_some_completions_is_counted_and_told_once(build, failing, caplog, method, said):
    trainer = build(trainer=failing([method, ""]), environment=FAILING, **{**LONG, "max_steps": 2})
    with caplog.at_level(logging.WARNING, logger="grpo_plus"):
        trainer.train()
    (told,) = [record.getMessage() for record in caplog.records if "'Failing' failed" in record.getMessage()]
    assert f"failed in {method} in 4 of 8 completions" in told
    assert said in told
    assert [log["tools/environment_errors"] for log in trainer.state.log_history[:2]] == [4.0, 4.0]


@pytest.mark.parametrize("method", ["state_key", "get_reward"])
def test_what_fails_in_all_completions_stops_the_run(trained, failing, method):
    with pytest.raises(VerifierFailedError, match=rf"'Failing' failed in {method} for all 8 completions of a batch"):
        trained(trainer=failing([method]), environment=FAILING, **LONG)


MISSPELT = {"name": "tool_used", "names": ["calculater"]}


@pytest.mark.parametrize(("settings", "said"), [
    ({"verifiers": ["tool_used"]}, "'tool_used' looks at calls, but nothing can be called: set tools"),
    ({"eval_verifiers": ["tool_valid"]}, "'tool_valid' looks at calls"),
    ({"max_tool_calling_iterations": 3}, "max_tool_calling_iterations is 3, but nothing can be called"),
    ({"tools": ["calculator"], "verifiers": [MISSPELT]}, "unknown tool 'calculater'. Did you mean 'calculator'"),
])  # fmt: skip
def test_what_looks_at_calls_needs_something_to_call(build, failing, settings, said):
    rewards = [lambda completions, **_: [0.0] * len(completions)]
    with pytest.raises(ConfigError, match=said):
        build(trainer=failing([""], reward_funcs=rewards), **{**LONG, **settings})
    used = {"name": "tool_used", "names": ["double"]}  # what is handed over in Python can be called
    build(trainer=failing([""], tools=[own.double]), **LONG, verifiers=[used], max_tool_calling_iterations=2)


def text_of(count, at):
    return f"plan {count} {called('add', number=1)}" if at < count else f"done {count}"


def play_on(prompt, row):
    """Count on as often as planned; on every other question all rows do the same, so that its group is dead."""
    said = prompt[prompt.rindex("<|im_start|>user\nq") :]
    question, planned = re.search(r"q(\d)", said), re.search(r"plan (\d)", said)
    count = int(planned[1]) if planned else 3 if int(question[1]) % 2 else row % 4
    return text_of(count, turn_of(prompt)) + "<|im_end|>"


PROCESS = {"advantage": {"name": "process", "steps_from": "turn_reward"}}
BESIDE = {
    "nothing": {}, "resample": {"dead_groups": "resample"}, "roulette": {"dead_groups": "roulette"}, "replay": {"dead_groups": "replay"},
    "contrast": {"selection": "contrast"}, "target": {"objective": "target", "num_iterations": 2}, "a KL term": {"beta": 0.1},
    "a KL term in the rewards": {"objective": {"name": "grpo", "kl": {"placement": "reward"}}, "beta": 0.1}, "process": PROCESS,
    "process and resample": {**PROCESS, "dead_groups": "resample"}, "a critic": {"advantage": "gae", "critic": {"on": "trunk"}},
    "a reward model": {"reward_model": {}}, "evaluations": {"eval_strategy": "steps", "eval_steps": 1},
    "TRL's rollouts": {"rollout": "stock"},
    "inner iterations": {"num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 4},
    "a part of the support": {"top_p": 0.9},
}  # fmt: skip


@pytest.mark.sample(0, 5)
@pytest.mark.parametrize("name", BESIDE)
def test_turns_are_those_of_their_rows(build, say, given, name):
    say(play_on)
    settings = {**LONG, "environment": COUNTER, "max_steps": 3, "verifiers": ["turn_reward", "tool_valid"]}
    more = given(eval_dataset=given()["train_dataset"], reward_funcs=None)
    trainer = build(trainer=more, **{**settings, **BESIDE[name]})
    kept = seen_turns(trainer)
    trainer.train()
    assert kept
    for _, turns, _, completions in kept:
        for row, done in zip(completions, turns, strict=True):
            assert [turn.text for turn in done] == [one.get("content") for one in row if one["role"] == "assistant"]
    if "resample" in name:
        assert trainer.state.log_history[0]["dead_groups/rounds"] > 0
    groups = open_run(Path(trainer.args.output_dir)).groups()
    seen = 0
    for completion in [one for group in groups for one in group["completions"]]:
        pieces, turns = completion["pieces"], completion["turns"]
        if not completion["tokens"]:  # a group that the roulette has stopped
            assert name == "roulette"
            assert turns == []
            continue
        count = int(re.search(r"done (\d)", turns[-1]["text"])[1])
        assert len(turns) == count + 1
        for at, turn in enumerate(turns):
            said = "".join(pieces[slice(*turn["tokens"])])
            assert said == text_of(count, at) + "<|im_end|>"
            assert [call["result"] for call in turn["calls"]] == ([f"{at + 1} of 3"] if at < count else [])
            assert turn["state"] == str(at)
            assert turn["score"] == turn["reward"] == (1.0 if at < count else None)
        untrained = "".join("".join(pieces[slice(*span)]) for span in completion.get("untrained", []))
        assert untrained.count("<tool_response>") == count
        seen += 1
    assert seen > 0
