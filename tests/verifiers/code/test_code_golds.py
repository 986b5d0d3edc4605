"""Tests are tried before a run relies on them: the reference passes, a program that does nothing does not."""

import json

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code._trials import trials
from grpo_verifiers.compose import all_of, gated
from grpo_verifiers.errors import ColumnError, KeywordError

from .programs import CALLS as ADD

RIGHT = "def add(a, b):\n    return a + b"


def check(tests, solution=None, **options):
    rows = {"tests": tests} | ({} if solution is None else {"solution": solution})
    return get_verifier("code", **options).check_golds(rows)


SOUND = {
    "calls": (ADD, RIGHT),
    "assertions": ([{"code": "assert add(1, 2) == 3"}], RIGHT),
    "a candidate": ([{"code": "def check(f):\n    assert f(1, 2) == 3\ncheck(add)"}], RIGHT),
    "a method": (
        [{"function": "Sums.add", "args": [1, 2], "expected": 3}],
        "class Sums:\n    def add(self, a, b): return a + b",
    ),
    "stdin": ([{"stdin": "3\n", "stdout": "6\n"}], "print(2 * int(input()))"),
    "a reference in a fence": (ADD, f"So:\n```python\n{RIGHT}\n```\n"),
    "a reference with fences inside": (ADD, f"def note():\n    '''\n```\nx\n```\n'''\n{RIGHT}"),
    "tests in JSON": (json.dumps(ADD), RIGHT),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", SOUND)
def test_a_sound_row_has_no_problem(case):
    tests, solution = SOUND[case]
    report = check([tests], [solution])
    assert report.ok, list(report.lines())
    assert next(iter(report.lines())).startswith("1 of 1 rows pass with their reference solution")


WEAK = {
    "the reference is wrong": (ADD, "def add(a, b):\n    return a - b", "its reference solution does not pass", "right programs may score 0"),
    "the reference is prose": (ADD, "Add both numbers.", "its reference solution does not pass", "right programs may score 0"),
    "test code that asserts nothing": ([{"code": "add(1, 2)"}], RIGHT, "a program that returns None; a program that returns []; a program", "programs that do nothing score 1"),
    "None is expected": ([{"function": "log", "args": [1], "expected_repr": "None"}], "def log(x): pass", "a program that returns None passes", "programs that do nothing score 1"),
    "the first argument is expected": ([{"function": "same", "args": [7], "expected": 7}], "def same(x): return x", "a program that returns its first argument passes", "programs that do nothing score 1"),
    "the input is expected": ([{"stdin": "7\n", "stdout": "7\n"}], "print(input())", "a program that prints its input passes", "programs that do nothing score 1"),
    "no output is expected": ([{"stdin": "7\n", "stdout": ""}], "input()", "an empty program (pass) passes", "programs that do nothing score 1"),
    "a test that no number fails": ([{"code": "if abs(f(2) - 4) > 1e-6:\n    raise AssertionError"}], "def f(x): return x * x", 'a program that returns float("nan") passes', "programs that do nothing score 1"),
    "a test of every member": ([{"code": "for a, b in zip(f(2), [1, 4]):\n    assert a == b"}], "def f(x): return [1, 4]", 'a program that returns []; a program that returns "" pass', "programs that do nothing score 1"),
    "the same everywhere": ([{"function": "f", "args": [at], "expected": "no"} for at in range(3)], "def f(x): return 'no'", "a program that returns 'no' passes", "programs that do nothing score 1"),
    "the same output": ([{"stdin": at, "stdout": "0"} for at in "12"], "print(0)", "a program that prints the same for any input passes", "programs that do nothing score 1"),
    "test code of its own only": ([{"code": "assert 1 + 1 == 2"}], RIGHT, "its tests are unusable (test 1 never calls the program", "its completions are left out"),
    "tests of no shape": ([{"bad": 1}], RIGHT, "its tests are unusable (test 1 has unknown keys 'bad'", "its completions are left out"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WEAK)
def test_a_row_that_teaches_nothing_or_the_wrong_thing_is_named_with_why(case):
    tests, solution, reason, treatment = WEAK[case]
    report = check([ADD, tests], [RIGHT, solution])
    first, *lines = report.lines()
    assert not report.ok
    assert first.startswith("1 of 2 rows pass")
    assert len(lines) == 1
    assert lines[0].startswith("row 1: ")
    assert reason in lines[0]
    assert treatment in lines[0]


def test_rows_without_a_reference_are_tried_too_and_shares_may_pass_in_part():
    with pytest.raises(ColumnError, match="takes a dataset or columns"):
        get_verifier("code").check_golds([{"tests": ADD}])
    assert check([ADD]).ok
    assert check([ADD, ADD], [None, RIGHT]).ok
    assert not check([[{"code": "add(1, 2)"}]]).ok
    tests = [*ADD, {"function": "add", "args": [4, 0], "expected": 4}]
    assert check([tests], [RIGHT], scoring="share").ok
    assert not check([tests[2:]], [RIGHT], scoring="share").ok
    report = check([[{"bad": 1}]] * 40, [RIGHT] * 40)
    assert [problem.row for problem in report.problems] == list(range(40))


def test_columns_are_named_as_for_the_verifier_also_in_a_composition():
    verifier = get_verifier("code", columns={"tests": "cases", "solution": "canonical"})
    assert verifier.check() == []
    assert verifier.check_golds({"cases": [ADD], "canonical": [RIGHT]}).ok
    assert not verifier.check_golds({"cases": [ADD], "canonical": ["pass"]}).ok
    assert "solution" not in verifier.required_columns | verifier.optional_columns
    with pytest.raises(ColumnError, match="'cases'"):
        verifier.check_golds({"tests": [ADD]})
    with pytest.raises(KeywordError, match=r"unknown parameter 'solutions'.*Did you mean 'solution'"):
        get_verifier("code", columns={"solutions": "x"})
    rows = {"tests": [ADD, ADD], "solution": [RIGHT, "pass"], "answer": ["4", "4"]}
    both = all_of("math", "code")
    lines = list(both.check_golds(rows).lines())
    assert any(line.startswith("code: row 1: ") for line in lines), lines
    assert set(both.gold_columns.values()) == {"answer", "tests", "solution"}
    assert gated("code", "think_format").check_golds({"tests": [ADD], "solution": [RIGHT]}).ok


def test_every_name_that_test_code_asks_for_is_stood_in_for():
    made = {
        trial.name: trial
        for trial in trials([{"code": "import math\nx = f(2)\nassert math.isclose(x, max(g(x), h.y))"}])
    }
    source = made["a program that returns None"].completion
    assert [f"def {name}(" in source for name in ("f", "g", "h", "math", "x", "max")] == [True] * 3 + [False] * 3
    assert not any(trial.passes for trial in made.values())
