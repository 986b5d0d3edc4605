"""Checks that begin before anybody asks about them: the same verdicts, asked once, and nothing left behind."""

import asyncio
import functools
import os
import time
from pathlib import Path

import psutil
import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.compose import Route, all_of, gated
from grpo_verifiers.errors import VerifierError, VerifierFailedError
from grpo_verifiers.exec.ahead import _covered
from grpo_verifiers.verdict import Ahead
from tests.waiting import comes

ROWS = [("4", "4"), ("5", "4"), ("raise", "4"), ("4", "4")]


def note(folder, completion):
    with (Path(folder) / "asked").open("a") as file:
        file.write(f"{os.getpid()} {completion}\n")


def check(completion, answer, *, folder):
    note(folder, completion)
    if completion == "raise":
        raise ValueError("not this one")
    if completion == "sleep":
        time.sleep(1000)
    return completion == answer


async def awaiting(completion, answer, *, folder):
    if completion != "sleep":
        return check(completion, answer, folder=folder)
    note(folder, completion)
    try:
        await asyncio.sleep(1000)
    finally:
        note(folder, "woken")


@pytest.fixture(params=[check, awaiting])
def fn(request):
    return request.param


@pytest.fixture
def made(tmp_path):
    """Makes a verifier of a function; `asked()` are the completions that it was called with."""

    def make(fn, **settings):
        return get_verifier(fn, folder=str(tmp_path), **settings)

    def asked():
        path = tmp_path / "asked"
        return [line.split()[1] for line in path.read_text().splitlines()] if path.exists() else []

    make.asked = asked
    make.pid = lambda: int((tmp_path / "asked").read_text().split()[0])
    return make


def verdicts(verifier, rows):
    return verifier.verify_batch(None, [text for text, _ in rows], answer=[answer for _, answer in rows])


def begin(verifier, rows):
    for text, answer in rows:
        verifier.begin(None, text, answer=answer)


@pytest.mark.parametrize("early", [ROWS, ROWS[1:3], [ROWS[3]], list(reversed(ROWS))])
def test_what_was_begun_is_asked_once_and_gives_the_same_verdicts(made, fn, early):
    plain, ahead = made(fn), made(fn)
    expected = verdicts(plain, ROWS)
    assert [verdict.score for verdict in expected] == [1.0, 0.0, 0.0, 1.0]
    begin(ahead, early)
    assert (verdicts(ahead, ROWS), sorted(made.asked())) == (expected, sorted(2 * [text for text, _ in ROWS]))
    assert ahead.state_dict() == plain.state_dict()
    found = ahead.forget()
    assert (found.used, found.dropped, ahead.forget()) == (len(early), 0, Ahead())


@pytest.mark.parametrize("other", [("4 ", "4"), ("4", "5")])
def test_a_verdict_on_another_text_or_row_is_thrown_away(made, fn, other):
    verifier = made(fn)
    begin(verifier, [other])
    assert (verdicts(verifier, [("4", "4")])[0].score, verifier.forget()) == (1.0, Ahead(0, 1, 0.0))


def test_failures_that_end_a_run_end_it_all_the_same(made, fn):
    verifier = made(fn, on_error="raise")
    begin(verifier, ROWS)
    with pytest.raises(VerifierFailedError, match="not this one"):
        verdicts(verifier, ROWS)
    assert verifier.forget().used == 4


@pytest.mark.slow
def test_what_is_forgotten_ends_and_is_not_asked_later(made, fn):
    verifier = made(fn, timeout=500.0)
    begin(verifier, [("sleep", "4")] * 5)
    started = 1 if fn is check else 5  # of calls that never began there would be nothing to see
    assert comes(lambda: made.asked().count("sleep") >= started)
    worker = made.pid()
    assert verifier.forget() == Ahead(0, 5, 0.0)
    if fn is check:
        assert comes(lambda: not psutil.pid_exists(worker))
    else:
        assert comes(lambda: made.asked().count("woken") == 5)
    assert verdicts(verifier, ROWS[:2])[0].score == 1.0
    assert made.asked().count("sleep") <= 5
    verifier = made(fn, timeout=500.0)
    begin(verifier, [("sleep", "4")] * 5)
    assert (verifier.forget(), verdicts(verifier, ROWS[:2])[0].score) == (Ahead(0, 5, 0.0), 1.0)
    assert comes(lambda: made.asked().count("woken") == (0 if fn is check else made.asked().count("sleep")))


