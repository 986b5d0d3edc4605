"""Records of made-up runs, written with the recorder's own functions, and a real browser to look at reports with."""

import math
import random
import shutil

import pytest

from grpo_plus.record.files import FOLDER, GROUPS, METRICS, RUN, append_line, dump
from grpo_verifiers.files import write_atomic

STATUSES = ("correct", "wrong", "unparsable")
MODEL = {"name": "models/small", "parameters": 812_000, "trainable": 812_000}
ADVANTAGE = {"name": "sign", "keywords": {"band": 0.25}, "formula": "A = sign(R − mean)", "host": False}
OBJECTIVE = {"name": "dapo", "keywords": {}, "formula": "mean over tokens", "host": False}
PARTS = {"advantage": ADVANTAGE, "objective": OBJECTIVE, "rewards": [{"name": "math", "weight": 1.0}], "engine": "auto"}
PARTS |= {"rollout": "stock", "verifiers": [{"label": "math", "weight": 1.0, "settings": {"timeout": 2.0}}]}
INFO = {"schema": 1, "status": "done", "started": 1_700_000_000.0, "ended": 1_700_000_600.0, "max_steps": 10}
INFO |= {"model": MODEL, "parts": PARTS, "versions": {"grpo_plus": "0.1.0", "trl": "1.16.0"}}
INFO |= {"config": {"learning_rate": 1e-4, "num_generations": 8}}


def completion(rng, text, *, per_token=False, status=None, reason="", reward=None):
    status = status or rng.choice(STATUSES)
    reward = float(status == "correct") if reward is None else reward
    pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
    advantage = round(rng.uniform(-1, 1), 3) if per_token else 2 * reward - 1
    record = {"tokens": len(pieces), "truncated": rng.random() < 0.1, "rewards": [reward]}
    record |= {"advantage": advantage, "pieces": pieces}
    record |= {"verdicts": [{"verifier": "math", "status": status, "reason": reason or f"got {rng.randrange(99)}"}]}
    if per_token:
        record["token_advantages"] = [round(math.sin(at / 3), 3) for at in range(len(pieces))]
        half = len(pieces) // 2
        record["verdicts"][0]["steps"] = [[0, half, 1.0], [half, len(pieces), 0.0]]
    return record


def write_run(
    folder,
    *,
    steps=10,
    every=1,
    groups=2,
    size=4,
    seed=0,
    text="3+4=7\n7-2=5\n\\boxed{5}",
    level=0.0,
    per_token=False,
    **info,
):
    """A run of so many steps, with groups sampled at every so many of them."""
    rng = random.Random(seed)
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / RUN, dump(INFO | {"max_steps": steps} | info))
    metrics, sampled = [], []
    for step in range(1, steps + 1):
        reward = level + 0.3 + 0.5 * (1 - math.exp(-3 * step / steps)) + rng.gauss(0, 0.03)
        values = {"loss": rng.gauss(0, 0.01), "reward": reward, "reward_std": 0.4}
        values["verifiers/math/status/correct"] = reward
        shares = {"wrong": 0.9, "unparsable": 0.1}
        values |= {f"verifiers/math/status/{name}": x * (1 - reward) for name, x in shares.items()}
        values |= {"advantages/dead_group_fraction": 0.2, "engine/tokens_saved": 0.4, "step_time": 1.0}
        values |= {f"completions/{name}_length": x for name, x in (("mean", 20 + step % 7), ("min", 10), ("max", 40))}
        metrics.append({"kind": "train", "step": step, "time": 1_700_000_000 + step, "values": values})
        if step % max(1, steps // 4) == 0:
            tested = {"eval_reward": reward, "eval_verifiers/math/status/correct": reward}
            metrics.append({"kind": "eval", "step": step, "time": 1_700_000_000 + step, "values": tested})
        if step % every == 0:
            quantiles = [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]
            metrics.append({"kind": "batch", "step": step, "time": 0, "values": {"quantiles": quantiles}})
            for group in range(groups):
                members = [completion(rng, f"{text} #{step}.{group}.{at}", per_token=per_token) for at in range(size)]
                asked = {"kind": "group", "step": step, "time": 0, "mode": "train", "group": group, "weights": [1.0]}
                asked |= {"prompt": f"step {step} asks {group}", "rewards": ["math"], "completions": members}
                sampled.append(asked)
    (place / METRICS).write_text("".join(dump(line) + "\n" for line in metrics))
    (place / GROUPS).write_text("".join(dump(line) + "\n" for line in sampled))
    return folder


@pytest.fixture
def made_run(tmp_path):
    """Writes a made-up run: `made_run("name", steps=20, status="failed")`."""

    def make(name="run", **settings):
        return write_run(tmp_path / name, **settings)

    return make


@pytest.fixture
def add_group(tmp_path):
    """Adds one group to a run: `add_group(folder, step, prompt, [(text, status, reason), ...])`.

    ``values`` has a critic's of each token, a list for each completion.
    """

    def add(folder, step, prompt, answers, *, names=("math",), values=()):
        rng = random.Random(step)
        members = [completion(rng, text, status=status, reason=reason) for text, status, reason in answers]
        for member, found in zip(members, values, strict=False):
            member["token_values"] = found
        for member in members:
            member["rewards"] += [0.5] * (len(names) - 1)
        record = {"kind": "group", "step": step, "time": 0, "mode": "train", "group": 99, "prompt": prompt}
        record |= {"rewards": list(names), "weights": None, "completions": members}
        append_line(folder / FOLDER / GROUPS, record)

    return add


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """A headless Chromium that is asked for by the tests marked `needs`."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    flags = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
    for flag in (*flags, f"--user-data-dir={tmp_path_factory.mktemp('browser')}", "--window-size=1400,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = Service(shutil.which("chromedriver"))
    made = webdriver.Chrome(options=options, service=service)
    made.set_page_load_timeout(60)
    made.set_script_timeout(60)
    yield made
    made.quit()
