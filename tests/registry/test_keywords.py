from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest

from grpo_verifiers.keywords import check_keywords, fits, spell

GOOD = [
    (1, float),
    (1.5, float),
    (-3, int),
    (True, bool),
    ("x", str),
    (None, None),
    (None, int | None),
    (2, int | None),
    ("a", Literal["a", "b"]),
    (1, Literal[1, 2]),
    ([1, 2.5], list[float]),
    ((1, 2), tuple[int, ...]),
    ((1, "x"), tuple[int, str]),
    ({"a": [1]}, dict[str, list[int]]),
    ({"a": {"b": 1.0}}, Mapping[str, Mapping[str, float]]),
    (["a"], Sequence[str]),
    ({"a": 1}, dict),
    (object(), Any),
    ([[1], []], list[list[int]]),
    (["a", None], list[Literal["a"] | None]),
]
BAD = [
    (True, float),
    (True, int),
    (1, bool),
    (float("nan"), float),
    ("1", float),
    (1.0, int),
    (None, int),
    (3, str),
    ("c", Literal["a", "b"]),
    (True, Literal[1, 2]),
    (1.0, Literal[1, 2]),
    ("ab", list[str]),
    ("ab", Sequence[str]),
    ([1, "x"], list[int]),
    ((1, 2, 3), tuple[int, int]),
    ({"a": ["x"]}, dict[str, list[int]]),
    ({1: 1.0}, Mapping[str, float]),
    ({"a": {"b": "x"}}, Mapping[str, Mapping[str, float]]),
    ([["x"], []], list[list[int]]),
    (["b"], list[Literal["a"] | None]),
    ("x", int | None),
]


@pytest.mark.parametrize(("value", "hint"), GOOD)
def test_values_that_fit(value, hint):
    assert fits(value, hint)


@pytest.mark.parametrize(("value", "hint"), BAD)
def test_values_that_do_not_fit(value, hint):
    assert not fits(value, hint)


def target(
    table,
    *,
    eps: float = 1e-4,
    scale: Literal["group", "batch"] = "group",
    parts: dict[str, float],
    depth: int | None = None,
):
    return table


def test_all_problems_come_at_once():
    problems = check_keywords(
        "the thing", target, {"ep": 1.0, "eps": "x", "scale": "bach", "depth": True}, skip=("table",), where="kw"
    )
    text = "\n".join(problems)
    assert len(problems) == 5
    assert "the thing: unknown kw 'ep'. Did you mean 'eps'? There is: depth, eps, parts, scale." in text
    assert "kw 'eps' is 'x', expected a number." in text
    assert "kw 'scale' is 'bach', expected one of 'group', 'batch'." in text
    assert "kw 'depth' is True, expected an integer or nothing." in text
    assert "kw 'parts' is required and missing." in text


def test_right_keywords_have_no_problem():
    assert (
        check_keywords("t", target, {"parts": {"a": 1}, "scale": "batch", "eps": 0, "depth": None}, skip=("table",))
        == []
    )


def test_what_the_caller_fills_in_cannot_be_given():
    problems = check_keywords("t", target, {"table": 1, "parts": {}}, skip=("table",))
    assert len(problems) == 1
    assert "unknown keyword 'table'" in problems[0]
    assert "There is: depth, eps, parts, scale." in problems[0]


def test_a_function_of_any_keyword_takes_any_but_what_the_caller_fills_in():
    def anything(table, *, eps: float = 1.0, **rest):
        return rest

    assert check_keywords("t", anything, {"x": 1, "y": "z"}, skip=("table",)) == []
    assert len(check_keywords("t", anything, {"table": 1, "eps": "no"}, skip=("table",))) == 2


class Callable:
    def __call__(self, table, *, width: int = 1):
        return table


class Made:
    def __init__(self, width: int = 1):
        self.width = width


@pytest.mark.parametrize("fn", [Callable(), Made])
def test_objects_and_classes_are_checked_like_functions(fn):
    assert len(check_keywords("t", fn, {"width": "wide"}, skip=("table",))) == 1
    assert check_keywords("t", fn, {"width": 2}, skip=("table",)) == []


def test_annotations_that_cannot_be_evaluated_leave_types_unchecked():
    def odd(table, *, x: "NoSuchType" = 1):  # noqa: F821
        return x

    assert check_keywords("t", odd, {"x": "anything"}, skip=("table",)) == []
    assert len(check_keywords("t", odd, {"y": 1}, skip=("table",))) == 1


def test_extra_annotations_do_not_hide_the_type():
    def bounded(*, eps: Annotated[float, "positive"] = 1.0):
        return eps

    assert len(check_keywords("t", bounded, {"eps": "x"})) == 1


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (float, "a number"),
        (int | None, "an integer or nothing"),
        (Literal["a", 1], "one of 'a', 1"),
        (list[str], "list[str]"),
    ],
)
def test_types_in_words(hint, words):
    assert spell(hint) == words
