"""Tables of what crosses, what is told of it, and which names and blocks a program is made of: nothing is run in a box."""

import ast
import datetime as dt
import json
import sys
import types
import uuid
from array import array
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import PosixPath, PurePosixPath

import pytest

from grpo_verifiers import Status
from grpo_verifiers.code import _compare, _grade
from grpo_verifiers.code import tests as _tests
from grpo_verifiers.code._results import (
    PASSED,
    UNSEEN,
    Result,
    pack_results,
    spell,
    unpack_results,
    verdict_of,
)
from grpo_verifiers.code.guest import raised, records, values
from grpo_verifiers.code.guest.blocks import program_of
from grpo_verifiers.code.guest.values import NoValueError, ValueTooLargeError, check, decode, encode

SHOWN = [
    (1, 1, "1"), (-(1 << 63), -(1 << 63), str(-(1 << 63))), ((1 << 63) - 1, (1 << 63) - 1, str((1 << 63) - 1)), (1 << 63, ["i", hex(1 << 63)], "0x8000000000000000"), (-(1 << 63) - 1, ["i", hex(-(1 << 63) - 1)], "-0x8000000000000001"),
    (None, None, "None"), (True, True, "True"), ("a", "a", "'a'"), (0.5, 0.5, "0.5"), (float("inf"), ["f", "inf"], "inf"), (-1j, ["c", "-0.0", "-1.0"], "-0.0 -1.0"), (b"a\xff", ["b", "61ff"], "bytes.fromhex('61ff')"), (bytearray(b"a"), ["B", "61"], "bytearray.fromhex('61')"),
    ([1, [2]], ["l", 1, ["l", 2]], "[1, [2]]"), ((1,), ["t", 1], "(1)"), ({1}, ["s", 1], "{1}"), (frozenset({1}), ["z", 1], "frozenset({1})"), (deque([1, 2]), ["q", 1, 2], "deque([1, 2])"), ({"a": 1}, ["d", ["a", 1]], "{'a': 1}"),
    ({"a": 1}.keys(), ["k", "a"], "dict_keys(['a'])"), ({"a": 1}.values(), ["v", 1], "dict_values([1])"), ({"a": 1}.items(), ["y", ["t", "a", 1]], "dict_items([('a', 1)])"), (OrderedDict(a=1), ["O", ["a", 1]], "{'a': 1}"), (Counter("aa"), ["C", ["a", 2]], "{'a': 2}"),
    (defaultdict(list, {1: 2}), ["D", "list", [1, 2]], "{1: 2}"), (defaultdict(None, {1: 2}), ["D", None, [1, 2]], "{1: 2}"), (defaultdict(lambda: 1, {1: 2}), ["D", None, [1, 2]], "{1: 2}"), (array("i", [1, 2]), ["a", "i", ["l", 1, 2]], "array([1, 2])"), (range(1, 9, 2), ["r", 1, 9, 2], "range(1, 9, 2)"),
    (iter([1, 2]), ["g", 1, 2], "an iterator of (1, 2)"), (zip([1], [2], strict=False), ["g", ["t", 1, 2]], "an iterator of ((1, 2))"), (Decimal("1.50"), ["x", "Decimal", "1.50"], "Decimal('1.50')"), (Fraction(-31, 16), ["x", "Fraction", "-1f/10"], "Fraction('-1f/10')"),
    (uuid.UUID(int=255), ["x", "UUID", "0" * 30 + "ff"], f"UUID('{'0' * 30}ff')"), (dt.date(2024, 2, 29), ["x", "date", "2024-02-29"], "date('2024-02-29')"), (dt.time(1, 2), ["x", "time", "01:02:00"], "time('01:02:00')"), (dt.datetime.fromisoformat("2024-01-02T03:00:00"), ["x", "datetime", "2024-01-02T03:00:00"], "datetime('2024-01-02T03:00:00')"),
    (dt.timedelta(1, 2, 3), ["x", "timedelta", "1/2/3"], "timedelta('1/2/3')"), (PosixPath("a/b"), ["x", "PosixPath", "a/b"], "PosixPath('a/b')"), (PurePosixPath("a"), ["x", "PurePosixPath", "a"], "PurePosixPath('a')"), (types.SimpleNamespace(a=1, __b__=2), ["o", ["SimpleNamespace", ["SimpleNamespace"], ["a"], True], 1], "SimpleNamespace(a=1)"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "tree", "text"), SHOWN)
