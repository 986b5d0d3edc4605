"""Values in messages."""


def show(text: object, limit: int = 60) -> str:
    """A value for a message: quoted, cut, free of control characters and lone surrogates."""
    raw = text if isinstance(text, str) else repr(text)[: 4 * limit]
    cut = raw if len(raw) <= limit else f"{raw[:limit]}…"
    return repr(cut)
