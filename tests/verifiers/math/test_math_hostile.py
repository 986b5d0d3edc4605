"""Bounded on any input: junk, towers, nests, long texts, patterns made for regular expressions to choke on."""

import fractions
import random
import re
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import Status, Verdict
from grpo_verifiers.math import check_golds, fast, math
from grpo_verifiers.math.compare import answers, leaf
from grpo_verifiers.math.extract import StatedAnswers
from grpo_verifiers.math.gold import gold_of
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.grammar.read import read
from grpo_verifiers.math.grammar.tokens import tokenize
from grpo_verifiers.math.judge import combine, decide, judge, judge_bounded
from grpo_verifiers.math.options import DEFAULTS
from grpo_verifiers.math.tree import number
from grpo_verifiers.math.values import canon as forms
from grpo_verifiers.math.values import numeric, sets
from grpo_verifiers.math.values.canon import canon
from grpo_verifiers.reading.boxes import tag_sections
from grpo_verifiers.reading.budget import INLINE, OverBudgetError, limited, spend
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
    verdict = bounded(fast, completion, gold)
    assert verdict is None or isinstance(verdict, Verdict | dict)
    bounded(check_golds, [gold])


@pytest.mark.slow
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
    "9^{9^{9^{9}}}", "10^{100000000}", "2^{-10^{10}}", "(1/3)^{99999999}", "100000000!", "((10!)!)!", "1000000!", "x^{10^{10}}", r"\binom{10^9}{5}", r"\sqrt{10^{10^{10}}}", "10^{10^{10}}+1", r"\frac{1}{7^{10^8}}", "e^{10^{10}}", r"\sin(10^{10^{9}})",
    r"\gcd(10^{1000000}+1, 7)", r"\log(10^{10^{8}})", "(x+y+z)^{1000}", "(1+x)^{10^6}", r"\Gamma(10^9)", "2^{2^{2^{2^{2^{2}}}}}", r"\sum_{n=1}^{10000000}\frac{1}{n^2}", r"\int_0^\infty e^{-x^3}dx", r"\begin{pmatrix}1&1\\1&0\end{pmatrix}^{10000000}",
    r"\pm 1" * 40, "|x|" * 40, "|" * 1000, r"\tan(" * 25 + "x" + ")" * 25, r"\sqrt{" * 25 + "2" + "}" * 25,
]  # fmt: skip


