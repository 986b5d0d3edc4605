"""Turns in a report: who spoke, calls folded and opened by keys, scores beside them; what a tool returned stays text."""

import pytest

from grpo_plus.record import open_run
from grpo_plus.record.files import FOLDER, GROUPS, METRICS, append_line
from grpo_plus.report.panels import single
from grpo_plus.report.shape import shape_group
from grpo_plus.report.write import write_report
from tests.report.test_report_browser import ATTACKS as HOSTILE
from tests.report.test_report_browser import Page

ATTACKS = [HOSTILE[at] for at in (0, 1, 3)]


def turn(first, last, text, **changes):
    calls = [{"name": text, "arguments": f'{{"q": "{text}"}}', "result": f"r {text}", "status": "late", "seconds": 2.5}]
    given = {"tokens": [first, last], "text": text, "calls": calls, "state": text, "reward": 0.25, "left_out": 3}
    return given | {"advantage": -0.5, "score": 0.75} | changes


def add_turns(folder, turns, step=10):
    member = {"pieces": ["ab"] * 9, "tokens": 9, "rewards": [1.0], "advantage": 1.0, "turns": turns}
    group = {"kind": "group", "step": step, "mode": "train", "group": 99, "prompt": "p", "rewards": ["math"]}
    append_line(folder / FOLDER / GROUPS, group | {"completions": [member]})
    return folder


def test_turns_are_shaped_with_shades_and_moved_behind_what_was_left_off():
    member = {"pieces": ["a"] * 6, "advantage": 2.0, "left_off": [3, 4], "turns": [turn(0, 2, "x"), turn(7, 10, "y")]}
    [one] = shape_group({"rewards": [], "step": 1, "mode": "train", "group": 0, "completions": [member]})["completions"]
    assert [(each["tokens"], each["shade"]) for each in one["turns"]] == [([0, 2], -1), ([3, 6], -1)]


def test_a_run_with_tools_has_their_charts_and_others_have_none(made_run):
    folder = made_run("tools", steps=3)
    assert not [panel for panel in single(open_run(folder)) if "tool" in panel.title and any(panel.lines)]
    values = {"tools/calls": 4.0, "tools/late": 1.0}
    append_line(folder / FOLDER / METRICS, {"kind": "train", "step": 3, "time": 0, "values": values})
    panels = {panel.title: panel for panel in single(open_run(folder))}
    assert {line.label: line.values for line in panels["Calls of tools"].lines} == {"calls": [4.0], "late": [1.0]}


@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
def test_turns_are_read_opened_by_a_key_and_hostile_text_stays_text_on_a_narrow_page(driver, made_run):
    folder = add_turns(made_run("turns", steps=1, groups=0), [turn(k, k + 3, text) for k, text in enumerate(ATTACKS)])
    page = Page(driver, write_report([folder]))
    page.size(390, 844)
    opened = "return [...document.querySelectorAll('.turns .call')].map((e) => e.open)"
    assert page.run(opened) == [False] * len(ATTACKS)
    driver.find_element("css selector", ".turns .call summary").send_keys("\ue007")  # Enter
    assert page.run(opened) == [True, False, False]
    page.run("document.querySelectorAll('.turns .call').forEach((e) => { e.open = true; })")
    head = driver.find_element("css selector", ".turn-head").text.replace("\n", " ")
    assert head.startswith("Turn 1 · model")
    assert [word for word in ("score 0.750", "reward 0.250", "A −0.50") if word not in head] == []
    told = page.run("return [...document.querySelectorAll('.call')].map((e) => e.textContent)")
    assert [ATTACKS[k] in told[k] for k in (0, 1)] == [True, True]
    assert "\u202e" not in told[2]
    assert "late" in told[0]
    assert "2.50 s" in told[0]
    assert page.run("return document.documentElement.scrollWidth") <= 390
    assert page.run("return window.broken") is None
    assert page.errors() == []
