"""Steps between tags."""

import re

from grpo_verifiers.steps.segments import Span

_TAG = re.compile(r"<(/?)step>", re.IGNORECASE)


def tags(text: str) -> list[Span]:
    """Each ``<step>…</step>`` is a step, its tags included; text outside of them belongs to none.

    A tag that opens inside an open step ends that one. A step that is never closed, being cut off, reaches to the end.

    Use it when the prompt asks for ``<step>`` tags, so that the model itself says where its steps are.

    >>> from grpo_verifiers.steps import segment
    >>> segment("So: <step>2 + 2</step> then <step>4", "tags")
    [(4, 22), (28, 35)]
    """
    found: list[Span] = []
    start = -1
    for match in _TAG.finditer(text):
        if start >= 0:
            found.append((start, match.end() if match[1] else match.start()))
            start = -1
        if not match[1]:
            start = match.start()
    return [*found, (start, len(text))] if start >= 0 else found
