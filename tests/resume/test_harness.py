"""The harness that kills runs: it compares what it says, and sees what differs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
from pathlib import Path
from benchmarks.resume import __main__, runs
from benchmarks.resume.scenarios import SCENARIOS, make_model
from benchmarks.resume.watch import train
folder, scenario = Path(sys.argv[1]), SCENARIOS["steps"]
if not (folder / "model").exists():
    make_model(scenario, folder / "model")
if sys.argv[2] == "forked":
    runs.warm()
    assert runs.run(scenario, folder / "model", folder / "forked") is None
else:
    (folder / "fresh").mkdir()
    train(scenario, folder / "fresh", folder / "model", None, stock=False, rank=0)
"""


def command(*arguments, environment):
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.resume", *map(str, arguments)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_forked_run_is_that_of_a_fresh_process(clean_environment, tmp_path):
    from benchmarks.resume.compare import difference

    for kind in ("forked", "fresh"):
        given = [sys.executable, "-c", ALONE, tmp_path, kind]
        subprocess.run(given, cwd=ROOT, env=clean_environment, check=True, capture_output=True, timeout=120)
    assert difference(tmp_path / "fresh", tmp_path / "forked", 1) is None


@pytest.mark.slow
def test_stock_trl_starts_another_generation_batch_and_the_harness_sees_it(clean_environment, tmp_path):
    given = ["--rows", "steps", "--columns", "stock", "--micro", 3, "--json", tmp_path / "found.json"]
    done = command(*given, environment=clean_environment)
    assert done.returncode == 0, done.stderr
    found = {place: problem for _, _, place, problem in json.loads((tmp_path / "found.json").read_text())}
    assert found.keys() == {"micro 3", "micro 7", "micro 11"}
    for problem in found.values():  # each saved in the middle of a generation batch: after steps 1, 3 and 5
        assert problem.startswith("additional prompts"), found


def test_what_is_compared_is_compared_bit_for_bit():
    import torch

    from benchmarks.resume.watch import digest

    values = {"a": torch.zeros(2), "b": [1, "x", torch.ones(1, dtype=torch.bfloat16)]}
    assert digest(values) == digest({"b": [1, "x", torch.ones(1, dtype=torch.bfloat16)], "a": torch.zeros(2)})
    others = [
        torch.tensor([0.0, -0.0]),
        torch.zeros(1, 2),
        torch.zeros(2, dtype=torch.float64),
        torch.tensor([0, 1e-45]),
    ]
    assert len({digest(values | {"a": other}) for other in [torch.zeros(2), *others]}) == 5


def test_the_first_difference_is_told(tmp_path):
    import torch

    from benchmarks.resume.compare import difference

    def run(name, *events, weight=1.0, optimizer=0):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "trace_0.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        torch.save({"weights": {"w": torch.tensor([weight])}, "optimizer": optimizer}, folder / "end_0.pt")
        return folder

    first, second = ["prompts", 0, 0, ["x"]], ["prompts", 1, 0, ["y"]]
    log = ["log", 1, 0, {"reward": 1.0}]
    whole = run("whole", first, log, second)
    for number, (events, rest, expected) in enumerate([
        ([first, log, first, log, second], {}, None),
        ([first, log, ["prompts", 1, 0, ["z"]]], {"weight": 1.25}, "prompts at step 2; weights 2.5e-01"),
        ([first, ["prompts", 0, 0, ["z"]], log, second], {}, "prompts at step 1"),
        ([first, log, second, ["prompts", 1, 1, ["y"]]], {}, "additional prompts at step 2"),
        ([first, log], {}, "no prompts at step 2"),
        ([first, ["log", 1, 0, {"reward": 2.0}], second], {}, "log at step 1 (reward)"),
        ([first, log, second], {"optimizer": 1}, "optimizer"),
    ]):  # fmt: skip
        assert difference(whole, run(str(number), *events, **rest), 1) == expected
