"""The labelled hostile programs, each judged as labelled, at every level; and nothing of them stays."""

import os
import tempfile
from pathlib import Path

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.sandbox.box import _FIRST_UID
from grpo_verifiers.sandbox.inside.proc import descendants

CALLS = [{"function": "add", "args": [1, 2], "expected": 3}, {"function": "add", "args": [10, 5], "expected": 15}]
ASSERTS = [{"code": "assert add(1, 2) == 3"}, {"code": "assert add(10, 5) == 15"}]
RUNS = [{"stdin": f"{n}\n", "stdout": f"{2 * n}\n{3 * n}"} for n in (3, 7)]


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
    verdicts = get_verifier("code", level=level, highest=level, time_limit=1.0).verify_batch(
        None,
        [fenced(row["code"]) for row in rows],
        None,
        tests=[func_tests if row["kind"] == "func" else RUNS for row in rows],
    )
    wrong = {
        row["id"]: verdict
        for row, verdict in zip(rows, verdicts, strict=True)
        if verdict.score != float(row["expected_reward"])
    }
    assert not wrong
    assert sum(verdict.score for verdict in verdicts) == 2
    close_pool()
    assert descendants(os.getpid()) == programs
    made = {path for folder, paths in before.items() for path in set(Path(folder).iterdir()) - paths}
    assert not [path for path in made if path.parent == Path(tempfile.gettempdir())]
    # Others use the rest too: what these programs make has these names, or belongs to the user of a box.
    assert not [
        path
        for path in made
        if path.name in {"x", "json.py", "out.txt", "f0"} or (path.exists() and path.lstat().st_uid >= _FIRST_UID)
    ]
    assert not [each for each in Path("/proc").glob("[0-9]*/stat") if _is_zombie_of_ours(each)]
    assert not Path("json.py").exists()
    assert not Path("out.txt").is_symlink()
