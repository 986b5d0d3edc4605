r"""Where the final answer of a completion is found."""

import pytest

from grpo_verifiers.math.extract import extract
from grpo_verifiers.math.options import Options
from grpo_verifiers.reading.thinking import answer_part

EXTRACTED = [
    ("\\boxed{\\{1, 2\\}}", ["\\{1, 2\\}"]),
    ("\\boxed{\\frac{1}{\\sqrt{2}}}", ["\\frac{1}{\\sqrt{2}}"]),
    ("use \\boxed{} or \\boxed{answer}: \\boxed{7}", ["7"]),
    ("\\boxed{1} then \\boxed{2} then \\boxed{1}", ["1", "2"]),
    ("Natalia sold 48/2 = 24.\n#### 72", ["72"]),
    ("#### $1,000", ["$1,000"]),
    (r"#### \$42", [r"\$42"]),
    ("#### $42$", ["$42"]),
    ("They pay\n#### 42 dollars\n", ["42 dollars"]),
    ("Answer: $\\frac{1}{2}$.", ["\\frac{1}{2}"]),
    ("Answer: \\[ x = 3 \\]", [" x = 3 "]),
    ("The answer is $42$ miles.", ["42 \\text{ miles }"]),
    ("The answer is 1,234.5. Done.", ["1,234.5"]),
    ("The answer is (1, 2).", ["(1, 2)"]),
    ("Which answer is right? The answer is 5.", ["5"]),
]
FORTY_TWO = [
    *("so \\boxed{42}.", "\\fbox{42}", "\\boxed {42}", "\\boxed{\\boxed{42}}", "\\boxed 42", "<answer>42</answer>"),
    *("<answer> 42", "<ANSWER>42</ANSWER>", "<answer>so \\boxed{42}</answer>", "#### **42**", "The answer is 42."),
    *("The answer is: 42", "**Answer:** 42", "**Answer: 42**", "Final Answer: the final answer is 42"),
    *("the answer to the question is 42, because 6 * 7 = 42", "Answer:\n\n42"),
]


@pytest.mark.parametrize(("completion", "answers"), [*EXTRACTED, *((text, ["42"]) for text in FORTY_TWO)])
def test_the_answer_is_found(completion, answers):
    assert list(extract(completion, Options()).answers) == answers


NOT_FOUND = {
    "nothing outside": ["", "   "],
    "no answer found": [
        *("42", "The wrong answer is 42", "Possible answers: 41, 42", "The answer is not 42", "The answer depends"),
        *("#### Step 2: add 40", "#### 2 steps are left\nadd them", "#### 42 or 43", "% \\boxed{42}"),
    ],
    "not closed": ["\\boxed{42} and \\boxed{4"],
    "a box inside a box": ["\\boxed{41 \\boxed{42}}"],
    "taken back": ["\\boxed{42} Wait, 41"],
}


@pytest.mark.parametrize(
    ("completion", "problem"), [(text, problem) for problem in NOT_FOUND for text in NOT_FOUND[problem]]
)
def test_where_there_is_none_the_reason_is_given(completion, problem):
    found = extract(completion, Options())
    assert found.answers == ()
    assert problem in found.problem


READ = """
<think>a</think>b -> b | a<think>b</think>c -> c | a</think>b -> b | a</think>b</think>c -> c
<think>a<think>b</think>c</think>d -> d | <think>a</think>b<think>c -> b | <Thinking>a</Thinking>b -> b
<reasoning>a</reasoning>b -> b | <|begin_of_thought|>a<|end_of_thought|>b -> b | [THINK]a[/THINK]b -> b
a<!-- b -->c -> ac | a<!-- b -> a | 1 < 2 and [3] -> 1 < 2 and [3]
<think>a -> {nothing}
"""


@pytest.mark.parametrize("case", [case for line in READ.strip("\n").splitlines() for case in line.split(" | ")])
def test_only_what_is_meant_for_the_reader_is_read(case):
    completion, _, seen = case.partition(" -> ")
    assert answer_part(completion).strip() == seen.replace("{nothing}", "")
