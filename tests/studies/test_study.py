"""What every study does: each run once, kept, in a process of its own; a table and a picture."""

import json
import mmap
import os
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from benchmarks.studies import task
from benchmarks.studies.picture import Panel
from benchmarks.studies.study import ROOT, Row, Shown, Study, load, main, of_arms

STUDIES = sorted(path.stem for path in (ROOT / "benchmarks" / "studies").glob("*.py") if "STUDY = " in path.read_text())


def made(calls, **further):
    """A study that notes its calls."""

    def run(case, place):
        calls.append((case["seed"], len(place.earlier)))
        return {"value": case["steps"] + case["seed"]}

    def show(options, rows):
        found = [[str(row.case["seed"]), str(row.found["value"])] for row in rows]
        return Shown(["seed", "value"], found, [Panel("", "", "", [])])

    settings = {
        "name": "made", "title": "Made", "about": "", "steps": ("steps", 10), "seeds": 2, "show": show, "run": run,
        "cases": lambda options: [{"seed": seed, "steps": options.steps} for seed in range(options.seeds)],
        "quick": {"steps": 3},
    }  # fmt: skip
    return Study(**(settings | further))


def start(study, home, *arguments):
    return main(study, ["--home", str(home), *arguments], processes=False)


def test_runs_that_have_ended_are_not_repeated_and_a_line_that_was_cut_short_is(tmp_path, capsys):
    calls = []
    assert start(made(calls), tmp_path) == 0
    assert calls == [(0, 0), (1, 1)]
    assert start(made(calls), tmp_path, "--seeds", "3") == 0
    assert calls == [(0, 0), (1, 1), (2, 2)]
    text = capsys.readouterr().out
    assert text.count("| seed | value |") == 2
    assert "3 of 3 runs, " in text
    assert "this call took" in text.splitlines()[-2]
    lines = (tmp_path / "made" / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["found"] for line in lines] == [{"value": 10}, {"value": 11}, {"value": 12}]
    table = (tmp_path / "made" / "table.md").read_text()
    assert table.startswith("Made (seeds: 3, steps: 10)\n\n| seed | value |\n|---")
    path = tmp_path / "made" / "results.jsonl"
    path.write_text(path.read_text()[:-20])  # a line that was cut short is run again
    for _ in range(2):
        start(made(calls), tmp_path, "--seeds", "3")
    assert [seed for seed, _ in calls] == [0, 1, 2, 2]


@pytest.mark.parametrize("change", [["--steps", "11"], ["--quick"], "version"])
def test_other_settings_are_other_runs(tmp_path, change):
    calls, version = [], change == "version"
    start(made(calls), tmp_path)
    start(made(calls, **({"version": 2} if version else {})), tmp_path, *([] if version else change))
    assert [seed for seed, _ in calls] == [0, 1, 0, 1]
    start(made([]), tmp_path / "given", "--quick", "--seeds", "1", "--steps", "5")  # what is given beside it counts
    assert json.loads((tmp_path / "given/made/results.jsonl").read_text())["case"] == {"seed": 0, "steps": 5}
    rows = [Row({"arm": "a", "seed": seed}, {}, 0) for seed in (2, 0)] + [Row({"arm": "b", "seed": 1}, {}, 0)]
    assert [row.case["seed"] for row in of_arms(rows, arm="a")] == [0, 2]


def test_a_folder_in_use_is_left_alone(tmp_path, capsys):
    calls = []
    (tmp_path / "made").mkdir()
    with FileLock(tmp_path / "made" / ".lock"):
        assert start(made(calls), tmp_path) == 2
    assert calls == []
    assert "in use by another process" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--seeds", "0"], ["--steps", "-1"]])
def test_counts_below_one_are_refused(tmp_path, flag, capsys):
    with pytest.raises(SystemExit):
        start(made([]), tmp_path, *flag)
    assert "is below 1" in capsys.readouterr().err


OWN = """
import os, sys
from benchmarks.studies.study import *
def run(case, place):
    if case["seed"] == 1:
        raise SystemExit("broken on purpose")
    return {{"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"], "earlier": len(place.earlier)}}
STUDY = Study(name="own_{word}", title="Own", about="", steps=("steps", 1), seeds=3, run=run, quick={{}},
    cases=lambda options: [{{"seed": seed}} for seed in range(options.seeds)],
    show=lambda options, rows: Shown(["seed"], [[str(row.case["seed"])] for row in rows], []))
if __name__ == "__main__":
    sys.exit(main(STUDY))
"""


@pytest.mark.nightly
def test_each_run_has_a_process_of_its_own_and_a_failed_one_costs_itself(tmp_path, monkeypatch, capsys):
    """The study lies in a folder that is put beside benchmarks/studies, as its processes look it up by name."""
    import benchmarks.studies

    word = tmp_path.name.replace("-", "_")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / f"own_{word}.py").write_text(OWN.format(word=word))
    (tmp_path / "site" / "sitecustomize.py").write_text(
        f"import benchmarks.studies\nbenchmarks.studies.__path__.append({str(tmp_path / 'site')!r})\n"
    )
    monkeypatch.setattr(benchmarks.studies, "__path__", [*benchmarks.studies.__path__, str(tmp_path / "site")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)]))
    study = load(f"own_{word}")
    assert main(study, ["--home", str(tmp_path / "home")]) == 1
    text = capsys.readouterr().out
    assert "broken on purpose" in text
    assert "2 of 3 runs" in text
    lines = (tmp_path / "home" / study.name / "results.jsonl").read_text().splitlines()
    found = [json.loads(line)["found"] for line in lines]
    assert len({os.getpid(), *(one["pid"] for one in found)}) == 3
    assert [one["threads"] for one in found] == ["1", "1"]
    assert [one["earlier"] for one in found] == [0, 1]


def test_peak_memory_counts_what_was_freed_again():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("only Linux counts the peak of a part of a process")
    with task.PeakMemory() as memory, mmap.mmap(-1, 64 << 20) as held:  # not of what Python has freed before
        held.write(bytes(1 << 20) * 64)
    assert 60 < memory.peak - memory.start < 200
    with task.PeakMemory() as after:
        pass
    assert after.peak - after.start < 30


def _fails(folder):
    folder.mkdir()
    raise OSError("no space")


def _notes_its_process(folder):
    folder.mkdir()
    (folder / "process").write_text(str(os.getpid()))


@pytest.mark.nightly
def test_a_folder_is_made_once_and_whole_in_a_process_of_its_own(tmp_path):
    with pytest.raises(RuntimeError, match="a was not made: its process ended with status 1"):
        task.made_once(tmp_path / "a", _fails)
    assert not (tmp_path / "a").exists()
    makers = {(task.made_once(tmp_path / "a", _notes_its_process) / "process").read_text() for _ in range(2)}
    assert len(makers) == 1
    assert makers != {str(os.getpid())}


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_knows_its_name_and_its_command(name):
    study = load(name)
    assert study.name == name
    assert f"python -m benchmarks.studies.{name}" in study.about
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    assert f"python -m benchmarks.studies.{name}" in page
