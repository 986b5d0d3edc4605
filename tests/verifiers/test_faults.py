"""Whose fault a failure is, in every place where a check runs; and what a verdict may hold."""

import asyncio
import contextlib
import math
import sys
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_verifiers import Status, Step, Verdict, all_of, any_of, gated, get_verifier, verifier, weighted
from grpo_verifiers.errors import KeywordError, UnavailableError, VerifierFailedError
from grpo_verifiers.exec.policy import HOPELESS
from grpo_verifiers.verdict import LARGEST, MAX_DETAIL, blamed, excused, kind_of, score_of
from grpo_verifiers.verifying import REGISTRY


def odd(completion):
    """One that fails in the way that the completion says."""
    if completion == "raise":
        raise KeyError("no")
    if completion == "exit":
        sys.exit(0)
    if completion == "down":
        raise UnavailableError("the server is down")
    if completion == "overlap":
        return Verdict(1.0, steps=(Step(0, 2, 1.0), Step(1, 3, 1.0)))
    return {"inf": math.inf, "large": 1e308, "huge": 10**400, "text": "1", "none": None}.get(completion, 1.0)


async def odd_later(completion):
    await asyncio.sleep(0)
    return odd(completion)


def odd_batch(completions):
    return [odd(completion) for completion in completions]


