r"""One answer in two forms, read as a chain: ``\frac34 \text{ or } 0.75`` and ``2/3 (about 0.667)``.

Every link of a chain is checked, so that both forms have to be right. What an integral, a sum or a limit is said to be
equal to is read without it.
"""

import re

from grpo_verifiers.math.read import without_text_commands
from grpo_verifiers.math.tree import STRUCTURES, Node

MAX_RESTATED = 300
_JOIN = r"(?:or|or equivalently|equivalently|i\.e\.,?|that is,?|which is|which equals)"
_ABOUT = r"(?P<about>approximately|approx\.?|about|roughly|nearly|\\approx|≈)"
_BRACKETED = re.compile(rf"(?P<first>[^<>,;]*[^<>,;\s])\s*\((?:{_JOIN} )?\s*(?:{_ABOUT}\s*)?(?P<second>[^()=<>,;]+)\)")
_JOINED = re.compile(rf"(?P<first>[^<>,;]*[^<>,;\s]),? {_JOIN} (?:{_ABOUT}\s*)?(?P<second>[^=<>,;]+)")
_GOES_ON = re.compile(r"(?P<first>[^<>,;]+?)\s*(?:=|\\approx|≈)\s*(?P<second>-?\d*\.\d+)\s*(?:\.{3,}|…|\\[lc]?dots)")
_SPACES = re.compile(r"(?:\s|~|\\[ ,;:!]|\\q?quad(?![a-zA-Z]))+")
_SIDE = re.compile(r"\\(?:lim|i{1,3}nt|oint|sum|prod)(?![a-zA-Z])")
_MAY_BE = re.compile(r"\(|or[ }]|\bi\.e|that is|which|\.{3}|…|dots|^\s*\\[dlimtosupr]")


def restated(text: str, gold: Node) -> str | None:
    """The text as a chain, or its value alone; None where it is no such answer, or the gold is no single value."""
    if len(text) > MAX_RESTATED or _MAY_BE.search(text) is None or gold[0] in STRUCTURES | {"pm"}:
        return None
    text = _SPACES.sub(" ", without_text_commands(text)).strip()
    if _SIDE.match(text) and gold[0] != "rel":
        left, value = _sides(text)
        return value if left and value else None
    if (match := _GOES_ON.fullmatch(text)) is not None:
        return f"{match['first']} \\approx {match['second']}"
    match = _BRACKETED.fullmatch(text) or _JOINED.fullmatch(text)
    if match is None:
        return None
    sign = "\\approx" if match["about"] else "="
    return f"{match['first']} {sign} {match['second']}"


def _sides(text: str) -> tuple[str, str]:
    """What stands before and after the only equals sign outside of brackets; empty where there is not exactly one."""
    level, found = 0, []
    for index, char in enumerate(text):
        level += (char in "{([") - (char in "})]")
        if char == "=" and not level:
            found.append(index)
    return (text[: found[0]].strip(), text[found[0] + 1 :].strip()) if len(found) == 1 else ("", "")
