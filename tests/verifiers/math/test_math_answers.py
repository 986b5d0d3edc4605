"""Answers that must count and answers that must not: one line each, joined in pairs, and as parts of a formula."""

import itertools

import pytest

from grpo_verifiers import Status
from grpo_verifiers.math import fast, math

ANSWERS_RIGHT = [
    # numbers
    ("42", r"\boxed{42}"), ("42", r"\boxed{42.0}"), ("42", r"$\boxed{42}$."), ("42", r"\boxed{+42}"), ("42", r"\boxed{042}"),
    ("42", r"\boxed{ 42 \,}"), ("42", r"\boxed{\text{42}}"), ("42", "\\boxed{42} wait, it should be 41"), ("42", r"\boxed{\mathbf{42}}"), ("42", r"\boxed{42.}"),
    ("-5", "\\boxed{\u22125}"), ("42", "\\boxed{４２}"), ("42", "\\boxed{٤٢}"), ("42", "\\boxed{4\u200b2}"),
    ("1/2", r"\boxed{\frac12}"), ("1/2", r"\boxed{0.5}"), ("1/2", r"\boxed{.5}"), ("1/2", r"\boxed{50\%}"),
    (r"\frac43", r"\boxed{\frac{4}{3}}"), (r"\frac1{2}", r"\boxed{\frac{1}{2}}"), (r"\sqrt2", r"\boxed{\sqrt{2}}"),
    (r"-\frac{1}{2}", r"\boxed{\frac{-1}{2}}"), (r"-\frac{1}{2}", r"\boxed{-1/2}"), (r"\frac{1}{3}", r"\boxed{0.333333}"),
    (r"3\frac12", r"\boxed{7/2}"), (r"3\frac12", r"\boxed{3 1/2}"), (r"137 \frac{1}{2}", r"\boxed{137.5}"),
    ("1234567", r"\boxed{1,234,567}"), ("1234567", r"\boxed{1{,}234{,}567}"), ("1234567", r"\boxed{1\,234\,567}"),
    (r"11,\! 111,\! 111,\! 100", r"\boxed{11111111100}"), ("1000.99", r"\boxed{1000,99}"), ("1000", r"\boxed{1 000}"),
    (r"6.02 \times 10^{23}", r"\boxed{6.02\cdot 10^{23}}"), ("0.00003", r"\boxed{3\times10^{-5}}"), ("10000", r"\boxed{10^4}"),
    (r"10\%", r"\boxed{10}"), (r"10\%", r"\boxed{0.1}"), ("10", r"\boxed{10\%}"), ("28\\%", r"\boxed{28 percent}"),
    ("52_8", r"\boxed{52_{8}}"), (r"2\pi", r"\boxed{6.283185}"), (r"2\pi", "\\boxed{2π}"),
    ("7" * 5000, r"\boxed{" + "7" * 5000 + "}"),
    # quantities
    ("42", r"\boxed{42 \text{ cm}}"), ("42", r"\boxed{42^\circ}"), ("42", r"\boxed{\$42}"), ("42", r"\boxed{42~\text{km/h}}"),
    (r"15\mbox{ cm}^2", r"\boxed{15}"), (r"15 \text{ cm}^2", r"\boxed{15 \text{ square centimeters}}"),
    (r"5 \text{ miles per hour}", r"\boxed{5 \text{ mph}}"), (r"\$32,\!348", r"\boxed{32348}"), (r"30^\circ", r"\boxed{30 degrees}"),
    # words
    (r"\text{Evelyn}", r"\boxed{Evelyn}"), (r"\text{Evelyn}", r"\boxed{\text{evelyn}.}"), (r"\text{no}", r"\boxed{no}"),
    ("C", r"\boxed{\textbf{(C)}}"), ("C", r"\boxed{(C)}"), (r"\text{(C)}", "The answer is C."), ("D", r"\boxed{D. 14 meters}"),
    (r"\text{(D) } 14", r"\boxed{D}"), ("D", r"\boxed{D, not A}"),
    # expressions
    ("p-q", r"\boxed{-q+p}"), ("x^2-1", r"\boxed{(x-1)(x+1)}"), (r"\frac{\sqrt3}{3}", r"\boxed{\frac{1}{\sqrt3}}"),
    (r"2\sqrt{5}", r"\boxed{\sqrt{20}}"), (r"\frac{11+9a}{20}", r"\boxed{0.45a + 0.55}"), (r"\sqrt{x^2}", r"\boxed{|x|}"),
    (r"\cot x", r"\boxed{\frac{\cos x}{\sin x}}"), (r"\tan^2 y+1", r"\boxed{\sec^2 y}"), (r"\sin 2x", r"\boxed{2\sin x\cos x}"),
    (r"\log_2 8 + x", r"\boxed{x+3}"), ("e^{x+1}", r"\boxed{e \cdot e^x}"), (r"\ln 4", r"\boxed{2\ln 2}"),
    (r"\sqrt{5+2\sqrt6}", r"\boxed{\sqrt2+\sqrt3}"), ("6-5i", r"\boxed{-5i+6}"),
    (r"0.\overline{36}", r"\boxed{\frac{4}{11}}"), (r"\frac13", r"\boxed{0.3\overline{3}}"), ("100000", r"\boxed{1e5}"),
    (r"\log_{10}(20)", r"\boxed{1+\log 2}"), (r"x \equiv 3 \pmod 7", r"\boxed{10 \pmod{7}}"),
    (r"3 \text{ hours and } 20 \text{ minutes}", r"\boxed{3 \text{ hours } 20 \text{ minutes}}"), ("Bob", r"\boxed{\text{Bob}}"),
    # equations and inequalities
    ("x=5", r"\boxed{5}"), ("5", r"\boxed{x = 5}"), ("2", r"\boxed{\sqrt{4}=2}"), ("11", r"\boxed{x\approx11}"),
    ("y=2x+3", r"\boxed{2x+3}"), ("2x+3", r"\boxed{y=2x+3}"), ("y=2x+3", r"\boxed{2x-y+3=0}"), ("f(x)=x^2", r"\boxed{x^2}"),
    ("(p,q)=(3,2)", r"\boxed{(3,2)}"), ("x \\leq 5", r"\boxed{5 \geq x}"), ("x <= 1", r"\boxed{-x >= -1}"),
    ("f(2) < f(1) < f(4)", r"\boxed{f(4)>f(1)>f(2)}"), ("p=5,q=2;p=7,q=2", r"\boxed{(5,2),(7,2)}"),
    # several values
    (r"1 \pm \sqrt{19}", r"\boxed{1+\sqrt{19}, 1-\sqrt{19}}"), ("3, 5, 7", r"\boxed{7, 3, 5}"), ("3,5,7", r"\boxed{\{3,5,7\}}"),
    ("3, 5, 7", r"\boxed{3}, \boxed{5}, \boxed{7}"), ("3,5,7", r"\boxed{3, 5, \text{ and } 7}"), (r"\{1,2\}", r"\boxed{\{2,1\}}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\boxed{\begin{bmatrix}1\\2\end{bmatrix}}"), ("3 : 4", r"\boxed{3:4}"),
    # intervals and sets
    ("(3,4]", r"\boxed{3 < x \le 4}"), (r"(3,\infty)", r"\boxed{x>3}"), (r"(3,\infty)", r"\boxed{\{x \mid x > 3\}}"),
    (r"x \in [-2,7]", r"\boxed{-2 \le x \le 7}"), ("-2<x<3", r"\boxed{(-2,3)}"), (r"\emptyset", r"\boxed{\varnothing}"),
    (r"x<-1 \text{ or } x>1", r"\boxed{(-\infty,-1)\cup(1,\infty)}"),
    (r"(-\infty,2)\cup(2,\infty)", r"\boxed{\mathbb{R}\setminus\{2\}}"),
]  # fmt: skip

