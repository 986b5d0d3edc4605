"""Steps scored by the equations they state: what counts as a statement, what holds, and what cannot be told."""

import time
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_verifiers import Status, Step, Verdict, get_verifier
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.steps import math_steps, quick_math_steps, step_verdict
from grpo_verifiers.steps.aggregate import reaggregated
from grpo_verifiers.steps.rounding import Drift, Rounding

HOLDS, WRONG, NOTHING = 1.0, 0.0, None

CASES = {
    HOLDS: [
        "3+4=7", "so 3 + 4 = 7.", "Natalia sold 48/2 = 24 clips in May.", "because 2 x 16 = 32", "only 100 / 2 = $50.",
        "needs 100 - 50 - 30 - 15 = $5 more", "$5 + $3 = $8", "$3+4=7$", "\\[ 12 \\times 3 = 36 \\]", "3 + 4 = \\boxed{7}",
        "we get $\\frac{1}{2}+\\frac13 = \\frac{5}{6}$.", "\\boxed{3+4=7}", "x^2+2x+1 = (x+1)^2", "10/3 = 3.33", "2/3 = 0.67",
        "10/3 \\approx 3.33", "5! = 120", "So 3+4=7!", "- 3+4 = 7", "1. 3+4 = 7", "(a) 3+4 = 7", "**3+4 = 7**", "2(3+4) = 14",
        "\\begin{align*} 3+4 &= 7 \\\\ &= 14/2 \\end{align*}", "gcd(12, 18) = 6", "\\sqrt{16} = 4", "1,000 + 2,000 = 3,000",
        "5/20 = 25%", "Step 2: 7-2=5", "48/2 = <<48/2=24>>24 clips", "\\sin(30^\\circ) = \\frac12", "2^10 = 1024", "2**10 = 1024",
        "The total (3+4=7, 5+5=10) is", "3 × 4 = 12", "3 ÷ 4 = 0.75", "12*3=36.", "-3 + 4 = 1", "x = 3 + 4 = 7", "3 1/2 + 1/2 = 4",
        "area is $\\frac{1}{2} \\times 3 \\times 4 = 6 \\text{ cm}^2$", "3+4 equals 7", "3+4=7<|im_end|>", "1+1=2 and 2+2=4",
        "\\frac{3}{4} = 75\\%", "\\pi \\approx 3.14", "(3+4) = 7", "12*3==36", "١+٢=٣", "3+4 = 7 = 14/2",
        "- 3 + 4 = 1", "(3) + 4 = 7", "1) 3+4 = 7", "(1) 3+4 = 7", "1. -3+4 = 1", "a) 3+4 = 7", "• 3+4 = 7", "2/3 = 0.67.", "10/3 = 3.3.",
        "100/3 = 33.3.", "2/3 = 0.6666.", "\\pi = 3.14.", "\\pi = 3.1415.", "\\sqrt{2} = 1.41.", "1000000/3 = 333333.33.", "1/8 = 0.13.",
        "1/8 = 0.12.", "3/8 = 0.38.", "12.5 ≈ 12.", "3 \\approx 3.02.", "9.8 ≈ 10.", "1234 ≈ 1200.", "22/7 ≈ \\pi.", "50\\% = 0.5.",
        "1/3000 ≈ 3.33 \\cdot 10^{-4}.", "2/3 = 66.67\\%.", "20% of 50 = 10.", "2/3 of 12 = 8.", "10/40 * 100 = 25%.", "2 plus 2 = 4.",
        "12 divided by 4 is 3.", "2 + 2 gives 4 apples.", "$2+2$ = $4$.", "2 + 2 \\equiv 4.", "2 + 2 := 4.", "\\log 100 = 2.",
        "\\ln 2 = 0.69.", "12.349 = 12.35.", "5 - 2 is 3 apples.", "$90^\\circ - 50^\\circ = 40^\\circ$", "6 \\times 20^\\circ = 120^\\circ",
        "\\frac{360^\\circ}{5} = 72^\\circ", "$\\angle A = 180^\\circ - 120^\\circ = 60^\\circ$", "360^\\circ / 60^\\circ = 6", "90° - 50° = 40°",
        "27(1/3) = 9", "24\\left(\\frac12\\right) = 12", "6(\\frac12) = 3", "3\\frac12 = 3.5", "3 x $4 = $12", "5 x $1.50 = $7.50", "$3 x 4 = $12",
        "\\frac{P_{\\text{new}}}{2} = \\frac{240}{2} = 120", "x_{\\text{max}} = \\frac{12}{4} = 3",
    ],
    WRONG: [
        "3+4=8", "\\(12 \\cdot 3 = 35\\)", "41 = 42", "3+4=7=8", "3+4 = 8 = 7+1", "1/0 = 5", "\\gcd(12,18)=5", "12*3=4",
        "12*3=37", "\\sin(30°) = 1/3", "The total (3+4=7, 5+5=11) is", "Total = 3 + 4 = 8", "$2^{10} = 1024$ and $2^5=31$",
        "10/3 = 3.4.", "12*3=3<|im_end|>", "3+4=7, so 3+4=8", "\\pi = 3.15.", "1+1=2 and 2+2=5", "9+9=19 apples", "1/(1-1) = 5.",
        "0.009 = 0.00.", "1/150 = 0.00.", "0.004 + 0.004 = 0.00.", "0.005 = 0.01.", "1/3 = 0.3.", "2/3 = 0.66.", "5.00 = 5.009.", "5.009 = 5.00.",
        "12.34 = 12.349.", "1/3 = 0.34.", "3/8 = 0.37.", "13.5 ≈ 13.", "\\sqrt{2} = 1.42.", "10/3 = 3.", "100 ≈ 101.", "10000 \\approx 10099.",
        "0.3 ≈ 1/3.", "2 ≈ 1.5.", "50+50 ≈ 50+51.", "1/3 = -0.33.", "50\\% = 50.", "50 = 50\\%.", "5\\% + 5\\% = 10.", "20% of 50 = 11.",
        "2 plus 2 = 5.", "2 + 2 is 5.", "2 + 2 gives 5 apples.", "$2+2$ = $5$.", "2 + 2 \\equiv 5.", "2 + 2 := 5.", "2 + 2 =\n5.", "\\log 8 = 4.",
        "\\log 100 = 3.", "7! = 7.", "3 + 4 = 8!.", "17 mod 5 = 3.", "7 // 2 = 4.", "- 3 + 4 = 8", "(3) + 4 = 8", "1) 3+4 = 8", "* 3+4 = 8",
        "$90^\\circ - 50^\\circ = 30^\\circ$", "6 \\times 20^\\circ = 110^\\circ", "\\frac{360^\\circ}{5} = 71^\\circ", "$\\angle A = 180^\\circ - 120^\\circ = 61^\\circ$",
        "360^\\circ / 60^\\circ = 7", "27(1/3) = 10", "6(\\frac12) = 6.5", "24\\left(\\frac12\\right) = 24.5", "3 x $4 = $13", "5 x $1.50 = $7.05",
        "\\frac{P_{\\text{new}}}{2} = \\frac{240}{2} = 121",
    ],
    NOTHING: [
        "", "no numbers", "7", "a = 5", "2x+3 = 7", "x = y", "1=1", "x=x", "5+0=5", "5 = 5.0", "1*5 = 5", "3+4=4+3", "-(-5) = 5",
        "half of 10 = 5", "5 apples * 2 = 10 apples", "3 apples and 2 = 5", "3 apples + 4 apples = 7 apples",
        "9^(9^(9^9)) = 5", "100000! = 3", "3:4 = 6:8", "100 cm = 1 m", "60 minutes = 1 hour", "10:30 = 5", "24 = 2 dozen",
        "2+2=5 is wrong", "suppose 2+2 = 5", "if 2+2=5 then", "17 mod 5 = 2", "7 % 3 = 1", "7 // 2 = 3", "for i in x: i += 1", "x == 5",
        "10 apples - 3 + 4 = 1", "= 7", "3+4 =", "3+4 = \n", "log(8) = 3", "3+4 != 8", "3+4 <= 8", "f(3) = 9", "width3 = 4",
        "3+4 = 5 * width", "((((3+4 = ", "12*3=3", "1/3 = 0.3", "AB = 5", "\\angle ABC = 60^\\circ", "3 = 4 squared", "\\log 8 = 3.",
        "\\sin 30 = 0.5.", "0.00 \\cdot 1000 = 0.", "0/7 = 0.", "100 - 25 = 75\\%.", "17 mod 5 = 2.", "3 + 4 is 2 less than 9.",
        "2 + 2 \\equiv 5 \\pmod{3}.", "2 + 2 ≡ 5 (mod 3).", "20 % 3 * 2 = 40.", "2x + 3 = 2x + 5.",
    ],
}  # fmt: skip