@pytest.mark.slow
def test_a_deadline_begins_with_the_check_and_not_with_its_place_in_the_queue():
    async def slow(completion):
        await asyncio.sleep(0.4)
        return True

    verifier = get_verifier(slow, timeout=2.0).derive(max_concurrency=1)
    for text in "abcdefg":
        verifier.begin(None, text)
    assert [verdict.score for verdict in verifier.verify_batch(None, list("abcdefg"))] == [1.0] * 7
    found = verifier.forget()
    assert (found.used, found.dropped, found.seconds < 0.4 * 7) == (7, 0, True)


@pytest.mark.slow
def test_a_check_that_is_late_is_late_all_the_same(made):
    plain, ahead = made(check, timeout=1.5), made(check, timeout=1.5)
    rows = [("sleep", "4"), ("4", "4")]
    begin(ahead, rows[:1])
    assert [verdict.status for verdict in verdicts(ahead, rows)] == [each.status for each in verdicts(plain, rows)]
    assert ahead.state_dict() == plain.state_dict()


@pytest.mark.slow
def test_seconds_are_those_before_anybody_asked_and_count_once(made):
    def slow(completion):
        time.sleep(0.3)
        return True

    verifier = get_verifier(slow)
    for text in "abc":
        verifier.begin(None, text)
    assert comes(lambda: all(each.ended for each in verifier._place._begun))
    verifier.verify_batch(None, list("abc"))
    assert 0.3 <= verifier.forget().seconds < 60
    assert (_covered([(1.0, 3.0), (2.0, 4.0), (2.5, 2.6), (6.0, 5.0), (7.0, 8.5)]), _covered([])) == (4.5, 0.0)


def test_pure_checks_are_begun_once_and_batches_and_quick_checks_never(made):
    verifier = made(check)
    verifier.traits = type(verifier.traits)(pure=True)
    begin(verifier, [("4", "4")] * 3)
    assert [verdict.score for verdict in verdicts(verifier, [("4", "4")] * 3)] == [1.0] * 3
    begin(verifier, [("4", "4")])
    assert (made.asked(), verifier.forget().used) == (["4"], 1)
    for name, score in ((batch, 1.0), ("exact", 1.0), ("math", 0.0)):
        verifier = get_verifier(name)
        begin(verifier, [("4", "4")])
        assert (verdicts(verifier, ROWS[:2])[0].score, verifier.forget()) == (score, Ahead())
    verifier = made(check)
    with pytest.raises(VerifierError, match="cannot be sent"):
        verifier.begin(None, "4", answer=functools.partial(lambda: None))
    later = made(awaiting)
    later.begin(None, "4", answer=lambda: None)
    assert later.forget() == Ahead()


def batch(completions, **_):
    return [1.0 for _ in completions]


def test_parts_of_a_composition_begin_where_they_will_be_asked(made):
    both = all_of(made(check, label="a"), made(awaiting, label="b"))
    lazy = gated(made(check, label="gate"), then=made(awaiting, label="then"), lazy=True)
    route = Route({"x": made(check, label="x"), "y": made(check, label="y")}, column="kind")
    for whole, text, gold, asks in [(both, "4", "4", 2), (lazy, "5", "4", 1), (route, "6", "6", 1)]:
        whole.begin(None, text, answer=gold, kind="y")
        assert (whole.verify(text, answer=gold, kind="y").score, whole.forget().used) == (text == gold, asks)
        assert made.asked().count(text) == asks
