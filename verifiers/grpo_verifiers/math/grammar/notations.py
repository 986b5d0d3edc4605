r"""Whole answers in notations of their own, before the grammar sees them.

============================================== ======================================================================
``1.234,5``, ``1 234,5``, ``1.234.567``        1234.5, 1234.5, 1234567
``0.(3)``, ``0.1\dot{6}``                      repeating decimals; ``0.333...`` does not say which digits repeat
``1.2 x 10^5``, ``1.2e5``                      scientific notation
``3rd``, ``third``                             ordinals: equal to each other and to no number
``3 to 5``, ``5 out of 36``                    the ratio 3:5, the fraction 5/36
``1010 in base 2``, ``binary 1010``, ``0b1010`` ``1010_2``
``3:30 PM``, ``2024-05-01``, ``1 May 2024``    times and dates; ``5/1/2024`` is equal to nothing but itself
============================================== ======================================================================
"""

import re

from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.words.moments import moment
from grpo_verifiers.math.words.numerals import ordinal, spoken
from grpo_verifiers.math.words.units import unit_readings

MAX_NOTATION = 80
_GROUPS = re.compile(r"([-+]?[1-9]\d{0,2}(?:\.\d{3})+),(\d+)|([-+]?[1-9]\d{0,2}(?:(?: |~|\\,|\\ )\d{3})+),(\d+)")
_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(?:(?:\.\d{3}){2,}|(?:'\d{3})+)")
_NO_DIGIT = re.compile(r"[^-+\d]|\\,")
_REPEATING = re.compile(r"([-+]?\d*\.\d*)(?:\((\d+)\)|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)")
_SCIENTIFIC = re.compile(
    r"([-+]?\d{1,30}(?:\.\d{1,30})?)\s*(?:[eE]\+?|[xX]\s*10\s*\^\s*\{?\s*\+?)(-?\d{1,3})\s*\}?(?:\s+([A-Za-z].*))?"
)
_RATIO = re.compile(r"(\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)(?: to (\d+(?:\.\d+)?))?")
_SHARE = re.compile(r"(\d+) (?:out of|in) (\d+)")
_PRICE = re.compile(r"(USD|EUR|GBP|INR|JPY|CNY|Rs\.?)\s*(\d[\d,]*(?:\.\d+)?)")
_BASE = re.compile(
    r"([0-9A-Za-z]{1,60}),?\s*\(?\s*(?:in\s+)?(?:base[ -]?(\w{1,9})|(binary|octal|hexadecimal|hex))\s*\)?"
)
_BASE_FIRST = re.compile(r"(?:base[ -](\w{1,9})|(binary|octal|hexadecimal|hex)):?\s+([0-9A-Za-z]{1,60})")
_SUBSCRIPT = re.compile(r"([0-9A-Za-z]{1,60})_\{\s*(?:base )?\s*([a-z]{3,9}|(?<=base )\d{1,2})\s*\}")
_PREFIXED = re.compile(r"0([bo])([0-7]{1,60})")
_NAMES = {"binary": 2, "octal": 8, "hexadecimal": 16, "hex": 16, "b": 2, "o": 8}
_MAY_BE_OTHER = re.compile(r"'|[A-Za-z:/(]|\d-\d|\\dot|[.,]\d{3}[.,]|\d{3},")


def notation(text: str) -> Node | None:
    """The tree of an answer in one of these notations; None for all others."""
    if len(text) > MAX_NOTATION or _MAY_BE_OTHER.search(text) is None:
        return None
    if (match := _GROUPS.fullmatch(text)) is not None:
        whole, decimals = (match[1], match[2]) if match[1] else (match[3], match[4])
        return parse(f"{_NO_DIGIT.sub('', whole)}.{decimals}")
    if _POINTS.fullmatch(text):
        return parse(_NO_DIGIT.sub("", text))
    if (match := _REPEATING.fullmatch(text)) is not None:
        return parse(f"{match[1]}\\overline{{{match[2] or match[3] + (match[4] or '') + (match[5] or '')}}}")
    if (match := _SCIENTIFIC.fullmatch(text)) is not None:
        node = parse(f"{match[1]} \\times 10^{{{match[2]}}}")
        if match[3] is None:
            return node
        return ("unit", node, match[3]) if unit_readings(match[3]) is not None else None
    if (match := _SHARE.fullmatch(text)) is not None:
        return parse(f"{match[1]}/{match[2]}")
    if (match := _PRICE.fullmatch(text)) is not None:
        return ("unit", parse(match[2]), match[1].strip("."))
    if (match := _RATIO.fullmatch(text)) is not None:
        return parse(":".join(part for part in match.groups() if part))
    if ordinal(text) is not None or moment(text) is not None:
        return ("text", text)
    return _in_base(text)


def _in_base(text: str) -> Node | None:
    if (match := _SUBSCRIPT.fullmatch(text)) is not None:
        text = f"{match[1]} base {match[2]}"
    if (match := _PREFIXED.fullmatch(text)) is not None:
        digits, base = match[2], _base(None, match[1])
    elif (match := _BASE_FIRST.fullmatch(text)) is not None:
        digits, base = match[3], _base(match[1], match[2])
    elif (match := _BASE.fullmatch(text)) is not None:
        digits, base = match[1], _base(match[2], match[3])
    else:
        return None
    return parse(f"{digits}_{{{base}}}") if base and any(char.isdigit() for char in digits) else None


def _base(number: str | None, name: str | None) -> int | None:
    if number is None:
        return _NAMES[name or ""]
    if number.isdigit():
        return int(number)
    node = spoken(number)
    return int(node[1]) if node is not None and node[0] == "n" and node[2] is None else None