def test_towers_are_turned_away_before_anything_computes_them_as_golds_too():
    for tower in TOWERS:
        for gold in ["42", "0.5", "x+1"]:
            verdict = bounded(fast, "\\boxed{" + tower + "}", gold)
            assert isinstance(verdict, Verdict)
            assert verdict.score == 0
    for tower in TOWERS:
        bounded(check_golds, [tower])
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
    "unions": lambda n: "\\boxed{" + "\\cup".join(f"({2 * k},{2 * k + 1})" for k in range(n // 10)) + "}",
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", GROWING)
def test_time_grows_with_the_text_and_not_faster(kind):
    """A quadratic step that passes for a thousand characters takes minutes for a million."""
    for gold in ("42", "(0,1) \\cup (2,3)"):
        for size in (1_000, 300_000):
            bounded(fast, GROWING[kind](size), gold)
            bounded(check_golds, [GROWING[kind](size)])


# --- work is counted: a budget of units for what one completion may ask of the trainer's thread

RNG = random.Random(3)


def digits(count):
    return str(RNG.randrange(10 ** (count - 1), 10**count) | 1)


def joined(part, sign="+", length=3900):
    """As many parts as fit into an answer."""
    parts, size = [], 0
    for k in range(length):
        parts.append(part(k))
        size += len(parts[-1]) + len(sign)
        if size > length:
            return sign.join(parts[:-1])
    return sign.join(parts)


HEAVY = {
    "integer powers": joined(lambda k: f"({digits(9)}x+{digits(9)})^{{23}}({digits(9)}x+{digits(9)})^{{24}}"),
    "powers of fractions": joined(lambda k: f"({digits(9)}/{digits(9)}x+{digits(9)})^{{23}}"),
    "a power of long numbers": f"({digits(70)}x+{digits(70)})^{{24}}",
    "reciprocals": joined(lambda k: f"\\frac{{1}}{{x+{digits(14)}}}", length=700),
    "fractions": joined(lambda k: f"{digits(16)}/{digits(16)}"),
    "square roots": joined(lambda k: f"\\sqrt{{{9999991 - 2 * k}}}"),
    "roots in denominators": joined(lambda k: f"\\frac{{1}}{{\\sqrt{{{k + 2}}}+1}}", length=300),
    "factorials below": joined(lambda k: f"\\frac1{{{400 - k}!}}", length=1000),
    "variables": joined(lambda k: f"{chr(97 + k % 26)}_{{{k}}}", "", 1500),
    "sines": joined(lambda k: f"\\sin({k}+x)", length=1700),
    "a chain": joined(lambda k: f"1+{k}-{k}", "="),
    "approximations": joined(lambda k: f"\\sin{k}+1", "\\approx ", 2500),
    "quotients": "1/" * 78 + "1",
    "signs": joined(lambda k: "\\pm1\\pm2\\pm3", ",", 2500),
    "a matrix": "\\begin{pmatrix}" + "\\\\".join("&".join("1" * 24) for _ in range(24)) + "\\end{pmatrix}",
    "a union": "\\cup".join(f"({2 * k},{2 * k + 1})" for k in range(63)),
    "a set": "\\{" + ",".join(f"\\sin{k}" for k in range(63)) + "\\}",
    "decimals": joined(lambda k: "0." + "3" * 200),
}


def many(text):
    return " ".join(f"\\boxed{{{text[: 3990 - 9]}+{k}-{k}}}" for k in range(64))


def cold():
    for cache in (canon, decide, gold_of, parse, read):
        cache.cache_clear()


def counted(call, *args):
    """How many lines of the package and how many bits of fractions (squared, as a gcd costs) a call takes."""
    lines = bits = 0

    def local(_frame, event, _arg):
        nonlocal lines
        lines += event == "line"
        return local

    def trace(frame, _event, _arg):
        nonlocal bits
        if frame.f_code.co_filename == fractions.__file__ and frame.f_code.co_name in {"_add", "_sub", "_mul", "_div"}:
            sides = frame.f_locals.values()
            bits += max(side.denominator.bit_length() + side.numerator.bit_length() for side in sides) ** 2
        return local if "grpo_verifiers" in frame.f_code.co_filename else None

    cold()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call(*args)
    finally:
        sys.settrace(before)
    return lines, bits


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", HEAVY)
def test_the_work_on_the_trainers_thread_is_bounded_whatever_is_stated(kind):
    heavy, several = HEAVY[kind], many(HEAVY[kind])
    pairs = ((f"\\boxed{{{heavy}}}", "x+1"), (f"\\boxed{{{heavy}+0}}", heavy), (several, "x+1"), (several, heavy))
    for completion, gold in pairs:
        lines, bits = counted(fast, completion, gold)
        assert lines < 20 * INLINE
        assert bits < 2**22 * INLINE // 8


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", GROWING)
def test_a_megabyte_takes_no_more_lines_of_work_than_the_budget_has_units(kind):
    assert counted(fast, GROWING[kind](1_000_000), "42")[0] < 20 * INLINE


ENDS = [sets.end_of(number(at)) for at in (1, 2)]
CHARGED = [
    lambda: tokenize("xyz"), lambda: canon.__wrapped__(number(7)), lambda: numeric.real_value(number(7)), lambda: leaf.unequal_numbers(number(1), number(2)),
    lambda: answers.expand_signs(("pm", None, number(1))), lambda: sets.order(*ENDS), lambda: forms.key(forms.constant(7)),
    lambda: forms.plus(forms.constant(1), forms.constant(2)), lambda: forms.times(({forms.ONE: 2}, forms.UNIT), ({forms.ONE: 3}, forms.UNIT)),
    lambda: forms._merge((("x", 1), ("y", 1)), (("z", 1), ("t", 1))), lambda: forms.root_of(forms.constant(9999991), 2),
    lambda: forms.rational(({forms.ONE: 2}, {forms.ONE: 3})), lambda: answers.compare(("v", "x"), ("v", "y"), DEFAULTS),
    lambda: combine(gold_of("3"), StatedAnswers(("3",)), DEFAULTS), lambda: combine(gold_of("3"), StatedAnswers((), asides=("?",)), DEFAULTS),
]  # fmt: skip


@pytest.mark.parametrize("work", CHARGED)
def test_each_kind_of_work_is_charged_to_the_budget(work):
    with limited(10**6) as budget:
        work()
    assert 10**6 - 1000 < budget.left < 10**6


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(SOUP, st.one_of(GOLDS, SOUP), st.integers(0, 2000))
def test_a_budget_leaves_undecided_and_never_decides_otherwise(answer, gold, units):
    completion = "so \\boxed{" + answer + "}"
    cold()
    bounded_verdict = judge_bounded(completion, gold, DEFAULTS, units)
    cold()
    whole = judge_bounded(completion, gold, DEFAULTS, 10**9)
    assert bounded_verdict in (whole, None)
    assert judge_bounded(completion, gold, DEFAULTS, 10**9) == whole  # nothing half done is kept


@pytest.mark.slow
def test_what_the_budget_leaves_open_is_decided_by_the_full_check():
    items = [f"\\sin{k}+\\cos{k}" for k in range(2, 64)]
    completion = "\\boxed{" + ",".join(items) + "}"
    turned = ",".join(f"\\cos{k}+\\sin{k}+0.1-0.1" for k in range(63, 1, -1))
    cold()
    assert not isinstance(fast(completion, turned), Verdict)
    assert math(completion, turned).status is Status.CORRECT
    assert math(completion, turned + "+1").status is Status.WRONG


def test_the_first_wrong_statement_decides_and_a_long_text_is_read_from_its_end():
    cold()
    verdict = combine(gold_of("3"), StatedAnswers(("3", "6/2", "4", "5", HEAVY["fractions"])), DEFAULTS)
    assert (verdict.status, decide.cache_info().currsize) == (Status.WRONG, 2)
    cold()
    assert combine(gold_of("3"), StatedAnswers(("\\oops", "5")), DEFAULTS).status is Status.WRONG
    assert decide.cache_info().currsize == 0
    assert combine(gold_of("3"), StatedAnswers(("\\oops",)), DEFAULTS).status is Status.UNPARSABLE
    text = "We get $x_1 = \\frac{3}{4}$ and 3 + 4 = 7, so "
    long = text * 25_000 + "\\boxed{42}"
    assert bounded(fast, long, "42").status is Status.CORRECT
    assert bounded(fast, long, "43").status is Status.WRONG
    verdict = math("\\boxed{1}", 10**5000)
    assert (verdict.score, "store it as text" in verdict.detail) == (None, True)


def test_people_take_a_fraction_of_the_budget_and_a_thread_only_its_own():
    for text in ("\\frac{-3+2\\sqrt{5}}{4}", "(x-1)^2(x+3)", "\\begin{pmatrix}1&2&3\\\\4&5&6\\\\7&8&9\\end{pmatrix}", "(-\\infty,2)\\cup(3,5]",
                 "1,2,3,4,5,6,7,8,9,10", "\\frac{\\pi}{6}+2\\pi n"):  # fmt: skip
        cold()
        with limited() as budget:
            judge(f"So it is \\boxed{{{text}}}.", text.replace("2", "4/2"), DEFAULTS)
        assert budget.left > INLINE * 0.8
    raised = []

    def work():
        try:
            spend(10**9)  # without a budget of its own
            with limited(5):
                spend(6)
        except OverBudgetError as error:
            raised.append(str(error))

    with limited(10) as budget:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        spend(1)
    assert (budget.left, raised) == (9, ["more work than 5 units"])


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