DOING = ["raise", "exit", "inf", "large", "huge", "text", "overlap"]
"""What the completion may have done, and an on_error decides about."""
PROCESS, INLINE = {"isolation": "process"}, {"isolation": "inline"}
PLACES = {
    "worker": partial(get_verifier, odd, timeout=30.0, **PROCESS), "trainer": partial(get_verifier, odd, **INLINE),
    "event loop": partial(get_verifier, odd_later), "async in a worker": partial(get_verifier, odd_later, timeout=30.0, **PROCESS),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("place", PLACES)
def test_what_the_completion_does_scores_0_wherever_the_check_runs(place):
    found = PLACES[place]().verify_batch(None, [*DOING, "fine", "none", "down"])
    expected = [(0.0, "error")] * len(DOING) + [(1.0, "correct"), (None, "not_applicable"), (None, "error")]
    assert [(v.score, v.status.value) for v in found] == expected
    assert all(v.detail for v in found[: len(DOING)])
    assert [word for word in ("1e+308", "3.4028235e+38") if word not in found[3].detail] == []
    assert found[-1].detail == "UnavailableError: the server is down"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_the_policy_decides_about_what_the_completion_does(place):
    left_out = PLACES[place](on_error="null").verify_batch(None, [*DOING, "fine"])
    assert [(v.score, v.status.value) for v in left_out] == [(None, "error")] * len(DOING) + [(1.0, "correct")]
    for completion in (*DOING, "down"):
        with pytest.raises(VerifierFailedError, match="on_error is 'raise'"):
            PLACES[place](on_error="raise").verify_batch(None, [completion])


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_batch_loses_the_results_that_are_none_and_no_others(isolation):
    def check(completions):
        results = [{"inf": math.inf, "text": "x", "none": None}.get(each, 0.5) for each in completions]
        return [math.inf] * len(completions) if completions[0] == "all" else results

    made = get_verifier(check, isolation=isolation)
    found = made.verify_batch(None, ["a", "inf", "none", "text", "b"])
    kinds = [(0.5, "partial"), (0.0, "error"), (None, "not_applicable"), (0.0, "error"), (0.5, "partial")]
    assert [(v.score, v.status.value) for v in found] == kinds
    assert "returned inf" in found[1].detail
    assert [v.score for v in made.verify_batch(None, ["all", "a"])] == [0.0, 0.5]
    left_out = get_verifier(check, isolation=isolation, on_error="null").verify_batch(None, ["a", "inf"])
    assert [v.score for v in left_out] == [0.5, None]
    with pytest.raises(VerifierFailedError, match="on_error is 'raise'"):
        get_verifier(check, isolation=isolation, on_error="raise").verify_batch(None, ["a", "inf"])


def test_batches_that_fail_are_asked_few_times_and_hopeless_ones_stop_the_run():
    made = get_verifier(lambda completions: [math.inf] * len(completions), isolation="inline", label="never")
    for _ in range(HOPELESS // 8 - 1):
        assert {v.score for v in made.verify_batch(None, ["a"] * 8)} == {0.0}
    with pytest.raises(VerifierFailedError, match=r"'never'.*failed on all of the last 32"):
        made.verify_batch(None, ["a"] * 8)
    sizes = []

    def check(completions):
        sizes.append(len(completions))
        raise ValueError("never works")

    made = get_verifier(check, isolation="inline", on_error="zero")
    for rows, single in ((2, 2), (HOPELESS, HOPELESS), (HOPELESS + 1, HOPELESS), (500, HOPELESS)):
        sizes.clear()
        found = made.verify_batch(None, ["x"] * rows)
        assert {(v.score, v.detail) for v in found} == {(0.0, "ValueError: never works")}
        assert sizes == [rows] + [1] * single

    def check(completions):
        return [1.0 / (completion != "bad") for completion in completions]

    made = get_verifier(check, isolation="inline")
    for _ in range(HOPELESS):
        assert [v.score for v in made.verify_batch(None, ["bad"] * 7 + ["good"])] == [0.0] * 7 + [1.0]
    with pytest.raises(VerifierFailedError, match=f"failed on all of the last {HOPELESS}"):
        made.verify_batch(None, ["good"] + ["bad"] * HOPELESS)


def even_batch(completions, answer):
    """Raises for the whole batch where one completion is no number."""
    return [float(int(completion) % 2 == gold) for completion, gold in zip(completions, answer, strict=True)]


async def even_batch_later(completions, answer):
    await asyncio.sleep(0)
    return even_batch(completions, answer)


def even_trl(prompts, completions, completion_ids, answer, **kwargs):
    assert len(prompts) == len(completions) == len(completion_ids) == len(kwargs["level"])
    return even_batch([completion[0]["content"] for completion in completions], answer)


BATCHES = {
    "worker": partial(get_verifier, even_batch, **PROCESS), "trainer": partial(get_verifier, even_batch, **INLINE),
    "event loop": partial(get_verifier, even_batch_later, **INLINE), "async in a worker": partial(get_verifier, even_batch_later, **PROCESS),
    "reward function of TRL": partial(get_verifier, even_trl),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("place", BATCHES)
def test_a_completion_that_breaks_the_call_for_a_batch_costs_itself_only(place):
    def judged(texts, **settings):
        golds = [row % 2 for row in range(len(texts))]
        given = [[{"role": "assistant", "content": text}] for text in texts] if "TRL" in place else texts
        made = BATCHES[place](**settings)
        ids = [[1]] * len(texts)
        return made.verify_batch(["p"] * len(texts), given, ids, answer=golds, level=golds)

    found = judged(["0", "one", "1", "3"])
    kinds = [(1.0, "correct"), (0.0, "error"), (0.0, "wrong"), (1.0, "correct")]
    assert ([(v.score, v.status.value) for v in found], "'one'" in found[1].detail) == (kinds, True)
    assert [v.score for v in judged(["0", "one", "1", "3"], on_error="null")] == [1.0, None, 0.0, 1.0]
    with pytest.raises(VerifierFailedError, match="on_error is 'raise'"):
        judged(["0", "one"], on_error="raise")
    for every in (2, 4, 5, 8):
        many = [str(row) if row % every else "x" for row in range(80)]
        assert [v.score for v in judged(many)] == [1.0 if row % every else 0.0 for row in range(80)]


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_check_that_cannot_work_alone_stops_the_run_though_the_batch_only_raised(isolation):
    def check(completions):
        raise ValueError("many") if len(completions) > 1 else VerifierFailedError("pip install something")

    with pytest.raises(VerifierFailedError, match=r"cannot run.*pip install something"):
        get_verifier(check, isolation=isolation, on_error="zero").verify_batch(None, ["x"] * 3)


def test_a_batch_that_is_asked_again_sees_one_completion_and_logs_once():
    def shortest(completions):
        lengths = [len(completion) if completion != "bad" else 1 / 0 for completion in completions]
        return [float(length == min(lengths)) for length in lengths]

    made = get_verifier(shortest, isolation="inline")
    assert [v.score for v in made.verify_batch(None, ["a", "aa"])] == [1.0, 0.0]
    assert [v.score for v in made.verify_batch(None, ["a", "aa", "bad"])] == [1.0, 1.0, 0.0]
    logged = []

    def check(completions, log_extra, **kwargs):
        log_extra("seen", list(completions))
        return [float(completion) for completion in completions]

    made = get_verifier(check, isolation="inline")
    found = made.verify_batch(None, ["0", "x", "1"], log_extra=lambda name, values: logged.append(values))
    assert ([v.score for v in found], logged) == ([0.0, 0.0, 1.0], [["0", "x", "1"]])


def test_what_is_down_for_all_stops_the_run_and_each_failure_has_one_fault():
    def check(completion):
        raise UnavailableError("the server is down")

    made = get_verifier(check, isolation="inline")
    assert {v.score for v in made.verify_batch(None, ["x"] * (HOPELESS - 1))} == {None}
    with pytest.raises(VerifierFailedError, match="the server is down"):
        made.verify("x")
    try:
        made = verifier("test_default", isolation="inline")(odd)
        assert (made.on_error, made.verify("raise").score) == ("zero", 0.0)
        assert get_verifier("test_default", on_error="null").verify("raise").score is None
    finally:
        REGISTRY.unregister("test_default")

    class Pretends(Exception):
        __class__ = VerifierFailedError

    assert (kind_of(ValueError()), kind_of(Pretends())) == ("raised", "raised")
    assert (kind_of(UnavailableError()), kind_of(VerifierFailedError())) == ("outside", "broken")
    for made, score in ((blamed("x"), 0.0), (excused("x"), None)):
        assert (made.score, made.status) == (score, Status.ERROR)


def failing(completion):
    raise UnavailableError("down") if completion == "down" else ValueError("bad")


OF_A_PART = [
    (all_of, 0.0), (lambda part, right: any_of(part, part), 0.0), (lambda part, right: weighted({part: 1, right: 0.5}), 0.5),
    (lambda part, right: weighted({part: 1}), 0.0), (gated, 0.0), (lambda part, right: gated(right, part), 0.0),
    (lambda part, right: all_of(gated(right, weighted({part: 2})), right), 0.0), (any_of, 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("make", "bad"), OF_A_PART)
def test_a_part_that_fails_because_of_the_completion_never_excuses_it(make, bad):
    part = get_verifier(failing, isolation="inline", label="part")
    right = get_verifier(lambda completion: 1.0, isolation="inline", label="right")
    found = make(part, right).verify_batch(None, ["bad", "down"])
    kinds = [(1.0, "correct")] * 2 if make is any_of else [(bad, "error"), (None, "error")]
    assert [(v.score, v.status.value) for v in found] == kinds


PLACE = st.integers(0, 12)


@given(st.lists(st.tuples(PLACE, PLACE, st.none() | st.floats(width=32)), max_size=6))
def test_a_verdict_has_ordered_steps_that_share_no_character_or_is_none(triples):
    sound = all(start <= end and (score is None or math.isfinite(score)) for start, end, score in triples)
    covered = [character for start, end, _ in triples for character in range(start, end)]
    sound = sound and len(covered) == len(set(covered))
    try:
        steps = Verdict(1.0, steps=tuple(Step(*triple) for triple in triples)).steps
    except ValueError:
        assert not sound
    else:
        assert (sound, len(steps)) == (True, len(triples))
        assert sorted((step.start, step.end) for step in steps) == [(step.start, step.end) for step in steps]


@given(st.one_of(st.floats(), st.integers(), st.fractions(), st.decimals()))
def test_a_score_is_a_number_that_float32_holds_or_refused(value):
    try:
        score = score_of("score", value)
    except (TypeError, ValueError):
        with contextlib.suppress(OverflowError, ValueError):  # no float at all
            assert not abs(float(value)) <= LARGEST
        return
    assert (type(score), abs(score) <= LARGEST, score) == (float, True, float(value))


def test_details_are_bounded_and_labels_can_be_shown():
    def check(completion):
        if completion == "raise":
            raise ValueError("long " * 10**6)
        return Verdict(1.0, detail="long " * 10**6)

    for isolation in ("process", "inline"):
        made = get_verifier(check, isolation=isolation)
        composed = all_of(made, label="composed")
        for verdict in (*made.verify_batch(None, ["raise", "x"]), *composed.verify_batch(None, ["raise", "x"])):
            assert len(verdict.detail) <= MAX_DETAIL
    for label in ["", " ", "\x00", "a\nb", "\ud800", "\u202e", "x" * 201, 3, b"x"]:
        for make, what in ((get_verifier, odd), (all_of, "exact"), (get_verifier, all_of("exact"))):
            with pytest.raises(KeywordError, match=r"label is .*expected a name"):
                make(what, label=label)
