"""`grpo-plus chat`: what it asks and answers, piped, once and at a terminal."""

import contextlib
import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading

import pytest
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_plus.cli._talk import _Readable
from grpo_plus.cli._tool_use import code_in
from grpo_plus.quickstart.tools import base
from grpo_verifiers.tools.registry import TOOLS
from grpo_verifiers.verifying import REGISTRY
from tests import started
from tests.waiting import comes

QUESTION = {"user": "What is {question}, please?", "system": "Be brief."}


@pytest.fixture
def piped(cli, monkeypatch):
    def piped(text, *words):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return cli("chat", *words)

    return piped


def answer(model, tokenizer, messages, most):
    """What the model says greedily, by transformers alone."""
    given = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    drawn = model.generate(**given, max_new_tokens=most, do_sample=False)
    return tokenizer.decode(drawn[0, given["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.fixture
def loaded(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)


def test_every_line_is_a_turn_of_one_conversation(piped, loaded, tiny_model):
    code, out, err = piped(
        "one\n\ntwo\n/new\ntwo\n", tiny_model, "--system", "Add.", "--temperature", "0", "--max-completion-length", "7",
    )  # fmt: skip
    assert code == 0, err
    first = [{"role": "system", "content": "Add."}, {"role": "user", "content": "one"}]
    said = answer(*loaded, first, 7)
    second = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "two"}]
    anew = [first[0], {"role": "user", "content": "two"}]
    assert out == "".join(f"{text}\n" for text in (said, answer(*loaded, second, 7), answer(*loaded, anew, 7)))
    assert "Completions of at most" not in err


@pytest.mark.slow
def test_a_run_is_asked_as_it_was_trained(cli, config, folder, tiny_model):
    lora = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4, "learning_rate": 0.05}
    path = config(prompt=QUESTION, max_steps=1, verifiers=["exact"], advantage="center", **lora)
    cli.done("train", path)
    run = folder / "out"
    code, out, err = cli("chat", run, "--once", "2 + 2", "--gold", "4", "--temperature", "0")
    assert code == 0, err
    assert f"As in the run {run}: prompt {{" in err
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2, please?"}]
    model, tokenizer = AutoPeftModelForCausalLM.from_pretrained(run), AutoTokenizer.from_pretrained(run)
    said = answer(model, tokenizer, messages, 8)
    assert out.startswith(f"{said}\nexact: wrong, score 0: ")
    with model.disable_adapter():
        assert answer(model, tokenizer, messages, 8) != said
    code, out, err = cli("chat", run, "--once", "2 + 2", "--temperature", "0")
    assert (code, out) == (0, f"{said}\n")


def test_verdicts_need_a_gold_answer_where_the_verifier_does(piped, tiny_model):
    short = ("--max-completion-length", "4", "--temperature", "0")
    code, out, err = piped("a\n/gold 7\nb\nc\n", tiny_model, "--verifier", "exact", *short)
    assert code == 0, err
    verdicts = [line for line in out.splitlines() if line.startswith("exact: ")]
    assert [line.split(",")[0].split(":")[1].strip() for line in verdicts[1:2]] == ["wrong"]
    assert "no verdict without the right answer: /gold TEXT" in verdicts[0]
    assert "no verdict without the right answer" in verdicts[2]
    code, out, err = piped("a\n", tiny_model, "--verifier", "think_format", *short)
    assert code == 0, err
    assert "think_format: " in out
    assert "score 0" in out


def test_a_tool_is_called_and_its_result_is_shown(cli, tmp_path):
    """The model of the quickstart's tools: it has learned nothing, so the chat must survive whatever it writes."""
    code, out, err = cli("chat", base(), "--tools", "calculator", "--once", "12+7=", "--max-completion-length", "12")
    assert code == 0, err
    assert "The model may call what the command line has: tools: calculator." in err
    assert out


