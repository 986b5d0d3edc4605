"""`grpo-plus chat`: what it asks and answers, piped, once and at a terminal."""

import contextlib
import io
import os
import pty
import signal
import subprocess
import sys
import threading
import time

import pytest

QUESTION = {"user": "What is {question}, please?", "system": "Be brief."}


@pytest.fixture
def piped(cli, monkeypatch):
    """A chat that reads these lines."""

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
    from transformers import AutoModelForCausalLM, AutoTokenizer

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
    """With its adapter, its prompt's words around the line, and its verifiers where there is a gold answer."""
    lora = {"use_peft": True, "lora_target_modules": ["all-linear"], "lora_r": 4, "learning_rate": 0.05}
    path = config(prompt=QUESTION, max_steps=1, verifiers=["exact"], advantage="center", **lora)
    code, _, err = cli("train", path)
    assert code == 0, err
    run = folder / "out"
    code, out, err = cli("chat", run, "--once", "2 + 2", "--gold", "4", "--temperature", "0")
    assert code == 0, err
    assert f"As in the run {run}: prompt {{" in err
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoTokenizer

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
    from grpo_plus.quickstart.tools import base

    code, out, err = cli("chat", base(), "--tools", "calculator", "--once", "12+7=", "--max-completion-length", "12")
    assert code == 0, err
    assert "The model may call what the command line has: tools: calculator." in err
    assert out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nowhere/model/x", "--once", "a"), "cannot be loaded"),
        (("./nowhere", "--once", "a"), "does not exist or holds no config.json"),
        (("{tiny}", "--once", " "), "--once is empty"),
        (("{tiny}", "--once", "a", "--gold", "4"), "--gold is for a verifier, and there is none"),
        (("{tiny}", "--once", "a", "--verifier", "mth"), "Did you mean 'math'?"),
        (("{tiny}", "--once", "a", "--temperature", "-1"), "temperature is -1.0"),
        (("{tiny}", "--once", "a", "--template", "boxd"), "Did you mean 'boxed'?"),
        (("{tiny}", "--once", "a", "--column", "answer=b"), "a chat has none"),
        (("{tiny}", "--once", "a", "--settings-from", "nowhere"), "there is no run with a record in it"),
        (("{tiny}", "--once", "\udcff"), "the input is no text in UTF-8"),
    ],
)
def test_wrong_words_are_one_message(cli, tiny_model, words, expected):
    code, _, err = cli("chat", *(word.format(tiny=tiny_model) for word in words))
    assert code == 2
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize("way", ["end of file", "interrupt", "/quit"])
def test_a_terminal_is_left_in_order(tiny_model, clean_environment, way):
    master, end = pty.openpty()
    command = [sys.executable, "-m", "grpo_plus.cli", "chat", tiny_model, "--max-completion-length", "4"]
    process = subprocess.Popen(
        command, stdin=end, stdout=end, stderr=end, env={**clean_environment, "TERM": "dumb"}, start_new_session=True
    )
    os.close(end)
    seen = [b""]
    reader = threading.Thread(target=_read, args=(master, seen), daemon=True)
    reader.start()
    try:
        _wait(lambda: b"> " in seen[0])
        os.write(master, b"hello\n")
        _wait(lambda: seen[0].count(b"\n> ") >= 2 or seen[0].count(b"> ") >= 2)
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


def _wait(holds, seconds=120):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_a_reader_that_leaves_ends_the_chat(tiny_model, clean_environment):
    script = (
        f"yes hi | head -50 | {sys.executable} -m grpo_plus.cli chat {tiny_model} --max-completion-length 2 | head -1"
    )
    done = subprocess.run(
        ["bash", "-c", f"{script}; echo ${{PIPESTATUS[2]}}"], capture_output=True, text=True, timeout=300,
        env=clean_environment, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0"
    assert "Traceback" not in done.stderr


def test_a_record_is_data_until_it_is_trusted(cli, tmp_path, tiny_model):
    """A folder from somebody else: its record names files that lie beside it."""
    import json
    import shutil

    run = tmp_path / "theirs"
    shutil.copytree(tiny_model, run)
    (run / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef check(completion):\n    return 1.0\n")
    (run / "grpo_plus").mkdir()
    record = {
        "schema": 1,
        "status": "done",
        "config": {"verifiers": [f"{run}/evil.py:check"], "plugins": [f"{run}/evil.py"]},
    }
    (run / "grpo_plus" / "run.json").write_text(json.dumps(record))
    code, _, err = cli("chat", run, "--once", "hi", "--max-completion-length", "3")
    assert code == 0, err
    assert "names code for its verifiers" in err
    assert not (tmp_path / "ran").exists()
    code, _, err = cli("chat", run, "--once", "hi", "--max-completion-length", "3", "--trust-run")
    assert code == 0, err
    assert (tmp_path / "ran").exists()


def test_what_the_model_draws_moves_no_cursor(capsys, tiny_model):
    from transformers import AutoTokenizer

    from grpo_plus.cli._talk import _Readable

    streamer = _Readable(AutoTokenizer.from_pretrained(tiny_model))
    streamer.on_finalized_text("a\x1b[2Jb\u202ec\x9b\nd", stream_end=True)
    assert capsys.readouterr().out == "a␛[2Jb‹RLO›c‹U+009B›\nd\n"
