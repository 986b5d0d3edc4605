"""Steps scored by the equations they state: what counts as a statement, what holds, and what cannot be told."""

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_verifiers import Status, Step, Verdict, get_verifier
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.steps import math_steps, step_verdict
from grpo_verifiers.steps.aggregate import reaggregate
from grpo_verifiers.steps.links import Rounding, RoundingDrift
from tests.cases.rows import sections
from tests.waiting import no_hang

SCORES = {"holds": 1.0, "wrong": 0.0, "nothing": None}
CASES = [
    (SCORES[heading], row.replace("<br>", "\n"))
    for heading, rows in sections("maths_steps.txt").items()
    for row in rows
]
CASES += [(None, text) for text in ("", "3+4 = \n", "((((3+4 = ")]


def scores(text, prompt=None, **options):
    return [step.score for step in math_steps(text, text, prompt, **options).steps]


@pytest.mark.sample(67)
@pytest.mark.parametrize(("expected", "text"), CASES)
def test_one_step(expected, text):
    found = scores(text, steps="blank_line")
    assert found == ([expected] if text.strip() else [])


def test_padding_earns_nothing_and_statements_outside_of_steps_belong_to_the_next():
    for text, strict in {"3.4=3.4.": [None], "10/3=3.33.": [0.0], "7+5 = 12.": [1.0]}.items():
        assert scores(text, rounding=False) == strict
    text = "3+4=7\n1=1\nx=x\n3+4=7\n4+3 = 7\n7 = 3+4\n3+4=8\n3+4=8"
    assert scores(text) == [1.0, None, None, None, None, None, 0.0, 0.0]  # what is wrong stays wrong
    text = "2 + 3 = 5\n10 + 11 = 21\n3 + 4 + 5 = 12\n7 * 2 = 14\n5 = 1 + 4\n2 + 3 = 6\n8 + 9 = 18."
    assert scores(text, distinct=True) == [1.0, None, 1.0, 1.0, None, 0.0, 0.0]
    text = "0.009 = 0.00\n0.00 \\cdot 1000 = 0\n0.009 \\cdot 1000 = 9.00"
    assert (scores(text), math_steps(text, text).score) == ([0.0, None, 1.0], 0)
    assert scores("2+2=5\n2+2=4\n3+4=7", "Is it true that 2+2=5, and 3+4=7?") == [None, 1.0, None]
    assert scores("3+4=7\n7-2=5", "3+4-2=\n") == [1.0, 1.0]
    assert scores("2+2=5", [{"role": "user", "content": [{"type": "text", "text": "Is 2+2=5?"}]}]) == [None]
    for text, steps, expected in [
        ("2 + 2 = 5\n<step>3 + 4 = 7</step>", "tags", [0.0]),
        ("<step>3 + 4 = 7</step>\n2 + 2 = 5\n<step>so</step>", "tags", [1.0, 0.0]),
        ("<step>3 + 4 = 7</step>\n2 + 2 = 5.", "tags", [0.0]),
        ("<step>1 + 1 = 2</step><step>3+4=8</step>", "tags", [1.0, 0.0]),
        ("2 + 2 = 5\nStep 1: 3 + 4 = 7\nStep 2: 1 + 1 = 2", "numbered", [0.0, 1.0]),
        ("3 + 4 = 7\nStep 1: so", "numbered", [1.0]),
        ("3 + 4\n= 7\n= 8.", "newline", [None, 1.0, 0.0]),
    ]:
        assert scores(text, steps=steps) == expected
    lines = ["0.9945 = 0.995", "0.995 = 1.00", "1.00 = 1.0045", "1.0045 = 1.005", "1.005 = 1.01"]
    assert scores("\n".join(lines)) == [1.0, 1.0, 1.0, 0.0, 1.0]
    assert scores(lines[-1] + ".") == [1.0]  # by itself it is a rounding
    assert scores("0.9945 = 0.995 = 1.00 = 1.0045 = 1.005 = 1.01.") == [0.0]
    walk = "\n".join(f"{k} ≈ {k}.49\n{k}.49 ≈ {k}.5\n{k}.5 ≈ {k + 1}" for k in range(100, 200))
    found = scores(walk, aggregate="mean")
    assert (found[:3], 0.0 in found[3:7]) == ([1.0, 1.0, 1.0], True)
    honest = "449/1000 = 0.45\n5/11 = 0.45\n10/3 = 3.333\n10/3 = 3.33\n3.33 \\cdot 3 = 9.99\n9.99 ≈ 10"
    assert scores(honest) == [1.0] * 6


