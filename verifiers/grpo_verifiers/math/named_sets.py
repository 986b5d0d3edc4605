r"""Sets of numbers that have a name, in signs and in words: ``\mathbb{R}``, "all real numbers but 2"."""

import re

from grpo_verifiers.math.regions import EVERYTHING, HIGHEST, LOWEST, End, Part, Region, complement, point
from grpo_verifiers.math.tree import number

_ZERO, _ONE = End(number(0), 0.0), End(number(1), 1.0)
_ABOVE, _FROM = (Part(_ZERO, False, HIGHEST, False),), (Part(_ZERO, True, HIGHEST, False),)
_BELOW, _UP_TO = (Part(LOWEST, False, _ZERO, False),), (Part(LOWEST, False, _ZERO, True),)
_NATURAL = (Part(_ONE, True, HIGHEST, False),)
NATURAL = (_NATURAL, _FROM)
_SIGNS = {
    "": EVERYTHING, "^+": _ABOVE, "_+": _ABOVE, "_>0": _ABOVE, "^-": _BELOW, "_-": _BELOW, "_<0": _BELOW,
    "_>=0": _FROM, "_<=0": _UP_TO, "^*": complement(point(_ZERO)),
}  # fmt: skip
NUMBERS = {
    f"mathbb {domain}{sign}": Region(parts, domain) for domain in ("R", "Q", "Z") for sign, parts in _SIGNS.items()
} | {
    "mathbb N": Region(EVERYTHING, "N"),
    "mathbb N_0": Region(_FROM, "Z"),
    **{f"mathbb N{sign}": Region(_NATURAL, "Z") for sign in ("^+", "^*", "_+", "_>0")},
}

_KINDS = {
    "real number": "R", "real": "R", "real value": "R", "integer": "Z", "whole number": "Z", "rational number": "Q",
    "rational": "Q", "natural number": "N", "positive real number": "R^+", "positive real": "R^+",
    "negative real number": "R^-", "nonnegative real number": "R_{>=0}", "non-negative real number": "R_{>=0}",
    "positive integer": "Z^+", "negative integer": "Z^-", "nonnegative integer": "Z_{>=0}",
    "nonzero real number": "R^*",
    "non-negative integer": "Z_{>=0}", "nonnegative real": "R_{>=0}", "non-negative real": "R_{>=0}",
}  # fmt: skip
_ORDER = r"(?P<order>(?:strictly )?(?:greater|more|larger|less|smaller) than(?: or equal to)?|at least|at most)"
_BOUND = re.compile(rf"(?P<name>[a-zA-Z]) (?:is|must be|has to be) {_ORDER} (?P<bound>-?\d+(?:[./]\d+)?)")
_WORDS = re.compile(
    r"(?:the set of |(?P<is>[a-zA-Z]) (?:is|can be) )?(?:all|any|every)\s+(?:of the )?(?P<kind>[a-z -]+?)s?"
    r"(?: values?)?(?: of)?(?:\s+(?P<name>[a-zA-Z]))?\s*"
    rf"(?:,?\s*(?:that are )?{_ORDER}"
    r"\s*(?P<bound>[^=<>]{1,60})"
    r"|,?\s*(?:except(?: for)?|excluding|other than|besides|but|apart from|not equal to|\\neq?(?![a-zA-Z]))"
    r"\s*(?:(?P=name)\s*)?(?:[a-z]\s*=)?\s*(?P<without>[^=<>]{1,60}))?[.]?"
)
_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}|\\[ ,;]|[$~]")


def _spoken(text: str) -> str:
    return " ".join(_TEXT.sub(lambda match: f" {match[1] or ''} ", text).split()).strip(" .")


def set_in_words(text: str) -> str | None:
    """A named set of numbers, with what is left out of it, in LaTeX; None where the words say something else."""
    if len(text) <= 200 and (match := _BOUND.fullmatch(_spoken(text))) is not None:
        return f"{match['name']} {_sign(match['order'])} {match['bound']}"
    if len(text) > 200 or not re.search(r"\b(?:all|any|every)\b", text[:60], re.IGNORECASE):
        return None
    plain = _spoken(text)
    match = _WORDS.fullmatch(plain[:1].lower() + plain[1:])
    if match is None or match["kind"].strip() not in _KINDS:
        return None
    domain, _, sign = _KINDS[match["kind"].strip()].partition("^")
    letter, _, bound = domain.partition("_")
    found = f"\\mathbb{{{letter}}}" + (f"^{sign}" if sign else "") + (f"_{bound}" if bound else "")
    if match["order"]:
        return f"x {_sign(match['order'])} {match['bound'].strip()}" + ("" if letter == "R" else f", x \\in {found}")
    return f"{found} \\setminus \\{{{match['without'].strip()}\\}}" if match["without"] else found


def _sign(order: str) -> str:
    """The sign for words such as "greater than or equal to"."""
    words = order.removeprefix("strictly ")
    sign = ">" if words.split()[0] in {"greater", "more", "larger"} or words == "at least" else "<"
    return sign + ("=" if "equal" in words or words.startswith("at ") else "")