def test_a_value_has_one_tree_comes_back_as_what_it_was_and_can_be_shown(value, tree, text):
    assert encode(value) == tree
    check(json.loads(json.dumps(tree)))
    back = decode(tree)
    if not text.startswith(("SimpleNamespace", "an iterator")):
        assert type(back) is type(value)
    assert encode(back) == tree
    assert spell(tree) == text
    assert _grade._value(["value", tree]) == (tree, "", [])


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def test_values_have_bounds_of_depth_and_of_members():
    check(encode(nested(99)))
    for large in (nested(100), {"a": nested(99)}, [0] * 200_001, dict.fromkeys(range(200_001)), iter([0] * 200_001), Counter(range(200_001))):  # fmt: skip
        with pytest.raises(ValueTooLargeError):
            encode(large)
    for fits in ([0] * 200_000, iter([0] * 200_000), dict.fromkeys(range(200_000))):
        assert len(encode(fits)) == 200_001
    tree = 0
    for _ in range(101):
        tree = ["l", tree]
    check(tree)
    with pytest.raises(NoValueError, match="malformed"):
        check(["l", tree])
    for tags in ("d", "C"):
        with pytest.raises(NoValueError, match="malformed"):
            check([tags, [1, tree]])
        with pytest.raises(NoValueError, match="malformed"):
            check([tags, [tree, 1]])
    for value, data in ((values, False), (len, False), ([].append, True), (3 .__add__, True), (type, False), (object(), True), (sys.stdin, False), (lambda: 1, False)):  # fmt: skip
        with pytest.raises(NoValueError) as caught:
            encode(value)
        assert caught.value.data is data, value
    with pytest.raises(NoValueError, match=f"a value of type {'A' * 60}$"):
        encode(type("A" * 70, (), {})())


MALFORMED = [
    [], {}, (1,), 1 << 63, -(1 << 63) - 1, float("inf"), float("nan"), [1], [None], [["l"]], ["?"], ["D"], ["D", "none"], ["D", 1], ["D", []], ["D", "int", [1]], ["d", 1], ["d", [1]], ["d", [1, 2, 3]], ["d", (1, 2)], ["l", ["?"]], ["d", [["?"], 1]], ["d", [1, ["?"]]],
    ["m"], ["m", "x"], ["m", ["A"]], ["m", ["A", ["b"], 1], 1], ["m", ["A", ["b"]]], ["m", ["A", ["b"]], ["?"]], ["o", ["A", [], ["b"]], 1], ["o", ["A", [], ["b"], True]], ["o", ["A", [], ["b"], True], ["?"]], ["e", ["A", [], "B", True]], ["e", ["A", [], "B", 1], 1],
    ["r", 1, 2], ["r", 1, 2, 3, 4], ["r", 1, 2, ["?"]], ["n", "<i4"], ["n", 4, 1], ["n", "<i3", 1], ["n", "|O", 1], ["n", "<i4", ["?"]], ["n", "<i4", 1, 2], ["a", "i"], ["a", 1, ["l"]], ["a", "ii", ["l"]], ["a", "i", 1], ["a", "i", ["l", "x"]], ["a", "i", ["l", None]], ["a", "i", ["l", 1 << 40]], ["a", "?", ["l"]],
    ["a", "i", ["l", ["?"]]], ["i"], ["i", 5], ["i", "5"], ["i", "0x5"], ["i", "0x8000000000000000", "1"], ["f", "1.0"], ["f", "x"], ["c", "1.0"], ["c", "1", "2"], ["b", "0"], ["b", "FF"], ["B", "zz"], ["x", "Decimal"], ["x", "Decimal", "x"], ["x", "Decimal", 1], ["x", "eval", "1"], ["x", "date", "20240229"], ["x", "Fraction", "2/4"], ["x", "UUID", "A" * 32],
]  # fmt: skip


