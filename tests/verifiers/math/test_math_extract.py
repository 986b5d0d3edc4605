"""What is read: the final answer of a completion, the gold of a cell as datasets store it, and options that change policies."""

import inspect

import pytest

from grpo_verifiers import Status
from grpo_verifiers.math import check_golds, math
from grpo_verifiers.math.extract import extract
from grpo_verifiers.math.gold import as_text, gold_of
from grpo_verifiers.math.options import Options
from grpo_verifiers.options import option_problems
from grpo_verifiers.reading.thinking import answer_part

EXTRACTED = [
    *(("\\boxed{\\{1, 2\\}}", ["\\{1, 2\\}"]), ("\\boxed{\\frac{1}{\\sqrt{2}}}", ["\\frac{1}{\\sqrt{2}}"])),
    ("use \\boxed{} or \\boxed{answer}: \\boxed{7}", ["7"]),
    *(("\\boxed{1} then \\boxed{2} then \\boxed{1}", ["1", "2"]), ("Natalia sold 48/2 = 24.\n#### 72", ["72"])),
    *(("#### $1,000", ["$1,000"]), (r"#### \$42", [r"\$42"]), ("#### $42$", ["$42"])),
    *(("They pay\n#### 42 dollars\n", ["42 dollars"]), ("Answer: $\\frac{1}{2}$.", ["\\frac{1}{2}"])),
    *(("Answer: \\[ x = 3 \\]", [" x = 3 "]), ("The answer is $42$ miles.", ["42 \\text{ miles }"])),
    *(("The answer is 1,234.5. Done.", ["1,234.5"]), ("The answer is (1, 2).", ["(1, 2)"])),
    ("Which answer is right? The answer is 5.", ["5"]),
]
FORTY_TWO = [
    *("so \\boxed{42}.", "\\fbox{42}", "\\boxed {42}", "\\boxed{\\boxed{42}}", "\\boxed 42", "<answer>42</answer>"),
    *("<answer> 42", "<ANSWER>42</ANSWER>", "<answer>so \\boxed{42}</answer>", "#### **42**", "The answer is 42."),
    *("The answer is: 42", "**Answer:** 42", "**Answer: 42**", "Final Answer: the final answer is 42"),
    *("the answer to the question is 42, because 6 * 7 = 42", "Answer:\n\n42"),
]


NOT_FOUND = {
    "nothing outside": ["<think>42</think>"],
    "no answer found": [
        *(
            "",
            "   ",
            "42",
            "The wrong answer is 42",
            "Possible answers: 41, 42",
            "The answer is not 42",
            "The answer depends",
        ),
        *("#### Step 2: add 40", "#### 2 steps are left\nadd them", "#### 42 or 43", "% \\boxed{42}"),
    ],
    "not closed": ["\\boxed{42} and \\boxed{4"],
    "a box inside a box": ["\\boxed{41 \\boxed{42}}"],
}


READ = """
<think>a</think>b -> b | a<think>b</think>c -> c | a</think>b -> b | a</think>b</think>c -> c
<think>a<think>b</think>c</think>d -> d | <think>a</think>b<think>c -> b | <Thinking>a</Thinking>b -> b
<reasoning>a</reasoning>b -> b | <|begin_of_thought|>a<|end_of_thought|>b -> b | [THINK]a[/THINK]b -> b
a<!-- b -->c -> ac | a<!-- b -> a | 1 < 2 and [3] -> 1 < 2 and [3]
<think>a -> {nothing}
"""


def test_the_answer_is_found_or_the_reason_given_and_only_what_is_meant_is_read():
    for completion, answers in [*EXTRACTED, *((text, ["42"]) for text in FORTY_TWO)]:
        assert list(extract(completion, Options(conflicts="reject")).answers) == answers
    for completion, problem in ((text, why) for why, texts in NOT_FOUND.items() for text in texts):
        found = extract(completion, Options(conflicts="reject"))
        assert found.answers == ()
        assert problem in found.problem
    for case in READ.strip("\n").replace("\n", " | ").split(" | "):
        completion, _, seen = case.partition(" -> ")
        assert answer_part(completion).strip() == seen.replace("{nothing}", "")


EMPTY = ["", "  ", "$$", "\\boxed{}", None, float("nan")]
UNREADABLE = ["1 + + ) 2 {", "x" * 5000 + "="]


