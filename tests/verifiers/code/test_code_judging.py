"""What is taken for the program, what counts as equal, and what a verdict says."""

import json
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo_verifiers
from grpo_verifiers import Status, get_verifier
from grpo_verifiers.code._compare import same_output, same_value
from grpo_verifiers.code._grade import grade_value
from grpo_verifiers.code.guest.values import NoValueError, check, decode, encode
from grpo_verifiers.code.tests import BadTestsError, CallTest, read_tests
from grpo_verifiers.reading.fences import last_block
from tests.waiting import no_hang

ADD = "def add(a, b):\n    return a + b"
PYTHON = ("python", "py")


BLOCKS = {
    "a": [
        *("```python\na\n```\nprints\n```\n3\n```", "```python\na\n```\n```bash\nrm\n```", "```\na\n```"),
        *("```{.python}\na\n```", "```python:main.py\na\n```", "```python, ignore\na\n```", "```py\n\ufeffa\n```"),
        *("``` {.py .numbered}\na\n```", "```py\na\n```\n```py\ncut off"),
    ],
    None: [
        *("```Python3 title=x\na\n```", "```pythonic\na\n```", "> ```py\n> a\n> ```", "```python\ncut off"),
        *("no block", "inline ```py a``` here", ""),
    ],
    "b": ["```python\na\n```\n```python\nb\n```"],
    "a = (": ["```py\na = (\n```\n)\n```"],
    "a\n```py\nb\n```": ["````py\na\n```py\nb\n```\n````"],
    "a\n``` and more": ["```py\na\n``` and more\n```"],
    "a\n```\nb": ["~~~py\na\n```\nb\n~~~"],
    "```\na\n```": ["````py\n```\na\n```\n````"],
    "if x:\n    y": ["  ```py\n  if x:\n      y\n  ```"],
    "a\nb": ["```py\r\na\r\nb\r\n```\r\n"],
}


@pytest.mark.parametrize(("expected", "text"), [(expected, text) for expected in BLOCKS for text in BLOCKS[expected]])
def test_the_last_closed_block_of_the_language_is_the_program(expected, text):
    assert last_block(text, PYTHON) == expected


# What is expected: (equal to it, not equal to it), beside the table of rules.
COMPARED = [
    *(([1, (2, 3)], [(1, [2, 3])], []), ({(1, 2)}, [{(1, 2)}], []), ([0], [], [[False]])),
    *((0.3, [0.1 + 0.2], [0.3001]), (1.0, [], [math.nan, 10**400]), (1e300, [10**300], []), (0.5, [], [[0.5]])),
    *(([0.5], [], [0.5]), (10**400, [10**400], [10**400 + 1]), ("1", [], [1]), (b"a", [], ["a"]), (None, [], [0])),
    *(([], [], [None]), ([1], [], [[1, 2]]), ({"a": 1, "b": 2}, [{"b": 2, "a": 1}], [{"a": 1}])),
    *(({"a": 1}, [], [{"a": True}, {"a": 1, "b": 2}]), ({1: "a"}, [], [{True: "a"}]), ({}, [], [[]])),
    *(([1], [], [{1: 1}.keys(), {1: 1}.values()]), ([("a", 1)], [], [{"a": 1}.items()])),
    *((1 + 2j, [1 + 2j], []), ([[[0.0]]], [[[[-0.0]]]], []), ({0.0}, [{-0.0}], [])),
]


POINT = namedtuple("Point", "x y", module="program")  # noqa: PYI024 - its module
RED = IntEnum("Red", "ONE TWO THREE", module="program")
KNOWN = {"inf": math.inf, "nan": math.nan, "Point": POINT, "Red": RED, "deque": deque, "Decimal": Decimal}
MANUAL = Path(grpo_verifiers.__file__).parents[1] / "README.md"
RULES = MANUAL.read_text().partition("| expected | equal to it |")[2].partition("\n\n")[0].splitlines()[2:]
VALUE = r"`[^`]*`|(?:[^,\[{(]|\([^)]*\)|\[[^]]*\]|\{[^}]*\})+"