def scores(text, prompt=None, **options):
    return [step.score for step in math_steps(text, text, prompt, **options).steps]


@pytest.mark.sample(67)
@pytest.mark.parametrize(("expected", "text"), [(score, text) for score, texts in CASES.items() for text in texts])
def test_one_step(expected, text):
    found = scores(text, steps="blank_line")
    assert found == ([expected] if text.strip() else [])
    quick = quick_math_steps(text, text, steps="blank_line")  # the shortcut says the same or nothing
    assert quick is None or [step.score for step in quick.steps] == found


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
    drift, linked = Drift(), {}
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
    heavy = "\n".join(f"(x+y+{k})^{{12}} (x-{k})^{{9}} = (x-{k})^{{9}} (x+y+{k})^{{12}}+1" for k in range(60))
    assert quick_math_steps(heavy, heavy) is None
    light = "\n".join(f"{k} + {k + 1} = {2 * k + 1}" for k in range(10, 200))
    assert quick_math_steps(light, light).score == 1.0
    for status, score in [(Status.WRONG, 0.5), (Status.CORRECT, 0.5), (Status.TIMEOUT, 0.0), (Status.ERROR, 0.0)]:
        verdict = Verdict(float(status is Status.CORRECT), status, "why", (Step(0, 1, 1.0), Step(1, 2, 0.0)))
        found = reaggregated(verdict, "mean")
        assert (found.score, found.detail, found.steps) == (score, "why", verdict.steps)
        assert (found.status is status) == (status in (Status.TIMEOUT, Status.ERROR))


