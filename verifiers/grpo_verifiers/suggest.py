"""The nearest match of a mistyped name, for error messages."""

import difflib
from collections.abc import Iterable

MOST = 60
"""Names that a message lists: a module may have hundreds."""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar of ``names``, or None when nothing comes close."""
    lower = {known.lower(): known for known in names}
    found = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message about a mistyped name; empty when nothing comes close."""
    close = nearest(name, names)
    return f" Did you mean {close!r}?" if close else ""


def unknown(kind: str, name: object, names: Iterable[str]) -> str:
    """A message that names the unknown thing, the nearest match and everything there is."""
    known = sorted(names)
    hint = did_you_mean(str(name), known)
    more = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    return f"unknown {kind} {name!r}.{hint} There is: {', '.join(known[:MOST]) or 'nothing'}{more}."