@pytest.mark.parametrize("rule", RULES)
def test_every_row_of_the_table_of_equality_holds(rule):
    columns = [re.findall(VALUE, cell) for cell in rule.strip("| ").split(" | ")[:3]]
    (wanted,), equal, unequal = ([each.strip() for each in column] for column in columns)
    for answers, verdict in ((equal, True), (unequal, False)):
        for answer in answers:
            if wanted.startswith("`"):
                assert same_output(wanted[1:-1], answer[1:-1], 1e-6) is verdict, answer
            else:
                a, b = (encode(eval(text, {**KNOWN})) for text in (wanted, answer))
                result = grade_value(CallTest("f", ["l"], ["d"], a), ["value", b], 1e-6)
                assert result.kind == ("pass" if verdict else "wrong"), answer


@settings(max_examples=300, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_equal_within_the_tolerance_only_and_to_what_its_computation_could_have_given(wanted, got):
    equal = same_value(encode(wanted), encode(got), 1e-6)
    gap = abs(Fraction(wanted) - Fraction(got))
    if wanted == 0:
        assert equal is (gap <= Fraction(1e-13))
    elif equal:
        assert gap <= Fraction(1e-6) * abs(Fraction(wanted)) * Fraction(1.000001)
    for near in (wanted, math.nextafter(wanted, math.inf), math.nextafter(wanted, -math.inf)):
        if math.isfinite(near) and abs(wanted) > 1e-300:
            assert same_value(encode(wanted), encode(near), 1e-6)
    assert same_value(encode(wanted), encode(got), 0) is (wanted == got)


@settings(max_examples=300, deadline=None)
@given(st.integers(-(10**9), 10**9), st.integers(1, 5), st.integers(-(10**4), 10**4))
def test_a_printed_decimal_is_met_up_to_half_a_unit_of_its_last_place(units, places, thousandths):
    stated = Decimal(units).scaleb(-places)
    answer = stated + Decimal(thousandths).scaleb(-places - 3)
    gap = abs(answer - stated)
    equal = same_output(f"{stated:.{places}f}", f"{answer:.{places + 3}f}", 1e-6)
    if equal:
        assert gap <= Decimal(1).scaleb(-places) / 2
        assert gap <= abs(stated) * Decimal("1e-6") or gap <= Decimal("1e-13")
    elif str(f"{stated:.{places}f}")[-1] != "0":
        assert gap > min(Decimal(1).scaleb(-places) / 2, abs(stated) * Decimal("1e-6") * Decimal("0.999999"))


@pytest.mark.sample(1)
@pytest.mark.parametrize("wanted", [3, 0.5, [1], {1}, {frozenset({1})}, {1: 2}, {(1,): 2}])
def test_no_answer_holds_the_comparison_up(wanted):
    many, deep = ",".join(map(str, range(100_000))), 95
    crafted = [
        *('["s",' + '["z",' * deep + many + "]" * deep + "]", '["s",' + '["z",1,' * deep + many + "]" * deep + "]"),
        *('["d",[' + '["z",' * deep + many + "]" * deep + ",1]]", '["f","0.' + "1" * 1_000_000 + '"]'),
        *('["i","0x' + "f" * 1_000_000 + '"]', '["b","' + "f" * 1_000_000 + '"]'),
        '["l",' + '["l"],' * 100_000 + '["l"]]',
    ]
    test = CallTest("f", ["l"], ["d"], encode(wanted))
    for text in crafted:
        with no_hang(20):
            assert grade_value(test, json.loads(f'["value",{text}]'), 1e-6).kind == "wrong"


def test_a_subclass_is_no_value_and_a_standard_mapping_is_one():
    class Sly(int):
        __eq__ = lambda self, other: True  # noqa: E731
        __hash__ = int.__hash__

    colour = IntEnum("colour", "red")
    generator = type("generator", (), {"__next__": int, "__iter__": iter})()
    for value in (Sly(3), [Sly(3)], {Sly(1): 2}, colour.red, type("L", (list,), {})(), object(), print, generator):
        with pytest.raises(NoValueError):
            encode(value)
    for value in (range(1, 4), iter([1, 2, 3]), map(int, "123")):
        tree = encode(value)
        check(tree)
        assert list(decode(tree)) == [1, 2, 3]
        assert not same_value(encode([1, 2, 3]), tree, 1e-6)
    for value in (Counter("aab"), OrderedDict(a=2, b=1), defaultdict(int, a=2, b=1)):
        assert same_value(encode({"a": 2, "b": 1}), encode(value), 0)


OUTPUTS = {
    "6\n9": (["6\n9\n", "6\r\n9\r\n"], ["6\n9\n10", "6", "6 9", "\n6\n9"]),
    "6\n9\n": (["6  \n9\t\n\n\n"], []),
    "a b": ([], ["a  b"]),
    "0.5": (["0.50000001", ".5"], ["0.51", "\u0660.\u0665", "0.5\u0660", "nan"]),  # digits of another script
    "\uff10.5": ([], ["0.5"]),
    "0.5 x": (["0.5000000001   x"], []),
    "0.50": ([".50"], []),
    "1.5e-10": (["1.50000001e-10", "0.00000000015"], []),
    "1e-10": ([], ["1.0e-10"]),
    "3.10": ([], ["3.1"]),
    "inf": ([], ["Infinity"]),
    "5": ([], ["5.0"]),
    "1e400": ([], ["1e500"]),
    "": ([""], ["x"]),
    "Yes": ([], ["yes"]),
}


def test_values_and_outputs_are_compared_by_type_value_and_line():
    for wanted, equal, unequal in COMPARED:
        assert all(same_value(encode(wanted), encode(got), 1e-6) for got in equal)
        assert not any(same_value(encode(wanted), encode(got), 1e-6) for got in unequal)
    for wanted, both in OUTPUTS.items():
        for answers, verdict in zip(both, (True, False), strict=True):
            assert [got for got in answers if same_output(wanted, got, 1e-6) is not verdict] == []


def test_tests_of_no_shape_exclude_the_row_and_empty_keys_count_as_absent():
    for tests, message in [
        *((None, "tests is 'None'"), ([], "tests is empty"), ("[]", "tests is empty"), ("not json", "not JSON")),
        ({"stdin": "", "stdout": ""}, "expected a list of tests"),
        (["assert f() == 1"], r"\(for an assertion: {code: "),
        ([{"input": "1", "output": "2"}], "input is stdin here, output is stdout here"),
        ({"inputs": ["1"], "outputs": ["2"]}, "one {stdin, stdout} for each pair"),
        (b"[]", "expected a list of tests"),
        (json.dumps(json.dumps([{"stdin": "", "stdout": ""}])), "expected a list of tests"),
        ([{"stdin": "1", "stdout": "2", "function": "f"}], "has the keys 'function', 'stdin', 'stdout'"),
        ([{"stdin": "1"}], "has the keys 'stdin'"),
        ([{"stdin": 1, "stdout": "2"}], "stdin is '1', expected a text"),
        ([{"function": "add", "args": [1]}], "expected_repr: 'None'"),
        ([{"function": "add", "args": [1], "expected": None}], "expected_repr: 'None'"),
        ([{"function": "a b", "expected": 1}], "expected a name"),
        ([{"function": "f", "args": 1, "expected": 1}], "expected a list"),
        ([{"function": "f", "expected_repr": "f()"}], "Python literal"),
        ([{"function": "f", "expected": 1, "expected_repr": "1"}], "has the keys"),
        *(([{"code": "assert f()", "stdout": "x"}], "has the keys"), ([{"code": "  "}], "code is empty")),
        ([{"code": "x", "want": 1}], "unknown keys 'want'"),
    ]:
        with pytest.raises(BadTestsError, match=message):
            read_tests(tests)
        verdict = get_verifier("code").verify(f"```python\n{ADD}\n```", tests=tests)
        assert verdict.score is None, tests
        assert verdict.status is Status.ERROR, tests
        assert message.replace("\\", "") in verdict.detail
    filled = dict.fromkeys(("stdin", "stdout", "code", "expected_repr")) | {"function": "f", "args": [1], "expected": 2}
    assert read_tests([filled]) == read_tests(json.dumps([filled])) == [CallTest("f", ["l", 1], ["d"], 2)]
    assert read_tests([{"function": "f", "expected_repr": "(1, {2})"}])[0].expected == ["t", 1, ["s", 2]]
    assert len(RULES) > 20
    with pytest.raises(TypeError) as caught:
        get_verifier("code", time_limit=0.0, level="full", highest="none", preload=["os; evil"])
    for part in ("time_limit is 0.0", "highest ('none') is below level ('full')", "'os; evil'"):
        assert part in str(caught.value)


def call(expected, **given):
    return [{"function": "f", "expected": expected, **given}]


def output(text, given=""):
    return [{"stdin": given, "stdout": text}]


@pytest.mark.sample(39)
@pytest.mark.parametrize(
    ("tests", "source", "score"),
    [
        ([{"function": "f", "args": [], "expected_repr": "(1, {2})"}], "def f(): return (1, {2})", 1),
        (call(3, args_repr="({1, 2},)"), "def f(s): return sum(s)", 1),
        (call(2, kwargs={"b": 2}), "def f(a=1, b=1): return a * b", 1),
        *(([{"function": "f", "expected_repr": "None"}], "def f(): pass", 1), (call(1), "def f(): return True", 0)),
        ([{"function": "S.f", "expected": 1}], "class S:\n    @staticmethod\n    def f(): return 1", 1),
        (call(1), "if __name__ == '__main__': raise SystemExit\ndef f(): return 1", 1),
        (call(1), "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\ndef f(): return A().x", 1),
        ([{"function": "g", "expected": 1}], "def f(): return 1", 0),
        (output("7", "3\n4"), "import sys\nprint(sum(map(int, sys.stdin)))", 1),
        (output("1"), "if __name__ == '__main__':\n    print(1)", 1),
        (output("1"), "import atexit, threading\nthreading.Thread(target=print, args=(1,)).start()", 1),
        *((output("1"), "print(1, end='')\nraise SystemExit(3)", 1), (output("é", "é\n"), "print(input())", 1)),
        (output("1"), "import asyncio\nasync def m(): print(1)\nasyncio.run(m())", 1),
        (output("1"), "open('a', 'w').write('1')\nprint(open('a').read())", 1),
        (output("3"), "import subprocess as s\nprint(s.check_output(['/usr/bin/expr', '1', '+', '2'], text=True))", 1),
        (output("x"), "import sys; sys.stdout.buffer.write(b'\\xff')", 0),
        ([{"code": "assert f(2) == 4\nassert f(3) == 9"}], "def f(x): return x * x", 1),
        ([{"code": "def check(c):\n    assert c(2) == 4\ncheck(f)"}], "def f(x): return x * x", 1),
        ([{"code": "import math\nassert math.isclose(f(), 0.3)"}], "def f(): return 0.1 + 0.2", 1),
        (
            [{"code": "try:\n    f()\nexcept ValueError:\n    pass\nelse:\n    assert False"}],
            "def f(): raise ValueError",
            1,
        ),
        (
            [{"code": "assert f() == {1: [2]}"}],
            "from collections import defaultdict\ndef f(): return defaultdict(list, {1: [2]})",
            1,
        ),
        ([{"code": "assert all(map(lambda x: f(x) == 1, [1, 2]))"}], "def f(x): raise StopIteration", 0),
        ([{"code": "try:\n    assert f() == 1\nexcept Exception:\n    pass"}], "def f(): return f", 0),
        ([{"code": "assert g() == 1"}], "def f(): return 1", 0),
    ],
)
def test_programs_are_judged_by_what_they_answer(judge, tests, source, score):
    verdict = judge(source, tests)
    assert (verdict.score, bool(verdict.detail)) == (score, True), verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("assert True", "never calls the program"),
        ("def check(c):\n    assert c() == 1", "never calls the program"),
        ("assert f(lambda: 1) == 1", "assert_mode='in_process'"),
        ("assert f( == 1", "is broken"),
        ("import nowhere_to_be_found\nassert f() == 1", "is broken"),
    ],
)
def test_test_code_that_says_nothing_excludes_the_row(code, message):
    verdict = get_verifier("code").verify("```python\ndef f(*a): return 1\n```", tests=[{"code": code}])
    assert verdict.score is None
    assert message in verdict.detail


