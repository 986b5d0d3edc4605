"""The section on what was drawn: there where something was chosen, bounded, and true to the record."""

import pytest

from grpo_plus.record import open_run
from grpo_plus.record.files import FOLDER, PROMPTS, append_line
from grpo_plus.report import panels as section
from grpo_plus.report.panels import prompt_section
from grpo_plus.report.write import write_report
from tests.report.conftest import add_prompts
from tests.report.test_report_browser import Page
from tests.report.test_report_page import HOSTILE, embedded


def test_the_section_says_what_the_record_says(made_run):
    run = open_run(add_prompts(made_run(steps=20), steps=20, prompts=30))
    found = prompt_section(run)
    titles = [panel["title"] for panel in found["panels"]]
    assert titles[0] == "Prompts by how they are solved"
    assert "Dead groups and their fates" in titles
    kinds = {line["label"]: line["values"] for line in found["panels"][0]["lines"]}
    assert all(sum(values) == pytest.approx(1) for values in zip(*kinds.values(), strict=True))
    assert kinds["not sampled yet"][0] == pytest.approx(24 / 30)
    assert sum(count for _, count in found["kinds"]) == 30
    (cost,) = [panel for panel in found["panels"] if panel["title"] == "Completions sampled and trained on"]
    lines = {line["label"]: line["values"] for line in cost["lines"]}
    assert set(lines["trained on"]) == {64.0}
    assert lines["sampled"] == [64 * (1 + dead) for dead in run.series("dead_groups/dead")[1]]
    last = {}
    for line in run.prompts():
        last |= {each["prompt"]: [each["drawn"], [line["step"], each["rate"]]] for each in line["changed"]}
    assert sorted([one["drawn"], list(one["visits"][-1])] for one in found["prompts"]) == sorted(last.values())
    assert found["steps"] == [1, 20]
    assert all(one["text"].startswith("What is ") for one in found["prompts"])


def test_what_a_page_shows_is_bounded(made_run, monkeypatch):
    assert section.VISITS == 100
    monkeypatch.setattr(section, "VISITS", 5)
    found = prompt_section(open_run(add_prompts(made_run(steps=60), steps=60, prompts=20)))
    assert {len(one["visits"]) for one in found["prompts"]} == {6}


def test_runs_side_by_side_and_broken_lines_keep_the_page(made_run):
    one, two = add_prompts(made_run("one")), made_run("two")
    append_line(one / FOLDER / PROMPTS, {"kind": "prompts", "step": 4, "impossible": "many"})
    assert embedded(write_report([one, two]))["drawn"] is embedded(write_report(two))["drawn"] is None
    data = embedded(write_report(one))
    assert data["drawn"]["prompts"]
    assert "1 line of grpo_plus/prompts.jsonl" in " ".join(data["runs"][0]["damage"])


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
def test_ribbons_are_ordered_opened_and_explained_in_a_browser(driver, made_run):
    text = f"{{0}}: {HOSTILE[0]} {HOSTILE[1]} " + "long " * 60
    page = Page(driver, write_report(add_prompts(made_run(steps=30), steps=30, prompts=60, text=text)))
    page.run("document.getElementById('drawn').scrollIntoView()")
    page.until("document.querySelector('#drawn .panel canvas')")
    rows = "document.querySelectorAll('.ribbon-row').length"
    assert page.run(f"return {rows}") == 24
    page.run("document.querySelector('.ribbon-controls .button').click()")
    assert page.run(f"return {rows}") > 24
    page.choose("drawn-order", "drawn")
    counts = page.run("return [...document.querySelectorAll('.ribbon-row .draws')].map((e) => +e.textContent)")
    assert counts == sorted(counts, reverse=True)
    page.choose("drawn-order", "rate")
    rates = page.run("return [...document.querySelectorAll('.ribbon-row .now')].map((e) => parseFloat(e.textContent))")
    assert rates == sorted(rates)
    line = "document.querySelector('.prompt-line')"
    before = page.run(f"return {line}.clientHeight")
    page.run(f"{line}.click()")
    assert page.run(f"return {line}.clientHeight") > 2 * before
    assert HOSTILE[0] in page.run(f"return {line}.textContent")
    page.run(
        "const bar = document.querySelector('.ribbon'), box = bar.getBoundingClientRect();"
        "bar.dispatchEvent(new MouseEvent('mousemove', {bubbles: true, clientX: box.right - 1, clientY: box.top + 3}))"
    )
    assert page.run("return document.getElementById('tip').textContent").startswith("step 30: ")
    assert page.run("return window.broken") is None
    assert page.errors() == []
    plain = Page(driver, write_report(made_run("plain", groups=0)))
    assert "report: true" in plain.run("return document.querySelector('#inspector .empty').textContent")
    assert plain.run("return document.getElementById('drawn') ?? document.getElementById('drawn-link')") is None
