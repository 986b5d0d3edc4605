"""Findings on the page: those that the run recorded."""

import pytest

from grpo_plus.record import open_run
from grpo_plus.record.files import FINDINGS, FOLDER, append_line
from grpo_plus.report.write import page_data, write_report
from tests.report.test_report_browser import Page

DEAD = {
    "kind": "finding", "step": 6, "name": "dead_groups", "severity": "severe", "evidence": "100% of the groups are dead",
    "cause": "28% of the completions are cut off", "remedy": "raise max_completion_length", "outcome": "learned nothing",
    "values": {"advantages/dead_group_fraction": 1.0}, "steps": [2, 6], "examples": [],
}  # fmt: skip
CUT = {
    "kind": "finding",
    "step": 6,
    "name": "truncated",
    "severity": "warning",
    "evidence": "28% of the completions are cut off",
}
EXAMPLE = {
    "step": 8, "prompt": "3+4=", "completion": "1 2 3 4 5 6 7 </script><b>", "reward": 1.0, "judge": 0.0, "reason": "'1 2 3' is not '7'",
}  # fmt: skip
HACKED = {
    "kind": "finding", "step": 9, "name": "hacking", "severity": "severe", "evidence": "the score of lenient has risen",
    "cause": "the model has found a way", "remedy": "reward with strict", "outcome": "reward hacked", "values": {"hacking/judge": 0.0},
    "steps": [1, 9], "examples": [EXAMPLE],
}  # fmt: skip


def dead_run(made_run, *further, **info):
    run = made_run(steps=12, **info)
    for line in (CUT, DEAD, *further):
        append_line(run / FOLDER / FINDINGS, line)
    return run


def facts_of(run):
    return page_data([open_run(run)])["runs"][0]


def test_a_run_that_learned_nothing_says_so_and_why(made_run):
    last = DEAD | {"step": 12, "evidence": "99% of the groups are dead"}
    facts = facts_of(dead_run(made_run, last))
    assert (facts["status"], facts["outcome"]) == ("done", "learned nothing")
    dead, cut = facts["findings"]
    assert (dead["name"], dead["severity"], dead["since"], dead["until"]) == ("dead_groups", "severe", 6, None)
    assert (dead["evidence"], dead["remedy"]) == ("99% of the groups are dead", "raise max_completion_length")
    assert (dead["values"]["advantages/dead_group_fraction"], cut["name"]) == (1.0, "truncated")


def test_what_is_over_is_told_with_both_ends_and_a_sound_run_has_none(made_run):
    facts = facts_of(dead_run(made_run, {"kind": "finding", "step": 10, "name": "dead_groups", "ends": True}))
    found = {one["name"]: (one["since"], one["until"]) for one in facts["findings"]}
    assert found == {"truncated": (6, None), "dead_groups": (6, 10)}
    assert (facts["outcome"], facts_of(made_run("sound", steps=40))["findings"]) == ("", [])
    facts = facts_of(dead_run(made_run, name="going", status="running", host="elsewhere"))
    assert facts["outcome"] == ""
    assert facts["findings"]


def test_what_the_run_wrote_down_is_kept_with_its_examples(made_run):
    run = made_run(steps=12)
    append_line(run / FOLDER / FINDINGS, HACKED)
    append_line(run / FOLDER / FINDINGS, {"kind": "finding", "step": 3, "name": "truncated", "evidence": "40%"})
    append_line(run / FOLDER / FINDINGS, {"kind": "finding", "step": 7, "name": "truncated", "ends": True})
    append_line(run / FOLDER / FINDINGS, {"kind": "finding", "step": "x", "name": "nan"})
    opened = open_run(run)
    facts = page_data([opened])["runs"][0]
    assert facts["outcome"] == "reward hacked"
    hacked, cut = facts["findings"]
    assert hacked["examples"] == [EXAMPLE]
    assert (cut["name"], cut["since"], cut["until"]) == ("truncated", 3, 7)
    assert any("1 line of grpo_plus/findings.jsonl cannot be read" in sentence for sentence in facts["damage"])


def test_a_resumed_run_takes_back_what_was_found_later(made_run):
    run = made_run(steps=12)
    for line in (HACKED, {"kind": "begin", "step": 5, "time": 0}):
        append_line(run / FOLDER / FINDINGS, line)
    assert facts_of(run)["findings"] == []


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
def test_the_page_shows_it_first_and_names_it_in_the_badge(driver, made_run):
    run = dead_run(made_run)
    append_line(run / FOLDER / FINDINGS, HACKED)
    page = Page(driver, write_report([run]))

    def texts(selector):
        return page.run(f"return [...document.querySelectorAll('{selector}')].map((e) => e.firstChild.textContent)")

    assert texts(".pill")[0] in ("done, reward hacked", "done, learned nothing")
    told = page.run("return document.getElementById('lede').textContent")
    assert "The score of lenient has risen." in told or "Learned nothing." in told
    assert {"hacking", "dead groups", "truncated"} <= set(texts(".finding h4"))
    assert {EXAMPLE["completion"], EXAMPLE["reason"]} <= set(texts(".examples td"))
    assert page.run("return document.querySelector('.finding .table-scroll').tabIndex") == 0
    assert not page.run("return document.getElementById('findings-link').hidden")
    top = "document.getElementById('{}').getBoundingClientRect().top"
    assert page.run(f"return {top.format('findings')} < {top.format('headline')}")
    assert page.errors() == []
