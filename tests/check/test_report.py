"""The report: nothing private in it, the same as text and as data, never a traceback, and exit codes by severity."""

import json
import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_plus.check.examination import SCHEMA, Examination, data_report, exit_code, shareable, text_report
from grpo_plus.check.finding import Severity, info, ok, problem, warning
from tests import started

KINDS = {Severity.OK: ok("fine", "All is well."), Severity.INFO: info("told", "A thing to know.")}
KINDS |= {Severity.WARNING: warning("odd", "It may go wrong.", "Look.")}
KINDS |= {Severity.PROBLEM: problem("bad", "It goes wrong.", "Mend it.")}


def examined(*severities):
    examination = Examination()
    for severity in severities:
        examination.run("part", lambda kind=KINDS[severity]: [kind.at("thing", "value")])
    return examination


@pytest.mark.parametrize(
    ("severities", "plain", "strict"),
    [((), 0, 0), (("ok", "info"), 0, 0), (("warning", "ok"), 0, 1), (("warning", "problem", "ok"), 2, 2)],
)
def test_exit_codes(severities, plain, strict):
    examination = examined(*map(Severity, severities))
    assert (exit_code(examination, strict=False), exit_code(examination, strict=True)) == (plain, strict)


@given(st.lists(st.sampled_from(list(Severity)), max_size=6))
def test_text_and_data_say_the_same(severities):
    examination = examined(*severities)
    examination.unchecked.append("the moon")
    text, data = text_report(examination), data_report(examination)
    assert data["schema"] == SCHEMA
    assert sum(data["counts"].values()) == len(data["findings"]) == len(severities)
    for severity in Severity:
        kind = KINDS[severity]
        assert text.count(f"{kind.code} [thing]: value") == data["counts"][severity] == severities.count(severity)
        if kind.remedy:
            assert text.count(f"do: {kind.remedy}") == severities.count(severity)
    assert "- the moon" in text
    assert data["not_checked"] == ["the moon"]
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 110


def test_a_check_that_fails_is_a_finding_and_the_next_one_runs_unless_ctrl_c_ends_the_command():
    def broken(error):
        yield KINDS[Severity.OK].at("thing", "seen before it broke")
        raise error

    examination = Examination()
    examination.run("part", lambda: broken(SystemExit("out of here")))
    examination.run("part", lambda: [KINDS[Severity.OK].at("thing", "value")])
    last, failed = examination.findings[-1], next(one for one in examination.findings if one.code == "check-failed")
    assert (failed.value, failed.severity) == ("SystemExit: out of here", Severity.WARNING)
    assert last.value == "value"
    with pytest.raises(KeyboardInterrupt):
        Examination().run("part", lambda: broken(KeyboardInterrupt))


def test_a_verifier_that_ends_the_program_does_not_end_the_report(case, look):
    """`check-failed` by a real fault: columns whose names cannot be read end the check of them."""
    (case.folder / "mine.py").write_text(
        "from grpo_verifiers import Verifier\n"
        "class Odd(Verifier):\n"
        "    def start(self, *a, **k): raise SystemExit('I am off')\n"
        "    required_columns = property(lambda self: {'answer': 'answer'})\n"
        "    optional_columns = property(lambda self: {})\n"
        "    def check(self): return []\n"
        "    def describe(self): return {}\n"
        "odd = Odd('odd')\n"
    )
    report = look(verifiers=["./mine.py:odd"])
    assert report.one("check-failed")["value"] == "SystemExit: I am off"
    assert report.one("checkpoints-fit")["severity"] == "ok"


def test_what_is_shared_names_nobody(monkeypatch):
    for text, shown in (
        ("/home/maria/runs/a", "/home/(user)/runs/a"), ("/Users/Maria.Z/x.yaml: broken", "/Users/(user)/x.yaml: broken"),
        ("at /data/jdoe42/cache", "at /data/(user)/cache"),
        ("HF_ENDPOINT=https://maria:s3cretWord99@mirror.test", "HF_ENDPOINT=https://(hidden)@mirror.test"),
        ("hub_token: hf_abcdefghijklmnopqrstuvwxyz", "hub_token: (hidden)"), ("a line\x1b[31m", "a line\ufffd[31m"),
    ):  # fmt: skip
        monkeypatch.setenv("USER", "jdoe42")
        assert shareable(text) == shown


