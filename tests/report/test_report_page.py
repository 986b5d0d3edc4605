"""What goes into a page: shapes, colours, figures of several runs, and errors that say what to do."""

import base64
import itertools
import json
import math
import re
import statistics
import zlib

import pytest

from grpo_plus.cli import main
from grpo_plus.record import mark_sweep, open_run
from grpo_plus.record.files import FOLDER, GROUPS, METRICS, RUN, append_line, dump
from grpo_plus.report.compare import band, lines_of, table
from grpo_plus.report.escape import escape_controls
from grpo_plus.report.shape import level, shape_group, stretches, summary
from grpo_plus.report.write import pack, page_data, safe_json, write_report

HOSTILE = [
    "</script><script>window.broken=1</script>",
    "<img src=x onerror='window.broken=1'>",
    "<!--<script>",
    "]]>&lt;&amp;\"'`",
    "\u2028\u2029\x00\x1b[2J\x07\r\x7f\x85",
    "\ud800 half \udfff",
    "\u202egnp.exe\u202c\u2066\u200f",
    "\U0001f9d1\u200d\U0001f680" * 3,
    "a" + "\u0301" * 500,
    "\U0010ffff\ufdfd" * 40,
]


def embedded(path):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(found[1])


def unpacked(packed):
    read = lambda part: json.loads(zlib.decompress(base64.b64decode(part)))  # noqa: E731 - short
    return [[group for part in block.split(" ") for group in read(part)] for block in packed["blocks"]]


def test_shades_go_by_the_largest_of_the_group_and_zero_has_none():
    assert [level(value, 2.0) for value in (2, -2, 1, 1e-9, -1e-9, 0)] == [4, -4, 2, 1, -1, 0]
    assert level(1.0, 0.0) == 0
    assert stretches([1.0, 1.0, 0.0, -0.5], 1.0) == [(2, 4, 1.0), (1, 0, 0.0), (1, -2, -0.5)]


def test_a_group_is_shaped_with_weights_spread_and_what_is_not_trained():
    completions = [
        {
            "pieces": ["a", "b", "c"],
            "rewards": [1.0, None],
            "advantage": 0.5,
            "token_advantages": [0.25, 0.5, 0.75],
            "untrained": [[1, 2]],
            "verdicts": [{"verifier": "v", "status": "correct", "reason": "", "steps": [[0, 2, 1.0], [2, 3, None]]}],
        },
        {"pieces": ["d"], "rewards": [0.0, 1.0], "advantage": -1.5, "verdicts": []},
        {"pieces": [], "rewards": [None, None], "advantage": 0.0},
    ]
    record = {"step": 3, "mode": "train", "group": 0, "prompt": "p", "rewards": ["v", "w"], "weights": [2.0, 0.5]}
    group = shape_group(record | {"completions": completions})
    assert [one["total"] for one in group["completions"]] == [2.0, 0.5, None]
    assert (group["mean"], group["spread"], group["scale"]) == (1.25, [0.5, 2.0], 1.5)
    first = group["completions"][0]
    assert first["shades"] == [(1, 1, 0.25), (1, 0, 0.0), (1, 2, 0.75)]
    assert first["steps"] == [[0, 2, 1.0], [2, 3, None]]
    assert [one["shade"] for one in group["completions"]] == [1, -4, 0]


def test_values_of_a_critic_are_shaped_beside_the_advantages_and_never_without_their_tokens():
    valued = {"pieces": list("abc"), "advantage": 1.0, "token_values": [0.5, None, -0.25]}
    short = {"pieces": list("ab"), "advantage": 1.0, "token_values": [9.0]}
    record = {"step": 1, "mode": "train", "group": 0, "rewards": ["v"]}
    group = shape_group(record | {"completions": [valued, short]})
    assert [one.get("values") for one in group["completions"]] == [[0.5, None, -0.25], None]
    assert (group["range"], group["scale"]) == ([-0.25, 0.5], 1.0)
    assert summary(group)["valued"]
    plain = shape_group(record | {"completions": [{"pieces": ["a"], "advantage": 1.0}]})
    assert (plain["range"], summary(plain)["valued"]) == (None, False)


def log(run, steps, **metrics):
    """Adds entries: a function of the step for each metric, ``_`` for the slash."""
    for step in steps:
        values = {name.replace("__", "/"): at(step) for name, at in metrics.items()}
        append_line(run / FOLDER / METRICS, {"kind": "train", "step": step, "time": 0, "values": values})


def test_a_critic_and_a_reward_model_have_their_curves(made_run):
    run = made_run(steps=4)
    assert not any("critic" in panel["title"] for panel in page_data([open_run(run)])["panels"])
    log(run, range(1, 5), critic__explained_variance=lambda step: step / 10 - 0.2)
    log(run, (2, 4), reward_model__accuracy=lambda step: 0.5 + step / 10)
    panels = {panel["title"]: panel for panel in page_data([open_run(run)])["panels"]}
    (explained,) = panels["Explained variance of the critic"]["lines"]
    assert explained["values"] == pytest.approx([-0.1, 0.0, 0.1, 0.2])
    (accuracy,) = panels["Ranking accuracy of the reward model"]["lines"]
    assert (accuracy["steps"], accuracy["values"]) == ([2, 4], pytest.approx([0.7, 0.9]))
    several = page_data([open_run(run), open_run(made_run("other", steps=4))])["panels"]
    titles = {panel["title"] for panel in several}
    assert {"Explained variance of the critic", "Ranking accuracy of the reward model"} <= titles