def test_in_process_assertions_say_so_shares_count_and_options_are_checked_together(fenced):
    trusting = get_verifier("code", assert_mode="in_process")
    tests = [{"code": "assert A(2).get() == 2"}]
    source = "class A:\n    def __init__(self, x): self.x = {}\n    def get(self): return self.x"
    good, bad = fenced(source.format("x")), fenced(source.format("1"))
    assert get_verifier("code").verify(good, tests=tests).score == 0
    for text, score in ((good, 1), (bad, 0)):
        verdict = trusting.verify(text, tests=tests)
        assert verdict.score == score
        assert "a program can fool tests" in verdict.detail
    method = fenced("class Solution:\n    def f(self, x): return x + 1")
    for code, score in (("assert f(1) == 2", 1), ("assert f(1) == 3", 0), ("f = min\nassert f(1, 2) == 1", 1)):
        assert trusting.verify(method, tests=[{"code": code}]).score == score
    tests = [
        *({"function": "f", "args": [2], "expected": 4}, {"function": "f", "args": [3], "expected": 9}),
        *({"stdin": "5", "stdout": "25"}, {"code": "assert f(4) == 16"}),
    ]
    text = fenced("def f(x): return x * x if x != 3 else 0\nif __name__ == '__main__':\n    print(f(int(input())))")
    whole, share = (get_verifier("code", scoring=how).verify(text, tests=tests) for how in ("all", "share"))
    assert (whole.score, whole.status, share.score, share.status) == (0, Status.WRONG, 0.75, Status.PARTIAL)
    assert "3 of 4 tests passed [+-++]; test 2: f returned 0, expected 9" in share.detail


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("text", "status", "message"),
    [
        ("no code at all", Status.UNPARSABLE, "no closed fenced block"),
        ("```python\n```", Status.UNPARSABLE, "no closed fenced block"),
        ("```python\ndef f(:\n```", Status.UNPARSABLE, "does not compile"),
        ("```python\n\x00\x01\udcff\n```", Status.UNPARSABLE, "does not compile"),
        ("```python\n" + "(" * 5000 + "\n```", Status.UNPARSABLE, "does not compile"),
        ("```python\n" + "x = 1\n" * 1_700_000 + "\n```", Status.UNPARSABLE, "max_source"),
        ("<think>\n```python\ndef f(): return 1\n```\n</think> done", Status.UNPARSABLE, "no closed fenced block"),
        ("```python\nwhile True: pass\n```", Status.TIMEOUT, "out of time"),
    ],
)
def test_bad_programs_score_zero_with_the_reason(text, status, message):
    verdict = get_verifier("code", time_limit=1.0).verify(text, tests=[{"function": "f", "expected": 1}])
    assert (verdict.score, verdict.status) == (0, status)
    assert message in verdict.detail
