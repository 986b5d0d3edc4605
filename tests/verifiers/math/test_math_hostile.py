"""Bounded on any input: junk, towers, nests, long texts, patterns made for regular expressions to choke on."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import Status, Verdict
from grpo_verifiers.math import check_gold, fast, math

SPELLED = r"""\frac \sqrt { } ( ) [ ] 1 42 0 x e i ^ _ + - * / = < > \le \pi \infty \pm \cup \{ \} \left \right | ! % , ; :
\text{cm} \text{or} and \sin \log \binom ^\circ $ \\ & \begin{pmatrix} \end{pmatrix} \boxed{ answer is #### <think> </think>
<answer> </answer> 9 10^{9} 0.5 ' \in \mathbb{R} \% 999 f( \cdot \approx \ne \lfloor \langle _5 1,234 \setminus € π ½ \phantom{
\int_0^1 \sum \lim gcd(10!, \! \, wait, the answer: or not"""
PIECES = SPELLED.split()
SOUP = st.lists(st.sampled_from([*PIECES, " ", "\n"]), max_size=40).map("".join)
GOLDS = st.sampled_from(
    ["42", r"\frac12", "x^2+1", "(1,2)", "[0,1)", r"\text{yes}", "1,2", r"\{1,2\}", "x=5", "x>3", "5_8"]
)
SECONDS = 1.0


def bounded(call, *args):
    started = time.process_time()
    result = call(*args)
    assert time.process_time() - started < SECONDS
    return result


@settings(max_examples=400, deadline=None)
@given(SOUP, st.one_of(GOLDS, SOUP), st.booleans())
def test_junk_never_raises_and_is_decided_at_once(completion, gold, in_box):
    completion = "\\boxed{" + completion + "}" if in_box else completion
    verdict = bounded(fast, completion, gold)
    assert verdict is None or isinstance(verdict, Verdict | dict)
    bounded(check_gold, gold)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text(max_size=20))
def test_any_text_never_raises(completion, gold):
    for text in (completion, "\\boxed{" + completion + "}", "The answer is " + completion):
        bounded(fast, text, gold)


@settings(max_examples=60, deadline=None)
@given(SOUP, GOLDS)
def test_the_full_check_of_junk_never_raises_either(completion, gold):
    verdict = math("\\boxed{" + completion + "}", gold)
    assert verdict.score in {0.0, 1.0}


TOWERS = [
    "9^{9^{9^{9}}}", "10^{100000000}", "2^{-10^{10}}", "(1/3)^{99999999}", "100000000!", "((10!)!)!", "1000000!", "x^{10^{10}}",
    r"\binom{10^9}{5}", r"\sqrt{10^{10^{10}}}", "10^{10^{10}}+1", r"\frac{1}{7^{10^8}}", "e^{10^{10}}", r"\sin(10^{10^{9}})",
    r"\gcd(10^{1000000}+1, 7)", r"\log(10^{10^{8}})", "(x+y+z)^{1000}", "(1+x)^{10^6}", r"\Gamma(10^9)", "2^{2^{2^{2^{2^{2}}}}}",
    r"\sum_{n=1}^{10000000}\frac{1}{n^2}", r"\int_0^\infty e^{-x^3}dx", r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{10000000}",
    r"\pm 1" * 40, "|x|" * 40, "|" * 1000, r"\tan(" * 25 + "x" + ")" * 25, r"\sqrt{" * 25 + "2" + "}" * 25,
]  # fmt: skip


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("gold", ["42", "0.5", "x+1"])
def test_towers_are_turned_away_before_anything_computes_them(tower, gold):
    verdict = bounded(fast, "\\boxed{" + tower + "}", gold)
    assert isinstance(verdict, Verdict)
    assert verdict.score == 0


@pytest.mark.parametrize("tower", TOWERS)
def test_towers_as_golds_are_bounded_too(tower):
    bounded(check_gold, tower)
    bounded(fast, "\\boxed{42}", tower)


GROWING = {
    "digits": lambda n: "\\boxed{" + "7" * n + "}",
    "decimal": lambda n: "\\boxed{0." + "3" * n + "}",
    "parentheses": lambda n: "\\boxed{" + "(" * n + "1" + ")" * n + "}",
    "braces": lambda n: "\\boxed{" + "{" * n,
    "boxes": lambda n: "\\boxed{1} " * n,
    "different boxes": lambda n: " ".join(f"\\boxed{{{k}}}" for k in range(n // 8)),
    "open boxes": lambda n: "\\boxed{" * (n // 6),
    "dollars": lambda n: "$1" * n,
    "open math": lambda n: "\\(" * n,
    "answer is": lambda n: "answer is " * (n // 10),
    "answer and spaces": lambda n: "answer" + " " * n + "x",
    "answer in a box and spaces": lambda n: "\\boxed{the answer is" + " " * n + "}",
    "hashes": lambda n: "#### 1" + " " * n + "x",
    "hash digits": lambda n: "#### " + "1,." * n + "x",
    "hash lines": lambda n: "#### 1\n" * n,
    "tags": lambda n: "<answer>" * n,
    "thinking": lambda n: "<think>" * n + "</think>" * n,
    "comments": lambda n: "<!--" * n,
    "operators": lambda n: "\\boxed{" + "1+" * n + "1}",
    "chain": lambda n: "\\boxed{" + "1=" * n + "1}",
    "fractions": lambda n: "\\boxed{" + "\\frac" * n + "}",
    "quotients": lambda n: "\\boxed{" + "1/" * min(n, 1000) + "1}",
    "factorials": lambda n: "\\boxed{3" + "!" * min(n, 1000) + "}",
    "percents": lambda n: "\\boxed{3" + "\\%" * min(n, 1000) + "}",
    "powers": lambda n: "\\boxed{x" + "^2" * min(n, 400) + "}",
    "signs": lambda n: "\\boxed{" + "-" * min(n, 1000) + "1}",
    "differences": lambda n: "\\boxed{" + "\\setminus".join(["x"] * min(n, 500)) + "}",
    "commas": lambda n: "\\boxed{" + "1," * n + "1}",
    "thousands": lambda n: "\\boxed{1" + ",234" * n + "}",
    "words": lambda n: "\\boxed{" + "word " * n + "}",
    "newlines": lambda n: "\n" * n + "the answer is:" + "\n" * n,
    "percent signs": lambda n: "%" * n + "\\boxed{42}",
    "taken back": lambda n: "\\boxed{42} " + "wait " * n,
    "unions": lambda n: "\\boxed{" + "\\cup".join(f"({2 * k},{2 * k + 1})" for k in range(n // 10)) + "}",
}


@pytest.mark.parametrize("kind", GROWING)
def test_time_grows_with_the_text_and_not_faster(kind):
    """A quadratic step that passes for a thousand characters takes minutes for a million."""
    for gold in ("42", "(0,1) \\cup (2,3)"):
        for size in (1_000, 300_000):
            bounded(fast, GROWING[kind](size), gold)
            bounded(check_gold, GROWING[kind](size))


def test_a_long_completion_is_read_from_its_end():
    text = "We get $x_1 = \\frac{3}{4}$ and 3 + 4 = 7, so "
    long = text * 25_000 + "\\boxed{42}"
    assert bounded(fast, long, "42").status is Status.CORRECT
    assert bounded(fast, long, "43").status is Status.WRONG
