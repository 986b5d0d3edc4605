"""An extension of griffe, which reads docstrings for the page of Python names: examples with ``>>>`` are code."""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Put every example of a docstring into a fence, or Markdown would read ``[a][1]`` as a link."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub(fenced, obj.docstring.value)


def fenced(found: re.Match[str]) -> str:
    """The lines of an example between two fences, as far in as they were."""
    return f"{found[1]}```pycon\n{found[0]}\n{found[1]}```"
