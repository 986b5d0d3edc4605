"""The program in a completion: its last fenced block of the wanted language."""

import re
from collections.abc import Collection

_FENCE = re.compile(r"([ \t]*)(`{3,}|~{3,})[ \t]*([^\n`]*)")


def last_block(text: str, names: Collection[str]) -> str | None:
    """The content of the last closed fenced block, or None.

    A block that names the language wins over later ones that name none; blocks of other languages are passed over. One
    that is never closed is a program cut off, and no block.

    Args:
        text: the completion.
        names: what the language is called after a fence, in lower case.
    """
    named: str | None = None
    bare: str | None = None
    fence, indent, language = "", "", ""
    lines: list[str] = []
    for line in text.split("\n"):
        if not fence:
            match = _FENCE.fullmatch(line.rstrip("\r"))
            if match:
                indent, fence, info = match.groups()
                words = info.strip().lower().lstrip("{.").split()
                language = words[0].partition("{")[0].rstrip("},:") if words else ""
                lines = []
            continue
        stripped = line.strip()
        if stripped.startswith(fence) and not stripped.strip(fence[0]):
            content = "\n".join(lines)
            if language in names:
                named = content
            elif not language:
                bare = content
            fence = ""
        else:
            lines.append(line.rstrip("\r").removeprefix(indent))
    return named if named is not None else bare
