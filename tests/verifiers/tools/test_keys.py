"""Texts of state keys: equal for equal keys, different for different ones."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_verifiers.tools.keys import MOST, key_text

LEAVES = st.integers() | st.text(max_size=5) | st.none()
KEYS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)


def mirrored(key):
    """The same with all mappings the other way round."""
    if isinstance(key, dict):
        return {name: mirrored(each) for name, each in reversed(key.items())}
    return type(key)(map(mirrored, key)) if isinstance(key, list | tuple) else key


@given(KEYS, KEYS)
def test_equal_keys_have_equal_texts_and_others_have_not(one, other):
    assert key_text(one) == key_text(mirrored(one))
    if not isinstance(one, str) and not isinstance(other, str):  # a text is its own
        assert (key_text(one) == key_text(other)) == (one == other)


@pytest.mark.parametrize("key", [3, -0.5, True, (1,), (1, "a"), [], ["x", None], {"a": (1, 2)}, Fraction(1, 3), "a"])
def test_what_str_tells_is_kept(key):
    assert key_text(key) == str(key)


def test_sets_are_in_order_and_arrays_whole():
    words = [f"w{n}" for n in range(50)]
    assert key_text(set(words)) == key_text(frozenset(words))
    assert key_text(set(words)) == "{" + ", ".join(sorted(map(repr, words))) + "}"
    board, other = np.zeros((40, 40)), np.zeros((40, 40))
    other[20, 20] = 1
    assert str(board) == str(other)
    assert key_text((1, board)) != key_text((1, other))
    assert key_text(np.int64(3)) == "3"


def test_long_keys_differ_where_only_their_ends_do():
    one, other = ("x" * 2 * MOST + end for end in "ab")
    assert len(key_text(one)) <= MOST
    assert key_text(one) != key_text(other)


class Plain:
    pass


@pytest.mark.parametrize("key", [Plain(), [Plain()], {"a": (Plain(),)}, len.__call__, lambda: 1])
def test_an_address_is_no_key(key):
    with pytest.raises(TypeError, match="address in memory"):
        key_text(key)


def test_a_text_may_look_like_an_address():
    assert key_text(("<Board at 0x7f00>",)) == "('<Board at 0x7f00>',)"
