"""Checks begin on a completion while others are drawn, on exactly the text that TRL will make of it."""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from trl.chat_template_utils import add_response_schema

from grpo_plus.training.hooks import Hook
from grpo_verifiers.verdict import Ahead
from grpo_verifiers.verifying import REGISTRY, verifier
from tests.waiting import comes

DRAWN = {"rollout": "auto", "rollout_rows": 4, "max_steps": 2}


def note(path, completion):
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()} {completion!r}\n")


@verifier("test_worker")
def worker(completion: str, answer: str, completion_text: str, prompt, completion_ids, *, file: str) -> float:
    note(file, completion)
    return len(completion) / 10 + len(completion_text) / 100 + len(completion_ids) / 1000 + answer.count("2")


@verifier("test_awaiting")
async def awaiting(completion: str, messages, *, file: str) -> float:
    await asyncio.sleep(0)
    note(file, completion)
    return len(completion) / 10 + len(messages)


@verifier("test_sleeping", timeout=500.0)
def sleeping(completion: str, *, file: str) -> float:
    note(file, completion)
    time.sleep(1000)
    return 1.0


@pytest.fixture(scope="module", autouse=True)
def _registered():
    """A worker may come back to this file."""
    own = dict(zip(("test_worker", "test_awaiting", "test_sleeping"), (worker, awaiting, sleeping), strict=True))
    for name, one in own.items():
        REGISTRY.register(name, one)
    yield
    for name in own:
        REGISTRY.unregister(name)


def verifiers(folder, *names, **more):
    return [{"name": name, "kwargs": {"file": str(folder / name)}, **more} for name in names]


def asked(folder, name):
    return (folder / name).read_text().splitlines() if (folder / name).exists() else []


@pytest.fixture
def early(build, tmp_path):
    """A trainer whose completions are checked by these verifiers alone, as soon as they are drawn."""

    def early(*names, trainer=None, folder=tmp_path, **settings):
        given = {"reward_funcs": None, **(trainer or {})}
        return build(trainer=given, verifiers=verifiers(folder, *names), **{**DRAWN, **settings})

    return early


def logged(trainer):
    parts, log = ("reward", "verifiers/", "completions/", "loss", "advantages"), trainer.state.log_history
    return [{k: v for k, v in each.items() if k.startswith(parts) and "latency" not in k} for each in log]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sums", "chats", "parsed"])
def test_a_run_is_the_same_but_that_every_check_began_early(early, tmp_path, request, kind):
    given = {"train_dataset": request.getfixturevalue("chats" if kind == "parsed" else kind)}
    if kind == "parsed":  # TRL reads thinking and tool calls out of the text
        given["processing_class"] = add_response_schema(request.getfixturevalue("tool_tokenizer"))
    for name in "ab":
        (tmp_path / name).mkdir()
    names = ("test_worker", "test_awaiting")
    plain = early(*names, trainer=given, folder=tmp_path / "a")
    plain.rollouts._rollout._drawn = None
    plain.train()
    overlapped = early(*names, trainer=given, folder=tmp_path / "b")
    overlapped.train()
    assert (logged(overlapped), overlapped._logs["extra"]) == (logged(plain), plain._logs["extra"])
    for name in names:
        texts = [Counter(line.split(" ", 1)[1] for line in asked(tmp_path / run, name)) for run in "ab"]
        assert (texts[0], texts[0].total()) == (texts[1], 16)
    first = overlapped.state.log_history[0]
    assert (first["rollout/checked_early"], first["rollout/checked_early_discarded"]) == (16.0, 0.0)
    assert first["rollout/checked_early_seconds"] > 0.0
    assert not any("checked_early" in key for key in plain.state.log_history[0])