def test_as_a_verifier_it_reads_what_was_sampled_and_runs_in_a_worker_where_it_must():
    text = "<think>\n3+4=7\nso 12*3=35</think>\n7<|im_end|>"
    verdict = get_verifier("math_steps").verify("7", completion_text=text)
    steps = {text[step.start : step.end]: step.score for step in verdict.steps}
    assert steps == {"<think>\n": None, "3+4=7\n": 1.0, "so 12*3=35</think>\n": 0.0, "7<|im_end|>": None}
    made = get_verifier("math_steps", steps="sentence", aggregate="mean", label="steps")
    texts = ["\\sin(30^\\circ) = \\frac12. Then 3+4=7. And 2+2=5.", "so", "3+4=7"]
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
    started = time.perf_counter()
    quick_math_steps(text[:19_000], text[:19_000])
    math_steps(text, text)
    assert time.perf_counter() - started < 20


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*"0123456789+-*/=().,$%^x \n}{&é", "\\frac{", "and", "of", "\\\\"])).map("".join))
def test_no_text_is_an_error(text):
    verdict = math_steps(text, text, prompt=text[: len(text) // 2])
    assert all(step.score in (None, 0.0, 1.0) for step in verdict.steps)
    quick = quick_math_steps(text, text, prompt=text[: len(text) // 2])
    assert quick is None or quick.steps == verdict.steps


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