@pytest.mark.slow
@pytest.mark.parametrize("way", ["end of file", "interrupt", "/quit"])
def test_a_terminal_is_left_in_order(tiny_model, clean_environment, way):
    master, end = pty.openpty()
    command = [sys.executable, "-m", "grpo_plus.cli", "chat", tiny_model, "--max-completion-length", "4"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), end)
    process = started.Popen(command, **streams, env={**clean_environment, "TERM": "dumb"}, start_new_session=True)
    os.close(end)
    seen = [b""]
    reader = threading.Thread(target=_read, args=(master, seen), daemon=True)
    reader.start()
    try:
        assert comes(lambda: b"> " in seen[0])
        os.write(master, b"hello\n")
        assert comes(lambda: seen[0].count(b"> ") >= 2)
        if way == "interrupt":
            os.kill(process.pid, signal.SIGINT)
        else:
            os.write(master, b"\x04" if way == "end of file" else b"/quit\n")
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
    reader.join(timeout=10)
    assert b"/new begins another conversation" in seen[0]
    assert b"Traceback" not in seen[0]


def _read(master, seen):
    with contextlib.suppress(OSError):
        while piece := os.read(master, 1 << 12):
            seen[0] += piece


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_chat(tiny_model, clean_environment):
    command = [sys.executable, "-m", "grpo_plus.cli", "chat", tiny_model, "--max-completion-length", "2"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started.Popen(command, env=clean_environment, **pipes) as process:
        process.stdin.write(b"hi\n" * 50)
        process.stdin.close()
        assert process.stdout.readline()
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 0


def test_a_record_is_data_until_it_is_trusted(cli, tmp_path, tiny_model):
    run = tmp_path / "theirs"
    shutil.copytree(tiny_model, run)
    (run / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef check(completion):\n    return 1.0\n")
    (run / "grpo_plus").mkdir()
    config = {"verifiers": [f"{run}/evil.py:check"], "plugins": [f"{run}/evil.py"]}
    (run / "grpo_plus" / "run.json").write_text(json.dumps({"schema": 1, "status": "done", "config": config}))
    command = ("chat", run, "--once", "hi", "--max-completion-length", "3")
    code, _, err = cli(*command)
    assert code == 0, err
    assert "names code for its verifiers" in err
    assert not (tmp_path / "ran").exists()
    cli.done(*command, "--trust-run")
    assert (tmp_path / "ran").exists()


def test_records_name_built_in_parts_with_harmless_keywords_or_ask():
    """Not by a prefix: whatever else an entry says is shown, and waits for --trust-run."""
    for field, names in {"tools": TOOLS.entries(), "verifiers": REGISTRY.entries()}.items():
        asked = {each.name for each in names if each.way == "built-in" and code_in({field: [each.name]})}
        assert asked == ({"search_documents"} if field == "tools" else {"json_schema", "judge", "prm"})
    for field, entry, named in [
        ("tools", "grpo_verifiers.x/../stranger/evil.py:look", "grpo_verifiers.x/../stranger/evil.py:look"),
        ("tools", ["grpo_verifiers.tools.python:python"], "grpo_verifiers.tools.python:python"),
        ("tools", {"name": "python", "kwargs": {"level": "none", "memory": 1}}, "python with level"),
        ("tools", [{"name": "python", "kwargs": ["level"]}], "python with kwargs"),
        ("tools", ["theirs/of-a-hub"], "theirs/of-a-hub"),
        ("tools", [["python"]], "['python']"),
        ("verifiers", ["grpo_verifiers.files:os.system"], "grpo_verifiers.files:os.system"),
        ("verifiers", [{"name": "math", "isolation": "inline"}], "math with isolation"),
        ("verifiers", [{"name": "code", "kwargs": {"piston": "http://x"}}], "code with piston"),
        ("verifiers", [{"name": "math_steps", "kwargs": {"steps": "./x.py:f"}}], "math_steps with steps"),
        ("environment", "python", "python"),
        ("environment", {"a": "theirs:Env"}, "{'a': 'theirs:Env'}"),
        ("plugins", ["math"], "math"),
        ("verifiers", [{"name": "math", "label": "m", "kwargs": {"decimals": 3}}, "code"], None),
        ("tools", {"name": "python", "timeout": 2, "kwargs": {"memory": 0.5}}, None),
    ]:
        assert code_in({field: entry}) == ([named] if named else []), entry


def test_what_the_model_draws_moves_no_cursor(capsys, tiny_model):
    streamer = _Readable(AutoTokenizer.from_pretrained(tiny_model))
    streamer.on_finalized_text("a\x1b[2Jb\u202ec\x9b\nd", stream_end=True)
    assert capsys.readouterr().out == "a␛[2Jb‹RLO›c‹U+009B›\nd\n"
