"""The labelled sets: every label follows from its source, and the verifiers keep to the labels."""

import pytest

from benchmarks import labelled
from tests.cases.reference import passes
from tests.cases.truth import label

MATHS = labelled.rows_of("maths")
CODE = labelled.rows_of("code")


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({row["kind"] for row in MATHS}))
def test_every_label_of_maths_follows_from_its_source(kind):
    assert [row["line"] for row in MATHS if row["kind"] == kind and label(row) is not row["right"]] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({row["kind"] for row in CODE if row["source"] == "run"}))
def test_every_label_of_an_honest_program_is_what_its_run_gives(kind):
    rows = [row for row in CODE if row["kind"] == kind and row["source"] == "run"]
    assert [row["line"] for row in rows if passes(row["program"], row["tests"]) is not row["right"]] == []


def test_the_rows_are_many_distinct_and_about_half_of_them_right():
    for rows, least in ((MATHS, 400), (CODE, 150)):
        assert len(rows) >= least
        assert 0.4 < sum(row["right"] for row in rows) / len(rows) < 0.6
        assert len({str({**row, "line": 0}) for row in rows}) == len(rows)
    assert not any(row["right"] for row in CODE if row["source"] != "run")
    assert labelled.rates([{"right": True}, {"right": False}, {"right": False}], [False, True, False]) == (2, 1, 1, 1)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["maths", "code"])
def test_few_rows_are_judged_against_their_label(what):
    rows, check = {"maths": (MATHS, labelled.ours), "code": (CODE, labelled.code)}[what]
    verdicts = check(rows)
    wrong, accepted, right, refused = labelled.rates(rows, verdicts)
    named = "\n".join(labelled.against_label(rows, verdicts))
    assert accepted <= 0.002 * wrong, named
    assert refused <= 0.05 * right, named