def test_what_was_left_off_in_the_middle_moves_steps_with_it():
    one = {"pieces": list("abcdef"), "rewards": [1.0], "advantage": 1.0, "left_off": [3, 10], "untrained": [[2, 14]]}
    one["verdicts"] = [{"verifier": "v", "status": "wrong", "steps": [[0, 2, 1.0], [5, 9, 0.0], [9, 16, 1.0]]}]
    record = {"step": 1, "mode": "train", "group": 0, "prompt": "", "rewards": ["v"], "completions": [one]}
    shaped = shape_group(record)["completions"][0]
    assert shaped["steps"] == [[0, 2, 1.0], [3, 3, 0.0], [3, 6, 1.0]]
    assert (shaped["untrained"], [count for count, *_ in shaped["shades"]]) == ([[2, 4]], [2, 2, 2])


def test_visible_text_has_nothing_that_moves_or_hides():
    for text in HOSTILE:
        shown = escape_controls(text)
        assert shown.encode("utf-8")
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
        assert len(escape_controls(shown)) <= len(shown)
    assert escape_controls("line\n\ttab é 日本") == "line\n\ttab é 日本"
    assert escape_controls("a\u202eb") == "a‹RLO›b"
    assert escape_controls("\x1b[31m") == "␛[31m"
    assert len(escape_controls("a" + "\u0301" * 500)) == 5


@pytest.mark.parametrize("text", HOSTILE)
def test_embedded_json_says_the_same_and_ends_nothing(text):
    dumped = safe_json({"x": [text, float("nan")]})
    assert dumped.isascii()
    assert not set("<>&\n\r") & set(dumped)
    assert json.loads(dumped)["x"] == [text, None]