ANSWERS_WRONG = [
    # shopping
    ("42", r"\boxed{41, 42, 43}"), ("41", r"\boxed{41} and \boxed{42}"), ("42", r"\boxed{41 \boxed{42}}"), ("42", r"\boxed{41;42}"),
    ("42", r"\boxed{42}, so \fbox{41}"), ("42", r"\boxed{42 \text{ or } 43}"), ("42", r"\boxed{\text{41 or 42}}"),
    ("42", r"\boxed{\{41,42\}}"), ("42", r"\boxed{[41,42]}"), ("42", r"\boxed{x=41, x=42}"), ("42", r"\boxed{\pm 42}"),
    ("42", r"\boxed{42 \pm 1}"), ("42", r"\boxed{x \in \{41,42\}}"), ("42", r"\boxed{41 \le x \le 43}"), ("42", r"\boxed{41\to 42}"),
    ("42", r"\boxed{41 \\ 42}"), ("42", r"\boxed{41 & 42}"), ("42", r"\boxed{41 | 42}"), ("42", r"\boxed{42 \mid 43}"),
    ("42", r"\boxed{\begin{cases}41\\42\end{cases}}"), ("42", r"\boxed{\begin{pmatrix}41\\42\end{pmatrix}}"),
    ("41", "<answer>41</answer><answer>42</answer>"), ("42", "Answer: 42\nAnswer: 41"), ("42", "#### 42\n#### 41"),
    ("42", "The final answer is 42. I hope it is correct. \\boxed{41}"), ("42", "The answer is either 41 or 42"),
    ("42", "The answer is 42 or 43"), ("42", "The answer is 41, or 42"), ("1,2", r"\boxed{1,2,3}"), ("1,2", r"\boxed{1}"),
    ("1,2", r"\boxed{1}\boxed{2}\boxed{3}"), (r"\{1,2\}", r"\boxed{\{1,2,3,4\}}"), ("C", r"\boxed{A, B, C, D}"), ("C", r"\boxed{ABCD}"),
    ("C", r"\boxed{\text{(A) or (C)}}"), ("C", r"\boxed{C. or maybe D}"), (r"\text{yes}", r"\boxed{\text{yes or no}}"),
    # false chains, hedges, second thoughts
    ("42", r"\boxed{41=42}"), ("42", r"\boxed{42=41}"), ("42", r"\boxed{42 = x = 43}"), ("42", r"\boxed{42 \approx 41}"),
    ("42", r"\boxed{42 \ne 43}"), ("42", r"\boxed{42 \text{ is wrong, it is } 41}"), ("42", "The answer is 41. No, 42"),
    ("41", "The answer is 41. No, 42"), ("42", "The answer is not 42"),
    # restatements and unfinished work
    ("391", r"\boxed{17\times 23}"), ("5050", r"\boxed{\sum_{k=1}^{100} k}"), ("5050", r"\boxed{1+2+\cdots+100}"),
    ("252", r"\boxed{\binom{10}{5}}"), ("120", r"\boxed{5!}"), ("16", r"\boxed{2^4}"), ("42", r"\boxed{\sqrt{1764}}"),
    ("42", r"\boxed{\frac{84}{2}}"), (r"\frac{1}{2}", r"\boxed{\frac{2}{4}}"), (r"3\sqrt{13}", r"\boxed{\sqrt{36+81}}"),
    ("14-5i", r"\boxed{(3-2i)(4+i)}"), (r"\begin{pmatrix}2\end{pmatrix}", r"\boxed{\begin{pmatrix}1\end{pmatrix}+\begin{pmatrix}1\end{pmatrix}}"),
    # near misses
    ("42", r"\boxed{4 2}"), ("42", r"\boxed{4200}"), ("42", r"\boxed{0.42}"), ("0.42", r"\boxed{42}"), ("10000", r"\boxed{10001}"),
    ("1000000", r"\boxed{999999.9999}"), ("1/3", r"\boxed{0.333}"), ("0.0000001", r"\boxed{0}"), (".0000672", r"\boxed{0.0000671}"),
    (r"3\frac12", r"\boxed{3\cdot\frac12}"), ("1,234", r"\boxed{\{1,234\}}"), ("1,234", r"\boxed{1, 234}"), (r"4", r"\boxed{4\sqrt(2)}"),
    ("42", r"\boxed{42x}"), ("42", r"\boxed{42i}"), ("42", r"\boxed{-42}"), ("42", r"\boxed{42!}"), (r"\pi", r"\boxed{3.14}"),
    (r"\sqrt{2}", r"\boxed{-\sqrt2}"), ("p-q", r"\boxed{q-p}"), ("x+1", r"\boxed{y+1}"), ("x=3", r"\boxed{y=3}"), ("f(x)", r"\boxed{f(y)}"),
    ("2x+z=1", r"\boxed{1}"), ("7 = 11a+c", r"\boxed{11a+c}"), ("x>3", r"\boxed{x \ge 3}"), ("x>3", r"\boxed{x<3}"),
    (r"\infty", r"\boxed{\frac{1}{0}}"), (r"\infty", r"\boxed{-\infty}"), (r"\infty", r"\boxed{\infty-\infty}"),
    ("(1,2)", r"\boxed{(2,1)}"), ("(1,2)", r"\boxed{[1,2]}"), ("(1,2)", r"\boxed{(-\infty,\infty)}"), ("(1,2)", r"\boxed{\{1,2\}}"),
    ("AB=4,CD=5", r"\boxed{5, 4}"), (r"\text{even}", r"\boxed{\text{neve}}"), (r"\text{yes}", r"\boxed{sey}"),
    ("yes", r"\boxed{sey}"), ("ABC", r"\boxed{BCA}"), (r"x \equiv 3 \pmod 7", r"\boxed{x \equiv 4 \pmod{7}}"), ("3", r"\boxed{10 \bmod 7}"),
    # units and bases
    ("42", r"\boxed{42 \text{ forty-three}}"), ("3", r"\boxed{3 \text{ cm } 4}"),
    (r"5 \text{ cm}", r"\boxed{5 \text{ m}}"), (r"5 \text{ cm}", r"\boxed{5 \text{ cm}^2}"), (r"\$5", r"\boxed{5 \text{ euros}}"),
    (r"5 \text{ apples}", r"\boxed{5 \text{ oranges}}"), ("5", r"\boxed{5 \text{ million}}"), ("42", r"\boxed{42 \text{ (not 41)}}"),
    ("204_5", r"\boxed{204_6}"), ("204_5", r"\boxed{204}"), ("204_5", r"\boxed{54_{10}}"), ("42", r"\boxed{101010_2}"),
    # code, invisible text, tricks of the page
    ("42", r'\boxed{__import__("os").getpid()#42\pi}'), ("42", r"\phantom{\boxed{42}}\boxed{41}"), ("42", r"\boxed{\phantom{42}}"),
    ("42", "<!-- \\boxed{42} -->"), ("42", "% \\boxed{42}\nI do not know"), ("42", "\\boxed{\\color{white}42}"), ("42", "\\boxed{\u202e24}"),
    ("42", "\\boxed{4\x002}"), ("42", "\\boxed{\ud800}"), ("42", r"\boxed{41 % 42}"), ("42", r"\boxed{42} \boxed{7"),
    # thinking
    ("42", "<think>maybe \\boxed{42}</think> I do not know."), ("42", "<think>\\boxed{42}"), ("42", "so \\boxed{42} </think> I give up"),
    ("42", "<THINK>\\boxed{42}</THINK>"), ("42", "<think>\\boxed{42}</think> The answer is \\boxed{7}."),
    # nothing stated
    ("42", ""), ("42", "42"), ("42", "The answer is"), ("42", r"\boxed{}"), ("42", r"\boxed{?}"), ("42", "#### Step 42: multiply"),
]  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.parametrize(("gold", "completion"), ANSWERS_RIGHT)
def test_right_answers_count(gold, completion):
    verdict = math(completion, gold)
    assert (verdict.score, verdict.status) == (1.0, Status.CORRECT), verdict.detail


