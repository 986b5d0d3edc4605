"""What was found stands on the page: from what the run wrote down, and by the same rules over any record."""

import json

import pytest

from grpo_plus.record import open_run
from grpo_plus.record.files import FINDINGS, FOLDER, METRICS, RUN, append_line, dump
from grpo_plus.report.write import page_data, write_report

DEAD = {"reward": 0.0, "reward_std": 0.0, "advantages/dead_group_fraction": 1.0, "completions/clipped_ratio": 0.28}
EXAMPLE = {
    "step": 8, "prompt": "3+4=", "completion": "1 2 3 4 5 6 7 </script><b>", "reward": 1.0, "judge": 0.0, "reason": "'1 2 3' is not '7'",
}  # fmt: skip
HACKED = {
    "kind": "finding", "step": 9, "name": "hacking", "severity": "severe", "evidence": "the score of lenient has risen",
    "cause": "the model has found a way", "remedy": "reward with strict", "outcome": "reward hacked", "values": {"hacking/judge": 0.0},
    "steps": [1, 9], "examples": [EXAMPLE],
}  # fmt: skip


def dead_run(made_run, steps=12, since=0, until=99, **info):
    run = made_run(steps=1, **info)
    (run / FOLDER / METRICS).write_text("")
    for step in range(1, steps + 1):
        alive = {
            **DEAD,
            "reward": 0.5,
            "reward_std": 0.5,
            "advantages/dead_group_fraction": 0.1,
            "completions/clipped_ratio": 0.0,
        }
        values = DEAD if since < step <= until else alive
        append_line(run / FOLDER / METRICS, {"kind": "train", "step": step, "time": 0, "values": values})
    return run


def facts_of(run):
    return page_data([open_run(run)])["runs"][0]


def test_a_run_that_learned_nothing_says_so_and_why(made_run):
    facts = facts_of(dead_run(made_run, config={"max_completion_length": 48}))
    assert (facts["status"], facts["outcome"]) == ("done", "learned nothing")
    dead, cut = facts["findings"]
    assert (dead["name"], dead["severity"], dead["since"], dead["until"]) == ("dead_groups", "severe", 3, None)
    assert "28% of the completions are cut off" in dead["cause"]
    assert "(now 48) to 96" in dead["remedy"]
    assert dead["values"]["advantages/dead_group_fraction"] == 1.0
    assert cut["name"] == "truncated"


def test_what_is_over_is_told_with_both_ends_and_spoils_no_badge(made_run):
    facts = facts_of(dead_run(made_run, steps=40, until=12))
    found = {one["name"]: (one["since"], one["until"]) for one in facts["findings"]}
    assert found["dead_groups"][0] == 3
    assert 13 <= found["dead_groups"][1] <= 17
    assert facts["outcome"] == ""


def test_a_sound_run_has_none_and_a_running_one_no_outcome(made_run):
    assert facts_of(made_run(steps=40))["findings"] == []
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
    append_line(run / FOLDER / FINDINGS, HACKED)
    append_line(run / FOLDER / FINDINGS, {"kind": "begin", "step": 5, "time": 0})
    assert facts_of(run)["findings"] == []


def test_a_record_without_a_config_is_judged_as_well(made_run):
    run = dead_run(made_run)
    info = json.loads((run / FOLDER / RUN).read_text())
    for name in ("config", "parts", "model"):
        info.pop(name)
    (run / FOLDER / RUN).write_text(dump(info))
    assert facts_of(run)["outcome"] == "learned nothing"


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
def test_the_page_shows_it_first_and_names_it_in_the_badge(driver, made_run):
    run = dead_run(made_run)
    append_line(run / FOLDER / FINDINGS, HACKED)
    driver.get(write_report([run]).as_uri())

    def text(selector):
        return driver.execute_script(f"return document.querySelector({selector!r}).textContent")

    assert text(".pill") in ("done, reward hacked", "done, learned nothing")
    assert "The score of lenient has risen." in text("#lede") or "Learned nothing." in text("#lede")
    titles = driver.execute_script(
        "return [...document.querySelectorAll('.finding h4')].map((e) => e.firstChild.textContent)"
    )
    assert {"hacking", "dead groups", "truncated"} <= set(titles)
    cells = driver.execute_script("return [...document.querySelectorAll('.examples td')].map((e) => e.textContent)")
    assert EXAMPLE["completion"] in cells
    assert EXAMPLE["reason"] in cells
    assert driver.execute_script("return document.querySelector('.finding .table-scroll').tabIndex") == 0
    assert not driver.execute_script("return document.getElementById('findings-link').hidden")
    first = driver.execute_script(
        "return document.getElementById('findings').getBoundingClientRect().top < document.getElementById('headline').getBoundingClientRect().top"
    )
    assert first
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
def test_words_of_findings_stand_out_from_what_is_behind_them(driver, made_run):
    run = dead_run(made_run)
    append_line(run / FOLDER / FINDINGS, HACKED)
    driver.get(write_report([run]).as_uri())
    ratios = driver.execute_script("""
      const lum = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
      const back = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$/.test(c) && c !== 'transparent') return c; } return 'rgb(255,255,255)'; };
      const found = [];
      for (const theme of ['light', 'dark']) {
        document.documentElement.dataset.theme = theme;
        for (const e of document.querySelectorAll('.finding p, .finding h4, .finding small, .finding .tag, .examples td, .examples th, .examples caption, .eyebrow, .pill, .foot')) {
          const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))].sort((x, y) => y - x);
          found.push([theme, e.className || e.tagName, (a + .05) / (b + .05)]);
        }
      }
      return found;""")
    assert len(ratios) > 40
    assert [each for each in ratios if each[2] < 4.5] == []
