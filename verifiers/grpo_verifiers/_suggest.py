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


def unknown(kind: str, name: object, names: Iterable[str]) -> str:
    """A message that names the unknown thing, the nearest match and everything there is."""
    known = sorted(names)
    close = nearest(str(name), known)
    hint = f" Did you mean {close!r}?" if close else ""
    more = f" and {len(known) - MOST} more" if len(known) > MOST else ""
    return f"unknown {kind} {name!r}.{hint} There is: {', '.join(known[:MOST]) or 'nothing'}{more}."
