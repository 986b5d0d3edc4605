"""Labelled cases from outside: tricks, hostile inputs, pairs of public test-suites, the golds of a public dataset."""

import hashlib

import pytest

from grpo_verifiers import Status
from grpo_verifiers.math import check_golds, math
from tests.waiting import no_hang

# Pairs on which this verifier and the suite they come from disagree, and why. "prose" pairs put a paragraph of several
# numbers where an answer belongs: its last number counts only with last_number=True.
PROSE = (
    *("c2c1dbd2", "59fc042b", "f900f141", "d00d95c1", "8f63ef92", "9d63c5ce", "406d81ef", "58a65ab3", "e2abbd3b"),
    *("dcb1ff22", "ef6f66ff"),
)
DISAGREEMENTS = {
    **dict.fromkeys(PROSE, "prose"),
    "46fb95d9": "9+1 is not worked out",
    "a3b53c62": "sqrt(16) is not worked out",
    "144a9538": "sqrt(sqrt(16)) is not worked out",
    "a0eb542c": "3+2 is not worked out",
    "a8d2b035": "a sum of two matrices is not worked out",
    "97216daf": "the suite forbids line breaks inside \\( \\); an answer does not get wrong by them",
    "a3cbd21c": "it says 1/2 = 10/9, which is false",
    "73b72945": "it says 5+5+1 = 1/3, which is false",
    "cdf4de65": "it says 1/3 is about 1.3, which is false",
    "efa403c9": "a letter in the middle of a sentence that names two others",
    "3ffa50db": "a letter in the middle of a sentence that names another",
    "ee85a2f7": "the suite compares strings; a list of values has no order",
    "1171b36d": "a label of unknown words, and words that are no unit",
    "7c02d66d": "a label of words that are not known to introduce a value",
    "fb317083": 'a doubt, "just about", and a question',
    "12e83d31": "words beside a number that are no unit",
    "0cfd6dfb": "two tries in one answer",
}


def boxed(text):
    return text if "boxed" in text else "\\boxed{" + text + "}"


def name_of(row):
    return hashlib.sha256(f"{row['gold']}\0{row['pred']}".encode()).hexdigest()[:8]


def accepted(row, **options):
    return math(boxed(row["pred"]), row["gold"], **options).score == 1


def test_tricks_are_rejected_controls_are_right_and_hostile_inputs_decided_at_once(cases):
    rows = cases("hacks_math.jsonl")
    wrong = [
        row["id"] for row in rows if (math(row["pred"], row["gold"], conflicts="reject").score == 1) != row["expected"]
    ]
    assert wrong == []
    assert sum(row["kind"] == "hack" for row in rows) >= 20
    for row in cases("adversarial_math.jsonl"):
        with no_hang():
            math(row["pred"], row["gold"])


def test_stored_golds_accept_themselves_and_their_wrong_answers_are_wrong(outside_cases):
    golds = [row["answer"] for row in outside_cases("golds.jsonl")]
    report = check_golds(golds)
    assert report.ok, list(report.lines())
    assert report.total == len(golds)
    for gold in golds:
        # as stored, as a model would write it, and where the text of the answer differs from the gold's
        assert math("\\boxed{" + gold + "}", gold).status is Status.CORRECT
        assert math("so $\\boxed{ " + gold.replace("\\frac", "\\dfrac") + " }$.", gold).status is Status.CORRECT
    golds = [row["answer"] for row in outside_cases("golds.jsonl")]
    shifted = golds[1:] + golds[:1]
    wrong = [(gold, other) for gold, other in zip(golds, shifted, strict=True) if gold != other]
    accepted_wrongly = [pair for pair in wrong if math("\\boxed{" + pair[1] + "}", pair[0]).score == 1]
    assert [pair for pair in accepted_wrongly if pair != ("5", "x=5")] == []
    rows = outside_cases("triples.jsonl")
    assert sum(accepted(row, last_number=True) == row["expected"] for row in rows) > sum(
        accepted(row) == row["expected"] for row in rows
    )


@pytest.mark.nightly
def test_agreement_with_public_suites_is_no_worse_than_math_verifys_and_each_disagreement_has_a_reason(outside_cases):
    from math_verify import parse, verify

    rows = outside_cases("triples.jsonl")

    def delimited(gold):
        return gold if any(sign in gold for sign in ("$", "\\boxed", "\\(")) else f"${gold}$"

    theirs = sum(verify(parse(delimited(row["gold"])), parse(boxed(row["pred"]))) == row["expected"] for row in rows)
    differing = [row for row in rows if accepted(row) != row["expected"]]
    assert len(rows) - len(differing) >= theirs
    unexplained = {name_of(row): (row["gold"], row["pred"]) for row in differing if name_of(row) not in DISAGREEMENTS}
    assert unexplained == {}
