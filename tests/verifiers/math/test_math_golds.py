r"""Golds are read as datasets store them, and checked before a run."""

import pytest

from grpo_verifiers import Status
from grpo_verifiers.math import check_gold, check_golds, fast, math
from grpo_verifiers.math.gold import as_text, gold_of


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ("42", "42"),
        (" $42$ ", "42"),
        ("$$42$$", "42"),
        ("\\(42\\)", "42"),
        ("\\boxed{42}", "42"),
        ("Thus the answer is $\\boxed{\\frac43}$.", "\\frac43"),
        ("Then 48/2 = 24 and 48 + 24 = 72.\n#### 72", "72"),
        ("x \\in \\boxed{[0,7)}.", "[0,7)"),
        ("first \\boxed{1} and after a long while with other words \\boxed{2}", "2"),
        ("\\boxed{2}, \\boxed{3} and \\boxed{5}", "2, 3, 5"),
        ("answer is 10000", "10000"),
        (42, "42"),
        (0.25, "0.25"),
        (3.0, "3"),
    ],
)
def test_the_gold_in_a_cell(stored, text):
    assert gold_of(as_text(stored)).text == text
    assert check_gold(stored) is None
    assert math("\\boxed{" + text + "}", stored).status is Status.CORRECT


def test_bad_golds_are_listed_with_reason_and_treatment():
    column = ["42", "", None, "\\frac{1", "7", ["1", "2"], "1 +", True, "\\sum_{k=1}^n k"]
    report = check_golds(column)
    assert not report.ok
    assert report.total == len(column)
    assert [problem.row for problem in report.problems] == [1, 2, 3, 5, 6, 7, 8]
    lines = list(report.lines())
    assert lines[0] == "2 of 9 gold answers accept themselves."
    assert "row 1: '': it is empty; its completions get no score" in lines[1]
    assert "row 3: '\\\\frac{1': it cannot be read" in lines[3]
    assert "a list" in lines[4] or "not list" in lines[4]
    assert len(list(report.lines(limit=2))) == 4
    assert list(report.lines(limit=2))[-1] == "... and 5 more."
    assert check_golds(["1", "2"]).ok


EMPTY = ["", "  ", "$$", "\\boxed{}", None, float("nan")]
UNREADABLE = ["1 + + ) 2 {", "x" * 5000 + "="]


@pytest.mark.parametrize("gold", [*EMPTY, *UNREADABLE, ["1"], {"a": 1}, True], ids=str)
def test_a_gold_that_is_none_takes_the_row_out_and_is_named(gold):
    for check in (math, *([] if gold in UNREADABLE else [fast])):
        for completion in ("\\boxed{42}", "no answer"):
            verdict = check(completion, gold)
            assert (verdict.score, verdict.status) == (None, Status.NOT_APPLICABLE)
    told = " ".join(check_golds([gold]).lines())
    if isinstance(gold, list | dict | bool):
        assert type(gold).__name__ in verdict.detail
        assert type(gold).__name__ in told
    else:
        assert ("cannot be read" if gold in UNREADABLE else "it is empty") in told


GOLD_KINDS = r"""
\text{June 20} | \frac{3}{2} \text{ hours} | 10:30 \text{ a.m.} | 0 < x < 1 | f^{-1}(x)=x-1 | \sqrt[3]{5} | a_n = 2^n | 2^{2004}-1 | 100!
3\text{ or }4 | 10^{\circ}C | \overline{AB} | \triangle ABC | 1.\overline{3} | 12_{\text{five}} | \$.25 | (2, 3), (4, 5) | \{(1,2),(3,4)\}
x\ne 1, 2 | k \in \mathbb{Z} | x = 2k\pi, k \in \mathbb{Z} | \text{HHT} | 3\mathbf{i}+2\mathbf{j} | y=\pm x | \ln|x|+C | 1 : 2 : 3
\mathbb{R} \setminus \{0\} | a^2+b^2=c^2 | \log_2 3 | |x-3| | \gcd(a,b) | x \equiv 3 \pmod{7} | \text{(A), (C)} | \text{No solution} | DNE
1\,000\,000 | \left\langle 1,2,3 \right\rangle | \$1.50 \text{ per pound} | (2,3] \cup \{5\} | 33\frac{1}{3}\% | 1\text{ hour }30\text{ minutes}
\begin{cases} x & x>0 \\ -x & x\le 0\end{cases} | \textbf{(D)}\ 14 | \tan^{-1}(2) | \frac{2\sqrt 3}3 | 1.5 \text{ million} | 北京 | Alice and Bob
"""


def test_golds_of_every_kind_accept_themselves_however_they_are_set():
    golds = [gold.strip() for line in GOLD_KINDS.strip().splitlines() for gold in line.split(" | ")]
    assert len(golds) > 45
    report = check_golds(golds)
    assert report.ok, list(report.lines())
    for gold in golds:
        other = gold.replace("\\frac", "\\dfrac").replace("\\left", "").replace("\\right", "")
        for answer in (gold, other, f" {gold} "):
            assert math("$\\boxed{" + answer + "}$.", gold).status is Status.CORRECT, gold


@pytest.mark.slow
def test_a_gold_outside_the_grammar_is_left_to_math_verify():
    gold = "\\int_0^1 x dx"
    assert not hasattr(fast("\\boxed{\\frac12}", gold), "score")
    assert math("\\boxed{\\frac12}", gold).status is Status.CORRECT
    assert math("\\boxed{\\frac13}", gold).status is Status.WRONG
    assert math("\\boxed{\\int_0^1 x\\,dx}", gold).status is Status.CORRECT


def test_cells_of_tables_are_golds_too():
    import numpy as np

    assert fast("\\boxed{3}", np.int64(3)).status is Status.CORRECT
    assert fast("\\boxed{0.5}", np.float64(0.5)).status is Status.CORRECT
    assert fast("\\boxed{nan}", float("nan")).status is Status.NOT_APPLICABLE
