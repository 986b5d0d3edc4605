"""Steps of programs: the statement at which each test of a row finds the program failing."""

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.testing import check_verifier

CALLS = [{"function": "add", "args": [1, 2], "expected": 9}, {"function": "add", "args": [1, "a"], "expected": 3}]
LINES = [{"stdin": "3\n", "stdout": "6"}, {"stdin": "x\n", "stdout": ""}]
DEFINE = "import math\ndef add(a, b):\n  return a + b\nx = 1"


@pytest.fixture(scope="module")
def scored():
    made = get_verifier("code_steps", time_limit=2.0)

    def scored(source, tests, *, close=True):
        text = f"<think>```python\n1/0\n```</think>Sure:\n```python\n{source}" + ("\n```<|im_end|>" if close else "")
        verdict = made.verify(text, tests=tests)
        steps = [(text[step.start : step.end].strip(), step.score) for step in verdict.steps]
        return verdict, steps

    return scored


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("source", "tests", "expected"),
    [
        ("import sys\nn = int(input())\nprint(2 * n)", LINES, [1.0, 0.5, 1.0]),  # the second test never gets past n
        ("a = 1\nexit()\nprint(2)", LINES, [1.0, 1.0, None]),  # what is not reached is not scored
        ("import os\nos._exit(0)\nprint(2)", LINES[:1], [1.0, 1.0, None]),
        ("pass\n'text'\n3\ndef f()\n  return 1\nprint(1)", LINES[:1], [None, None, None, 0.0, None]),
        ("a = 1\nwhile True:\n  pass\nprint(1)", LINES[:1], [1.0, 0.0, None]),
        (DEFINE, CALLS, [1.0, 0.5, 1.0]),  # a wrong value fails nothing, a call that raises its definition
        (DEFINE + "\ny = x / 0\nz = 1", CALLS, [1.0, 1.0, 1.0, 0.0, None]),
        (DEFINE, [{"code": "assert add(1, 2) == 9"}, {"code": "assert add(1, 'a')"}], [1.0, 0.5, 1.0]),
        ("import sys\nsys.stdout = None\nx = 1", LINES[:1], [1.0, 0.0, None]),
    ],
)
def test_the_statement_that_fails(scored, source, tests, expected):
    verdict, steps = scored(source, tests)
    assert [score for _, score in steps] == expected
    assert "".join(text for text, _ in steps).replace("\n", "") == source.replace("\n", "")
    assert verdict.score == min(score for score in expected if score is not None)


def test_without_a_program_or_its_end_and_without_tests_nothing_is_scored(scored):
    for text in ["", "none", "```python\n\n```", "```c\nint x;\n```", "```python\nx = 1", "<think>```py\nx=1\n```"]:
        verdict = get_verifier("code_steps").verify(text, tests=LINES)
        assert (verdict.score, verdict.status, verdict.steps) == (0.0, Status.UNPARSABLE, ()), text
    verdict, steps = scored("x = 1\ny = 1 / 0\nprint(x", LINES[:1], close=False)
    assert (steps, verdict.score) == ([("x = 1", 1.0), ("y = 1 / 0", 0.0), ("print(x", None)], 0.0)
    verdict = get_verifier("code_steps").verify("```python\nx=1\n```", tests=[])
    assert (verdict.score, verdict.status) == (None, Status.ERROR)
    with pytest.raises(KeywordError, match="time_limit"):
        get_verifier("code_steps", time_limit=0.0)


@pytest.mark.slow
def test_many_statements_take_few_runs_and_the_contract_holds(scored):
    source = "\n".join([*(f"x{at} = {at}" for at in range(3000)), "x = 1 / 0", *(f"y{at} = 1" for at in range(3000))])
    _, steps = scored(source, LINES[:1])
    assert [score for _, score in steps] == [1.0] * 3000 + [0.0] + [None] * 3000
    made = get_verifier("code_steps", time_limit=2.0)
    check_verifier(made, [("```python\nprint(6)\n```", {"tests": LINES})], [("```python\n1/0\n```", {"tests": LINES})])
