"""The section on what was drawn: there where something was chosen, and true to the record."""

import pytest

from grpo_plus.record import open_run
from grpo_plus.report.panels import prompt_section
from grpo_plus.report.write import write_report
from tests.report.conftest import add_prompts
from tests.report.test_report_browser import Page
from tests.report.test_report_page import embedded


def test_the_section_says_what_the_record_says(made_run):
    run = open_run(add_prompts(made_run(steps=20), steps=20, prompts=30))
    found = prompt_section(run)
    titles = [panel["title"] for panel in found["panels"]]
    assert titles[0] == "Prompts by how they are solved"
    assert "Dead groups and their fates" in titles
    kinds = {line["label"]: line["values"] for line in found["panels"][0]["lines"]}
    assert [*kinds] == ["always solved", "sometimes solved", "never solved", "not sampled yet"]
    assert all(sum(values) == pytest.approx(1) for values in zip(*kinds.values(), strict=True))
    assert kinds["not sampled yet"][0] == pytest.approx(24 / 30)
    (cost,) = [panel for panel in found["panels"] if panel["title"] == "Completions sampled and trained on"]
    lines = {line["label"]: line["values"] for line in cost["lines"]}
    assert set(lines["trained on"]) == {64.0}
    assert lines["sampled"] == [64 * (1 + dead) for dead in run.series("dead_groups/dead")[1]]


def test_runs_side_by_side_have_none(made_run):
    one, two = add_prompts(made_run("one")), made_run("two")
    assert embedded(write_report([one, two]))["drawn"] is embedded(write_report(two))["drawn"] is None
    assert embedded(write_report(one))["drawn"]["panels"]


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
def test_it_is_on_the_page_of_a_run_that_chose_something(driver, made_run):
    page = Page(driver, write_report(add_prompts(made_run(steps=30), steps=30, prompts=60)))
    page.run("document.getElementById('drawn').scrollIntoView()")
    page.until("document.querySelector('#drawn .panel canvas')")
    assert page.errors() == []
    plain = Page(driver, write_report(made_run("plain", groups=0)))
    assert "report: true" in plain.run("return document.querySelector('#inspector .empty').textContent")
    assert plain.run("return document.getElementById('drawn') ?? document.getElementById('drawn-link')") is None