@pytest.mark.parametrize("tree", MALFORMED)
def test_a_tree_that_encode_cannot_have_made_is_malformed(tree):
    with pytest.raises(NoValueError, match="a malformed value"):
        check(tree)
    assert _grade._is_tree(tree) is False
    with pytest.raises(NoValueError, match="unknown tag"):
        decode(["?", 1])


POINT = namedtuple("Point", "x y", module="program")  # noqa: PYI024 - its module
SOURCE = """
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum
@dataclass
class A:
    x: int
    y: object = None
    def method(self): return 1
class B(A): pass
class Slots:
    __slots__ = ("a", "b")
class One:
    __slots__ = "a"
class Both(Slots):
    __slots__ = ("c",)
class Colour(Enum):
    RED = "r"
class Level(IntEnum):
    LOW = 1
class Bits(Flag):
    X = 1
    Y = 2
class Bad:
    def __len__(self): return 1
class Meta(type): pass
class Error(Exception): pass
class Tuple(tuple): pass
class Int(int): pass
class Eq:
    def __eq__(self, other): return True
class Refusing:
    def __init__(self, a): self.a = a
    def __setattr__(self, name, value): raise ValueError
class Strict(Enum):
    ONE = 1
"""


@pytest.fixture
def space(monkeypatch):
    module = types.ModuleType("program")
    monkeypatch.setitem(sys.modules, "program", module)
    exec(compile(SOURCE, "<program>", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def test_a_stand_in_is_equal_by_its_fields_and_has_no_others(space):
    one, same, other, kin = (decode(encode(eval(text, space))) for text in ("A(1, [2])", "A(1, [2])", "A(2)", "B(1, [2])"))  # fmt: skip
    assert (one == same, one != other, one != kin, one == 3, hash(one) == hash(other), repr(one)) == (True, True, True, False, True, "A(x=1, y=[2])")  # fmt: skip
    assert (records.is_of(kin, "A"), records.is_of(one, "B"), records.is_of(3, "int"), records.is_of(POINT(1, 2), "Point")) == (True, False, False, True)  # fmt: skip
    with pytest.raises(AttributeError, match=r"'A' has no field 'method' \(objects cross as their fields"):
        one.method()
    plain, again = (decode(encode(space["One"]())) for _ in range(2))
    assert (plain == again, plain == plain) == (False, True)  # noqa: PLR0124 - by identity
    red, level, red_again, other_red = (decode(tree) for tree in (encode(space["Colour"].RED), encode(space["Level"].LOW), encode(space["Colour"].RED), ["e", ["Colour", ["Colour"], "BLUE", False], "r"]))  # fmt: skip
    assert (red == red_again, red == "r", level == 1, level == 2, red == other_red, red != level, red.name, red.value, hash(red) == hash(other_red)) == (True, False, True, False, False, True, "RED", "r", True)  # fmt: skip
    assert [encode(each) for each in (one, kin, red, level)] == [encode(each) for each in (space["A"](1, [2]), space["B"](1, [2]), space["Colour"].RED, space["Level"].LOW)]  # fmt: skip
    assert spell(encode(red)) == "Colour.RED"
    assert (spell(encode(POINT(1, [2]))), spell(encode(one))) == ("Point(x=1, y=[2])", "A(x=1, y=[2])")
    point = decode(encode(POINT(1, 2)))
    assert (type(point).__name__, point.x, point == (1, 2), type(point) is type(decode(encode(POINT(3, 4))))) == ("Point", 1, True, True)  # fmt: skip

    def back(tree):
        return decode(tree, lambda *parts: records.rebuild(space, *parts))

    assert back(encode(one)) == space["A"](1, [2])
    assert back(encode(red)) is space["Colour"].RED
    assert type(back(encode(POINT(1, 2)))).__name__ == "Point"
    space["Point"] = POINT
    assert type(back(encode(POINT(1, 2)))) is POINT
    for tree, name in ((["o", ["Gone", ["Gone"], ["a"], True], 1], "Gone"), (["e", ["Strict", ["Strict"], "TWO", False], 2], "Strict"), (["o", ["int", ["int"], ["a"], True], 1], "int"), (["m", ["A", ["a", "b", "c"]], 1, 2, 3], "A")):  # fmt: skip
        found = back(tree)
        assert (type(found).__name__, type(found) in space.values()) == (name, False)
    assert vars(back(["o", ["Refusing", ["Refusing"], ["a"], False], 1])) == {"a": 1}
    assert type(back(["o", ["Refusing", ["Refusing"], ["a"], False], 1])) is space["Refusing"]


def test_exceptions_are_described_and_made_again():
    tree = ast.parse("try: pass\nexcept A: pass\nexcept (B, C): pass\nexcept: pass\nexcept m.D: pass\nraises(E, F)\npytest.raises(expected_exception=G)\nx.assertRaises(H, f)\nassertRaisesRegex(exception=I)\nsuppress(J, K)\nraises((L, M))\nother(N)\nraises(x=O)".replace("except: pass\nexcept m.D: pass\n", "except m.D: pass\n"))  # fmt: skip
    assert raised.caught_names(tree) == set("ABCEGHIJKLM")
    error = KeyError("k", [1])
    error.code, error.__notes__ = 3, ["x"]
    assert raised.describe(error) == ["KeyError", ["t", "k", ["l", 1]], [], ["d", ["code", 3]]]
    own = type("Own", (type("Base", (ValueError,), {"__module__": "__main__"}),), {"__module__": "program"})
    assert raised.describe(own(len)) == ["ValueError", None, ["Own", "Base"], ["d"]]
    assert raised.describe(ValueError("x" * 9_975))[1] is not None
    assert raised.describe(ValueError("x" * 10_001))[1] is None
    size = len(values.dump(encode(("x" * 9_000,)))) - 9_000
    assert [raised.describe(ValueError("x" * (10_000 - size + over)))[1] is None for over in (0, 1)] == [False, True]
    for near, kind in (("ValueError", ValueError), ("len", raised.ProgramError), ("BaseException", raised.ProgramError), ("StopIteration", raised.ProgramError), ("StopAsyncIteration", raised.ProgramError), ("ExceptionGroup", raised.ProgramError), ("none", raised.ProgramError)):  # fmt: skip
        made = raised.exception("told", near, ["t", 5], [], ["d", ["a", 1], ["args", 2], ["with_traceback", 3]], caught={})  # fmt: skip
        assert (type(made), made.args, made.a, callable(made.with_traceback)) == (kind, (5,), 1, True)
    made = raised.exception("Own: said so", "KeyError", ["t", 1], ["Own", "1x"], None, caught={})
    assert (str(made), type(made).__name__, type(made)._names_, type(made).__module__, type(made).__mro__[1]) == ("said so", "Own", ("Own",), "program", KeyError)  # fmt: skip
    assert str(raised.exception("Other: said so", "KeyError", ["t", 1], ["Own"], None, caught={})) == "1"
    assert [str(raised.exception("Own: " + "x" * more, "KeyError", ["t", 1], ["Own"], None, caught={})) for more in (294, 295)] == ["x" * 294, "1"]  # fmt: skip
    for broken in (["?"], ["d", 1], 5):
        made = raised.exception("told", "UnicodeDecodeError", broken, ["Own"], None, caught={})
        assert (made.args, isinstance(made, raised.ProgramError)) == (("told",), True)
    assert raised.exception("told", "UnicodeDecodeError", ["t", 1], [], None, caught={}).args == ("told",)
    assert raised.exception("told", "ValueError", ["t", ["i", "5"]], [], None, caught={}).args == ("told",)
    named = raised.exception("told", "Exception", ["t"], ["KeyError", "Own"], None, caught={})
    assert (isinstance(named, KeyError), isinstance(named, ValueError)) == (True, False)


REPLIES = [
    (["value", 1], (1, "", [])), (["value", ["?"]], (None, "answered with a malformed value", [])), (["missing"], (None, "is not defined", ["the program does not define it", "NameError", None, [], None])), (["refused", "<x>"], (None, "returned '<x>', expected an exact built-in value", [])),
    (["raised", "E: no", "ValueError", 1, ["E", 3], ["d"]], (None, "raised 'E: no'", ["E: no", "ValueError", 1, ["E"], ["d"]])), (["raised", "a" * 1001, "b" * 101, ["?"], "E", ["l"]], (None, "raised '" + "a" * 199 + "…'", ["a" * 1000, "b" * 100, None, [], None])),
    (["raised", "a", "b", None, list(map(str, range(21)))], (None, "raised 'a'", ["a", "b", None, [*map(str, range(20))], None])), (["raised", "a"], (None, "raised 'a'", ["a", "", None, [], None])), (["raised", "a", "b", None, [], ["d", ["?", 1, 2]]], (None, "raised 'a'", ["a", "b", None, [], None])),
]  # fmt: skip
BROKEN = [None, [], {}, "value", [1], ["value"], ["value", 1, 2], ["odd", 1], ["missing", 1], ["refused"], ["refused", 1], ["refused", "a", 1], ["raised"], ["raised", 1], ["raised", "a", 1], ["raised", "a", "", None, [], None, 1], [["value"], 1], ["value ", 1]]  # fmt: skip


def test_a_reply_is_a_value_an_exception_what_is_missing_or_malformed():
    for reply, found in [*REPLIES, *((reply, (None, "gave a malformed answer", [])) for reply in BROKEN)]:
        got = _grade._value(reply)
        assert (got[0], got[1][:190], got[2]) == (found[0], found[1][:190], found[2]), reply
    test = _tests.CallTest("f", ["l"], ["d"], 0.5)
    for reply, result in ((["value", 0.5], PASSED), (["value", 1], Result("wrong", "f returned 1, expected 0.5")), (["missing"], Result("wrong", "f is not defined")), (["value", ["r", 1, 2, 3]], Result("wrong", "f returned range(1, 2, 3), expected 0.5"))):  # fmt: skip
        assert _grade.grade_value(test, reply, 1e-6) == result
    for reply, words in (([], ""), (None, ""), (["a", "b"], "b"), (["a", 1], ""), (["ModuleNotFoundError: x"], "ModuleNotFoundError: x; modules beyond the standard library are available if preload names them")):  # fmt: skip
        assert _grade._words(reply) == words
    for end, kind in (("timeout", "timeout"), *((each, "limit") for each in ("memory", "processes", "disk", "output", "sent", "killed")), ("exit", "ended"), ("protocol", "ended")):  # fmt: skip
        assert _grade._failure_of(types.SimpleNamespace(end=end, why="why")) == Result(kind, "why")
    hint = "(assert_mode='in_process' runs test code and program together, where the program can fool it)"
    assert [_grade._outcome(1, *given) for given in (("pass", ""), ("fail", "x"), ("refused", "y"))] == [PASSED, Result("wrong", "failed ('x')"), Result("refused", f"'y' {hint}")]  # fmt: skip
    for kind, why, said in (("uncrossable", "passes z", "test 2 passes z, which cannot cross"), ("idle", "", "test 2 never calls the program"), ("broken", "x", "test 2 is broken: 'x'$"), ("broken", "ModuleNotFoundError: x", r"\(modules beyond the standard library .* need no import\)$")):  # fmt: skip
        with pytest.raises(_tests.BadTestsError, match=said):
            _grade._outcome(1, kind, why)


def test_a_verdict_is_that_of_all_tests_and_says_which_failed_first():
    wrong, late, limit, syntax, unseen = Result("wrong", "w"), Result("timeout", "t"), Result("limit"), Result("syntax", "s"), Result("unseen", "u")  # fmt: skip
    table = [
        ([PASSED, PASSED], 1, 1, None, "2 of 2 tests passed [++]"), ([PASSED, wrong], 0, 0.5, None, "1 of 2 tests passed [+-]; test 2: w"), ([wrong, PASSED], 0, 0.5, None, "1 of 2 tests passed [-+]; test 1: w"), ([late], 0, 0, "timeout", "0 of 1 tests passed [t]; test 1: t"),
        ([late, late, wrong], 0, 0, "timeout", "0 of 3 tests passed [tt-]; test 1: t"), ([wrong, late, late], 0, 0, "timeout", "0 of 3 tests passed [-tt]; test 1: w"), ([syntax, unseen], 0, 0, "unparsable", "0 of 2 tests passed [-?]; test 1: s; 1 not reached: u"), ([unseen, limit, UNSEEN], 0, 0, None, "0 of 3 tests passed [?l?]; test 2: no answer; 2 not reached: u"),
        ([unseen], 0, 0, None, "0 of 1 tests passed [?]; test 1: u"), ([limit, UNSEEN], 0, 0, None, "0 of 2 tests passed [l?]; test 1: no answer; 1 not reached"), ([PASSED, late], 0, 0.5, "timeout of all", "1 of 2 tests passed [+t]; test 2: t"), ([], 0, 0, None, "0 of 0 tests passed []"),
    ]  # fmt: skip
    for results, whole, share, status, detail in table:
        for scoring, score in (("all", whole), ("share", share)):
            found = verdict_of(results, scoring)
            assert (found.score, found.detail) == (score, detail)
            told = (status or "").split()[0:1]
            if told and (scoring == "all" or status != "timeout of all"):
                assert found.status is Status(told[0])
            else:
                assert found.status is (Status.CORRECT if score == 1 else Status.PARTIAL if score else Status.WRONG)
    many = verdict_of([PASSED] * 201, "all", "note")
    assert many.detail == f"201 of 201 tests passed [{'+' * 200}…] (note)"
    assert verdict_of([PASSED] * 200, "all").detail == f"200 of 200 tests passed [{'+' * 200}]"
    results = [PASSED, Result("wrong", "a" * 2001), Result("limit", "b"), UNSEEN, Result("unseen", "c")]
    packed = pack_results(results)
    assert packed == [["pass", ""], ["wrong", "a" * 2000], ["limit", ""], ["unseen", ""], ["unseen", "c"]]
    assert unpack_results(packed, 5) == [
        PASSED,
        Result("wrong", "a" * 2000),
        Result("limit"),
        UNSEEN,
        Result("unseen", "c"),
    ]
    for bad in ([["pass", ""]], {}, None, [["pass"]] * 2, [["odd", ""]] * 2, [["pass", 1]] * 2, [["wrong", "a" * 2001]] * 2, ["pass"] * 2, [["pass", "", 1]] * 2):  # fmt: skip
        with pytest.raises(ValueError, match=r"no outcome of a test|outcomes of 2 tests"):
            unpack_results(bad, 2)


def test_outputs_and_members_are_compared_to_the_last_mark():
    same, output = _compare.same_value, _compare.same_output
    for wanted, got, equal in (
        ({"a": 1}.keys(), ["a"], False), (["a"], {"a": 1}.keys(), False), ({"a": 1}, Counter("a"), True), (OrderedDict(b=1, a=2), {"a": 2, "b": 1}, True),
        ({1: [0.5]}, {1: [0.5000000001]}, True), ({0.5: 1}, {0.5000000001: 1}, False), ([{1, 2}], [{2, 1}], True), ({(1, 2)}, {(2, 1)}, False), ([1e-20, 0.0], [1e-20, 1e-33], True), ([1e-20, 0.0], [1e-20, 2e-33], False), ([5.0, 0.0], [5.0, 1e-13], True), ([5.0, 0.0], [5.0, 2e-13], False),
        ({1: 1e-20, 2: 0.0}, {1: 1e-20, 2: 2e-33}, False), (1e-20 + 0j, 1e-20 + 1e-34j, True), (1e-20 + 0j, 1e-20 + 2e-33j, False), (1 + 2j, 1 + 2.0000001j, True), (1 + 2j, 1 + 2.1j, False), (complex("inf"), complex("inf"), True), (complex("nan+1j"), complex("nan+1j"), True), (complex("inf"), 1e308 + 0j, False), ({"a": 1}, {"b": 1}, False), (frozenset({1}), {1, 2}, False),
    ):  # fmt: skip
        assert same(encode(wanted), encode(got), 1e-6) is equal, (wanted, got)
    assert [same(["n", "<f8", ["l", 0.5]], ["a", "d", ["l", got]], 1e-6) for got in (0.5, 0.6)] == [True, False]
    assert [same(["B", "61"], ["b", got], 0) for got in ("61", "62")] == [True, False]
    assert [same(["s", ["z", 1, 2]], ["s", ["z", *got]], 0) for got in ([2, 1], [2, 3])] == [True, False]
    assert [_compare._much_more(1, "x" * (2 * 1 + 100 - 2 + over)) for over in (0, 1)] == [False, True]
    for wanted, got, equal in (("  0.5", "  .5", True), ("  0.5", " .5", False), ("0.5 a", ".5 b", False), ("a", "b", False), ("0.5 1", ".5 1 1", False), ("0.500000", ".500000", True), ("0.500000", ".5", False), ("0.5000000", ".5", True), ("1.0e+10", "10000000000", True), ("a\n\n", "a", True), ("\na", "a", False), ("1.5e+10 x", "1.50000001e10 x", True)):  # fmt: skip
        assert output(wanted, got, 1e-6) is equal, (wanted, got)


BLOCK_CASES = [
    (["def f(): pass\nif __name__ == '__main__':\n    f()", "def g(): f()"], [], "def f(): pass\nif __name__ == '__main__':\n    f()"),
    (["len = 3", "x = len"], [], "x = len"),
    (["f = 1"], [], "f = 1"), (["def f(): pass", "f()"], [], "def f(): pass\nf()"), (["def f(): pass", "f()"], ["f"], "def f(): pass"), (["def f(): pass", "print(f())"], [], "def f(): pass\nprint(f())"), (["x = 1", "print(2)"], [], "print(2)"), (["import math", "print(math.pi)"], [], "import math\nprint(math.pi)"),
    (["def f(): pass\nif __name__ == '__main__':\n    f()", "f()"], [], "def f(): pass\nif __name__ == '__main__':\n    f()"), (["def f(): pass\nprint(f())", "f()"], [], "def f(): pass\nprint(f())"), (["def f(): pass\nprint(f())", "def g(): f()\ng()"], [], "def f(): pass\nprint(f())\ndef g(): f()\ng()"), (["def f(): pass", ">>> f()"], ["f"], "def f(): pass"),
    (["def f(): pass", "1"], ["f"], "def f(): pass"), (["def f(): pass", "pass"], [], "def f(): pass"), (["def f(): pass", "'text'\n2"], [], "def f(): pass"), (["def f(): pass", "x ="], ["f"], "x ="), ([">>> 1", "2"], [], "2"), (["$ ls", "pip install x"], [], "pip install x"),
    (["from m import f", "def g(): return f()"], ["f"], "from m import f\ndef g(): return f()"), (["def f(): return 1", "def f(): return 2"], ["f"], "def f(): return 2"), (["a = 1", "b = a", "print(b)"], [], "a = 1\nb = a\nprint(b)"), (["a = 1", "a = 2", "print(a)"], [], "a = 2\nprint(a)"),
    (["try:\n    import x\nexcept ImportError as e:\n    y = 1", "print(y)"], [], "try:\n    import x\nexcept ImportError as e:\n    y = 1"), (["with a() as b: c = 1", "print(b, c)"], [], "with a() as b: c = 1"), (["async def f(): pass", "g = f"], [], "async def f(): pass\ng = f"), (["class A: pass", "A()"], ["A"], "class A: pass"),
    (["if 1:\n    def f(): pass", "f()"], ["f"], "if 1:\n    def f(): pass"), (["x: int = 1", "print(x)"], [], "x: int = 1\nprint(x)"), (["def f():\n    inner = 1", "print(inner)"], [], "print(inner)"), (["(n := 5)", "print(n)"], [], "(n := 5)"), (["import x\ndef f(): pass", "f()"], ["x"], "import x\ndef f(): pass\nf()"),
]  # fmt: skip


@pytest.mark.parametrize(("blocks", "asked", "program"), BLOCK_CASES)
def test_a_program_is_its_last_block_or_what_that_belongs_to(blocks, asked, program):
    assert program_of(blocks, [asked] if asked else []) == program
