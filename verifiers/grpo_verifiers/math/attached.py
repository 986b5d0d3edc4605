r"""Whether a box is a part of a larger formula or is denied: ``-\boxed{5}``, ``\sqrt{\boxed{5}}``, "not \boxed{5}".

Bullets, quotes and emphasis of Markdown around a box are none of these, nor are units, degrees and words behind it.
"""

import re

MAX_AROUND = 60
_BEFORE = re.compile(
    r"(?:(?:\A|[=$({,\s])-"
    r"|\d|\\(?:cdot|times|div|pm|mp|neq?|leq?|geq?|lt|gt|not|ln|log|sin|cos|tan|sqrt)\s*"
    r"|[\w)}]\s+[<>]\s+|[\w)}!]\s*[+/^]\s*|[\w)}]_"
    r"|(?:\\[dt]?frac(?:\s*\{[^{}]*\})?|\\sqrt(?:\[[^\]]*\])?|\^|_)\s*\{\s*"
    r"|\b(?:not|isn['’]t|never|anything but|other than|except|half of|twice|double|negative|minus)(?: equal to)?"
    r"[\s$(\\[]*)\Z",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"\s*(?:\^(?!\s*\{?\s*(?:\\circ|o\b))|\+\s*[\d\\a-z]|\\(?:cdot|times|div|pm|mp)(?![a-z])|!\s*[$=]|[xyzni]\s*[$+]"
    r"|[$\s\\)\]]*\(?(?:is )?(?:incorrect|wrong|false|not (?:right|correct|the answer))\b)|\d"
)


def attached(text: str, start: int, end: int) -> bool:
    """Whether what stands right before or after a box changes what it says."""
    before = text[max(0, start - MAX_AROUND) : start].rpartition("\n")[2]
    return _BEFORE.search(before) is not None or _AFTER.match(text[end : end + MAX_AROUND]) is not None