def test_the_gold_in_a_cell_is_read_and_bad_ones_are_listed_with_treatment():
    for stored, text in [
        *(("42", "42"), (" $42$ ", "42"), ("$$42$$", "42"), ("\\(42\\)", "42"), ("\\boxed{42}", "42")),
        ("Thus the answer is $\\boxed{\\frac43}$.", "\\frac43"),
        *(("Then 48/2 = 24 and 48 + 24 = 72.\n#### 72", "72"), ("x \\in \\boxed{[0,7)}.", "[0,7)")),
        ("first \\boxed{1} and after a long while with other words \\boxed{2}", "2"),
        *(("\\boxed{2}, \\boxed{3} and \\boxed{5}", "2, 3, 5"), ("answer is 10000", "10000"), (42, "42")),
        *((0.25, "0.25"), (3.0, "3")),
    ]:
        assert gold_of(as_text(stored)).text == text
        assert check_golds([stored]).ok
        assert math("\\boxed{" + text + "}", stored).status is Status.CORRECT
    column = ["42", "", None, "\\frac{1", "7", ["1", "2"], "1 +", True, "\\sum_{k=1}^n k"]
    report = check_golds(column)
    assert not report.ok
    assert (report.total, [problem.row for problem in report.problems]) == (len(column), [1, 2, 3, 5, 6, 7, 8])
    lines = list(report.lines())
    assert lines[0] == "2 of 9 gold answers accept themselves."
    assert "row 1: '': it is empty; its completions get no score" in lines[1]
    assert "row 3: '\\\\frac{1': it cannot be read" in lines[3]
    assert "a list" in lines[4] or "not list" in lines[4]
    assert (len(list(report.lines(limit=2))), list(report.lines(limit=2))[-1]) == (4, "... and 5 more.")
    assert check_golds(["1", "2"]).ok
    import numpy as np

    assert math("\\boxed{3}", np.int64(3)).status is Status.CORRECT
    assert math("\\boxed{0.5}", np.float64(0.5)).status is Status.CORRECT
    assert math("\\boxed{nan}", float("nan")).status is Status.NOT_APPLICABLE
    for gold in [*EMPTY, *UNREADABLE, ["1"], {"a": 1}, True]:
        for completion in ("\\boxed{42}", "no answer"):
            verdict = math(completion, gold)
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


