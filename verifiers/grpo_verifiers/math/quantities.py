"""What the words right after a number make of it: ``5 million``, ``5 tenths``, ``5 squared``, ``5 percent``."""

from fractions import Fraction

from grpo_verifiers.math.numerals import SCALES, denominator
from grpo_verifiers.math.tree import Node, names, number
from grpo_verifiers.math.units import TABLE, unit_readings

_POWERS = {"squared": 2, "cubed": 3}
_PERCENT = frozenset({"percent", "pct", "percentage"})


def with_words(value: Node, words: str) -> tuple[Node, str]:
    """A number changed by the words right after it, and the words that are left: a unit, if anything."""
    parts = words.replace("per cent", "percent").split()
    if value[0] == "-" and parts and parts[0].casefold().strip(".,") not in _POWERS | {"factorial": 1}:
        inner, left = with_words(value[1], words)
        return ("-", inner), left
    while parts:
        word = parts[0].casefold().strip(".,")
        scale = SCALES.get(word) or SCALES.get(word.removesuffix("s"))
        below = denominator(word)
        if scale is not None:
            value = _scaled(value, Fraction(scale))
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
    """A product of a number and letters such as ``5 m/s^2`` as value and unit; None where there is no such unit."""
    values: list[Node] = []
    powers: dict[str, int] = {}
    if not _collect(node, 1, values, powers) or not powers or not values:
        return None
    value = values[0] if len(values) == 1 else ("*", *values)
    return value, " ".join(f"{name}^{power}" if power != 1 else name for name, power in powers.items() if power)


def _collect(node: Node, power: int, values: list[Node], powers: dict[str, int]) -> bool:
    """Sort the factors of a product into numbers and letters; False where it is no product of these."""
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


def _scaled(value: Node, scale: Fraction) -> Node:
    if value[0] == "-":
        return ("-", _scaled(value[1], scale))
    if value[0] == "n":
        places = len(str(scale.denominator)) - 1 if scale.denominator > 1 else 0
        scaled = value[1] * scale
        places += value[2] or 0
        return ("n", scaled, places if scaled.denominator > 1 else None)
    return ("*", value, number(scale))


def _part(value: Node, below: int) -> Node:
    if set(str(below)[1:]) == {"0"} and str(below)[0] == "1" and value[0] in {"n", "-"}:
        return _scaled(value, Fraction(1, below))  # tenths, hundredths: a decimal
    if value[0] == "-":
        return ("-", _part(value[1], below))
    return ("/", value, number(below))
