"""Values of a dataset's columns that an environment's ``reset`` can be given: those that JSON has a form for."""

import itertools
from collections.abc import Mapping
from typing import Any


def row_problem(row: Mapping[str, Any]) -> str:
    """What is wrong with a row, in words that name the column; empty where nothing is.

    >>> row_problem({"goal": 3, "board": [[0, 1], [1, 0]]})
    ''
    """
    for column, value in row.items():
        if (found := _strange(value)) is not None:
            return (
                f"the column {column!r} holds {found}: reset is given None, numbers, texts, lists and mappings of "
                "these; turn it into one of them in the data, or leave the column out"
            )
    return ""


def _strange(value: Any) -> str | None:
    """The type in a value that JSON has no form for."""
    left = [value]
    for count in itertools.count():
        if not left:
            return None
        if count > 1_000_000:
            return "more than a million values"
        each = left.pop()
        if isinstance(each, Mapping):
            if bad := next((key for key in each if not isinstance(key, str)), None):
                return f"a mapping with a key of type {type(bad).__name__}"
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
        elif not (each is None or isinstance(each, bool | int | float | str)):
            return f"a value of type {type(each).__name__}"
    return None
