from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest

from grpo_verifiers.errors.messages import short
from grpo_verifiers.options import IsPattern, Range, TagName, fits, option_problems, spell

GOOD = [
    *[(1, float), (1.5, float), (-3, int), (True, bool), ("x", str), (None, None), (None, int | None), (2, int | None)],
    *[("a", Literal["a", "b"]), (1, Literal[1, 2]), (["a", None], list[Literal["a"] | None])],
    *[([1, 2.5], list[float]), (["a"], Sequence[str]), ([[1], []], list[list[int]])],
    *[((1, 2), tuple[int, ...]), ((1, "x"), tuple[int, str]), ({"a": 1}, dict), (object(), Any)],
    *[({"a": [1]}, dict[str, list[int]]), ({"a": {"b": 1.0}}, Mapping[str, Mapping[str, float]])],
]
BAD = [
    *[(True, float), (True, int), (1, bool), (float("nan"), float), ("1", float), (1.0, int), (None, int), (3, str)],
    *[("c", Literal["a", "b"]), (True, Literal[1, 2]), (1.0, Literal[1, 2]), (["b"], list[Literal["a"] | None])],
    *[("ab", list[str]), ("ab", Sequence[str]), ([1, "x"], list[int]), ([["x"], []], list[list[int]])],
    *[((1, 2, 3), tuple[int, int]), ({"a": ["x"]}, dict[str, list[int]]), ({1: 1.0}, Mapping[str, float])],
    *[({"a": {"b": "x"}}, Mapping[str, Mapping[str, float]]), ("x", int | None)],
]


def test_values_fit_their_types_or_do_not_and_types_have_words():
    assert [(value, hint) for value, hint in GOOD if not fits(value, hint)] == []
    assert [(value, hint) for value, hint in BAD if fits(value, hint)] == []
    words = [spell(hint) for hint in (float, int | None, Literal["a", 1], list[str])]
    assert words == ["a number", "an integer or nothing", "one of 'a', 1", "list[str]"]


Scale = Literal["group", "batch"]


def target(table, *, eps: float = 1e-4, scale: Scale = "group", parts: dict[str, float], depth: int | None = None):
    return table


def test_all_problems_come_at_once():
    given = {"ep": 1.0, "eps": "x", "scale": "bach", "depth": True}
    problems = option_problems("the thing", target, given, skip=("table",), where="kw")
    text = "\n".join(problems)
    assert len(problems) == 5
    assert "the thing: unknown kw 'ep'. Did you mean 'eps'? There is: depth, eps, parts, scale." in text
    assert "kw 'eps' is 'x', expected a number." in text
    assert "kw 'scale' is 'bach', expected one of 'group', 'batch'." in text
    assert "kw 'depth' is True, expected an integer or nothing." in text
    assert "kw 'parts' is required and missing." in text


def test_right_keywords_have_no_problem_and_what_the_caller_fills_in_cannot_be_given():
    given = {"parts": {"a": 1}, "scale": "batch", "eps": 0, "depth": None}
    assert option_problems("t", target, given, skip=("table",)) == []
    problems = option_problems("t", target, {"table": 1, "parts": {}}, skip=("table",))
    assert len(problems) == 1
    assert "unknown keyword 'table'" in problems[0]
    assert "There is: depth, eps, parts, scale." in problems[0]

    def anything(table, *, eps: float = 1.0, **rest):
        return rest

    assert option_problems("t", anything, {"x": 1, "y": "z"}, skip=("table",)) == []
    assert len(option_problems("t", anything, {"table": 1, "eps": "no"}, skip=("table",))) == 2


NAN = float("nan")


class Callable:
    def __call__(self, table, *, width: int = 1):
        return table


class Made:
    def __init__(self, width: int = 1):
        self.width = width


@pytest.mark.parametrize("fn", [Callable(), Made])
def test_objects_and_classes_are_checked_like_functions(fn):
    assert len(option_problems("t", fn, {"width": "wide"}, skip=("table",))) == 1
    assert option_problems("t", fn, {"width": 2}, skip=("table",)) == []


def test_annotations_that_cannot_be_evaluated_leave_types_unchecked_and_extra_ones_do_not_hide_them():
    def odd(table, *, x: "NoSuchType" = 1):  # noqa: F821
        return x

    assert option_problems("t", odd, {"x": "anything"}, skip=("table",)) == []
    assert len(option_problems("t", odd, {"y": 1}, skip=("table",))) == 1

    def bounded(*, eps: Annotated[float, "positive"] = 1.0):
        return eps

    assert len(option_problems("t", bounded, {"eps": "x"})) == 1


@pytest.mark.parametrize(("hint", "good", "bad", "words"), [
    (Annotated[int, Range(1, 64)], [1, 64], [0, 65, 2.0, True, "3"], "an integer from 1 to 64"),
    (Annotated[int, Range(1)] | None, [1, None], [0, "x"], "an integer of at least 1 or nothing"),
    (Annotated[int | None, Range(1)], [1, None], [0, "x"], "an integer of at least 1 or nothing"),
    (Annotated[float, Range(0, 1, open_high=True)], [0], [1, -0.1, "x", NAN], "a number of at least 0 and less than 1"),
    (Annotated[float, Range(0, finite=True)], [0, 1e300], [float("inf"), -1], "a finite number of at least 0"),
    (Annotated[float, Range(0, finite=True)], [0], [NAN, "x", True], "a number of at least 0"),
    (Annotated[float, Range(finite=True)], [-1, 0], [float("inf"), 10**400], "a finite number"),
    (Annotated[float, Range(0, 1, open_low=True, open_high=True)], [0.5], [0, 1], "a number of more than 0 and less than 1"),
    (Annotated[float, Range(0, text="a share")], [0, 1], [-1, "x"], "a share"),
])  # fmt: skip
def test_a_range_beside_the_type_says_what_is_expected(hint, good, bad, words):
    def fn(*, value: hint): ...

    for value in good:
        assert option_problems("f", fn, {"value": value}) == []
    for value in bad:
        problems = option_problems("f", fn, {"value": value}, bare=True)
        assert len(problems) == 1
        assert problems[0].endswith(f" is {short(value, 200)}, expected {words}.")


def test_other_constraints_stand_in_the_same_place():
    class Even:
        def problem(self, value):
            return "an even number" if value % 2 else None

    def fn(
        *,
        n: Annotated[int, Even()] = 0,
        tag: TagName | None = None,
        tags: Sequence[TagName] = (),
        pattern: Annotated[str, IsPattern(groups=1)] = "(x)",
    ): ...

    good = {"n": 2, "tag": "think", "tags": ["a", "b"], "pattern": "a(b)"}
    bad = {"n": 3, "tag": "<a>", "tags": ["a", "<b>"], "pattern": "ab"}
    assert option_problems("f", fn, good) == []
    problems = option_problems("f", fn, bad, bare=True)
    starts = ["n is 3, expected an even number", "tag is '<a>', expected a tag", "tags[1] is '<b>', expected a tag"]
    starts.append("pattern is 'ab', expected a pattern with 1 group, not 0.")
    assert len(problems) == 4
    assert all(problem.startswith(f"f: {start}") for problem, start in zip(problems, starts, strict=True))
    assert "expected a pattern (no regular expression: " in option_problems("f", fn, {"pattern": "(a"}, bare=True)[0]
