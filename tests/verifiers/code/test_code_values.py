"""What crosses between a program and its tests: values of standard classes, objects as their fields, exceptions by name."""

import json
from array import array
from collections import deque
from datetime import UTC, timedelta, timezone
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.code._compare import same_value
from grpo_verifiers.code._grade import grade_value
from grpo_verifiers.code._results import spell
from grpo_verifiers.code.guest.raised import exception
from grpo_verifiers.code.guest.values import MAX_DEPTH, NoValueError, check, decode, dump, encode
from grpo_verifiers.code.tests import CallTest


def _first(moment):
    return moment.replace(fold=0)  # which of two equal times it is does not cross


EXACT = (
    st.decimals() | st.fractions() | st.uuids() | st.dates() | st.times().map(_first) | st.datetimes().map(_first) | st.timedeltas() | st.binary().map(bytearray)
    | st.datetimes(timezones=st.just(UTC) | st.just(timezone(timedelta(hours=5, minutes=30)))).map(_first) | st.lists(st.integers(0, 9)).map(deque)
    | st.lists(st.integers(-9, 9)).map(lambda items: array("i", items)) | st.just(PurePosixPath("a/b"))
)  # fmt: skip
VALUES = st.recursive(
    EXACT | st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=4).flatmap(lambda items: st.sampled_from([items, tuple(items), deque(items)]))
    | st.dictionaries(st.text() | st.integers(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_values_of_standard_classes_survive_the_crossing(value):
    tree = json.loads(json.dumps(encode(value)))
    check(tree)
    back = decode(tree)
    assert type(back) is type(value)
    assert (repr(back), encode(back)) == (repr(value), tree)
    assert same_value(encode(value), tree, 1e-6)
    assert spell(tree)


PROGRAM = """
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import NamedTuple
Point = namedtuple("Point", "x y")
class Line(NamedTuple):
    a: Point
    b: Point
    def length(self): return 5
@dataclass
class Account:
    owner: str
    balance: float = 0.0
    history: list = field(default_factory=list)
@dataclass(frozen=True)
class Frozen:
    x: int
class Savings(Account):
    pass
class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
    def tail(self): return self.next
class Slotted:
    __slots__ = ("a", "_b")
    def __init__(self): self.a = 1
class Same:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return True
class Sized(Node):
    def __len__(self): return 0
class Colour(Enum):
    RED = "red"
    BLUE = 2
class Level(IntEnum):
    LOW = 1
class Sly(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
@dataclass(order=True)
class Task:
    rank: int
class Entry(Node):
    def __lt__(self, other): return self.value < other.value
class Callable_:
    def __call__(self): return 1
def give(what): return eval(what)
def balance(account): return account.balance
def is_account(value): return isinstance(value, Account)
def x(point): return point.x, isinstance(point, Point)
def colour(value): return value is Colour.RED
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "assert give('Point(2, 3)').x == 2 and give('Point(2, 3)') == (2, 3) and give('Point(2, 3)')._asdict() == {'x': 2, 'y': 3}",
        "a, b = give('Line(Point(0, 0), Point(3, 4))')\nassert b.y == 4 and isinstance(b, Point)",
        "assert x(give('Point(2, 3)')) == (2, True)",
        "assert give('Account(\"a\", 2.5, [1])').balance == 2.5 and give('Account(\"a\")').history == []",
        "assert give('Account(\"a\")') == give('Account(\"a\")') != give('Account(\"b\")')",
        "assert Account('a', 3.0) == give('Account(\"a\", 3.0)')",
        "assert isinstance(give('Savings(\"a\")'), Account) and not isinstance(give('Frozen(1)'), Account)",
        "assert give('Account(\"a\")') != give('Savings(\"a\")')",
        "assert is_account(give('Savings(\"a\")')) and balance(give('Account(\"a\", 7.0)')) == 7",
        "assert {give('Frozen(1)'), give('Frozen(1)')} == {give('Frozen(1)')} and repr(give('Frozen(1)')) == 'Frozen(x=1)'",
        "assert give('Node(1, Node(2))').next.value == 2 and give('Node(1)').next is None",
        "assert give('Slotted()').a == 1",
        "assert [task.rank for task in give('sorted([Task(2), Task(1)])')] == [1, 2] and give('Entry(3)').value == 3",
        "assert type(give('Node(1)')).__name__ == 'Node'",
        "assert give('Colour.RED').name == 'RED' and give('Colour.BLUE').value == 2 and give('Colour.RED') == give('Colour.RED')",
        "assert colour(give('Colour.RED')) and isinstance(give('Colour.RED'), Colour) and give('Level.LOW') == 1",
        "from decimal import Decimal\nassert give('__import__(\"decimal\").Decimal(\"0.1\") * 3') == Decimal('0.3')",
        "from fractions import Fraction\nassert give('__import__(\"fractions\").Fraction(1, 3)') + Fraction(2, 3) == 1",
        "from collections import deque\nassert give('__import__(\"collections\").deque([1, 2])') == deque([1, 2])",
        "import datetime\nassert give('__import__(\"datetime\").date(2024, 2, 29)') == datetime.date(2024, 2, 29)",
        "from datetime import date\nassert give('__import__(\"datetime\").date(2024, 2, 29)').weekday() == 3",
        "from array import array\nassert give('__import__(\"array\").array(\"i\", [1])') == array('i', [1])",
        "assert give('bytearray(b\"a\")') == b'a' and sorted(give('{2: 1, 1: 2}.keys()')) == [1, 2] and list(give('{2: 1}.items()')) == [(2, 1)]",
        "assert give('SimpleNamespace(a=1)').a == 1",
        "assert give('__import__(\"collections\").Counter(\"aab\")').most_common(1) == [('a', 2)]",
        "assert give('__import__(\"collections\").defaultdict(int)')['q'] == 0",
        "from decimal import Decimal\nassert give('1') == 1 and Decimal('2.5') == give('__import__(\"decimal\").Decimal(\"2.5\")')",
    ],
)  # fmt: skip
def test_results_of_honest_programs_can_be_looked_into(judge, code):
    verdict = judge(PROGRAM, [{"code": code}])
    assert verdict.score == 1, verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("assert give('Account(\"a\")').balance == 1", "AssertionError"),
        ("assert give('Node(1)').tail() is None", "assert_mode='in_process'"),
        ("assert give('Sly(3)') == 4", "assert_mode='in_process'"),
        ("assert give('[Sly(3)]') == [3]", "assert_mode='in_process'"),
        ("assert give('Same(1)') == 3", "AssertionError"),
        ("assert give('Same(1)') == give('Same(2)')", "AssertionError"),
        ("assert give('Node(1)') == give('Node(1)')", "AssertionError"),
        ("assert give('Sized(1)')", "assert_mode='in_process'"),
        ("assert give('Callable_()')", "assert_mode='in_process'"),
        ("assert give('Entry(1)') < give('Entry(2)')", "TypeError"),
        ("assert give('Colour.RED') == 'red'", "AssertionError"),
        ("assert give('Node(lambda: 1)').value", "assert_mode='in_process'"),
        ("assert isinstance(give('1'), Account)", "AssertionError"),
        ("assert isinstance(give('{\"Account\": 1}'), Account)", "AssertionError"),
    ],
)
def test_what_its_fields_do_not_tell_passes_no_test(judge, code, told):
    verdict = judge(PROGRAM, [{"code": code}])
    assert verdict.score == 0, verdict
    assert told in verdict.detail


RAISING = """
class BankError(Exception):
    pass
class Overdrawn(BankError):
    def __init__(self, balance, amount):
        super().__init__(f"{amount} of {balance}")
        self.balance, self.args_ = balance, (amount,)
class BadKey(KeyError, BankError):
    pass
class Coded(Exception):
    def __init__(self, code): self.code = code
    def __str__(self): return f"code {self.code}"
class Lost(OSError):
    pass
class Over(StopIteration):
    pass
class ValueError_(ValueError):
    pass
class TimeoutError(Exception):
    pass
def f(kind):
    if kind is None: return 1
    if kind == "u": return b"a\\xff".decode()
    raise {"o": lambda: Overdrawn(5, 9), "b": lambda: BankError("x"), "k": lambda: BadKey("y"), "v": lambda: ValueError("z"),
           "l": lambda: Lost(2, "gone"), "s": Over, "w": lambda: ValueError_("q"), "t": lambda: TimeoutError("t"), "c": lambda: Coded(3)}[kind]()
"""
CATCH = "try:\n    f({!r})\nexcept {} as e:\n    {}\nelse:\n    assert False"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "score"),
    [
        (CATCH.format("o", "Overdrawn", "assert e.balance == 5 and str(e) == '9 of 5' and e.args_ == (9,)"), 1),
        (CATCH.format("o", "BankError", "assert isinstance(e, Overdrawn) and type(e).__name__ == 'Overdrawn'"), 1),
        (CATCH.format("o", "(KeyError, Overdrawn)", "pass"), 1),
        (CATCH.format("k", "BankError", "assert e.args == ('y',)"), 1),
        (CATCH.format("c", "Coded", "assert str(e) == 'code 3' and e.code == 3"), 1),
        (CATCH.format("k", "KeyError", "assert type(e).__name__ == 'BadKey'"), 1),
        (CATCH.format("l", "OSError", "assert e.errno == 2"), 1),
        (CATCH.format("l", "Lost", "assert e.errno == 2"), 1),
        (CATCH.format("w", "ValueError", "assert e.__class__.__name__ == 'ValueError_'"), 1),
        (CATCH.format("s", "Over", "pass"), 1),
        (CATCH.format("t", "TimeoutError", "assert e.args == ('t',) and type(e).__name__ == 'TimeoutError'"), 1),
        (CATCH.format("t", "KeyError", "pass"), 0),
        (CATCH.format("u", "UnicodeDecodeError", "assert e.start == 1 and e.reason == 'invalid start byte'"), 1),
        *((CATCH.format("u", "ValueError", "pass"), 1), (CATCH.format("u", "UnicodeEncodeError", "pass"), 0)),
        ("import unittest\nunittest.TestCase().assertRaises(Overdrawn, f, 'o')", 1),
        ("import unittest\nwith unittest.TestCase().assertRaises(BankError) as seen:\n    f('o')\nassert seen.exception.balance == 5", 1),
        ("from contextlib import suppress\nwith suppress(KeyError, BankError):\n    f('b')\n    assert False", 1),
        *((CATCH.format("b", "Overdrawn", "pass"), 0), (CATCH.format("v", "BankError", "pass"), 0)),
        (CATCH.format("o", "ValueError", "pass"), 0),
        (CATCH.format("v", "ValueError as e:\n    pass\nexcept BankError", "assert False"), 1),
        ("import unittest\nunittest.TestCase().assertRaises(Overdrawn, f, 'b')", 0),
        ("import unittest\nunittest.TestCase().assertRaises(Overdrawn, f, None)", 0),
        ("try:\n    f('k')\nexcept BankError as e:\n    assert str(e) == repr('y')", 1),
        *(("assert all(f(kind) for kind in 's')", 0), ("assert f('o') == 1", 0)),
    ],
)  # fmt: skip
def test_exceptions_of_a_program_are_caught_by_name(judge, code, score):
    verdict = judge(RAISING, [{"code": code}])
    assert verdict.score == score, verdict


def test_exceptions_are_of_the_classes_that_share_their_names_views_cross_and_depth_is_refused():
    caught = {name: type(name, (Exception,), {}) for name in ("A", "B", "C")}
    bases = {"ValueError": ValueError, "OSError": OSError, "StopIteration": Exception, "type": Exception}
    own, fields = ["B", "A", "no name", "__class__"], ["d", ["n", 1], ["args", 2]]
    for near, base in bases.items():
        made = exception("told", near, ["t", "x"], own, fields, caught=caught)
        assert isinstance(made, base)
        assert [name for name in caught if isinstance(made, caught[name])] == ["A", "B"]
        assert (type(made).__name__, made.args, made.n) == ("B", ("x",), 1)
        assert not isinstance(made, StopIteration)
    for own in (
        *(["KeyError", "LookupError"], ["LookupError", "A", "KeyError"], ["OSError", "ValueError"]),
        ["StopIteration"],
    ):
        made = exception("told", "KeyError", ["t"], own, None, caught=caught)
        assert isinstance(made, KeyError)
        assert not isinstance(made, StopIteration)
        assert isinstance(made, caught["A"]) is ("A" in own)
    assert type(exception("told", "KeyError", ["t", "x"], [], None, caught=caught)) is KeyError
    assert str(exception("told", "KeyError", 5, ["A"], None, caught=caught)) == "told"
    for deep in (MAX_DEPTH - 2, MAX_DEPTH + 2, 5000):
        tree = 1
        for _ in range(deep):
            tree = ["o", ["A", [], ["x"], True], tree]
        assert grade_value(CallTest("f", ["l"], ["d"], 1), ["value", tree], 1e-6).kind == "wrong"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
NAMES = st.sampled_from(["a", "b", "A", "_c", "__class__", "__eq__", "class", "", "a b", "x" * 200])
HOSTILE = st.recursive(
    JSON
    | st.tuples(st.sampled_from("ifcbBxarngmoekvyqlsztdOCD"), JSON, JSON).map(list)
    | st.tuples(st.just("x"), st.sampled_from(["Decimal", "Fraction", "UUID", "date", "time", "datetime", "timedelta", "PosixPath", "eval"]),
                st.text(max_size=8) | st.sampled_from(["1/0", "sNaN", "1e999999999", "9" * 9999, "9" * 99999, "-1/-1/-1", "9999999999/0/0", "\0"])).map(list),
    lambda inner: st.tuples(st.sampled_from("lszdgqkvyOCD"), inner, inner).map(list)
    | st.tuples(st.just("m"), st.tuples(NAMES, st.lists(NAMES, max_size=3)).map(list), inner).map(list)
    | st.tuples(st.just("o"), st.tuples(NAMES, st.lists(NAMES, max_size=2), st.lists(NAMES, max_size=2), JSON).map(list), inner).map(list)
    | st.tuples(st.just("e"), st.tuples(NAMES, st.lists(NAMES, max_size=2), NAMES, st.booleans()).map(list), inner).map(list)
    | st.tuples(st.just("a"), st.sampled_from(["i", "u", "d", "Z", ""]), inner).map(list),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=800, deadline=None)
@given(HOSTILE)
def test_a_hostile_tree_never_passes_never_crashes_and_runs_nothing(tree):
    for wanted in (3, 0.5, "x", (1, 2), {1}, {"a": 1}, None, 0.0, 1j):
        result = grade_value(CallTest("f", ["l"], ["d"], encode(wanted)), ["value", tree], 1e-6)
        assert result.kind == ("pass" if _means(tree, wanted) else "wrong")
    try:
        check(tree)
    except NoValueError:
        return
    try:
        value = decode(tree)
    except (TypeError, ValueError):  # members that no set takes
        return
    assert encode(value) is not None or value is None
    assert isinstance(spell(tree), str)
    dump(encode(value))


def _means(tree, wanted):
    """Whether a tree honestly stands for one of the values above: by Python, on what it decodes to."""
    try:
        check(tree)
        value = decode(tree)
        if type(value) in {bool, str} or type(wanted) in {bool, str}:
            return type(value) is type(wanted) and value == wanted
        if type(wanted) is int:
            return type(value) is int and value == wanted
        if type(wanted) is float:
            return abs(float(value) - wanted) <= max(1e-6 * wanted, 1e-13 * (wanted == 0))
        if type(wanted) is tuple:
            return isinstance(value, tuple | list | deque | array) and [*map(repr, value)] == [*map(repr, wanted)]
        if type(wanted) is set:  # of which True is no 1
            return isinstance(value, set | frozenset) and [*map(repr, value)] == [*map(repr, wanted)]
        if type(wanted) is dict:
            return isinstance(value, dict) and [*map(repr, value.items())] == [*map(repr, wanted.items())]
        return isinstance(value, type(wanted)) and value == wanted
    except (NoValueError, TypeError, ValueError, OverflowError):
        return False
