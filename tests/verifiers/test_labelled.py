"""The labelled sets: every label follows from its source, and the verifiers keep to the labels."""

from collections import Counter

import pytest

from benchmarks import labelled
from tests.cases.reference import passes
from tests.cases.truth import label

MATHS = labelled.rows_of("maths")
CODE = labelled.rows_of("code")


def text(row):
    return row["gold"], row.get("answer"), row.get("completion")


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({row["kind"] for row in MATHS}))
def test_every_label_of_maths_follows_from_its_source(kind):
    assert [row["line"] for row in MATHS if row["kind"] == kind and label(row) is not row["right"]] == []


def test_the_maths_rows_are_many_distinct_and_about_half_of_them_right():
    rights = sum(row["right"] for row in MATHS)
    assert len(MATHS) >= 400
    assert 0.4 < rights / len(MATHS) < 0.6
    assert [key for key, count in Counter(map(text, MATHS)).items() if count > 1] == []
    assert len({row["kind"] for row in MATHS}) >= 40


def test_conventions_give_a_reason_and_are_the_smaller_part():
    conventions = [row for row in MATHS if row["source"][0] == "convention"]
    assert all(len(row["source"]) == 2 and len(row["source"][1]) > 5 for row in conventions)
    assert len(conventions) < len(MATHS) / 5


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({row["kind"] for row in CODE if row["source"] == "run"}))
def test_every_label_of_an_honest_program_is_what_its_run_gives(kind):
    rows = [row for row in CODE if row["kind"] == kind and row["source"] == "run"]
    assert [row["line"] for row in rows if passes(row["program"], row["tests"]) is not row["right"]] == []


def test_the_programs_are_many_distinct_and_about_half_of_them_right():
    rights = sum(row["right"] for row in CODE)
    assert len(CODE) >= 150
    assert 0.4 < rights / len(CODE) < 0.6
    keys = Counter(str((row["program"], row.get("completion"), row["tests"])) for row in CODE)
    assert [key for key, count in keys.items() if count > 1] == []


def test_attacks_are_wrong_by_a_stated_construction():
    attacks = [row for row in CODE if row["source"] != "run"]
    assert len(attacks) >= 50
    assert not any(row["right"] for row in attacks)
    assert all(row["source"].startswith("construction: ") for row in attacks)


@pytest.fixture(scope="module", params=["maths", "code"])
def judged(request):
    rows, check = (MATHS, labelled.ours) if request.param == "maths" else (CODE, labelled.code)
    return rows, check(rows)


@pytest.mark.slow
def test_at_most_two_of_a_thousand_wrong_rows_are_accepted(judged):
    rows, verdicts = judged
    wrong, accepted, _, _ = labelled.rates(rows, verdicts)
    assert accepted <= 0.002 * wrong, "\n".join(named(rows, verdicts, "wrong accepted"))


@pytest.mark.slow
def test_at_most_five_of_a_hundred_right_rows_are_refused(judged):
    rows, verdicts = judged
    _, _, right, refused = labelled.rates(rows, verdicts)
    assert refused <= 0.05 * right, "\n".join(named(rows, verdicts, "right refused"))


def named(rows, verdicts, what):
    return [each for each in labelled.against_label(rows, verdicts) if what in each]


def test_what_is_judged_against_its_label_is_counted_and_named():
    rows = [
        {"line": 1, "kind": "k", "gold": "5", "answer": "5", "right": True},
        {"line": 2, "kind": "k", "gold": "5", "answer": "6", "right": False},
        {"line": 3, "kind": "k", "gold": "5", "answer": "7", "right": False},
    ]
    assert labelled.rates(rows, [False, True, False]) == (2, 1, 1, 1)
    named = labelled.against_label(rows, [False, True, False])
    assert [line.split(":")[0] + line.split(":")[1] for line in named] == [
        "line 1, k right refused",
        "line 2, k wrong accepted",
    ]
    assert labelled.line("all", rows, {"one": [False, True, False]}).split() == ["all", "3", "500.0", "100.0%"]