@pytest.mark.sample(67)
@pytest.mark.parametrize(("gold", "completion"), ANSWERS_WRONG)
def test_wrong_answers_and_tricks_do_not_count(gold, completion):
    verdict = math(completion, gold)
    assert verdict.score == 0.0
    assert verdict.status in {Status.WRONG, Status.UNPARSABLE}
    assert verdict.detail


@pytest.mark.parametrize(("gold", "completion"), ANSWERS_RIGHT + ANSWERS_WRONG)
def test_the_fast_path_never_says_anything_else(gold, completion):
    quick = fast(completion, gold)
    assert quick is None or quick == math(completion, gold)


def test_nearly_all_of_these_are_decided_without_a_worker():
    undecided = [pair for pair in ANSWERS_RIGHT + ANSWERS_WRONG if not hasattr(fast(pair[1], pair[0]), "score")]
    assert len(undecided) <= 12, undecided


@pytest.mark.parametrize(
    ("gold", "completion", "status", "reason"),
    [
        ("42", r"\boxed{41}", Status.WRONG, "41 is not 42"),
        ("42", r"\boxed{41=42}", Status.WRONG, "41 is not 42: a false equation"),
        ("42", "no idea", Status.UNPARSABLE, "no answer found"),
        ("42", "<think>hm", Status.UNPARSABLE, "outside the thinking section"),
        ("42", r"\boxed{4", Status.UNPARSABLE, "not closed"),
        ("42", r"\boxed{9^{9^9}}", Status.WRONG, "too large to compute"),
        ("42", r"\boxed{\frac{1}{1-1}}", Status.WRONG, "division by zero"),
        ("1/2", r"\boxed{2/4}", Status.WRONG, "lowest terms"),
        ("391", r"\boxed{17 \cdot 23}", Status.WRONG, "not carried out"),
        (r"5\text{ cm}", r"\boxed{5\text{ kg}}", Status.WRONG, "the unit 'kg' is not 'cm'"),
        (r"5\text{ cm}", r"\boxed{5\text{ m}}", Status.WRONG, "500 is not 5"),
        ("(1,2)", r"\boxed{(1,3)}", Status.WRONG, "3 is not 2"),
        ("42", r"\boxed{1,2}", Status.WRONG, "several answers where one is expected"),
    ],
)  # fmt: skip
def test_verdicts_say_why(gold, completion, status, reason):
    verdict = math(completion, gold)
    assert verdict.status == status
    assert reason in verdict.detail


