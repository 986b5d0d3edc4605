"""Records that somebody else made, or that a disk has damaged: a page, or a refusal in words, and never a traceback."""

import copy
import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grpo_plus.record import RunError, open_run, schema
from grpo_plus.record.files import FOLDER, GROUPS, METRICS, RUN, SWEEP
from grpo_plus.report.write import page_data, write_report
from tests.report.test_report_page import embedded, unpacked


def deep(levels):
    value = "x"
    for _ in range(levels):
        value = [value]
    return value


ODD = [
    None, True, False, 0, -1, 1.5, 2**53 + 1, 10**400, -(10**400), 1e308, -1e308, 5e-324, math.nan, math.inf, "", "x", "\ud800", "1", [], {}, [None], [[]], [{}], ["x"], [1, 2, 3],
    {"a": 1}, {"": {"": []}}, deep(50), deep(900), {"name": None}, {"pieces": None}, [[0, 1, 2]], [[-5, 3]], "e" * 5000,
]  # fmt: skip
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
JSON = st.recursive(
    st.sampled_from(ODD) | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def places(value, path=()):
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


def changed(value, path, new):
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


@pytest.fixture
def files(made_run):
    """A run's folder and what its files hold: one mapping, and two lists of lines."""
    folder = made_run(steps=3, groups=2, size=2, per_token=True)
    place = folder / FOLDER
    read = lambda name: [json.loads(line) for line in (place / name).read_text().splitlines()]  # noqa: E731
    return folder, {RUN: read(RUN), METRICS: read(METRICS), GROUPS: read(GROUPS)}


def write(folder, held):
    for name, lines in held.items():
        (folder / FOLDER / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=CHECKS)
@given(data=st.data())
def test_any_value_anywhere_costs_no_more_than_its_own_line_or_part(files, data):
    folder, held = files
    held = copy.deepcopy(held)
    name = data.draw(st.sampled_from([RUN, METRICS, GROUPS]))
    at = data.draw(st.integers(0, len(held[name]) - 1))
    where = data.draw(st.sampled_from(list(places(held[name][at]))))
    held[name][at] = changed(held[name][at], where, data.draw(JSON))
    try:
        write(folder, held)
    except (RecursionError, ValueError):
        return
    try:
        found = page_data([open_run(folder)])
    except RunError:
        assert where[0] == "schema"
        return
    whole = len(held[GROUPS])
    recorded = found["runs"][0]["groups"]["recorded"]
    assert recorded >= whole - (name == GROUPS)
    assert recorded == whole or "1 line of grpo_plus/groups.jsonl" in str(found["runs"][0]["damage"])
    assert {"Reward", "Accuracy"} <= {panel["title"] for panel in found["panels"]}
    json.dumps(found, allow_nan=False)


CUTS = st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=6)), min_size=1, max_size=5)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=CHECKS)
@given(CUTS, st.sampled_from([RUN, METRICS, GROUPS, SWEEP]))
def test_damaged_bytes_too(files, cuts, name):
    folder, held = files
    write(folder, held)
    path = folder / FOLDER / name
    raw = bytearray(path.read_bytes() if path.exists() else b'{"variant": "a", "seed": 1}')
    for at, new in cuts:
        raw[at % len(raw) : at % len(raw) + len(new)] = new
    path.write_bytes(raw)
    try:
        page_data([open_run(folder)])
    except RunError:
        assert name == RUN
    finally:
        (folder / FOLDER / SWEEP).unlink(missing_ok=True)


def test_bad_lines_are_counted_and_the_rest_is_drawn(files):
    folder, held = files
    held[GROUPS][0]["completions"][0]["pieces"] = 5
    held[GROUPS][1]["rewards"] = "math"
    held[GROUPS][2]["completions"][1]["verdicts"][0]["status"] = {}
    held[METRICS][0]["step"] = "1"
    write(folder, held)
    (run,) = embedded(write_report([folder]))["runs"]
    assert "3 lines of grpo_plus/groups.jsonl cannot be read" in str(run["damage"])
    assert "1 line of grpo_plus/metrics.jsonl cannot be read" in str(run["damage"])
    assert sum(map(len, unpacked(run["groups"]))) == len(held[GROUPS]) - 3


@pytest.mark.parametrize(
    "bad",
    [
        {"parts": {"verifiers": None}}, {"parts": {"advantage": "sign"}}, {"model": "x"}, {"versions": []}, {"config": 3},
        {"model": 5, "versions": ["x"], "config": {"deep": deep(900)}, "pid": -1},
    ],
)  # fmt: skip
def test_bad_parts_are_left_out_by_themselves(files, bad):
    folder, held = files
    whole = dict(held[RUN][0])
    held[RUN][0] |= bad
    write(folder, held)
    (fields,) = page_data([open_run(folder)])["runs"]
    assert set(fields["damage"]) == {f"{name} of grpo_plus/run.json is broken, so it is not shown" for name in bad}
    parts = {"parts", "model", "versions", "config"}
    assert {name: fields[name] for name in parts} == {name: None if name in bad else whole[name] for name in parts}


def test_a_row_of_the_recorder_is_read_as_it_was_written(files):
    _, held = files
    for line in held[GROUPS]:
        assert schema.reader(schema.Group)(line) == line
    for line in held[METRICS]:
        assert schema.reader(schema.MetricsLine)(line) == line
    assert schema.declared_fields(schema.Info, held[RUN][0]) == (held[RUN][0], [])


STATES = ["5", "[]", "{}", '{"log_history": 5}', '{"log_history": [5]}', "[" * 100_000]
STATES += ['{"log_history": [{"step": "x"}]}', '{"log_history": [{"step": 1e999}]}', '{"log_history": {"a": 1}}']


@pytest.mark.parametrize("state", STATES)
def test_states_of_stock_runs(made_run, state):
    folder = made_run(steps=2)
    for name in ("checkpoint-1", "checkpoint-²", "checkpoint-" + "9" * 200):
        (folder / name).mkdir()
        (folder / name / "trainer_state.json").write_text(state)
    assert write_report([folder]).is_file()
