"""The program in a completion: its last fenced block of the wanted language."""

import re
from collections.abc import Collection

_FENCE = re.compile(r"^([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^\n]*)$", re.MULTILINE)


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
    fence, indent, language, start = "", "", "", 0
    for match in _FENCE.finditer(text):
        marks, rest = match[2], match[3].strip()
        if not fence:
            if "`" not in rest:  # else it is code inside a line
                fence, indent, start = marks, match[1], match.end() + 1
                words = rest.lower().lstrip("{.").split(maxsplit=1)
                language = words[0].partition("{")[0].rstrip("},:") if words else ""
        elif marks.startswith(fence) and not rest:
            if language in names or not language:
                content = _dedented(text[start : match.start()], indent)
                named, bare = (content, bare) if language else (named, content)
            fence = ""
    return named if named is not None else bare


def _dedented(content: str, indent: str) -> str:
    content = content.replace("\r\n", "\n").removesuffix("\n")
    return "\n".join(line.removeprefix(indent) for line in content.split("\n")) if indent else content
