"""Values with units compared, and values changed by the words right after them: ``5 million``, ``5 tenths``."""

import re
from fractions import Fraction

from grpo_verifiers.math.options import Options
from grpo_verifiers.math.tree import STRUCTURES, Node, names, number, survey, walk
from grpo_verifiers.math.values.canon import exact
from grpo_verifiers.math.words.numerals import SCALES, denominator, number_in_words
from grpo_verifiers.math.words.units import TABLE, Unit, ratio, unit_readings

_ANGLES: dict[tuple[Unit, ...] | None, str] = {(Unit(),): "", (TABLE["rad"],): "rad", (TABLE["degree"],): "degree"}
_CURRENCY = {"euro": "euro", "pounds": "gbp", "yen": "yen"}


def quantity(node: Node) -> tuple[Node, str]:
    """A value and its unit as written, after words that change the value are applied to it."""
    kind = node[0]
    if kind == "text":
        return number_in_words(node[1]) or node, ""
    if kind == "unit":
        value, inner = quantity(node[1])
        value, words = with_words(value, node[2])
        if inner == "degrees" and words in {"C", "F"}:
            return value, f"degrees {words}"
        return value, f"{inner} {words}".strip()
    if kind == "deg":
        return node[1], "degrees"
    if kind == "currency":
        value, inner = quantity(node[1])
        name = _CURRENCY[node[2]] if len(node) > 2 else "dollar"
        return value, name if not inner or unit_readings(inner) == unit_readings(name) else f"{name} {inner}"
    if kind == "-" and node[1][0] in {"unit", "deg", "currency"}:
        value, unit = quantity(node[1])
        return ("-", value), unit
    if kind in _WORKED and "deg" in survey(node).kinds and (angle := _without_degrees(node)) is not None:
        return angle[0], "degrees" * angle[1]
    return node, ""


_TEMPERATURES = {("v", "C"), ("v", "F")}
_WORKED = frozenset({"+", "-", "*", "/", "mixed"})


def _without_degrees(node: Node) -> tuple[Node, bool] | None:
    r"""An expression without its degree signs, and True if it is one of degrees (``180^\circ - 2x``); None if mixed."""
    kind = node[0]
    if kind == "f" or "deg" not in survey(node).kinds:
        return node, False
    if kind == "deg":
        return None if "deg" in survey(node[1]).kinds else (node[1], True)
    if kind not in _WORKED:
        return None
    parts = [_without_degrees(part) for part in node[1:]]
    measured = [part for part in parts if part is not None]
    if len(measured) < len(parts):
        return None
    values: Node = (kind, *(value for value, _ in measured))
    angles = [angle for _, angle in measured]
    if not any(angles):
        return values, False
    if kind == "/":
        return None if angles == [False, True] else (values, angles == [True, False])
    if kind in {"*", "mixed"}:
        return None if sum(angles) > 1 or not _TEMPERATURES.isdisjoint(node[1:]) else (values, True)
    radians = any(not angle and "pi" in survey(value).variables for value, angle in measured)
    return None if radians else (values, True)