def test_pages_keep_a_bounded_weight_and_say_what_is_left_out(made_run):
    run = open_run(made_run(steps=40, groups=3))
    whole = pack(run.groups())
    assert (len(whole["index"]), whole["recorded"]) == (120, 120)
    weight = sum(map(len, whole["blocks"]))
    half = pack(run.groups(), weight // 2)
    assert sum(map(len, half["blocks"])) <= weight // 2
    assert half["recorded"] == 120
    kept = sorted({entry["step"] for entry in half["index"]})
    gaps = {later - earlier for earlier, later in itertools.pairwise(kept)}
    assert len(gaps) == 1, "evenly spread"
    groups = unpacked(half)
    for entry in half["index"]:
        group = groups[entry["block"]][entry["at"]]
        assert (group["step"], group["group"]) == (entry["step"], entry["group"])
        assert sum(entry["statuses"]["math"].values()) == len(group["completions"])


def test_seeds_of_a_variant_become_a_mean_and_a_sample_standard_deviation(made_run):
    folders = []
    for variant in ("sign", "zscore"):
        for seed in range(3):
            folder = made_run(f"{variant}-{seed}", seed=seed, level=0.1 * (variant == "sign"))
            mark_sweep(folder, variant, seed)
            folders.append(folder)
    folders.append(made_run("alone", seed=9))
    lines = lines_of([open_run(folder) for folder in folders])
    assert {name: len(runs) for name, runs in lines.items()} == {"sign": 3, "zscore": 3, "alone": 1}
    seeds = [dict(zip(*run.series("reward"), strict=True)) for run in lines["sign"]]
    drawn = band("sign", seeds)
    for at, step in enumerate(drawn.steps):
        values = [seed[step] for seed in seeds]
        assert drawn.values[at] == pytest.approx(statistics.mean(values))
        assert drawn.high[at] - drawn.values[at] == pytest.approx(statistics.stdev(values))
    (row,) = [row for row in table(lines) if row["name"] == "sign"]
    cell = row["cells"][0]
    last = [run.series("reward")[1][-1] for run in lines["sign"]]
    assert cell["title"] == "final reward"
    assert (cell["mean"], cell["spread"]) == pytest.approx((statistics.mean(last), statistics.stdev(last)))
    data = embedded(write_report(folders))
    assert [line["label"] for line in data["panels"][0]["lines"]] == ["sign (n=3)", "zscore (n=3)", "alone"]
    assert len(data["runs"]) == 7
    drawn = band("x", [{1: 1.0, 2: 3.0}, {1: 3.0}])  # of different length
    assert (drawn.values, drawn.low) == ([2.0, 3.0], [pytest.approx(2 - math.sqrt(2)), 3.0])


def test_verifiers_that_only_evaluate_have_their_curves_and_figures(made_run):
    runs = [made_run(name) for name in ("one", "two")]
    for run in runs:
        for step, share in ((5, 0.25), (10, 0.75)):
            verdicts = {"correct": share, "wrong": 1 - share}
            values = {f"eval_verifiers/odd/one/status/{status}": value for status, value in verdicts.items()}
            values |= {"eval_rewards/odd/one/mean": share, "eval_score": -2 * share}
            append_line(run / FOLDER / METRICS, {"kind": "eval", "step": step, "time": 0, "values": values})
    data = embedded(write_report(runs[:1]))
    lines = {panel["title"]: panel["lines"] for panel in data["panels"]}
    panels = {title: {one["label"]: (one["role"], one["values"][-1]) for one in each} for title, each in lines.items()}
    assert panels["Reward"]["score in evaluation"] == ("eval", -1.5)
    assert panels["Accuracy"]["odd/one, evaluation"] == ("eval", 0.75)
    assert panels["Rewards, one by one"] == {"odd/one, evaluation": ("eval", 0.75)}
    assert panels["Verdicts of odd/one, evaluation"] == {"correct": ("correct", 0.75), "wrong": ("wrong", 0.25)}
    assert "Verdicts of math, evaluation" not in panels
    tiles = {tile["title"]: (tile["start"], tile["value"]) for tile in data["tiles"]}
    assert tiles["Accuracy, odd/one, evaluation"] == (0.25, 0.75)
    compared = embedded(write_report(runs))
    titles = [panel["title"] for panel in compared["panels"]]
    assert {"Score in evaluation", "Accuracy in evaluation, odd/one"} <= set(titles)
    assert "Accuracy, odd/one" not in titles
    cells = {cell["title"]: cell["mean"] for cell in compared["table"][0]["cells"]}
    assert (cells["evaluation accuracy, odd/one"], cells["final score, evaluation"]) == (0.75, -1.5)


def broken(folder, name, text):
    (folder / FOLDER / name).write_text(text)
    return folder


def test_broken_files_are_left_out_and_said_so(made_run):
    folder = made_run(steps=4)
    lines = (folder / FOLDER / METRICS).read_text().splitlines()
    broken(folder, METRICS, "\n".join([*lines[:5], "{", "[1]", '"x"', '{"step": "3"}', lines[6][:30]]))
    whole = '{"kind":"group","step":1,"mode":"train","group":0,"rewards":["m"],"completions":[{"pieces":["x"]}]}\n'
    broken(folder, GROUPS, '{"kind":"group","step":1}\n\x00\x00\n' + whole)
    broken(folder, RUN, '{"schema": 1, "sta')
    data = embedded(write_report([folder]))
    said = " ".join(data["runs"][0]["damage"])
    for name in ("run.json is broken", "5 lines of grpo_plus/metrics.jsonl"):
        assert name in said
    assert [entry["step"] for entry in data["runs"][0]["groups"]["index"]] == [1]


ERRORS = [
    ("missing", "does not exist", "output_dir"),
    ("file", "is a file", "output_dir"),
    ("empty", "is no run", "There are runs in"),
    ("nothing logged", "has logged nothing yet", "logging_steps"),
    ("newer", "is of schema 99", "Upgrade grpo_plus"),
    ("no schema", "is of schema None", "Upgrade grpo_plus"),
    ("out is a folder", "is a folder", "give the file"),
    ("out unwritable", "cannot be written", "--out"),
    ("twice", "appears twice", "once"),
]


@pytest.mark.parametrize("case", ERRORS, ids=[what for what, *_ in ERRORS])
def test_errors_name_the_thing_and_the_way_out(made_run, tmp_path, capsys, case):
    what, problem, way_out = case
    run = made_run("good")
    arguments = {
        "missing": [tmp_path / "godo"],
        "file": [run / FOLDER / RUN],
        "empty": [tmp_path],
        "out is a folder": [run, "--out", tmp_path],
        "out unwritable": [run, "--out", run / FOLDER / RUN / "report.html"],
        "twice": [run, run],
    }.get(what, [run])
    if what == "nothing logged":
        broken(broken(run, METRICS, ""), GROUPS, "")
    elif what == "newer":
        broken(run, RUN, dump({"schema": 99, "versions": {"grpo_plus": "9.0"}}))
    elif what == "no schema":
        broken(run, RUN, dump({"status": "done"}))
    assert main(["report", *map(str, arguments)]) == 2
    err = capsys.readouterr().err
    assert [text for text in (problem, way_out, str(arguments[-1])) if text not in err] == []
    assert "Traceback" not in err


def test_the_command_says_where_the_page_is(made_run, tmp_path, capsys):
    run = made_run()
    assert main(["report", str(run)]) == 0
    assert str(run / "report.html") in capsys.readouterr().out
    assert main(["report", str(run / FOLDER), "--out", str(tmp_path / "deep" / "page.html")]) == 0
    page = (tmp_path / "deep" / "page.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!#|data:)', page), "nothing is loaded from anywhere"
    assert "MIT License" in page or "Permission is hereby granted" in page
