"""The playground in a real browser: its formulas against Python's, and what moves when rewards are dragged."""

import random

import pytest
import torch

from grpo_plus.advantages import RewardTable, advantages, compute_advantages, get_advantage
from grpo_plus.report.write import write_report
from grpo_verifiers.options import keywords_of
from tests.report.test_report_browser import Page

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium"), pytest.mark.needs("chromedriver")]

ELSEWHERE = {"gae", "gdpo", "gigpo", "mix", "process"}
"""Estimators that read more than one reward a completion: values, each reward, steps, states, other estimators."""


@pytest.fixture
def report(driver, made_run):
    """The page of a report; a function that runs scripts in it."""
    page = Page(driver, write_report(made_run("played", steps=3, groups=1)))
    page.until("document.querySelector('.play-box')")
    return page


@pytest.fixture
def played(report):
    """Shows the playground of a group: `played("sign", [1, 0], band=0.25)`; gives a function that runs scripts."""

    def played(estimator, rewards, **keywords):
        start = {"estimator": estimator, "rewards": rewards, "keywords": keywords}
        report.driver.execute_script("document.body.replaceChildren(playground(arguments[0]))", start)
        return report.run

    return played


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


def test_the_page_computes_what_python_computes(report):
    run = report.driver.execute_script
    asked = list(cases())
    found = run("return arguments[0].map(([name, from, many, own]) => advantagesOf(name, from, own, many))", asked)
    for (name, rewards, lengths, keywords), values in zip(asked, found, strict=True):
        table = RewardTable.of([float("nan") if one is None else one for one in rewards], lengths=torch.tensor(lengths))
        wanted = compute_advantages(name, table, **keywords).reshape(len(rewards), -1)[:, 0].tolist()
        assert values == pytest.approx(wanted, rel=1e-4, abs=1e-5), (name, rewards, keywords)


def test_every_estimator_is_in_the_page_with_the_keywords_and_defaults_of_python_or_left_out_on_purpose(report):
    run = report.run
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


def test_dragging_a_reward_by_key_moves_every_advantage(played, driver):
    from selenium.webdriver.common.keys import Keys

    run = played("sign", [1, 1, 0, None], band=0.25)
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
    assert "μ = 0.333" in told
    assert "divided by σ + eps = 0.577" in told
    field = driver.find_element("css selector", ".play-keywords input")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys("-3")
    assert field.get_attribute("aria-invalid") == "true"
    assert rows(run) == pytest.approx([*wanted, 0], rel=1e-4)
    run("document.querySelector('.play button').click()")
    wanted = compute_advantages("zscore", RewardTable.of([1.0, 1.0, 0.0])).tolist()
    assert rows(run) == pytest.approx([*wanted, 0], rel=1e-4)


def test_equal_rewards_are_said_to_teach_nothing_and_an_estimator_that_reads_steps_is_named(played):
    run = played("center", [0.7, 0.7, 0.7])
    assert rows(run) == [0, 0, 0]
    assert "every advantage is 0" in run("return document.querySelector('.play-told').textContent")
    run = played("gae", [1, 0])
    assert "gae is not in this playground" in run("return document.querySelector('.play').textContent")
    assert run("return document.querySelector('.play select').value") == "zscore"


def test_the_inspector_has_the_playground_of_its_group(report):
    report.run("document.querySelector('.play-box').open = true")
    report.until("document.querySelector('.play-rows')")
    totals = report.run("return [...document.querySelectorAll('.play-rows input')].map((e) => +e.value)")
    assert set(totals) <= {0.0, 1.0}
    assert rows(report.run) == pytest.approx(compute_advantages("sign", RewardTable.of(totals), band=0.25).tolist())