BOTTOMS = st.sampled_from([3, 7, 8, 9, 11, 16, 40, 125, 200, 400, 999])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(1, 999), BOTTOMS, st.integers(1, 4), st.integers(-1, 1))
@example(190, 200, 1, 0)
def test_a_decimal_holds_for_a_quotient_only_as_rounding_does_it_on_paper(top, bottom, places, slip):
    exact, last = Fraction(top, bottom), Decimal(1).scaleb(-places)
    near = Decimal(top) / Decimal(bottom)
    shown = near.quantize(last, ROUND_HALF_UP) + slip * last
    allowed = {near.quantize(last, rule) for rule in (ROUND_HALF_UP, ROUND_HALF_EVEN)}
    digits = len(str(shown).replace(".", "").lstrip("0-"))
    cut = 0 <= exact - Fraction(shown) < Fraction(last) and digits >= 4 and 10**20 % exact.denominator
    right = Fraction(shown) == exact or (shown in allowed and digits >= 2) or cut
    assert scores(f"{top}/{bottom} = {shown}.") == [1.0 if right else 0.0]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 5)), max_size=60))
def test_linked_values_never_spread_over_more_than_a_unit(walk):
    drift, linked = RoundingDrift(), {}
    for start, step in walk:
        left, right = Fraction(start, 10), Fraction(start + step, 10)
        if drift.allows(Rounding(left, right, Fraction(1))):
            union = linked.get(left, {left}) | linked.get(right, {right})
            linked.update(dict.fromkeys(union, union))
    assert all(max(group) - min(group) <= 1 for group in linked.values())


@pytest.mark.slow
def test_however_many_right_ones_stand_before_it_a_wrong_one_counts(monkeypatch):
    lines = [f"{k} + {k + 1} = {2 * k + 1}" for k in range(10, 1511)]
    text = "\n".join([*lines, "2 + 2 = 5."])
    verdict = math_steps(text, text)
    assert (verdict.score, verdict.steps[-1].score, verdict.steps[-2].score) == (0.0, 0.0, 1.0)
    monkeypatch.setattr("grpo_verifiers.steps._math_steps.MAX_LINKS", 1000)
    verdict = math_steps(text, text)
    assert (verdict.score, sum(step.score == 1 for step in verdict.steps)) == (0.0, 1000)
    assert "more than 1000 equations" in verdict.detail


def test_scores_and_aggregates_are_those_of_the_steps():
    both = {"distinct": True, "max_steps": 4}
    for options, mean in [({}, 100 / 101), ({"distinct": True}, 1 / 2), ({"max_steps": 4}, 4 / 5), (both, 1 / 2)]:
        text = "2 + 2 = 5\n" + "\n".join(f"{k} + {k + 1} = {2 * k + 1}" for k in range(10, 110)) + "\n"
        assert math_steps(text, text, aggregate="mean", **options).score == pytest.approx(mean)
        late = text.partition("\n")[2] + "2 + 2 = 5\n"
        assert math_steps(late, late, aggregate="mean", **options).score == pytest.approx(mean)
    for aggregate, expected in [("min", 0.0), ("mean", 2 / 3), ("last", 1.0), ("product", 0.0), (None, 0.0)]:
        text = "1+1=2\nso\n2+2=5\n3+3=6\nthus"
        verdict = math_steps(text, text, **({"aggregate": aggregate} if aggregate else {}))
        assert verdict.score == pytest.approx(expected)
        assert "step 3: 2+2 = 5" in verdict.detail, aggregate
        nothing = math_steps("so", "so", **({"aggregate": aggregate} if aggregate else {}))
        assert (nothing.score, nothing.status, len(nothing.steps)) == (None, Status.NOT_APPLICABLE, 1), aggregate
    spans, values = [(0, 1), (1, 2), (2, 3)], [0.5, None, 0.25]
    found = {name: step_verdict(spans, values, name).score for name in ("min", "mean", "last", "product")}
    assert found == {"min": 0.25, "mean": 0.375, "last": 0.25, "product": 0.125}
    with pytest.raises(ValueError, match="sum"):
        step_verdict(spans, values, "sum")
    for status, score in [(Status.WRONG, 0.5), (Status.CORRECT, 0.5), (Status.TIMEOUT, 0.0), (Status.ERROR, 0.0)]:
        verdict = Verdict(float(status is Status.CORRECT), status, "why", (Step(0, 1, 1.0), Step(1, 2, 0.0)))
        found = reaggregate(verdict, "mean")
        assert (found.score, found.detail, found.steps) == (score, "why", verdict.steps)
        assert (found.status is status) == (status in (Status.TIMEOUT, Status.ERROR))


