"""Words of messages: values shown safely, and the nearest match of a mistyped name."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

MOST = 60
"""Limit of the names in a message: a module may have hundreds."""
MAX_LABEL = 200
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters except line ends and tabs, and characters that change the text direction."""


def nearest(name: str, names: Iterable[str], least: float = 0.6) -> str | None:
    """The most similar of ``names``, or None when none has ``least`` of 1 in common."""
    lower = {each.lower(): each for each in names}
    matches = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=least)
    return lower[matches[0]] if matches else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a mistyped name; empty when nothing comes close."""
    close = nearest(name, names)
    return f" Did you mean {close!r}?" if close else ""


_COLUMNS = (
    "answer answers solution gold gold_answer ground_truth reference_answer final_answer target label reference",
    "prompt question problem instruction query input task user messages",
)
"""Common names of columns with the same meaning."""


def unknown(kind: str, name: object, names: Iterable[str]) -> str:
    """A message that names the unknown thing, the nearest match and everything there is.

    >>> unknown("column", "solution", ["question", "answer"])
    "unknown column 'solution'. Did you mean 'answer'? There is: answer, question."
    """
    listed = sorted(names)
    alike = next((words.split() for words in _COLUMNS if kind == "column" and name in words.split()), ())
    same = next((word for word in alike if word in listed), None)
    hint = f" Did you mean {same!r}?" if same else did_you_mean(str(name), listed)
    more = f" and {len(listed) - MOST} more" if len(listed) > MOST else ""
    return f"unknown {kind} {name!r}.{hint} There is: {', '.join(listed[:MOST]) or 'nothing'}{more}."


def show(text: object, limit: int = 60) -> str:
    """A value for a message: quoted, cut, free of control characters and lone surrogates."""
    return repr(cut(text if isinstance(text, str) else repr(text)[: 4 * limit], limit))


def cut(text: str, limit: int) -> str:
    """The first characters of a text, with ``…`` where some are missing."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def without_middle(text: str, limit: int, gap: str = "\n[… {} characters …]\n") -> str:
    """A long text without its middle, since the answer is at the end; ``gap`` gets the number of missing characters."""
    half = limit // 2
    return text if len(text) <= limit else text[:half] + gap.format(len(text) - 2 * half) + text[-half:]


def counted(count: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "run"), counted(2, "run")
    ('1 run', '2 runs')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def size_text(count: float) -> str:
    """A number of bytes, for people.

    >>> size_text(2048), size_text(3e9)
    ('2.0 KiB', '2.8 GiB')
    """
    unit = next((unit for unit in (1, 2**10, 2**20) if count < 1024 * unit), 2**30)
    name = {1: "bytes", 2**10: "KiB", 2**20: "MiB", 2**30: "GiB"}[unit]
    return f"{count / unit:.{unit > 1:d}f} {name}"


def exact(text: str, limit: int) -> str:
    """The first characters of a text as a plain ``str``: a subclass may have methods of its own."""
    return str.__getitem__(text, slice(limit))


def short(value: Any, limit: int = 80) -> str:
    """An object for a message; its type alone where it cannot be shown."""
    try:
        return exact(repr(value), limit)
    except BaseException:  # noqa: BLE001 - a broken __repr__ must not hide the message it was for
        return f"a value of the type {type_name(type(value))}"


def type_name(kind: type) -> str:
    """The name of a class; its metaclass may return a wrong one or raise."""
    try:
        return exact(kind.__name__, 200)
    except BaseException:  # noqa: BLE001 - as above
        return "(a class without a name)"


def readable(text: str, limit: int) -> str:
    """A text for tables, logs and files: valid UTF-8 without control characters."""
    return _UNPRINTABLE.sub("\ufffd", exact(text, limit).encode("utf-8", "replace").decode("utf-8"))


def label_problem(label: Any) -> str | None:
    """The problem with a verifier's label, a name of metrics and table columns; None if it is valid."""
    if isinstance(label, str) and label.strip() and label.isprintable() and len(label) <= MAX_LABEL:
        return None
    return f"label is {short(label)}, expected a name: printable characters, at most {MAX_LABEL} of them."
