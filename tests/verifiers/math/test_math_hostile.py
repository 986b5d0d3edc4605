"""Bounded on any input: junk, towers, nests, long texts, patterns made for regular expressions to choke on."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import Status, Verdict
from grpo_verifiers.math import check_golds, math
from grpo_verifiers.math.extract import StatedAnswers
from grpo_verifiers.math.gold import gold_of
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.grammar.read import read
from grpo_verifiers.math.judge import combine, decide
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.values.canon import canon
from grpo_verifiers.reading.boxes import tag_sections
from tests.waiting import no_hang

SPELLED = r"""\frac \sqrt { } ( ) [ ] 1 42 0 x e i ^ _ + - * / = < > \le \pi \infty \pm \cup \{ \} \left \right | ! % , ; :
\text{cm} \text{or} and \sin \log \binom ^\circ $ \\ & \begin{pmatrix} \end{pmatrix} \boxed{ answer is #### <think> </think>
<answer> </answer> 9 10^{9} 0.5 ' \in \mathbb{R} \% 999 f( \cdot \approx \ne \lfloor \langle _5 1,234 \setminus € π ½ \phantom{
\int_0^1 \sum \lim gcd(10!, \! \, wait, the answer: or not"""
STRUCTURES = [
    "x", "2", "9^{999}", "10^{-400}", "\\infty", "-", "<", "\\ge ", "\\ne ", "\\in ", "\\notin ", "\\mathbb{R}", "\\mathbb{N}", "\\cup ", "\\cap ", "\\setminus ", "(", "[", ")", "]", "\\{", "\\}", "\\mid ", ",", " and ", " or ", "|x|", "(1,2)", "]2,3[", "\\{1,2\\}", "x>3", "y=-4", "\\pmod 5",
    "5k+2", "(9^{999},\\infty)", "\\begin{cases}", "\\end{cases}", "&", "\\\\", "\\text{if }", "\\text{otherwise}", "3\\mathbf{i}", "^T", "(x,y)=(1,2)",
]  # fmt: skip
PIECES = [*SPELLED.split(), *STRUCTURES]
SOUP = st.lists(st.sampled_from([*PIECES, " ", "\n"]), max_size=40).map("".join)
MIXTURES = st.lists(st.sampled_from(STRUCTURES), min_size=1, max_size=8).map("".join)
GOLDS = st.sampled_from(
    ["42", r"\frac12", "x^2+1", "(1,2)", "[0,1)", r"\text{yes}", "1,2", r"\{1,2\}", "x=5", "x>3", "5_8"]
)


def bounded(call, *args):
    with no_hang(20):
        return call(*args)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(SOUP | MIXTURES, st.one_of(GOLDS, SOUP, MIXTURES), st.booleans())
def test_junk_never_raises_and_is_decided_at_once(completion, gold, in_box):
    completion = "\\boxed{" + completion + "}" if in_box else completion
    verdict = bounded(math, completion, gold)
    assert verdict is None or isinstance(verdict, Verdict | dict)
    bounded(check_golds, [gold])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text(max_size=20))
def test_any_text_never_raises(completion, gold):
    for text in (completion, "\\boxed{" + completion + "}", "The answer is " + completion):
        bounded(math, text, gold)


@settings(max_examples=60, deadline=None)
@given(SOUP, GOLDS)
def test_the_full_check_of_junk_never_raises_either(completion, gold):
    verdict = math("\\boxed{" + completion + "}", gold)
    assert verdict.score in {0.0, 1.0}


TOWERS = [
    "9^{9^{9^{9}}}", "10^{100000000}", "2^{-10^{10}}", "(1/3)^{99999999}", "100000000!", "((10!)!)!", "1000000!", "x^{10^{10}}", r"\binom{10^9}{5}", r"\sqrt{10^{10^{10}}}", "10^{10^{10}}+1", r"\frac{1}{7^{10^8}}", "e^{10^{10}}", r"\sin(10^{10^{9}})",
    r"\gcd(10^{1000000}+1, 7)", r"\log(10^{10^{8}})", "(x+y+z)^{1000}", "(1+x)^{10^6}", r"\Gamma(10^9)", "2^{2^{2^{2^{2^{2}}}}}", r"\sum_{n=1}^{10000000}\frac{1}{n^2}", r"\int_0^\infty e^{-x^3}dx", r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{10000000}",
    r"\pm 1" * 40, "|x|" * 40, "|" * 1000, r"\tan(" * 25 + "x" + ")" * 25, r"\sqrt{" * 25 + "2" + "}" * 25,
]  # fmt: skip


def test_towers_are_turned_away_before_anything_computes_them_as_golds_too():
    for tower in TOWERS:
        for gold in ["42", "0.5", "x+1"]:
            verdict = bounded(math, "\\boxed{" + tower + "}", gold)
            assert isinstance(verdict, Verdict)
            assert verdict.score == 0
    for tower in TOWERS:
        bounded(check_golds, [tower])
        bounded(math, "\\boxed{42}", tower)


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
    "unions": lambda n: "\\boxed{" + "\\cup".join(f"({2 * k},{2 * k + 1})" for k in range(n // 10)) + "}",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", GROWING)
def test_time_grows_with_the_text_and_not_faster(kind):
    """A quadratic step that passes for a thousand characters takes minutes for a million."""
    for gold in ("42", "(0,1) \\cup (2,3)"):
        for size in (1_000, 300_000):
            bounded(math, GROWING[kind](size), gold)
            bounded(check_golds, [GROWING[kind](size)])


def cold():
    for cache in (canon, decide, gold_of, parse, read):
        cache.cache_clear()


def test_the_first_wrong_statement_decides_and_a_long_text_is_read_from_its_end():
    cold()
    verdict = combine(gold_of("3"), StatedAnswers(("3", "6/2", "4", "5", "1/2")), Options())
    assert (verdict.status, decide.cache_info().currsize) == (Status.WRONG, 2)
    cold()
    assert combine(gold_of("3"), StatedAnswers(("\\oops", "5")), Options()).status is Status.WRONG
    assert decide.cache_info().currsize == 0
    assert combine(gold_of("3"), StatedAnswers(("\\oops",)), Options()).status is Status.UNPARSABLE
    text = "We get $x_1 = \\frac{3}{4}$ and 3 + 4 = 7, so "
    long = text * 25_000 + "\\boxed{42}"
    assert bounded(math, long, "42").status is Status.CORRECT
    assert bounded(math, long, "43").status is Status.WRONG
    verdict = math("\\boxed{1}", 10**5000)
    assert (verdict.score, "store it as text" in verdict.detail) == (None, True)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["<answer>", "</answer>", "<ANSWER>", "</Answer>", "<b>", "x", "\n", "<", "</"])).map(
        "".join
    )
)
def test_tagged_sections_end_at_their_closing_tag_the_next_opening_one_or_the_end(text):
    plain = re.compile(r"<answer>(.*?)(?:</answer>|(?=<answer>)|\Z)", re.DOTALL | re.IGNORECASE)
    assert [(tag.start, tag.content) for tag in tag_sections(text, "answer")] == [
        (match.start(), match[1]) for match in plain.finditer(text)
    ]