JOINS = [
    ", ", " or ", " and ", r"\text{ or }", r"\text{, }", r"\quad", "\\ ", r"\\", " & ", "; ", "|", r"\mid ", "/", r"\to ", r"\Rightarrow ",
    r"\vee ", r"\lor ", r"\cup ", r"\cap ", " = ", r" \ne ", r"\approx ", r"\in ", r"\pm ", r"\text{ not }", r"\text{ (or }", r"\wedge ",
    r"\mapsto ", r"\iff ", " vs ", r"\sim ", r"\le ", " : ", r"\leftrightarrow ", r"\text{ maybe }", r"\hspace{1cm}", r"\cdots ", r"\ldots ",
    "^", "_", "!", "'", r"\oplus ", r"\circ ", r"\color{white}", "%", "#", r"\&", "\n", "\t", "\u200b", "\u3000", "→", "∨", "·", "•", "⟹", "∪",
]  # fmt: skip
PAIRS = [
    ("42", "41"), (r"\frac{1}{2}", r"\frac{1}{3}"), ("x+1", "x+2"), ("(1,2)", "(3,4)"), ("[0,1)", "[2,3)"), ("C", "D"), (r"3\sqrt{2}", r"2\sqrt{3}"),
    (r"\text{yes}", r"\text{no}"), ("1,2", "3,4"), (r"\{1,2\}", r"\{3\}"), ("y=2x", "y=3x"), ("x>3", "x>4"), (r"\sin x", r"\cos x"), ("52_8", "42"),
    (r"5\text{ cm}", r"6\text{ cm}"), (r"10\%", r"20\%"), ("2+3i", "2-3i"), (r"\infty", "0"), ("1:2", "2:1"),
]  # fmt: skip