def angles(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Two angles, one in degrees and one in radians, as numbers; None for any other pair.

    A value with pi in it is in radians unless it has a degree sign, which then is required.
    """
    values, names = zip(*(quantity(node) for node in (gold, answer)), strict=True)
    normal = [_ANGLES.get(unit_readings(name)) for name in names]
    if "degree" not in normal or None in normal or any(value[0] in STRUCTURES for value in values):
        return None
    circular = [
        any(top == ("v", "pi") or (top[0] == "f" and top[1].startswith("arc")) for top in walk(value))
        for value in values
    ]
    if not any(circular) and "rad" not in normal:
        return None
    left, right = (
        value if unit != "degree" else node if _in_radians(node) else ("deg", value)
        for node, value, unit in zip((gold, answer), values, normal, strict=True)
    )
    return left, right


def _in_radians(node: Node) -> bool:
    r"""Letters without a sign of their own, as in ``180^\circ - A``, are in radians where the other side is."""
    return node[0] in _WORKED and "deg" in survey(node).kinds and bool(survey(node).variables - {"pi"})


def _in_letters(node: Node, unit: str) -> tuple[Node, str] | None:
    """A value whose unit is written without a text command, where the other side has a unit of the same kind."""
    reading = with_symbols(node)
    if reading is None:
        return None
    expected, units = unit_readings(unit), unit_readings(reading[1])
    return reading if expected and units and ratio(expected, units) is not None else None


def _scale_between(gold: str, answer: str, options: Options) -> Fraction | str:
    """The answer's unit in units of the gold's, 1 where a side has none; or the reason why they cannot be compared."""
    if gold == answer:
        return Fraction(1)
    units = unit_readings(answer, gold)
    if units is None:
        return "words after the answer that are not a unit"
    expected = unit_readings(gold, gold)
    if not gold or not answer or options.units == "ignore":
        return Fraction(1)
    if expected is None:
        return f"the unit {answer.strip()!r} is not {gold.strip()!r}"
    scale = ratio(expected, units)
    return f"the unit {answer.strip()!r} is not {gold.strip()!r}" if scale is None else scale


def _scale(value: Node, scale: Fraction) -> Node:
    if value[0] == "n":
        return number(value[1] * scale)
    if value[0] == "-":
        return ("-", _scale(value[1], scale))
    rational = exact(value)
    return ("*", number(scale), value) if rational is None else number(rational * scale)


_POWERS = {"squared": 2, "cubed": 3}
_SCALED = re.compile(r"\A(百万|[万萬亿億])")
_PERCENT = frozenset({"percent", "pct", "percentage"})


def with_words(value: Node, words: str) -> tuple[Node, str]:
    """Apply the words right after a number to it; returns the number and the remaining words, perhaps a unit."""
    parts = _SCALED.sub(r"\1 ", words.replace("per cent", "percent")).split()
    if value[0] == "-" and parts and parts[0].casefold().strip(".,") not in _POWERS | {"factorial": 1}:
        inner, left = with_words(value[1], words)
        return ("-", inner), left
    while parts:
        word = parts[0].casefold().strip(".,")
        scale = SCALES.get(word) or SCALES.get(word.removesuffix("s"))
        below = denominator(word)
        if scale is not None:
            value = _scale_digits(value, Fraction(scale))
        elif below is not None and (word.endswith("s") or value == number(1)):
            value = _part(value, below)
        elif len(parts) == 1 and word in _POWERS and value[0] in {"n", "v"}:
            value = ("^", value, number(_POWERS[word]))
        elif len(parts) == 1 and word == "factorial" and value[0] in {"n", "v"}:
            value = ("!", value)
        elif len(parts) == 1 and word in _PERCENT:
            value = ("%", value)
        else:
            break
        parts = parts[1:]
    left = " ".join(parts)
    return value, left.removeprefix("of a ").removeprefix("of an ") if value[0] == "/" else left


def with_symbols(node: Node) -> tuple[Node, str] | None:
    """A product of a number and letters such as ``5 m/s^2`` as value and unit; None for any other node."""
    values: list[Node] = []
    powers: dict[str, int] = {}
    if not _collect(node, 1, values, powers) or not powers or not values:
        return None
    value = values[0] if len(values) == 1 else ("*", *values)
    return value, " ".join(f"{name}^{power}" if power != 1 else name for name, power in powers.items() if power)


def _collect(node: Node, power: int, values: list[Node], powers: dict[str, int]) -> bool:
    """Sort the factors of a product into numbers and unit symbols; False if another factor occurs."""
    if node[0] == "v" and node[1] in TABLE:
        powers[node[1]] = powers.get(node[1], 0) + power
        return True
    if node[0] == "^" and node[1][0] == "v" and node[1][1] in TABLE:
        exponent, sign = (node[2][1], -1) if node[2][0] == "-" else (node[2], 1)
        if exponent[0] != "n" or exponent[2] is not None or not 0 < exponent[1] < 10:
            return False
        powers[node[1][1]] = powers.get(node[1][1], 0) + power * sign * int(exponent[1])
        return True
    if node[0] == "*":
        return all(_collect(part, power, values, powers) for part in node[1:])
    if node[0] == "/" and names(node):
        return _collect(node[1], power, values, powers) and _collect(node[2], -power, values, powers)
    if node[0] == "deg" and not values and power == 1:
        values.append(node[1])
        powers["deg"] = 1
        return True
    if names(node) or power != 1:
        return False
    values.append(node)
    return True


def compound(node: Node) -> Node:
    """``1 hour 30 minutes`` as one quantity in its smallest unit; a list of anything else stays."""
    total, last = Fraction(0), None
    for part in node[1:]:
        units = unit_readings(part[2]) if part[0] == "unit" and part[1][0] == "n" else None
        if units is None or len(units) != 1 or not units[0].powers or units[0].powers[0][0].startswith("~"):
            return node
        unit = units[0]
        if last is not None and (unit.powers != last.powers or unit.scale >= last.scale):
            return node
        total, last = total + part[1][1] * unit.scale, unit
    return node if last is None else ("unit", number(total / last.scale), node[-1][2])


def _scale_digits(value: Node, scale: Fraction) -> Node:
    if value[0] == "n":
        scaled = value[1] * scale
        places = len(str(scale.denominator)) - 1 + (value[2] or 0)
        return ("n", scaled, places if scaled.denominator > 1 else None)
    return ("*", value, number(scale))


def _part(value: Node, below: int) -> Node:
    if set(str(below)[1:]) == {"0"} and str(below)[0] == "1" and value[0] == "n":
        return _scale_digits(value, Fraction(1, below))  # tenths, hundredths: a decimal
    return ("/", value, number(below))
