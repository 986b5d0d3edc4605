"""The labelled hostile programs, each judged as labelled, at every level; and nothing of them stays."""

import os
import tempfile
from pathlib import Path

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.sandbox.box import _FIRST_UID
from grpo_verifiers.sandbox.inside.proc import descendants

from .programs import ASSERTS, CALLS, RUNS


def _is_zombie_of_ours(stat):
    try:
        state, parent = stat.read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return False
    return state == "Z" and int(parent) == os.getpid()


@pytest.mark.sample(1)
@pytest.mark.parametrize("func_tests", [CALLS, ASSERTS], ids=["calls", "asserts"])
def test_every_row_is_judged_right_and_leaves_nothing(cases, fenced, level, func_tests):
    rows = cases("hacks_code.jsonl")
    close_pool()
    before = {folder: set(Path(folder).iterdir()) for folder in ("/dev/shm", "/tmp", tempfile.gettempdir())}
    programs = descendants(os.getpid())
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
    assert not [each for each in Path("/proc").glob("[0-9]*/stat") if _is_zombie_of_ours(each)]
    assert not Path("json.py").exists()
    assert not Path("out.txt").is_symlink()