@pytest.mark.slow
def test_checks_begin_before_the_last_completion_is_drawn(early, tmp_path):
    trainer = early("test_awaiting", max_steps=1)
    seen = []
    tell = trainer.rollouts._rollout._drawn

    def telling(row, prompt, ids):
        if row >= 4 and not seen:  # the second four, while they are drawn
            seen.append(comes(lambda: len(asked(tmp_path, "test_awaiting")) >= 4))
        tell(row, prompt, ids)

    trainer.rollouts._rollout._drawn = telling
    trainer.train()
    assert seen == [True]
    assert trainer.state.log_history[0]["rollout/checked_early"] == 8.0


class Changes(Hook):
    """Another text of row 3."""

    def after_loading(self, host):
        super().after_loading(host)
        inner = host.processing_class.batch_decode

        def other(ids, **keywords):
            texts = inner(ids, **keywords)
            return [text + "!" * (len(texts) > 1 and at == 3) for at, text in enumerate(texts)]

        host.processing_class.batch_decode = other


class Twice(Hook):
    def draw(self, draw, rows):
        draw(rows)
        return draw(list(reversed(rows)))


@pytest.mark.slow
@pytest.mark.parametrize(("hook", "kept", "asked_for"), [(Changes, 14.0, 9), (Twice, 16.0, 16)])
def test_each_drawing_has_checks_of_its_own_and_verdicts_on_another_text_are_not_used(
    early, tmp_path, hook, kept, asked_for
):
    trainer = early("test_worker", "test_awaiting", trainer={"hooks": [hook()]}, max_steps=1)
    trainer.train()
    first = trainer.state.log_history[0]
    assert (first["rollout/checked_early"], first["rollout/checked_early_discarded"]) == (kept, 16.0 - kept)
    for name in ("test_worker", "test_awaiting"):
        assert len(asked(tmp_path, name)) == asked_for
        assert hook is Twice or any(line.endswith("!'") for line in asked(tmp_path, name))


@pytest.mark.slow
def test_a_routed_row_begins_with_its_own_verifier(early, tmp_path, sums):
    names = ["test_worker" if row % 2 else "test_awaiting" for row in range(len(sums))]
    given = {"train_dataset": sums.add_column("kind", names)}
    trainer = early("test_worker", "test_awaiting", trainer=given, verifier_column="kind")
    trainer.train()
    checked = [each["rollout/checked_early"] for each in trainer.state.log_history[:2]]
    assert checked == [8.0, 8.0]
    assert len(asked(tmp_path, "test_worker")) + len(asked(tmp_path, "test_awaiting")) == 16


@pytest.mark.slow
def test_evaluation_begins_early_with_the_verifiers_that_only_evaluate(build, tmp_path, sums):
    more = {"eval_verifiers": verifiers(tmp_path, "test_awaiting"), "per_device_eval_batch_size": 8}
    trainer = build(trainer={"eval_dataset": sums.select(range(4))}, **more, **DRAWN)
    found = trainer.evaluate()
    assert found["eval_rollout/checked_early"] == 8.0
    trainer.train()
    assert not any("rollout/checked_early" in each for each in trainer.state.log_history[1:])


@pytest.mark.slow
@pytest.mark.parametrize("when", ["decoding", "scoring"])
def test_a_drawing_that_fails_leaves_no_check_behind(early, tmp_path, when):
    trainer = early("test_sleeping", rollout_rows=2)
    (live,) = trainer.verification.live
    tell = trainer.rollouts._rollout._drawn
    told = []

    def telling(row, prompt, ids):
        told.append(row)
        tell(row, prompt, ids)
        if len(told) == 4 and when == "decoding":
            assert comes(lambda: asked(tmp_path, "test_sleeping"))
            raise RuntimeError("this one")

    trainer.rollouts._rollout._drawn = telling
    if when == "scoring":

        def fails(*_):
            assert comes(lambda: asked(tmp_path, "test_sleeping"))
            raise RuntimeError("this one")

        trainer._calculate_rewards = fails
    with pytest.raises(RuntimeError, match="this one"):
        trainer.train()
    pids = {int(line.split()[0]) for line in asked(tmp_path, "test_sleeping")}
    assert comes(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    assert live.verifier.forget() == Ahead()
    assert len(told) == (4 if when == "decoding" else 8)