def test_as_a_verifier_it_reads_what_was_sampled_and_runs_in_a_worker_where_it_must():
    text = "<think>\n3+4=7\nso 12*3=35</think>\n7<|im_end|>"
    verdict = get_verifier("math_steps").verify("7", completion_text=text)
    steps = {text[step.start : step.end]: step.score for step in verdict.steps}
    assert steps == {"<think>\n": None, "3+4=7\n": 1.0, "so 12*3=35</think>\n": 0.0, "7<|im_end|>": None}
    made = get_verifier("math_steps", steps="newline", aggregate="mean", label="steps")
    texts = ["\\sin(30^\\circ) = \\frac12.\nThen 3+4=7.\nAnd 2+2=5.", "so", "3+4=7"]
    verdicts = made.verify_batch(None, texts)
    assert [[step.score for step in verdict.steps] for verdict in verdicts] == [[1.0, 1.0, 0.0], [None], [1.0]]
    assert made(None, texts) == [pytest.approx(2 / 3), None, 1.0]
    for options, said in [
        ({"steps": "lines"}, "newline"), ({"aggregate": "sum"}, "one of 'min', 'mean', 'last', 'product'"),
        ({"max_steps": 0}, "max_steps is 0, expected an integer of at least 1"),
    ]:  # fmt: skip
        with pytest.raises(KeywordError, match=said):
            get_verifier("math_steps", **options)


HOSTILE = [
    "9^", "=", "1=", "1+1=2 ", "(", "\\frac{", "1+", "2=1+", "$", "\n&", "x=", "\\\\&=", "((1=", "1,000", "3+4=7,", "\\text{",
    "9**9=", "sin(", "1 x ", "!", "1.", "'", "’-a", "\\", "[1=2", "2^2^2^2^2^2=1\n", "(x+y+z+w)^24 = 1\n", "1/3+",
]  # fmt: skip


@pytest.mark.sample(0)
@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_ends(unit):
    text = (unit * 100_000)[:100_000]
    with no_hang():
        math_steps(text, text)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*"0123456789+-*/=().,$%^x \n}{&é", "\\frac{", "and", "of", "\\\\"])).map("".join))
def test_no_text_is_an_error(text):
    verdict = math_steps(text, text, prompt=text[: len(text) // 2])
    assert all(step.score in (None, 0.0, 1.0) for step in verdict.steps)


@settings(max_examples=80, deadline=None)
@given(st.integers(-999, 999), st.integers(-999, 999), st.sampled_from("+-*"), st.integers(-3, 3), st.booleans())
def test_sums_are_judged_by_their_value(left, right, sign, slip, latex):
    value = {"+": left + right, "-": left - right, "*": left * right}[sign] + slip
    shown = f"({left}){sign}({right})={value}"
    text = "Then $" + shown.replace("*", " \\cdot ") + "$." if latex else f"{shown}."
    found = scores(text)
    idle = {"+": 0 in (left, right), "-": right == 0, "*": bool({0, 1} & {left, right})}[sign]
    trivial = slip == 0 and (idle or (sign == "-" and left == 0))
    assert found == [0.0 if slip else 1.0] or (trivial and found == [None])
