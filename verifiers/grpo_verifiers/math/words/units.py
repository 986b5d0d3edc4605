"""Units of a closed table: each is a power product of base units with an exact scale.

Two quantities are compared over their base units: ``N`` is ``kg m/s^2``, 5 km are 5000 m. Temperatures, currencies and
angles are base units of their own: nothing converts one into another.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from grpo_verifiers.math.words.nouns import noun_phrase
from grpo_verifiers.math.words.vocabulary import section

MAX_UNIT = 120  # characters
_READINGS = 8


class Unit(NamedTuple):
    """One reading of a unit: its size in base units, and the exponents of these, sorted.

    A counted object is a base unit ``~apple``, and may have adjectives.
    """

    scale: Fraction = Fraction(1)
    powers: tuple[tuple[str, int], ...] = ()
    adjectives: frozenset[str] = frozenset()

    def times(self, other: "Unit", exponent: int = 1) -> "Unit":
        """The product with a power of another unit."""
        powers = dict(self.powers)
        for base, power in other.powers:
            powers[base] = powers.get(base, 0) + power * exponent
        nonzero = tuple(sorted((base, power) for base, power in powers.items() if power))
        return Unit(self.scale * other.scale**exponent, nonzero, self.adjectives | other.adjectives)


_PREFIXES = {
    "T": ("tera", 12), "G": ("giga", 9), "M": ("mega", 6), "k": ("kilo", 3), "c": ("centi", -2), "d": ("deci", -1),
    "h": ("hecto", 2), "m": ("milli", -3), "µ": ("micro", -6), "u": ("micro", -6), "n": ("nano", -9),
    "p": ("pico", -12),
}  # fmt: skip
_METRE_ONLY = {"c": "mgLl", "d": "mgLl", "h": "mPa"}
_NEVER = frozenset({"pm", "mh", "cd"})  # afternoon, not picometres
_TIMES_1024 = {"KB": ("B", 3), "kb": ("bit", 3), "Kb": ("bit", 3), "Mb": ("bit", 6), "Gb": ("bit", 9)}


def _definition(text: str) -> Unit:
    scale, *parts = text.split()
    powers = (part.partition("^")[::2] for part in parts)
    return Unit(Fraction(scale), tuple(sorted((base, int(power or 1)) for base, power in powers)))


def _prefixed(name: str, unit: Unit) -> dict[str, Unit]:
    is_symbol = len(name) <= 3 and name not in {"bit", "ohm"}
    units = {} if is_symbol else {name + "s": unit}
    for sign, (word, exponent) in _PREFIXES.items():
        scaled = unit._replace(scale=unit.scale * Fraction(10) ** exponent)
        if not is_symbol:
            units[word + name] = units[word + name + "s"] = scaled
        if len(name) <= 3 and name in _METRE_ONLY.get(sign, name) and sign + name not in _NEVER:
            units[sign + name] = scaled
    return units


def _table() -> dict[str, Unit]:
    prefixed: dict[str, Unit] = {}
    plain: dict[str, Unit] = {}
    for line in section("units").splitlines():
        names, _, definition = line.partition("=")
        unit = _definition(definition)
        for name in names.split():
            plain[name.rstrip("*")] = unit
            if name.endswith("*"):
                prefixed.update(_prefixed(name.rstrip("*"), unit))
    for name, (base, exponent) in _TIMES_1024.items():
        plain[name] = plain[base]._replace(scale=plain[base].scale * Fraction(10) ** exponent)
    return prefixed | plain


TABLE = _table()
_POUNDS = (TABLE["lb"], TABLE["gbp"])
# "degrees" with C or F is a temperature
_PHRASES = (
    (re.compile(r"\b[dD]eg(?:ree)?s?\.?\s+(?:[cC]elsius|[cC]entigrade|C)\b"), " celsius "),
    (re.compile(r"\bdeg(?:ree)?s?\.?\s+(?:[fF]ahrenheit|F)\b"), " fahrenheit "),
    (re.compile(r"\b(?:pounds?|GBP) sterling\b"), " gbp "),
    (re.compile(r"\bU\.?S\.? +(?=dollar)"), " "),
    (re.compile(r"\bnautical miles?\b"), " nmi "),
    (re.compile(r"\blight[- ]years?\b"), " light-year "),
    (re.compile(r"(?:平方|\bкв\.?\s*)([^\W\d_]+)"), r" \1^2 "),
    (re.compile(r"(?:立方|\bкуб\.?\s+)([^\W\d_]+)"), r" \1^3 "),
    (re.compile("每"), " per "),
)  # fmt: skip
_LATEX = (
    (re.compile(r"\\d?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\(?:text|mathrm|mbox|operatorname|rm)\b\s*"), ""),
    (re.compile(r"\\(?:cdot|times|,|;|:|!|quad| )|[~·⋅*]"), " "),
    (re.compile(r"[{}]"), ""),
    (re.compile(r"(?<=[A-Za-z])\.(?=\s|$)"), " "),
)
_TOKEN = re.compile(r"\s*(?:(?P<word>[^\W\d_]+(?:['’-][^\W\d_]+)*|[$€£¢¥])|(?P<exponent>\^?-?\d)(?!\d)|(?P<op>[/()]))")
_BEFORE = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_AFTER = {"squared": 2, "cubed": 3}
# Words that may follow a unit without changing its value.
_ENDS = re.compile(
    r"(?:\s+|^)(?:in total|in all|in length|in area|in volume|altogether|overall|total|left|left over|remaining|"
    r"long|tall|wide|high|deep|thick|old|away|apart|each|of age|"
    r"played|sold|bought|made|used|needed|eaten|won|earned|spent|saved|later|ago)$"
)  # fmt: skip


@lru_cache(maxsize=4096)
def unit_readings(text: str, gold_words: str = "") -> tuple[Unit, ...] | None:
    """The readings of a unit after a value; None for words that are neither units nor counted objects.

    An empty text has one reading, the empty unit. ``gold_words``, the words of the gold, count as nouns too.
    """
    text = text.strip(" .,;:\n\t")
    if len(text) > MAX_UNIT:
        return None
    if not text.isascii():  # vowel signs are no letters
        text = "".join(char for char in text if not unicodedata.category(char).startswith("M"))
    for pattern, plain in _LATEX + _PHRASES:
        text = pattern.sub(plain, text)
    bracketed = text.startswith("(") and text.endswith(")") and text.count("(") == 1
    text = _ENDS.sub("", (text[1:-1] if bracketed else text).strip())
    if not text:
        return (Unit(),)
    matches = list(_TOKEN.finditer(text))
    if "".join(match.group() for match in matches) != text.rstrip():
        return None
    tokens = [(str(match.lastgroup), match[str(match.lastgroup)]) for match in matches]
    reader = _UnitReader(tokens, frozenset(gold_words.casefold().split()))
    readings = reader.product()
    return readings if reader.tokens[reader.at] == _END else None


_END, _CLOSE = ("end", ""), ("op", ")")


class _UnitReader:
    """Reads the tokens of a unit one after the other; ``at`` is the index of the next."""

    def __init__(self, tokens: list[tuple[str, str]], gold_words: frozenset[str]) -> None:
        self.tokens, self.gold_words, self.at = [*tokens, _END], gold_words, 0

    def product(self) -> tuple[Unit, ...] | None:
        """The readings up to a closing bracket or the end; None for words that are no unit."""
        readings: tuple[Unit, ...] = (Unit(),)
        below, parts = False, 0
        while (token := self.tokens[self.at]) not in {_END, _CLOSE}:
            if token[1] in {"/", "per", "a", "an"}:
                if below or (token[1] not in {"/", "per"} and not parts):
                    return None
                below, self.at = True, self.at + 1
                continue
            factor = self._bracketed() if token[0] == "op" else self._factor(mass=below) if token[0] == "word" else None
            if factor is None:
                return None
            power = -factor[1] if below else factor[1]
            readings = tuple(unit.times(other, power) for unit, other in product(readings, factor[0]))[:_READINGS]
            below, parts = False, parts + 1
        return None if below or not parts else readings

    def _bracketed(self) -> tuple[tuple[Unit, ...], int] | None:
        self.at += 1
        units = self.product()
        if units is None or self.tokens[self.at] != _CLOSE:
            return None
        self.at += 1
        return units, self._exponent()

    def _exponent(self) -> int:
        kind, text = self.tokens[self.at]
        power = int(text.lstrip("^")) if kind == "exponent" else _AFTER.get(text.casefold())
        self.at += power is not None
        return 1 if power is None else power

    def _factor(self, *, mass: bool) -> tuple[tuple[Unit, ...], int] | None:
        """One unit or one phrase of counted objects, and its exponent."""
        start, name, following = self.at, self.tokens[self.at][1], self.tokens[self.at + 1][1]
        ahead = _BEFORE.get(name.casefold(), 0)
        if ahead and (units := _units_named(following)) is not None:
            self.at += 2
            return units, ahead
        units = _units_named(name)
        if units is not None and following.casefold() != "of":
            self.at += 1
            power = self._exponent()
            if name == "ms" and power < 0:  # ms^{-2}: milliseconds are rarely below a line
                return (TABLE["m"].times(TABLE["s"], power),), 1
            return units, power
        while self.tokens[self.at][0] == "word" and self.tokens[self.at][1] not in {"per", "a", "an"}:
            self.at += 1
        words = [text.casefold() for _, text in self.tokens[start : self.at]]
        if units is not None:  # litres of water
            return (units, 1) if noun_phrase(words[2:], self.gold_words, mass=True) else None
        phrase = noun_phrase(words, self.gold_words, mass=mass)
        return phrase and ((Unit(Fraction(1), ((f"~{phrase[0]}", 1),), phrase[1]),), 1)


def _units_named(name: str) -> tuple[Unit, ...] | None:
    if name.casefold() in {"pound", "pounds"}:
        return _POUNDS
    unit = TABLE.get(name)
    if unit is None and len(name) > 1:  # KG, Meters; no TH from th
        unit = TABLE.get(name.casefold())
    return None if unit is None else (unit,)


def ratio(gold: tuple[Unit, ...], answer: tuple[Unit, ...]) -> Fraction | None:
    """The answer's unit in units of the gold's; None if their dimensions differ."""
    for expected, unit in product(gold, answer):
        if expected.powers == unit.powers:
            if expected.adjectives <= unit.adjectives or unit.adjectives <= expected.adjectives:
                return unit.scale / expected.scale
        elif _generic(expected, unit) or _generic(unit, expected):
            return Fraction(1)
    return None


def _generic(unit: Unit, other: Unit) -> bool:
    """True if a unit is ``units``, ``square units`` or ``cubic units`` and the other of that dimension, or a count."""
    if len(unit.powers) != 1 or unit.powers[0][0] != "unit" or len(other.powers) != 1:
        return False
    (base, power), dimension = other.powers[0], unit.powers[0][1]
    return power == dimension and (base == "m" or (base.startswith("~") and dimension == 1))