# A prompt, the gold, answers that copy the prompt, and answers that do not.
COPIED = [
    ("Expand $(x+1)^2$.", "x^2+2x+1", "(x+1)^2 | (1+x)^2 | 1\\cdot(x+1)^2 | y=(x+1)^2", "x^2+2x+1 | 1+2x+x^2"),
    ([{"role": "user", "content": "Let $f(x)=(x+1)^2$; expand."}], "x^2+2x+1", "f(x)=(x+1)^2 | (x+1)^2", "f(x)=x^2+2x+1"),
    ([{"role": "user", "content": [{"type": "text", "text": "Factor x^2 - 1."}]}], "(x-1)(x+1)", "x^2-1", "(x+1)(x-1) | x^2-1=(x-1)(x+1)"),
    ("Rationalize \\[\\dfrac1{\\sqrt2}.\\]", r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt 2} | 1/\sqrt2", r"\frac{\sqrt{2}}{2}"),
    ("Factor 6x² + 5x − 6.", "(3x-2)(2x+3)", "6x^2+5x-6", "(2x+3)(3x-2)"), ("Write log(xy) as a sum.", r"\log x+\log y", r"\log(xy)", r"\log y+\log x"),
    ("Write $2x-y+1=0$ with y alone.", "y=2x+1", "2x-y+1=0 | 0=2x-y+1", "y=2x+1 | 2x+1 | y-2x=1"),
    ("Convert $45^\\circ$ to radians, $5\\text{ km}$ to metres.", r"\frac{\pi}{4}", r"45^\circ", r"\frac{\pi}{4}"),
    ("Convert $45^\\circ$ to radians, 5 km to metres.", r"5000\text{ m}", r"5\text{ km}", r"5000\text{ m}"),
    *((f"One angle is $45^\\circ$, one ${gold}$ for $x>0$ on $(0,\\infty)$.", gold, "", answer) for gold, answer in
      [("45", r"45^\circ"), ("x", "x"), ("x+1", "1+x"), ("x>0", r"(0,\infty)"), ("4", "x=4"), (r"\sqrt{3}", r"\sqrt3")]),
]  # fmt: skip
SWITCHED = [
    # option, value, gold, completion, verdict by default, verdict with the option
    ("conflicts", "reject", "42", r"\boxed{41} \boxed{42}", 1, 0),
    ("conflicts", "reject", "41", r"\boxed{41} \boxed{42}", 0, 0),
    ("conflicts", "reject", "42", "Answer: 41\nAnswer: 42", 1, 0),
    ("conflicts", "reject", "42", "the answer is 41. Yes: \\boxed{42}", 1, 0),
    *(("conflicts", "reject", "42", f"\\boxed{{{empty}}} \\boxed{{42}}", 1, 1) for empty in (r"\phantom{2}", r"\quad", "?", r"\,", "~~~", r"\text{ }", r"\square", r"\ldots")),
    *(("conflicts", "reject", "1, 2, 3", boxes, *scores) for boxes, *scores in (
        (r"\boxed{1}, \boxed{2} and \boxed{3}", 1, 1), (r"\boxed{1} \boxed{2} so \boxed{1, 2, 3}", 1, 0), (r"\boxed{1} and \boxed{2, 3}", 0, 1), (r"\boxed{1} \boxed{2} \boxed{4}", 0, 0), (r"\boxed{1, 2, 3} \boxed{4}", 0, 0))),
    ("last_number", True, "42", "it comes to 40 + 2 = 42", 0, 1),
    ("last_number", True, "40", "it comes to 40 + 2 = 42", 0, 0),
    ("last_number", True, "0.25", "that makes 25%", 0, 1),
    ("evaluated", False, "391", r"\boxed{17\times 23}", 0, 1), ("evaluated", False, "391", r"\boxed{17} \boxed{17\times 23}", 0, 1),
    ("evaluated", False, "4", r"\boxed{\sqrt{16}}", 0, 1),
    ("evaluated", False, "252", r"\boxed{\binom{10}{5}}", 0, 1),
    ("evaluated", False, "392", r"\boxed{17\times 23}", 0, 0),
    ("reduced", False, r"\frac12", r"\boxed{\frac{2}{4}}", 0, 1),
    ("units", "ignore", r"5\text{ cm}", r"\boxed{5\text{ m}}", 0, 1),
    *(("percent", "value", r"10\%", r"\boxed{10}", 1, 0), ("percent", "value", r"10\%", r"\boxed{0.1}", 1, 1)),
    *(("decimals", 0, r"\frac13", r"\boxed{0.3333}", 1, 0), ("decimals", 3, r"\frac13", r"\boxed{0.333}", 0, 1)),
    *(("decimals", 3, r"\frac13", r"\boxed{0.334}", 0, 0), ("decimals", 0, r"\frac12", r"\boxed{0.5}", 1, 1)),
    ("decimals", 8, "3.1415926535", r"\boxed{3.1415926}", 1, 0),
    ("think", "plan", "42", r"\boxed{42} <plan>\boxed{41}", 0, 1),
    ("think", None, "42", r"<think>\boxed{42}", 0, 1),
]  # fmt: skip


def test_options_switch_their_policy_and_bad_ones_are_named():
    for option, value, gold, completion, before, after in SWITCHED:
        assert (math(completion, gold).score, math(completion, gold, **{option: value}).score) == (before, after)
        assert math(completion, gold, **{option: value}).score == after
    for prompt, gold, *answers in COPIED:
        for score, text in enumerate(answers):
            for answer in filter(None, text.split(" | ")):
                assert math(f"\\boxed{{{answer}}}", gold, prompt).score == score, (prompt, answer)
                assert math(f"\\boxed{{{answer}}}", gold).score == 1, answer
    parameters = inspect.signature(math).parameters.values()
    keywords = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert (keywords, set(keywords)) == (vars(Options()), {row[0] for row in SWITCHED})
    for options, words in [
        ({"conflicts": "first"}, ["conflicts", "'first'", "'reject', 'last'"]),
        ({"units": True}, ["units", "True", "'match'"]),
        ({"decimals": -1}, ["decimals", "-1", "0"]),
        ({"decimals": True}, ["decimals", "True"]),
        ({"think": "<plan>"}, ["think", "'<plan>'", "without angle brackets"]),
        ({"reduced": "yes"}, ["reduced", "'yes'", "true or false"]),
        ({"last_numbers": True}, ["last_numbers", "Did you mean 'last_number'?"]),
    ]:
        with pytest.raises((ValueError, TypeError)) as raised:
            check_golds(["42"], **options)
        skip = ("completion", "answer", "prompt")
        problems = option_problems("math", math, options, skip=skip, where="option", bare=True)
        assert problems == [str(raised.value)], options
        assert all(word in problems[0] for word in words)
        assert option_problems("math", math, {}, skip=skip) == [], options
