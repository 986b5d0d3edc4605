"""A comparison names runs by what varies, shows held-out accuracies, and calls nothing best that noise may be."""

import json
import random

import pytest

from grpo_plus.record import mark_sweep, open_run
from grpo_plus.record.reader import read_measured
from grpo_plus.report.compare import verdict
from grpo_plus.report.write import write_report
from grpo_verifiers.stats import difference, student_quantile
from tests.report.test_report_page import embedded


def share(value, half=0.05):
    return {"value": value, "low": value - half, "high": value + half, "questions": 100}


def measure(folder, *, before=None, after=None, gain=None, label="math", rows=100):
    """Write what `measure` of a config leaves behind."""
    (folder / "measure").mkdir()
    for when, value in (("before", before), ("after", after)):
        if value is None:
            continue
        results = {"verifiers": {one: {"pass_at": {"1": share(value)}} for one in label.split()}}
        if when == "after" and gain is not None:
            results["gain"] = {label: share(gain, 0.02)}
        (folder / "measure" / f"{when}.json").write_text(json.dumps({"settings": {"rows": rows}, "results": results}))
    return folder


@pytest.fixture
def swept(made_run):
    """Runs of a sweep: `swept({"a": [0.5, 0.6], "b": [...]})` with the accuracies after training by variant and seed."""

    def swept(accuracies, **settings):
        folders = []
        for variant, values in accuracies.items():
            for seed, value in enumerate(values, 1):
                folder = made_run(f"{variant}/seed-{seed}", seed=seed, **settings)
                mark_sweep(folder, f"advantage={variant}", seed)
                folders.append(measure(folder, before=0.3, after=value, gain=value - 0.3))
        return folders

    return swept


def test_quantiles_and_intervals_are_those_of_the_tables():
    table = [(0.975, 1, 12.7062), (0.975, 4, 2.7764), (0.995, 10, 3.1693), (0.975, 30, 2.0423), (0.975, 1e6, 1.95997)]
    for share_below, freedom, expected in table:
        assert student_quantile(share_below, freedom) == pytest.approx(expected, abs=2e-4)
    # Welch (1947) on two small samples: t and degrees of freedom by hand.
    ones, others = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9], [27.1, 22.0, 20.8, 23.4, 23.4, 23.5]
    found = difference(ones, others)
    assert found.value == pytest.approx(sum(ones) / 6 - sum(others) / 6)
    variances = [sum((x - sum(v) / 6) ** 2 for x in v) / 5 / 6 for v in (ones, others)]
    freedom = sum(variances) ** 2 / sum(v**2 / 5 for v in variances)
    half = student_quantile(0.975, freedom) * sum(variances) ** 0.5
    assert (found.low, found.high) == pytest.approx((found.value - half, found.value + half))


@pytest.mark.slow
def test_the_interval_of_a_difference_holds_it_as_often_as_it_says():
    rng = random.Random(0)
    held = 0
    for _ in range(2000):
        found = difference([rng.gauss(0, 1) for _ in range(3)], [rng.gauss(0.5, 2) for _ in range(4)])
        held += found.low <= -0.5 <= found.high
    assert 0.93 < held / 2000 < 0.97


@pytest.mark.slow
def test_noise_alone_is_called_best_no_more_often_than_five_in_a_hundred():
    rng = random.Random(1)
    tables = ({name: [rng.gauss(0, 1) for _ in range(3)] for name in "abcd"} for _ in range(1000))
    called = sum(verdict("reward", table)[0] is not None for table in tables)
    assert called <= 50


def test_what_differs_beyond_the_seeds_is_best_and_less_is_better_where_it_is():
    said = "reward: b is best, +0.2 (+0.177 to +0.223) from a."
    assert verdict("reward", {"a": [0.5, 0.51, 0.49], "b": [0.7, 0.71, 0.69]}) == ("b", said)
    best, sentence = verdict("dead groups", {"a": [0.5, 0.51, 0.49], "b": [0.7, 0.71, 0.69]})
    assert best == "a"
    assert "a is best, -0.2 (-0.223 to -0.177) from b" in sentence
    best, sentence = verdict("reward", {"a": [0.5, 0.6, 0.4], "b": [0.52, 0.63, 0.41]})
    assert best is None
    assert sentence.startswith("reward: no difference seen between b and a (")
    best, sentence = verdict("reward", {"a": [0.5], "b": [0.9]})
    assert best is None
    assert "one seed of a variant has no spread" in sentence
    assert verdict("reward", {"a": [0.5, 0.6], "b": []}) == (None, "")


