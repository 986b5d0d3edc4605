"""`evaluate` and `grpo-plus eval` with tools and environments: of a run or of a config."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_plus.evaluation.measure import Measure
from grpo_plus.evaluation.run import evaluate
from grpo_plus.evaluation.sample import SampleSettings
from grpo_plus.evaluation.turns import ToolUse
from grpo_verifiers import get_verifier
from grpo_verifiers.errors import ConfigError, VerifierFailedError
from grpo_verifiers.redaction import HIDDEN

from .conftest import (
    COUNTER,
    COUNTING,
    DOUBLE,
    OTHER,
    TOOLS,
    called,
    chats,
    counting,
    number_of,
    results_behind,
    samples_of,
    untimed,
    without_seconds,
)

pytestmark = pytest.mark.slow
FAST = ("--split", "train", "--device", "cpu", "--max-completion-length", "900")


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def doubling(prompt, row):
    """Calls once; on question 5 wrongly. The answer is the result on even questions."""
    number = number_of(prompt)
    if results_behind(prompt):
        return f"{2 * number if number % 2 == 0 else 1}<|im_end|>"
    return called("double", number=-1 if number == 5 else number)


def calling(folder, **fields):
    """The option with a config of these tools."""
    path = folder / f"{len(list(folder.iterdir()))}.yaml"
    path.write_text(json.dumps(fields))
    return "--tools-from", path


@pytest.fixture
def questions(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"prompt": f"q{n}", "answer": str(2 * n), "goal": 3} for n in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run_with(tool_model, tmp_path):
    def run_with(**config):
        folder = tmp_path / "run"
        shutil.copytree(tool_model, folder, dirs_exist_ok=True)
        (folder / "grpo_plus").mkdir(exist_ok=True)
        (folder / "grpo_plus" / "run.json").write_text(json.dumps({"schema": 1, "config": config}))
        return str(folder)

    return run_with


def test_evaluate_draws_what_measure_draws_and_leaves_model_tokenizer_and_generators_alone(
    trained, calling_model, tmp_path
):
    settings = {"max_completion_length": 200, "temperature": 0.9}
    trainer = trained(calling_model, tools=[DOUBLE], verifiers=["tool_valid"], **settings)
    Measure({"n": 2}, trainer, chats()).take("before")
    model, tokenizer = loaded(calling_model)
    torch.manual_seed(4)
    random.seed(4)
    before = torch.get_rng_state(), random.getstate(), dict(vars(tokenizer))
    found = evaluate(
        model, tokenizer, chats(), get_verifier("tool_valid"), tools=ToolUse(tools=[DOUBLE]), n=2, batch=5,
        drawing=SampleSettings(**settings),
    )  # fmt: skip
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert dict(vars(tokenizer)) == before[2]
    ours = without_seconds([json.loads(json.dumps(sample.as_json())) for sample in found.samples])
    assert ours == untimed(tmp_path / "out" / "measure" / "before.jsonl")
    assert found.calls >= 4


def test_a_plain_model_with_tools(cli, tool_model, questions, speaking, tmp_path):
    speaking(doubling)
    out = tmp_path / "samples.jsonl"
    command = ("eval", tool_model, "--dataset", questions, "--verifier", "numeric", "--option", "source=last")
    tools = calling(tmp_path, tools=[DOUBLE])
    command += ("-n", "3", "--out", out, *FAST)
    command, fewer = (*command, *tools), (*command, *calling(tmp_path, tools=[DOUBLE], max_tool_calling_iterations=1))
    code, text, err = cli(*command)
    assert code == 0, err
    assert f"Callable by the model, from {tools[1]}: tools: double." in err
    assert re.search(r"numeric: pass@1 .*50\.0%", text)
    assert re.search(r"numeric: majority@3 .*50\.0%", text)
    assert re.search(r"calls a completion .*1\.00", text)
    assert re.search(r"failed calls .*3 \(12\.5%\)", text)
    samples = samples_of(out)
    assert len(samples) == 24
    first = next(row for row in samples if row["row"] == 4)
    assert first["prompt"] == [{"role": "user", "content": "q4"}]
    assert first["completion"] == "8"
    assert [turn["text"] for turn in first["turns"]] == ["", "8"]
    assert json.loads(first["turns"][0]["calls"][0]["arguments"]) == {"number": 4}
    assert (first["calls"], first["failed_calls"], first["cut_off"]) == (1, 0, False)
    results = json.loads(out.with_suffix(".json").read_text())["results"]
    assert (results["calls"], results["failed_calls"]) == (24, 3)
    assert "24 of 24 samples are in" in cli(*command)[2]
    assert "max_tool_calling_iterations was None, now 1" in cli.refused(*fewer)


def test_a_run_brings_its_tools_along_and_a_config_replaces_them(cli, run_with, questions, speaking, tmp_path):
    speaking(counting)
    run = run_with(tools=["calculator"], environment=COUNTER, max_tool_calling_iterations=3, chat_template_kwargs=None)
    command = ("eval", run, "--dataset", questions, *FAST)
    assert f"the record of the run {run} names code: {COUNTER}" in cli.refused(*command)
    command = (*command, "--trust-run")
    out = tmp_path / "samples.jsonl"
    code, text, err = cli(*command, "--out", out)
    assert code == 0, err
    assert f"Callable by the model, from the run {run}: tools: calculator; environment: Counter." in err
    assert re.search(r"Counter: pass@1 .*50\.0%", text)
    assert "majority" not in text
    assert {row["prompt"][0]["content"] for row in samples_of(out)} == {f"q{n}" for n in range(8)}
    assert {row["observation"] for row in samples_of(out)} == {"Count to 3."}
    settings = json.loads(out.with_suffix(".json").read_text())["settings"]
    assert (settings["tools"], settings["environment"]) == (["calculator"], COUNTER)
    checkpoint = Path(run) / "checkpoint-3"
    shutil.copytree(run, checkpoint, ignore=lambda *_: ["grpo_plus", "checkpoint-3"])
    assert "environment: Counter" in cli("eval", checkpoint, "--dataset", questions, "--trust-run", *FAST)[2]
    text = cli.done(*command, *calling(tmp_path, environment=COUNTING, max_tool_calling_iterations=2))
    assert re.search(r"Counting: pass@1 .*0\.0%", text)
    assert re.search(r"cut off .*50\.0%", text)  # a third call is not run
    speaking(lambda prompt, row: "4")
    code, text, err = cli(*command, "--tools-from", "none", "--verifier", "exact")
    assert code == 0, err
    assert "calls a completion" not in text
    assert "may call" not in err


def test_tools_of_a_config_file_with_paths_that_start_there(cli, tool_model, questions, speaking, tmp_path):
    speaking(doubling)
    (tmp_path / "own").mkdir()
    shutil.copy(TOOLS, tmp_path / "own" / "mine.py")
    config = tmp_path / "own" / "run.yaml"
    config.write_text("tools: ./mine.py:double\nbeta: 0.1\nmax_tool_calling_iterations: 2\n")
    command = ("eval", tool_model, "--dataset", questions, "--verifier", "tool_valid", *FAST)
    code, text, err = cli(*command, "--tools-from", config)
    assert code == 0, err
    assert f"Callable by the model, from {config}: tools: double." in err
    assert re.search(r"failed calls .*1 \(12\.5%\)", text)


def test_what_cannot_be_evaluated_is_said_before_a_model_is_loaded(cli, run_with, tool_model, questions, tmp_path):
    base = ("eval", tool_model, "--dataset", questions, *FAST)
    judged = (*base, "--verifier", "exact")
    empty = tmp_path / "empty.yaml"
    empty.write_text("beta: 0.1\n")
    secret = run_with(tools=[{"name": "search_documents", "folder": "[hidden]"}])
    record = Path(secret) / "grpo_plus" / "run.json"
    record.write_text(record.read_text().replace("[hidden]", HIDDEN))
    for command, said in {
        (
            *judged,
            *calling(tmp_path, tools=["calculater"]),
        ): "tools[0]: unknown tool 'calculater'. Did you mean 'calculator'?",
        (*judged, *calling(tmp_path, tools=[DOUBLE, DOUBLE])): "'double' is the name of another tool",
        (*judged, *calling(tmp_path, environment=f"{TOOLS}:Gme")): "Gme",
        (*judged, *calling(tmp_path, tools="calculator", max_tool_calling_iterations=0)): "no call would ever run",
        (*judged, "--tools-from", empty): "has neither tools nor environment",
        (*judged, "--tools-from", tmp_path): "no run in it was trained with tools",
        (*judged, "--tools-from", tmp_path / "nowhere.yaml"): "cannot be read",
        base: "give --verifier, or an environment with get_reward",
        (*base, *calling(tmp_path, tools="calculator")): "give --verifier, or an environment with get_reward",
        (*base, *calling(tmp_path, environment=OTHER)): "give --verifier, or an environment with get_reward",
        ("eval", secret, "--dataset", questions, *FAST): "have secrets among their keywords",
    }.items():
        err = cli.refused(*command)
        assert said in err, (command, err)
        assert "Traceback" not in err


NEEDING = '''
class Needing:
    def reset(self, secret: int) -> str:
        return "x"

    def look(self) -> str:
        """Look."""
        return "y"

    def get_reward(self) -> float:
        return 1.0
'''


def test_rows_and_templates_that_do_not_fit_are_the_errors_of_training(cli, tool_model, tiny_model, questions):
    tmp_path = questions.parent
    (tmp_path / "needing.py").write_text(NEEDING)
    broken = tmp_path / "broken.jsonl"
    broken.write_text("".join(json.dumps({"prompt": f"q{n}", "goal": -1}) + "\n" for n in range(3)))
    for model, data, fields, said in (
        (tool_model, questions, {"environment": f"{tmp_path}/needing.py:Needing"}, "no column 'secret', which the"),
        (tool_model, questions, {"environment": {"a": COUNTING}}, "no column 'environment', which names the"),
        (tiny_model, questions, {"tools": "calculator"}, "the tools cannot be shown to the"),
        (tool_model, broken, {"environment": COUNTING}, "'Counting' failed in reset for all 3 rows of a batch; the"),
    ):
        judge = ("--verifier", "exact") * ("tools" in fields)
        assert said in cli.refused("eval", model, "--dataset", data, *judge, *calling(tmp_path, **fields), *FAST)


def test_rows_in_a_list_and_nothing_to_judge_with(tool_model, speaking):
    speaking(counting)
    model, tokenizer = loaded(tool_model)
    drawing = SampleSettings(max_completion_length=900)
    found = evaluate(model, tokenizer, list(chats()), [], tools=ToolUse(environment=COUNTING), drawing=drawing)
    assert found.results["Counting"].accuracy.value == 0.5
    with pytest.raises(ValueError, match=r"nothing to judge with"):
        evaluate(model, tokenizer, chats(), [], tools=ToolUse(tools=[DOUBLE]), drawing=drawing)
    texts = [{"prompt": "q1"}]
    with pytest.raises(ConfigError, match=r"the prompts are texts, and tools are called in chats"):
        evaluate(model, tokenizer, texts, get_verifier("tool_used"), tools=ToolUse(tools=[DOUBLE]), drawing=drawing)
    broken = [{**row, "goal": -1} for row in chats()]
    with pytest.raises(VerifierFailedError, match=r"failed in reset for all 8 rows"):
        evaluate(model, tokenizer, broken, [], tools=ToolUse(environment=COUNTING), drawing=drawing)