@pytest.mark.sample(8)
@pytest.mark.parametrize(("gold", "other"), PAIRS)
def test_no_join_of_the_right_answer_and_another_counts(gold, other):
    accepted = []
    for join, (first, second) in itertools.product(JOINS, ((gold, other), (other, gold))):
        answer = f"{first}{join}{second}"
        if math("\\boxed{" + answer + "}", gold).score != 0:
            accepted.append(answer)
    assert accepted == []


@pytest.mark.parametrize(("gold", "other"), PAIRS)
def test_no_second_statement_beside_the_right_one_counts(gold, other):
    for template in (
        "\\boxed{%s} \\boxed{%s}", "\\boxed{%s} or \\fbox{%s}", "\\boxed{%s} <answer>%s</answer>", "<answer>%s</answer> <answer>%s</answer>",
        "Answer: $%s$\nAnswer: $%s$", "The answer is $%s$. The answer is $%s$.",
    ):  # fmt: skip
        for pair in ((gold, other), (other, gold)):
            assert math(template % pair, gold, conflicts="reject").score == 0, template % pair
            assert math(template % pair, gold).score == (pair[1] == gold), template % pair
        assert math(template % (gold, gold), gold).score == 1, template


PARTS = [
    "$-{}$", "$= -{}$", r"$2 \cdot {}$", r"$\frac{{1}}{{ {} }}$", "${}^2$", r"$\sqrt{{ {} }}$", r"$x \neq {}$", "$x < {}$",
    "$10^{{ {} }}$", "$1{}$", "${}0$", "${} + 1$", "$x + {}$", "${}i$", r"${} \times 10$", "$n! / {}$",
]  # fmt: skip
DENIED = ["Not {}", "It is not ${}$.", "anything but {}", "half of {}", "{} (incorrect)", "{} is wrong"]
AROUND = [
    "{}", "- {}", "* {}", "> {}", "**{}**", "is _{}_", "=> {}", "<b>{}</b>", "${}$ cm", r"${}^\circ$", r"${}^{{\circ}}$",
    "$x = {}$", r"$84/2 = {}$", "1. {}", "so {}!", "x > 3, so {}", "If it does not, then {}", "{}, not 43", "So\n{}\n1 line",
]  # fmt: skip


def test_a_box_counts_unless_it_is_part_of_a_formula():
    for text in PARTS + DENIED:
        assert math(text.format(r"\boxed{42}"), "42").score == 0.0
    for text in AROUND:
        assert math(text.format(r"\boxed{42}"), "42").score == 1.0
