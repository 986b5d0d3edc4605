"""What ``measure`` finds is in the report of the run, and in a comparison, as the files of the run say it."""

import json

import pytest

from grpo_plus.record import open_run
from tests.report.test_report_page import embedded


@pytest.mark.slow
def test_the_report_of_a_run_opens_with_its_held_out_accuracy(cli, config, folder):
    measure = {"split": "train", "n": 2, "limit": 4}
    out = cli.done("train", config(verifiers=["exact"], reward_funcs=None, measure=measure, max_steps=1))
    after = json.loads((folder / "out" / "measure" / "after.json").read_text())
    found = after["results"]["verifiers"]["exact"]["pass_at"]["1"]
    gain = after["results"]["gain"]["exact"]
    before = json.loads((folder / "out" / "measure" / "before.json").read_text())
    before = before["results"]["verifiers"]["exact"]["pass_at"]["1"]
    assert gain["value"] == pytest.approx(found["value"] - before["value"])
    assert f"exact: {100 * gain['value']:+.1f} points" in out
    measured = open_run(folder / "out").measured["exact"]
    assert measured.after == (found["value"], found["low"], found["high"])
    tile = embedded(folder / "out" / "report.html")["tiles"][0]
    assert tile["title"] == "Held-out accuracy, exact"
    assert tile["value"] == found["value"]
    assert f"before {before['value']:.1%}" in tile["note"]
