"""The playground in a real browser: its formulas against Python's, and what moves when rewards are dragged."""

import json
import random

import pytest
import torch

from grpo_plus.advantages import RewardTable, advantages, compute_advantages, get_advantage
from grpo_plus.cli import main
from grpo_plus.report import write_report
from grpo_verifiers.options import keywords_of
from tests.report.conftest import narrow
from tests.report.test_report_browser import Page
from tests.waiting import comes

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium"), pytest.mark.needs("chromedriver")]

ELSEWHERE = {"gae", "gdpo", "gigpo", "mix", "process"}
"""Estimators that read more than one reward a completion: values, each reward, steps, states, other estimators."""
CONFIG = """
model_name_or_path: {model}
dataset_name: ./data.jsonl
output_dir: out
advantage: {advantage}
objective: dapo
verifiers: [math]
num_generations: 8
use_cpu: true
bf16: false
"""


@pytest.fixture
def explained(driver, tmp_path, tiny_model, monkeypatch):
    """Opens the page of a config: `explained("sign", "--rewards", "1,0")`; gives a function that runs scripts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n")

    def explained(advantage, *flags):
        (tmp_path / "c.yaml").write_text(CONFIG.format(model=tiny_model, advantage=advantage))
        assert main(["explain", "c.yaml", "--html", "page.html", *flags]) == 0
        driver.get((tmp_path / "page.html").as_uri())
        return driver.execute_script

    return explained


def cases():
    rng = random.Random(0)
    for _ in range(150):
        count = rng.randint(1, 9)
        kind = rng.random()
        draw = (
            (lambda: rng.randint(0, 1)) if kind < 0.4 else (lambda: 0.7) if kind < 0.5 else lambda: rng.uniform(-1, 2)
        )
        rewards = [float(draw()) for _ in range(count)]
        rewards = [None if rng.random() < 0.1 else reward for reward in rewards]
        lengths = [rng.randint(1, 40) for _ in range(count)]
        scale = {"eps": rng.choice([0.0, 1e-4, 0.1]), "ddof": rng.choice([0, 1])}
        own = {"sign": {"band": rng.choice([0.0, 0.25, 1.0])}, "passk": {"k": rng.randint(1, 5)}}
        own |= dict.fromkeys(("zscore", "batch_whiten", "reinforce_pp"), scale)
        for name in sorted(set(BUILT_IN) - ELSEWHERE):
            yield name, rewards, lengths, own.get(name, {})


BUILT_IN = [entry.name for entry in advantages.entries() if entry.way == "built-in"]


def test_the_page_computes_what_python_computes(explained):
    run = explained("zscore")
    asked = list(cases())
    found = run("return arguments[0].map(([name, from, many, own]) => advantagesOf(name, from, own, many))", asked)
    for (name, rewards, lengths, keywords), values in zip(asked, found, strict=True):
        table = RewardTable.of([float("nan") if one is None else one for one in rewards], lengths=torch.tensor(lengths))
        wanted = compute_advantages(name, table, **keywords).reshape(len(rewards), -1)[:, 0].tolist()
        assert values == pytest.approx(wanted, rel=1e-4, abs=1e-5), (name, rewards, keywords)


def test_every_estimator_is_in_the_page_with_the_keywords_and_defaults_of_python_or_left_out_on_purpose(explained):
    run = explained("zscore")
    assert set(run("return Object.keys(ESTIMATORS)")) == set(BUILT_IN) - ELSEWHERE
    shown = run(
        "return Object.fromEntries(Object.entries(ESTIMATORS).map(([name, about]) => [name, Object.fromEntries(Object.entries(about.keywords).map(([key, each]) => [key, each.default]))]))"
    )
    for name, defaults in shown.items():
        wanted = {key: parameter.default for key, parameter in keywords_of(get_advantage(name).fn).items()}
        del wanted["table"]
        assert defaults == wanted, name


def rows(run):
    return run("return [...document.querySelectorAll('.play-rows .a')].map((e) => e.value_)")


def test_dragging_a_reward_by_key_moves_every_advantage(explained, driver):
    from selenium.webdriver.common.keys import Keys

    run = explained("sign", "--rewards", "1,1,0,nan", "--advantage_kwargs.band", "0.25")
    assert rows(run) == [1, 1, -1, 0]
    assert run("return document.querySelector('.play select').value") == "sign"
    assert run("return document.querySelector('.play-keywords input').value") == "0.25"
    sliders = driver.find_elements("css selector", ".play-rows input")
    assert [each.is_enabled() for each in sliders] == [True, True, True, False]
    sliders[0].send_keys(Keys.HOME)  # its least: 0
    assert rows(run) == [-1, 1, -1, 0]
    run("const s = document.querySelector('.play select'); s.value = 'zscore'; s.dispatchEvent(new Event('change'))")
    wanted = compute_advantages("zscore", RewardTable.of([0.0, 1.0, 0.0])).tolist()
    assert rows(run) == pytest.approx([*wanted, 0], rel=1e-4)
    told = run("return document.querySelector('.play-told').textContent")
    assert "μ 0.333" in told
    assert "divided by σ + eps 0.577" in told
    field = driver.find_element("css selector", ".play-keywords input")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("-3")
    assert field.get_attribute("aria-invalid") == "true"
    assert rows(run) == pytest.approx([*wanted, 0], rel=1e-4)
    run("document.querySelector('.play button').click()")
    wanted = compute_advantages("zscore", RewardTable.of([1.0, 1.0, 0.0])).tolist()
    assert rows(run) == pytest.approx([*wanted, 0], rel=1e-4)


def test_equal_rewards_are_said_to_teach_nothing_and_an_estimator_that_reads_steps_is_named(explained):
    run = explained("center", "--rewards", ".7,.7,.7")
    assert rows(run) == [0, 0, 0]
    assert "every advantage is 0" in run("return document.querySelector('.play-told').textContent")
    run = explained("gae", "--num_generations", "1", "--critic", "{}", "--rewards", "1,0")
    assert "gae is not in this playground" in run("return document.querySelector('.play').textContent")
    assert run("return document.querySelector('.play select').value") == "zscore"


def test_the_inspector_has_the_playground_of_its_group(driver, made_run):
    page = Page(driver, write_report(made_run("played", steps=3, groups=1)))
    page.until("document.querySelector('.play-box')")
    page.run("document.querySelector('.play-box').open = true")
    page.until("document.querySelector('.play-rows')")
    totals = page.run("return [...document.querySelectorAll('.play-rows input')].map((e) => +e.value)")
    assert set(totals) <= {0.0, 1.0}
    assert rows(page.run) == pytest.approx(compute_advantages("sign", RewardTable.of(totals), band=0.25).tolist())


@pytest.mark.parametrize("what", ["explain", "report"])
def test_nothing_overflows_on_a_telephone(driver, explained, made_run, what):
    if what == "explain":
        explained("passk", "--rewards", "1,0,1,0,1,0,1,.333333333")
    else:
        driver.get(write_report(made_run("narrow", steps=3)).as_uri())
    run = driver.execute_script
    narrow(driver)
    assert comes(lambda: run("return document.querySelector('.play, .play-box')"), 20)
    run("document.querySelectorAll('.play-box').forEach((box) => { box.open = true; })")
    assert run("return document.documentElement.scrollWidth") <= 390


def test_a_page_that_cannot_be_written_is_told(tmp_path, tiny_model, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(CONFIG.format(model=tiny_model, advantage="zscore"))
    assert main(["explain", "c.yaml", "--html", "c.yaml/page.html"]) == 2
    assert "--html c.yaml/page.html cannot be written" in capsys.readouterr().err
