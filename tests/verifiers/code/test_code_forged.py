"""Trees of values that no honest program sends: whatever they are, the program scores 0, and no row is called broken."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_verifiers import get_verifier

from .programs import TALKER

pytestmark = pytest.mark.slow

FORGER = """
TREES = iter(json.loads({trees!r}))
say(["loaded"])
while True:
    question = hear()
    reply = next(TREES, '["value", 0]') if question.get("name") == "f" else '["value", 0]'
    say(('["' + question["id"] + '", ' + reply + "]").encode())
"""
SOUND = [
    *("x = f(3)\nassert g(x) == 7", "x = f(3)\nassert g(x[0]) == 7", "x = f(3)\nassert g(*x) == 7"),
    *("x = f(3)\nfor y in x:\n    assert g(y) == 7\nassert g(0) == 7", "x = f(3)\nassert g(x + x) == 7"),
    *("x = f(3)\nassert g(-x) == 7", "x = f(3)\nassert g({x: x}) == 7", "x = f(3)\nassert g(x.real) == 7"),
    *("x = f(3)\nassert g(str(x)) == 7", "x = f(3)\nassert g(sorted(x)) == 7 and g(x[::2]) == 7"),
    "try:\n    x = f(3)\n    g(x)\nexcept BaseException:\n    pass\nassert g(3) == 7",
    "import ast\nx = ast.literal_eval(f(3))\nassert g(x) == 7",
    "import copy\nx = copy.deepcopy(f(3))\nassert g(x, y=x) == 7",
    *("x = f(3)\nassert g(min(x), max(x), sum(x), len(x)) == 7", "x = f(3)\nassert g(x.value, x.name) == 7"),
]
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([1 << 62, -(1 << 63), 1 << 63, 10**30])
    | st.floats()
    | st.sampled_from(
        ["", "a", "\ud800", "...", "[1]", "0x5", "1e5", "nan", "-inf", "x" * 300, "00", "<f8", "x", "_names_"]
    )
)
TAGS = [*"ltszgqkvydrnaifcbBxmoe?", ""]
KINDS = [
    *("<f8", "<f16", "<U9999", "|b1", "|i1", "|O", "<M8", "<c32", ">f2", "<U0", "|S0", "<f-8", "=f8", "<f8 ", "|V4"),
    "",
]
TEXTS = [
    *("0x5", "-0x8000000000000000", "0x" + "f" * 5000, "nan", "1.5", "inf", "0g", "000", " 00 ", "1/0", "2020-13-01"),
    "NaN",
]
CLASSES = ["Decimal", "Fraction", "date", "time", "datetime", "timedelta", "UUID", "PosixPath", "int", "Exception"]


def _shaped(inner):
    several = st.lists(inner, max_size=3)
    return (
        st.tuples(st.sampled_from(TAGS), several).map(lambda pair: [pair[0], *pair[1]])
        | several
        | st.lists(st.tuples(inner, inner).map(list), max_size=3).map(lambda pairs: ["d", *pairs])
        | st.tuples(st.sampled_from(KINDS), inner).map(lambda pair: ["n", *pair])
        | st.tuples(st.sampled_from("bBuhilqfdQ?"), inner).map(lambda pair: ["a", *pair])
        | st.tuples(st.sampled_from(["i", "f", "b", "B"]), st.sampled_from(TEXTS)).map(list)
        | st.tuples(st.just("c"), st.sampled_from(TEXTS), st.sampled_from(TEXTS)).map(list)
        | st.tuples(st.just("x"), st.sampled_from(CLASSES), st.sampled_from(TEXTS)).map(list)
        | st.tuples(st.just("r"), inner, inner, inner).map(list)
        | several.map(lambda items: ["m", ["P", ["x", "y", "z"][: len(items)]], *items])
        | st.tuples(several, st.booleans()).map(
            lambda pair: ["o", ["P", ["P"], ["x", "name", "value"][: len(pair[0])], pair[1]], *pair[0]]
        )
        | st.tuples(inner, st.booleans()).map(lambda pair: ["e", ["P", ["P"], "name", pair[1]], pair[0]])
        | inner.map(lambda item: _deep(item, 99))
    )


def _deep(item, depth):
    for _ in range(depth):
        item = ["l", item]
    return item


TREES = st.recursive(ATOMS, _shaped, max_leaves=6)
REPLIES = (
    TREES.map(lambda tree: ["value", tree])
    | st.tuples(
        st.sampled_from(["ValueError", "KeyboardInterrupt", "StopIteration", "OSError", "X", "ExceptionGroup"]),
        TREES, st.lists(st.sampled_from(["X", "P", "__init__", ""]) | ATOMS, max_size=2), TREES,
    ).map(lambda parts: ["raised", "told", *parts])
    | st.lists(TREES, max_size=4)
)  # fmt: skip


def _score(replies, tests, preload=()):
    source = TALKER + FORGER.format(trees=json.dumps([json.dumps(reply) for reply in replies]))
    verifier = get_verifier("code", level="none", highest="process", scoring="share", preload=preload, time_limit=10)
    verdict = verifier.verify(f"```python\n{source}\n```", tests=tests)
    return verdict.score, verdict.detail


@pytest.mark.parametrize("preload", [(), ("numpy",)], ids=["plain", "numpy"])
@settings(max_examples=60, deadline=None)
@given(st.lists(REPLIES, min_size=len(SOUND), max_size=len(SOUND)))
@example([["value", ["n", "<f16", ["l", 1.0]]]] * len(SOUND))
@example([["value", ["s", ["l"]]]] * len(SOUND))
@example([["value", "..."]] * len(SOUND))
@example([["value", ["n", "<f8", ["l", ["i", "0x" + "f" * 500]]]]] * len(SOUND))
def test_a_forged_value_never_passes_and_never_makes_sound_tests_look_broken(preload, replies):
    if preload:
        pytest.importorskip("numpy")
    score, detail = _score(replies, [{"code": code} for code in SOUND], preload)
    assert score == 0, detail


@settings(max_examples=150, deadline=None)
@given(REPLIES)
def test_a_forged_answer_to_a_call_is_wrong_unless_it_is_the_value(reply):
    tests = [{"function": "f", "expected": value} for value in (7, 2.5, "word", [1, [2]], {"a": 1})]
    score, detail = _score([reply] * len(tests), tests)
    assert score == 0, detail


def test_a_test_that_passes_on_what_no_program_made_is_broken_all_the_same():
    score, detail = _score([], [{"code": "try:\n    f(lambda: 1)\nexcept BaseException:\n    pass"}])
    assert score is None
    assert "passes a value of type function to f" in detail