def test_a_sweep_has_held_out_accuracies_and_names_what_varies(swept, tmp_path):
    folders = swept({"sign": [0.40, 0.41, 0.42], "zscore": [0.60, 0.61, 0.62]})
    data = embedded(write_report(folders, tmp_path / "page.html"))
    assert [run["name"] for run in data["runs"]] == [
        f"advantage={variant}, seed {seed}" for variant in ("sign", "zscore") for seed in (1, 2, 3)
    ]
    cells = {row["name"]: {cell["title"]: cell for cell in row["cells"]} for row in data["table"]}
    accuracy = cells["advantage=zscore"]["held-out accuracy, math"]
    assert [accuracy[name] for name in ("mean", "spread", "best")] == pytest.approx([0.61, 0.01, True])
    assert cells["advantage=sign"]["held-out accuracy, math"]["best"] is False
    assert cells["advantage=sign"]["gain by training, math"]["mean"] == pytest.approx(0.11)
    # The made-up runs of both have the same rewards: nothing is bold.
    assert not any(row["final reward"]["best"] for row in cells.values())
    assert any("held-out accuracy, math: advantage=zscore is best" in sentence for sentence in data["verdicts"])
    assert any(sentence.startswith("final reward: no difference seen") for sentence in data["verdicts"])


def test_a_single_seed_shows_the_interval_of_its_measurement(swept, tmp_path):
    data = embedded(write_report(swept({"sign": [0.4], "zscore": [0.6]}), tmp_path / "page.html"))
    cell = data["table"][1]["cells"][0]
    assert cell["title"] == "held-out accuracy, math"
    assert (cell["low"], cell["high"]) == pytest.approx((0.55, 0.65))
    assert cell["best"] is False


def test_runs_of_no_sweep_with_one_name_have_their_folder_in_front(made_run, tmp_path):
    folders = [made_run(f"{part}/seed-1") for part in ("a", "b")]
    data = embedded(write_report(folders, tmp_path / "page.html"))
    assert [run["name"] for run in data["runs"]] == ["a/seed-1", "b/seed-1"]


def test_the_headline_of_a_run_has_its_held_out_accuracy(made_run):
    tile = embedded(write_report(measure(made_run(), before=0.3, after=0.42, gain=0.12)))["tiles"][0]
    assert (tile["title"], tile["value"], tile["start"]) == ("Held-out accuracy, math", 0.42, 0.3)
    assert tile["note"] == "37.0% to 47.0%, before 30.0%; +12.0 points (+10.0 to +14.0)"
    tile = embedded(write_report(measure(made_run("before"), before=0.3)))["tiles"][0]
    assert (tile["value"], tile["note"]) == (0.3, "25.0% to 35.0%, before training")
    tiles = embedded(write_report(measure(made_run("three"), after=0.3, label="one two three")))["tiles"]
    assert sum(each["title"].startswith("Held-out") for each in tiles) == 2


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"results": null}', '{"settings": {}, "results": {"verifiers": []}}', "{" * 10_000]
    + [
        json.dumps({"settings": {"rows": 1}, "results": {"verifiers": {"math": {"pass_at": found}}}})
        for found in (None, {"1": None}, {"1": {"value": "x", "low": 0}}, {"1": {"value": 7, "low": 0, "high": 1}})
    ],
)
def test_broken_measurements_are_left_out(made_run, text):
    run = made_run()
    (run / "measure").mkdir()
    (run / "measure" / "after.json").write_text(text)
    assert (read_measured(run), open_run(run).measured) == ({}, {})
    assert embedded(write_report(run))["tiles"][0]["title"] == "Reward"


@pytest.mark.slow
@pytest.mark.needs("chromium")
@pytest.mark.needs("chromedriver")
def test_the_page_shows_intervals_and_the_verdict_below_the_table(driver, swept, tmp_path):
    from tests.report.test_report_browser import Page

    folders = swept({"sign": [0.40, 0.41], "zscore": [0.60, 0.61]}, steps=3)
    page = Page(driver, write_report(folders, tmp_path / "p.html"))
    assert page.run("return [...document.querySelectorAll('td.best')].map((e) => e.textContent)")[0].startswith("61% ±")
    told = page.run("return [...document.querySelectorAll('.verdict-list li')].map((e) => e.textContent)")
    assert any("advantage=zscore is best" in sentence for sentence in told)
    page = Page(driver, write_report(tmp_path / "sign" / "seed-1"))
    first = page.run("return document.querySelector('.tile').textContent")
    assert first.startswith("Held-out accuracy, math40%")
    assert page.errors() == []
