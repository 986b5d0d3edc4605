"""The verifier in use: every labelled row, the command line, and a training run from YAML."""

import ast
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.sandbox.box import _FIRST_UID
from grpo_verifiers.sandbox.inside.proc import descendants
from tests import started

from .programs import ASSERTS, CALLS, RUNS

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


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
        assert (seen, float(step["verifiers/code/status/error"])) == (pytest.approx(1), 0)
    assert any(float(step["advantages/abs_mean"]) > 0 for step in steps)
    assert (tmp_path / "out" / "model.safetensors").exists()


def _zombies():
    """The zombies of this process: a worker that another test killed is one until its next call."""
    states = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            states[stat] = stat.read_text().rpartition(")")[2].split()[:2]
    return {stat for stat, state in states.items() if state == ["Z", str(os.getpid())]}


@pytest.mark.sample(0)
@pytest.mark.parametrize("func_tests", [CALLS, ASSERTS], ids=["calls", "asserts"])
def test_every_row_is_judged_right_and_leaves_nothing(cases, fenced, level, func_tests):
    rows = cases("hacks_code.jsonl")
    close_pool()
    before = {folder: set(Path(folder).iterdir()) for folder in ("/dev/shm", "/tmp", tempfile.gettempdir())}
    programs, zombies = descendants(os.getpid()), _zombies()
    verifier = get_verifier("code", level=level, highest=level, time_limit=1.0)
    tests = [func_tests if row["kind"] == "func" else RUNS for row in rows]
    verdicts = verifier.verify_batch(None, [fenced(row["code"]) for row in rows], tests=tests)
    judged = [(row["id"], verdict, float(row["expected_reward"])) for row, verdict in zip(rows, verdicts, strict=True)]
    assert [(name, verdict) for name, verdict, expected in judged if verdict.score != expected] == []
    assert sum(verdict.score for verdict in verdicts) == 2
    close_pool()
    assert descendants(os.getpid()) == programs
    made = {path for folder, paths in before.items() for path in set(Path(folder).iterdir()) - paths}
    assert not [path for path in made if path.parent == Path(tempfile.gettempdir())]
    # Others use the rest too: what these programs make has these names, or belongs to the user of a box.
    names = {"x", "json.py", "out.txt", "f0"}
    assert not [each for each in made if each.name in names or (each.exists() and each.lstat().st_uid >= _FIRST_UID)]
    assert _zombies() <= zombies
    assert not Path("json.py").exists()
    assert not Path("out.txt").is_symlink()
