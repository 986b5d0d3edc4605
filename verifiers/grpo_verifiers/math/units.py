"""Words after a value: which are units, which units are the same, and which words are no unit but a hedge."""

import re

_GROUPS = """
degree degrees deg
percent percentage pct
dollar dollars usd
cent cents
euro euros eur
pound pounds gbp pounds_sterling
mm millimeter millimeters millimetre millimetres
cm centimeter centimeters centimetre centimetres cms
m meter meters metre metres
km kilometer kilometers kilometre kilometres kms
in inch inches
ft foot feet
yd yard yards yds
mi mile miles
g gram grams
kg kilogram kilograms kgs
mg milligram milligrams
lb lbs
oz ounce ounces
s sec secs second seconds
min mins minute minutes
h hr hrs hour hours
day days
week weeks
month months
year years yr yrs
l liter liters litre litres
ml milliliter milliliters millilitre millilitres
mph mi_per_h mi/h
kmh kph km/h km/hr km_per_h
unit units
rad radian radians
"""
_SAME = {name: line.split()[0] for line in _GROUPS.strip().splitlines() for name in line.split()}
_SCALES_LIST = """
hundred thousand million billion trillion dozen score
"""
_SCALES = frozenset(_SCALES_LIST.split())
# What a second answer, a doubt or a refusal to choose is made of.
_HEDGES_LIST = """
or and not no wait maybe perhaps possibly either neither nor but if else alternatively actually instead rather
approximately about around between to than least most unless otherwise also plus minus times wrong incorrect hmm
possible versus vs likely probably depending depends could might should any-of one-of except zero one two three four
five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty
thirty forty fifty sixty seventy eighty ninety
"""
_HEDGES = frozenset(_HEDGES_LIST.split())
_POWERS = {"square": "^2", "sq": "^2", "squared": "^2", "cubic": "^3", "cu": "^3", "cubed": "^3"}
_WORD = re.compile(r"[A-Za-z][A-Za-z/'-]*(?:\^-?\d)?")
MAX_WORDS = 6


def normal_unit(text: str) -> str | None:
    """One spelling of a unit; None where the words are no unit (numbers, doubts, alternatives, whole sentences)."""
    text = text.strip(" .,;:()").lower().replace("\\", "")
    if not text:
        return ""
    # remarks in brackets after a unit are no part of it
    words = _WORD.findall(text)
    rest = _WORD.sub("", text)
    if len(words) > MAX_WORDS or rest.strip(" .,()-/$"):
        return None
    plain = [word.partition("^")[0] for word in words]
    if any(part in _HEDGES for word in plain for part in word.split("-")):
        return None
    found: list[str] = []
    power = ""
    for word in words:
        if word in _POWERS:
            if word.endswith("ed") and found:
                found[-1] += _POWERS[word]
            else:
                power = _POWERS[word]
            continue
        base, _, exponent = word.partition("^")
        base = _SAME.get(base, base.removesuffix("s") if len(base) > 3 else base)
        found.append(base + (f"^{exponent}" if exponent else power))
        power = ""
    joined = " ".join(found)
    return _SAME.get(joined.replace(" ", "_"), joined)


def changes_value(unit: str) -> bool:
    """Whether leaving the unit out changes the number: millions, dozens."""
    return any(word in _SCALES or word == "percent" for word in unit.split())


def same_unit(gold: str, answer: str) -> bool:
    """Whether two normal units are the same; ``units`` and ``square units`` stand for any of their dimension."""
    if gold == answer:
        return True
    generic = {"unit", "unit^2", "unit^3"}
    if gold in generic or answer in generic:
        return gold.rpartition("^")[2][-1:] == answer.rpartition("^")[2][-1:] or not (
            gold[-1].isdigit() or answer[-1].isdigit()
        )
    return sorted(gold.split()) == sorted(answer.split())
