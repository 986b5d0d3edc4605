"""The verifier in use: another language, the command line, and a training run from YAML."""

import ast
import json
import sys
from pathlib import Path

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.code.languages import available
from tests import started

from .programs import CALLS, ONE, RUNS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.slow
@pytest.mark.needs("/bin/bash")
@pytest.mark.parametrize(
    ("source", "score"),
    [
        ("read n\necho $((2 * n))\necho $((3 * n))", 1),
        ("read n\necho $((2 * n))", 0),
        ("cat /etc/passwd; read n; echo $((2 * n)); echo $((3 * n))", 1),
        ("exec 3<>/dev/tcp/127.0.0.1/80 && exit; read n; seq $((2 * n)) $n $((3 * n))", 1),
        ("awk '{ print 2 * $1; print 3 * $1 }'", 1),
        ("(sleep 60 &) ; read n; seq $((2 * n)) $n $((3 * n)) | tee here; rm here", 1),
        ("while :; do :; done", 0),
        (":(){ :|:& };:", 0),
        ("if [", 0),
    ],
)
def test_bash_programs_run_in_the_same_box(level, fenced, source, score):
    verifier = get_verifier("code", language="bash", level=level, highest=level, time_limit=2.0)
    assert verifier.verify(fenced(source, "bash"), tests=RUNS).score == score


def test_languages_say_what_they_cannot_do(fenced):
    assert available() == ["bash", "python"]
    verdict = get_verifier("code", language="bash").verify(fenced("echo", "sh"), tests=ONE)
    assert (verdict.score, verdict.status) == (None, Status.ERROR)
    assert "stdin and stdout only" in verdict.detail


def run(*command, cwd):
    """A command in a process of its own."""
    done = started.run([sys.executable, *command], capture_output=True, text=True, timeout=200, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_the_command_line_scores_a_file_of_completions(tmp_path, fenced):
    rows = [{"completion": fenced(f"def add(a, b): return a {sign} b"), "tests": CALLS} for sign in "+-"]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = run("-m", "grpo_plus.cli", "verify", "rows.jsonl", "--verifier=code", "--out=judged.jsonl", cwd=tmp_path)
    assert "correct" in out
    judged = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
    assert [row["score"] for row in judged] == [1.0, 0.0]


@pytest.mark.slow
def test_the_example_trains_with_the_code_verifier(tmp_path, tiny_model):
    folder = tmp_path / "examples"
    folder.mkdir()
    for name in ("code_rl.yaml", "code_rl.py"):
        (folder / name).write_text((EXAMPLES / name).read_text())
    more = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "out"), "--disable_tqdm", "true"]
    out = run("-m", "grpo_plus.cli", "train", str(folder / "code_rl.yaml"), *more, cwd=tmp_path)
    steps = [ast.literal_eval(line) for line in out.splitlines() if line.startswith("{'loss'")]
    assert len(steps) == 2
    for step in steps:
        seen = sum(float(step[f"verifiers/code/status/{status}"]) for status in ("unparsable", "wrong", "correct"))
        assert seen == pytest.approx(1)
        assert float(step["verifiers/code/status/error"]) == 0
    assert any(float(step["advantages/abs_mean"]) > 0 for step in steps)
    assert (tmp_path / "out" / "model.safetensors").exists()