@pytest.mark.slow
def test_a_report_made_for_pasting_has_no_secret_and_no_user_in_it(case, clean_environment):
    secrets = {
        "HF_TOKEN": "hf_" + "Qw3rTy" * 5, "WANDB_API_KEY": "c4naryTHATmustNOTfly0123456789", "HOME": str(case.folder / "maria"),
        "USER": "jdoe42", "HF_ENDPOINT": "https://jdoe42:hunter2hunter2@mirror.test",
    }  # fmt: skip
    own = case.folder / "jdoe42"
    own.mkdir()
    path = case.config(output_dir=str(own / "out"), hub_token="hf_" + "AbCdEf9" * 5, dataset_test_split="x")
    for flags in ([], ["--json"]):
        done = started.run(
            [sys.executable, "-m", "grpo_plus.cli", "check", str(path), *flags],
            env={**clean_environment, **secrets}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        given = [secrets[name] for name in ("HF_TOKEN", "WANDB_API_KEY", "HOME", "USER")]
        for secret in (*given, "hunter2", "AbCdEf9"):
            assert secret not in done.stdout, secret
        assert all(words in done.stdout for words in ("/(user)/out", "~/.cache/huggingface/hub"))


@pytest.mark.slow
def test_a_trl_that_is_refused_ends_in_findings_too(case, clean_environment):
    about = case.folder / "front/trl-1.3.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trl\nVersion: 1.3.0\n")
    path = os.pathsep.join([str(about.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "grpo_plus.cli", "check", str(case.config()), "--json"]
    env = {**clean_environment, "PYTHONPATH": path}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    found = {one["code"]: one["value"] for one in json.loads(done.stdout)["findings"]}
    assert (done.returncode, found["trl-unsupported"]) == (2, "1.3.0")
    assert "UnsupportedTRLError" in found["check-failed"]
    assert "Traceback" not in done.stdout + done.stderr


WRONG = {
    "a missing file": ("nowhere.yaml", None), "no YAML": ("broken.yaml", "a: [1,\nb: }{"), "a list": ("list.yaml", "- a\n- b\n"),
    "nothing": ("empty.yaml", ""), "bytes": ("bytes.yaml", b"\xff\xfe\x00\x01"), "an unknown key": ("key.yaml", "model_name_or_pth: x\n"),
    "numbers as names": ("numbers.yaml", "model_name_or_path: 3\ndataset_name: 7\nverifiers: [1]\n"),
    "a prompt of numbers": ("prompt.yaml", "prompt: 3\n"),
    "a YAML object": ("object.yaml", "model_name_or_path: !!python/object/apply:os.system ['true']\n"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), WRONG.values(), ids=WRONG)
def test_a_wrong_config_is_a_finding(check, config_only, tmp_path, name, text):
    if isinstance(text, bytes):
        (tmp_path / name).write_bytes(text)
    elif text is not None:
        (tmp_path / name).write_text(text)
    report = check(tmp_path / name)
    assert (report.code, bool(report.codes("problem"))) == (2, True)
    assert all(one["value"] for one in report.data["findings"])


ROWS = {
    "no rows": "", "no JSON": "{{{\n", "a list a line": "[1, 2]\n" * 8, "prompts of numbers": '{"prompt": 3, "answer": "3"}\n' * 8,
    "prompts of null": '{"prompt": null, "answer": null}\n' * 8,
    "turns without words": '{"prompt": [{"role": "user"}], "answer": "3"}\n' * 8,
    "turns without a role": '{"prompt": [{"content": "x"}], "answer": "3"}\n' * 8,
    "empty conversations": '{"prompt": [], "answer": "3"}\n' * 8,
    "nested golds": '{"prompt": "1", "answer": {"a": [1, {"b": null}]}}\n' * 8,
}  # fmt: skip


@pytest.mark.parametrize("text", ROWS.values(), ids=ROWS)
def test_wrong_rows_are_findings(case, look, text):
    (case.folder / "data.jsonl").write_text(text)
    report = look()
    assert report.codes("problem", "warning"), report.data
    assert report.code == (2 if report.codes("problem") else 0)


FILES = {
    "config.json": ["", "[]", "3", '{"model_type": "nothing"}', "{}", '{"model_type": "llama", "hidden_size": "x"}'],
    "tokenizer.json": ["", "[]", "{}"],
    "tokenizer_config.json": ["", "[]", '{"eos_token": 3}'],
    "generation_config.json": ["", "[]", '{"eos_token_id": "x"}', '{"eos_token_id": [[1]]}'],
    "chat_template.jinja": ["{% for", "{{ messages[9].content }}", "{% raw %}", ""],
}


@pytest.mark.sample(6)
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in FILES.items() for text in texts])
def test_broken_files_of_a_model_never_end_in_a_traceback(case, look, name, text):
    (case.model / name).write_text(text)
    report = look()
    assert report.code == (2 if report.codes("problem") else 0)
    assert report.one("rows") or report.codes("problem")


@pytest.mark.slow
def test_strict_and_the_number_of_rows(case, look):
    from tests.check.conftest import CHATML

    case.template(CHATML.replace("<|im_end|>", ""))
    assert (look().code, look("--strict").code) == (0, 1)
    report = look("--rows", "3")
    assert report.one("golds")["value"] == "3 rows tried"
    assert any("of other rows: 3 of 8 rows were checked" in one for one in report.data["not_checked"])
    assert look("--all-rows").one("golds")["value"] == "8 rows tried"
    assert look("--max_completion_length", "1").one("lengths")["value"].endswith("at most 1")


def test_a_stream_is_read_as_far_as_its_sample(look):
    report = look("--rows", "5", dataset_streaming=True)
    assert report.one("rows")["value"] == "5 of a stream rows"
    assert "a stream: only its first 5 rows were checked" in report.data["not_checked"]


def test_of_very_many_rows_the_first_are_read_and_the_sample_is_of_those(look, monkeypatch):
    from grpo_plus.check import data

    monkeypatch.setattr(data, "MOST_ROWS", 6)
    report = look("--rows", "3")
    assert (report.one("rows")["value"], report.one("golds")["value"]) == ("6 of 8 rows", "3 rows tried")
    assert "rows from 6 on, of 8" in report.data["not_checked"]
    assert look("--all-rows").one("rows")["value"] == "8 of 8 rows"


def test_nothing_is_loaded_or_written(case, look):
    for file in case.model.glob("*.safetensors"):
        file.unlink()
    before = {path: path.stat().st_mtime_ns for path in case.folder.rglob("*")}
    report = look()
    assert report.code == 0
    assert report.one("golds")
    assert "weights: only the model's config and tokenizer were read" in report.data["not_checked"]
    after = set(case.folder.rglob("*"))
    assert after - set(before) <= {case.folder / "config.yaml"}


@pytest.mark.slow
def test_the_report_of_a_terminal_is_coloured_and_that_of_a_pipe_is_plain(case, cli, config_only):
    code, out, _ = cli("check", case.config())
    assert code == 0
    assert re.match(r"grpo-plus check .*no problems", out)
    assert "\x1b" not in out
    assert "\x1b[31mproblem" in text_report(examined(Severity.PROBLEM), colour=True)
