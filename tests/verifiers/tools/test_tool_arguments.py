"""Arguments of tools against jsonschema, and texts of state keys: equal for equal keys, different for different ones."""

import copy
import inspect
import itertools
from enum import Enum
from fractions import Fraction
from typing import Any, Literal

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils import get_json_schema

from grpo_verifiers.tools.arguments import argument_problem
from grpo_verifiers.tools.guest import MAX_TEXT, key_text
from grpo_verifiers.tools.part import Method


class Colour(Enum):
    RED = "red"
    TWO = 2


def everything(  # noqa: PLR0917 - the model gives them by name
    whole: int, number: float = 0.0, text: str = "", yes: bool = True, maybe: int | None = None, word: Literal["a", "b", 1] = "a",
    colour: Colour = Colour.RED, many: list[int] | None = None, deep: dict[str, list[float]] | None = None,
    pair: tuple[int, str] = (0, ""), either: int | str = 0, mixed: list[int] | str = "", free: Any = None,
): ...  # fmt: skip


NAMES = list(inspect.signature(everything).parameters)
everything.__doc__ = "All kinds.\n\nArgs:\n" + "".join(f"    {name}: {name[0]}\n" for name in NAMES)
SCHEMA = get_json_schema(everything)
METHOD = Method("everything", SCHEMA)


def strict(schema):
    """The same for jsonschema, which knows no ``nullable``, and lets pairs have any length."""
    schema = {key: strict(value) if isinstance(value, dict) else value for key, value in schema.items()}
    if "anyOf" in schema:
        schema["anyOf"] = [strict(each) for each in schema["anyOf"]]
    if "prefixItems" in schema:
        schema |= {"minItems": len(schema["prefixItems"]), "maxItems": len(schema["prefixItems"])}
        schema["prefixItems"] = [strict(each) for each in schema["prefixItems"]]
    return {"anyOf": [schema, {"type": "null"}]} if schema.get("nullable") else schema


GIVEN = SCHEMA["function"]["parameters"]
STRICT = {name: strict(copy.deepcopy(each)) for name, each in GIVEN["properties"].items()}
ORACLE = jsonschema.Draft202012Validator({**GIVEN, "additionalProperties": False, "properties": STRICT})
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, -1.25, "", "a", "b", "red", "1"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xy"), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from([*NAMES, "nosuch"]), values, max_size=3), values)
@pytest.mark.slow
def test_arguments_are_judged_as_jsonschema_does(arguments, whole):
    for given_ in (arguments, {"whole": whole, **arguments}, {"whole": 1, **arguments}):
        problem = argument_problem(METHOD, given_)
        assert (problem is None) == ORACLE.is_valid(given_), problem
        assert problem is None or (problem.startswith("everything: ") and len(problem) < 600)


def test_every_kind_of_value_is_judged_and_refusals_name_what_is_expected():
    values = [None, True, 1, 2, 0.5, "a", "red", [], [1], [1, "a"], ["a"], {}, {"x": [0.5]}, {"x": [1]}, {"x": "a"}, {"x": [None]}]  # fmt: skip
    for name, value in itertools.product(NAMES, values):
        arguments = {"whole": 1, name: value}
        assert (argument_problem(METHOD, arguments) is None) == ORACLE.is_valid(arguments), (name, value)
    for arguments, words in [
        ("{broken", "arguments are '{broken', expected an object: a name and a value for each."),
        ([1], "arguments are [1], expected an object: a name and a value for each."),
        (None, "arguments are null, expected an object: a name and a value for each."),
        ({"whole": "3"}, "whole is '3', expected an integer."), ({"whole": True}, "whole is true, expected an integer."),
        ({"whole": 3.0}, "whole is 3.0, expected an integer."), ({"number": False}, "number is false, expected a number."),
        ({"word": "c"}, "word is 'c', expected one of 'a', 'b', 1."), ({"word": True}, "word is true, expected one of 'a', 'b', 1."),
        ({"many": [1, "2"]}, "many[1] is '2', expected an integer."), ({"pair": [1]}, "pair has 1 items, expected 2."),
        ({"deep": {"k": [1, "x"]}}, "deep['k'][1] is 'x', expected a number."), ({"mixed": ["x"]}, "mixed[0] is 'x', expected an integer."),
        ({"maybe": "x"}, "maybe is 'x', expected an integer or null."), ({"either": 0.5}, "either is 0.5, expected an integer or a string."),
        ({"number": float("inf")}, "the arguments are not JSON: Out of range float values are not JSON compliant."),
        ({"free": {1, 2}}, "the arguments are not JSON: Object of type set is not JSON serializable."),
    ]:  # fmt: skip
        given_ = {"whole": 1, **arguments} if isinstance(arguments, dict) else arguments
        assert argument_problem(METHOD, given_) == f"everything: {words}"
    assert "the argument 'whole' is missing. It takes: whole, number" in argument_problem(METHOD, {})
    assert "unknown argument 'numbr'. Did you mean 'number'?" in argument_problem(METHOD, {"whole": 1, "numbr": 1})
    assert len(argument_problem(METHOD, {"whole": 1, "x" * 10**6: 1})) < 600
    deep: list = []
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deep" in argument_problem(METHOD, {"whole": 1, "free": deep})
    for huge in ("x" * 2_000_000, [0] * 2_000_000, {"x" * 2_000_000: 1}, 1 << 10**6):
        assert 0 < len(argument_problem(METHOD, {"whole": 1, "free": huge})) < 200
    assert argument_problem(METHOD, {"whole": 10**400}) is None
    assert "number is 1000" in argument_problem(METHOD, {"whole": 1, "number": 10**400})


LEAVES = st.integers() | st.text(max_size=5) | st.none()
KEYS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3),
    max_leaves=12,
)  # fmt: skip


def mirrored(key):
    """The same with all mappings the other way round."""
    if isinstance(key, dict):
        return {name: mirrored(each) for name, each in reversed(key.items())}
    return type(key)(map(mirrored, key)) if isinstance(key, list | tuple) else key


@pytest.mark.slow
@given(KEYS, KEYS)
def test_equal_keys_have_equal_texts_and_others_have_not(one, other):
    assert key_text(one) == key_text(mirrored(one))
    if not isinstance(one, str) and not isinstance(other, str):  # a text is its own
        assert (key_text(one) == key_text(other)) == (one == other)


def test_texts_of_keys_tell_what_they_hold_and_no_addresses():
    for key in [3, -0.5, True, (1,), (1, "a"), [], ["x", None], {"a": (1, 2)}, Fraction(1, 3), "a"]:
        assert key_text(key) == str(key)
    for key in [Plain(), [Plain()], {"a": (Plain(),)}, len.__call__, lambda: 1]:
        with pytest.raises(TypeError, match="address in memory"):
            key_text(key)
    words = [f"w{n}" for n in range(50)]
    assert key_text(set(words)) == key_text(frozenset(words))
    assert key_text(set(words)) == "{" + ", ".join(sorted(map(repr, words))) + "}"
    board, other = np.zeros((40, 40)), np.zeros((40, 40))
    other[20, 20] = 1
    assert str(board) == str(other)
    assert key_text((1, board)) != key_text((1, other))
    assert key_text(np.int64(3)) == "3"
    one, other = ("x" * 2 * MAX_TEXT + end for end in "ab")
    assert len(key_text(one)) <= MAX_TEXT
    assert key_text(one) != key_text(other)
    assert key_text(("<Board at 0x7f00>",)) == "('<Board at 0x7f00>',)"


class Plain:
    pass
