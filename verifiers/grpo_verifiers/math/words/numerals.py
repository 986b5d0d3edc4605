"""Numbers in English words: cardinals, ordinals, fractions, signs.

``forty-two``, ``one hundred and five``, ``minus seven``, ``three and a half``, ``two thirds``, ``one point five``,
``a dozen`` (12). Any other word makes the phrase unreadable.
"""

import re
from fractions import Fraction
from functools import lru_cache

from grpo_verifiers.math.tree import Node, number

_ONES_LIST = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen
"""
ONES = {name: value for value, name in enumerate(_ONES_LIST.split())}
_TENS_LIST = "twenty thirty forty fifty sixty seventy eighty ninety"
TENS = {name: 10 * value for value, name in enumerate(_TENS_LIST.split(), start=2)} | {"fourty": 40}
SCALES = {
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "lakh": 10**5,
    "lac": 10**5, "crore": 10**7, "dozen": 12, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8, "百万": 10**6,
}  # fmt: skip
_IRREGULAR = {"zero": "zeroth", "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
              "nine": "ninth", "twelve": "twelfth"}  # fmt: skip
ORDINALS = (
    {_IRREGULAR.get(name, name + "th"): value for name, value in ONES.items()}
    | {name[:-1] + "ieth": value for name, value in TENS.items()}
    | {name + "th": SCALES[name] for name in ("hundred", "thousand", "million", "billion", "trillion")}
)
# "second" is no fraction, "quarter" and "half" are.
DENOMINATORS = {name: value for name, value in ORDINALS.items() if value > 2} | {"half": 2, "quarter": 4}
_PLURALS = {name + "s": value for name, value in DENOMINATORS.items()} | {"halves": 2}
_WORD = re.compile(r"[a-z]+")
MAX_WORDS = 14


def is_numeral(word: str) -> bool:
    """True if a word consists of number words: ``seven``, ``tenths``, ``two-thirds``, ``fives``."""
    return any(
        part in ONES or part in TENS or part in SCALES or part in ORDINALS or part in DENOMINATORS or part in _PLURALS
        or (part.endswith("s") and (part[:-1] in ONES or part[:-1] in TENS or part[:-1] in SCALES))
        for part in word.split("-")
    )  # fmt: skip


def denominator(word: str) -> int | None:
    """The denominator that a word after a number names: 10 for ``tenths``; None for any other word."""
    total = 1
    parts = word.split("-")
    for part in parts[:-1]:  # ten-thousandths
        if part not in ONES | TENS | SCALES:
            return None
        total *= (ONES | TENS | SCALES)[part]
    last = _PLURALS.get(parts[-1]) or DENOMINATORS.get(parts[-1])
    return None if last is None or "quarter" in parts[-1] else total * last


@lru_cache(maxsize=2048)
def number_in_words(text: str) -> Node | None:
    """Parse a number in words; None for any other phrase."""
    plain = text.casefold().strip(" .!").replace("-", " ")
    words = _WORD.findall(plain)
    if not words or len(words) > MAX_WORDS or "".join(words) != plain.replace(" ", ""):
        return None
    negative = words[0] in {"minus", "negative"}
    if negative:
        words = words[1:]
    node = _fraction(words) or _point(words) or _cardinal(words)
    return ("-", node) if node is not None and negative else node


def _fraction(words: list[str]) -> Node | None:
    """``two thirds``, ``a half``, ``three and a half``."""
    if len(words) < 2:
        return number(Fraction(1, 2)) if words == ["half"] else None
    bottom = DENOMINATORS.get(words[-1]) if words[-2] in {"a", "an", "one"} else _PLURALS.get(words[-1])
    if bottom is None:
        return None
    rest = words[:-1]
    head: list[str] = []
    if "and" in rest:
        cut = len(rest) - 1 - rest[::-1].index("and")
        head, rest = rest[:cut], rest[cut + 1 :]
        if not head:
            return None
    top = 1 if rest in (["a"], ["an"]) else _integer(rest)
    integer = _integer(head) if head else 0
    if top is None or integer is None or top == 0:
        return None
    part: Node = ("/", number(top), number(bottom))
    if not head and str(bottom).strip("0") == "1":  # tenths, hundredths: a decimal
        return ("n", Fraction(top, bottom), len(str(bottom)) - 1)
    if not head:
        return part
    return ("mixed", number(integer), part) if 0 < top < bottom else None


def _point(words: list[str]) -> Node | None:
    """``three point one four``."""
    if words.count("point") != 1:
        return None
    cut = words.index("point")
    integer = _integer(words[:cut]) if cut else 0
    digits = [ONES.get(word, 99) for word in words[cut + 1 :]]
    if integer is None or not digits or max(digits) > 9:
        return None
    decimals = "".join(map(str, digits))
    return ("n", integer + Fraction(int(decimals), 10 ** len(decimals)), len(decimals))


def _cardinal(words: list[str]) -> Node | None:
    value = _integer(words)
    return None if value is None else number(value)


def _integer(words: list[str]) -> int | None:
    """A cardinal number, larger scales before smaller ones."""
    if words[:1] in (["a"], ["an"]):
        words = ["one", *words[1:]]
        if len(words) < 2 or words[1] not in SCALES:
            return None
    total, group, last, ended, joined = 0, 0, "", 10**15, False
    for word in words:
        if word == "and":
            if joined or last not in SCALES:
                return None
            joined = True
            continue
        if word in ONES:
            value = ONES[word]
            free = last == "" or last in SCALES or (last in TENS and 0 < value < 10)
            if not free or (value == 0 and len(words) > 1):
                return None
            group += value
        elif word in TENS:
            if last and last not in SCALES:
                return None
            group += TENS[word]
        elif word in SCALES:
            scale = SCALES[word]
            if not last or joined or (last in SCALES and last != "hundred" and scale != 10**5):
                return None
            if scale == 100:
                if not 0 < group < 100 or group % 10 == 0 or last in SCALES:  # fifteen hundred, not ten hundred
                    return None
                group *= 100
            else:
                if scale >= ended or group == 0:
                    return None
                total, group, ended = total + group * scale, 0, scale
        else:
            return None
        last, joined = word, False
    return None if joined or not last else total + group


_DIGITS = re.compile(r"(\d{1,9})\s*(?:\^\s*\{?\s*)?(st|nd|rd|th)\}?")
_ENDINGS = {1: "st", 2: "nd", 3: "rd"}


def ordinal(text: str) -> int | None:
    """The place that ``3rd``, ``third`` or ``twenty-first`` names; None for anything else."""
    plain = text.casefold().strip(" .!")
    plain = plain.removeprefix("the ")
    if (match := _DIGITS.fullmatch(plain)) is not None:
        value = int(match[1])
        ending = "th" if value % 100 in {11, 12, 13} else _ENDINGS.get(value % 10, "th")
        return value if match[2] == ending else None
    words = plain.replace("-", " ").split()
    if not words or len(words) > MAX_WORDS or words[-1] not in ORDINALS:
        return None
    last = ORDINALS[words[-1]]
    if len(words) == 1:
        return last
    if words[-2] in TENS and 0 < last < 10:
        before = _integer(words[:-1])
        return None if before is None else before + last
    return None
