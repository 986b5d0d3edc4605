"""Compositions: the table of what each makes of its parts, and that they stay verifiers."""

import itertools
import pickle
import re

import pytest

from grpo_verifiers import Status, Step, Verdict, all_of, any_of, gated, get_verifier, weighted
from grpo_verifiers.errors import ColumnError, KeywordError


def says(label, **options):
    """A verifier whose verdicts are spelled out in the column of its name."""

    def check(completion, verdict):
        score, status = verdict
        return Verdict(score, status, f"said by {label}")

    return get_verifier(check, isolation="inline", label=label, columns={"verdict": label}, **options)


C, W, P, U = (1.0, "correct"), (0.0, "wrong"), (0.5, "partial"), (0.0, "unparsable")
T, E, N, Z = (0.0, "timeout"), (None, "error"), (None, "not_applicable"), (0.0, "error")
BY_LETTER = {"C": C, "W": W, "P": P, "T": T, "E": E, "N": N, "U": U, "Z": Z}
# Two verdicts, then what all_of and any_of make of them. A right part decides any_of though the other has an error of its
# own, as a wrong one decides all_of; the other cannot know.
EXTREMES = "CCCC CWWC CPPC WPWP CTTC TPTP CNCC WNWW NNNN CEEC WEWE PEEE NEEE CZZC"
SUMS = {"CC": (1.5, "correct"), "CW": (1.0, "partial"), "WW": W, "TT": T, "CN": C, "NN": N, "CE": E, "NP": (0.25, "partial"), "UN": U}  # fmt: skip
GATES = {"CP": P, "CN": N, "CE": E, "WC": W, "PC": W, "TC": T, "EC": E, "NC": N, "WE": W}


def test_compositions_decide_as_they_promise():
    for row in EXTREMES.split():
        one, two, lowest, highest = map(BY_LETTER.get, row)
        for left, right in ((one, two), (two, one)):
            for make, (score, status) in ((all_of, lowest), (any_of, highest)):
                found = make(says("a"), says("b")).verify("x", a=left, b=right)
                assert (found.score, found.status.value) == (score, status), make.__name__
    weighing = [lambda one, two: weighted({one: 1, two: 0.5})]
    for expected, makes in [(SUMS, weighing), (GATES, [gated])]:
        for (parts, (score, status)), make in itertools.product(expected.items(), makes):
            found = make(says("a"), says("b")).verify("x", a=BY_LETTER[parts[0]], b=BY_LETTER[parts[1]])
            assert (found.score, found.status.value) == (score, status), parts
    assert all_of(says("a"), says("b")).verify("x", a=C, b=W).detail == "b: said by b"
    found = weighted({says("a"): 1.0, says("b"): -0.5}).verify("x", a=C, b=C)
    assert (found.score, found.status) == (0.5, Status.PARTIAL)
    assert gated(says("a"), says("b"), threshold=0.5).verify("x", a=P, b=C).score == 1.0

    def stepped(completion):
        return Verdict(1.0, steps=(Step(0, 1, 0.5),))

    part = get_verifier(stepped, isolation="inline")
    a = says("a")
    for made in (all_of(part, a), any_of(a, part), weighted({a: 1, part: 1}), gated(a, part)):
        assert made.verify("xy", a=C).steps == (Step(0, 1, 0.5),)


def test_all_parts_start_before_the_first_is_waited_for():
    started = []

    def make(name):
        part = says(name)
        plain = part.start

        def start(*args, **columns):
            started.append(f"start {name}")
            pending = plain(*args, **columns)
            collect = pending._collect
            pending._collect = lambda: (started.append(f"wait {name}"), collect())[1]
            return pending

        part.start = start
        return part

    all_of(make("a"), gated(make("b"), make("c"))).verify("x", a=C, b=C, c=C)
    assert started == ["start a", "start b", "start c", "wait a", "wait b", "wait c"]


def test_compositions_nest_and_stay_verifiers():
    extra, metrics = {}, {}
    inner = gated(says("a"), weighted({says("b"): 0.5, says("c"): 0.5}))
    made = get_verifier(any_of(inner, says("d")), label="mine")
    assert (made.__name__, set(made.required_columns.values())) == ("mine", {"a", "b", "c", "d"})
    assert made.check() == []
    scores = made(
        prompts=["p"] * 3, completions=["x"] * 3, completion_ids=[[1]] * 3,
        a=[C, C, W], b=[C, W, C], c=[C, C, C], d=[W, W, W],
        trainer_state=object(), log_extra=extra.__setitem__, log_metric=metrics.__setitem__,
    )  # fmt: skip
    assert (scores, metrics["verifiers/mine/mean"]) == ([1.0, 0.5, 0.0], 0.5)
    assert extra["mine_status"] == ["correct", "partial", "wrong"]
    twin = pickle.loads(pickle.dumps(made))
    assert twin.verify("x", a=C, b=C, c=W, d=W).score == 0.5
    assert [part["label"] for part in made.describe()["parts"]] == [inner.label, "d"]


def test_wrong_compositions_and_thresholds_are_refused():
    for make, said in [
        (all_of, "at least one"), (lambda: weighted({}), "at least one"), (lambda: weighted([says("a")]), "expected a mapping of verifiers to their weights"),
        (lambda: weighted({says("a"): float("nan")}), "is nan, expected a finite number"), (lambda: weighted({says("a"): "1"}), "is '1'"),
        (lambda: get_verifier(all_of(says("a")), timeout=3), "takes no timeout"),
    ]:  # fmt: skip
        with pytest.raises(KeywordError, match=re.escape(said)):
            make()
    for threshold in ["1", None, float("nan"), True]:
        with pytest.raises(KeywordError, match="threshold is"):
            gated(says("a"), says("b"), threshold=threshold)


@pytest.mark.slow
def test_extremes_against_brute_force():
    verdicts = [C, W, P, T, E, N, Z]
    for row in itertools.product(verdicts, repeat=3):
        known = [score for score, _ in row if score is not None]
        failed = any(one == E for one in row)
        for make, best, decided in ((all_of, min, lambda s: s <= 0), (any_of, max, lambda s: s >= 1)):
            wanted = best(known) if known and (not failed or decided(best(known))) else None
            found = make(says("a"), says("b"), says("c")).verify("x", **dict(zip("abc", row, strict=True)))
            assert found.score == wanted


def test_golds_are_checked_by_whichever_part_can():
    rows = {"answer": ["4", "", "x^"], "kind": ["maths", "maths", None]}
    report = get_verifier("math").check_golds(rows)
    assert (report.ok, "1 of 3" in next(iter(report.lines()))) == (False, True)
    assert get_verifier("math", columns={"answer": "gold"}).check_golds({"gold": ["1", "2"]}).ok
    assert get_verifier("exact").check_golds(rows) is None
    assert gated("math", "think_format").check_golds(rows).ok is False
    assert next(iter(all_of("math", "exact").check_golds(rows).lines())).startswith("math: 1 of 3")
    assert all_of("exact", "numeric").check_golds(rows) is None
    with pytest.raises(ColumnError, match=r"unknown column 'answer'.*Did you mean 'answers'"):
        get_verifier("math").check_golds({"answers": ["1"]})
