"""Numbers with a tolerance."""

import math
import re
from fractions import Fraction
from typing import Annotated, Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import show
from grpo_verifiers.math.extract import NO_ANSWER, extract
from grpo_verifiers.math.gold import gold_text
from grpo_verifiers.math.options import Conflicts, Options
from grpo_verifiers.math.words.units import unit_readings
from grpo_verifiers.options import Range, TagName
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.verdict import Status, Verdict, excused

_DIGITS = 1000  # more digits and larger exponents are an attack on the arithmetic, not an answer

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3}){1,30}(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_ONE = rf"(?:{_PLAIN})(?:[eE][+-]?[0-9]+)?"
_MARKS = r"(?:\\[$%]|[$€£%*\s])*+"
_WHOLE = re.compile(rf"{_MARKS}(?P<sign>[+-]?){_MARKS}(?P<top>{_ONE})(?:\s*/\s*(?P<bottom>{_ONE}))?{_MARKS}\.?{_MARKS}")
_ANY = re.compile(rf"(?<![\w.])[+-]?(?:{_ONE})(?:/(?:{_ONE}))?(?!\w)")
_THIN = re.compile(r"(?<=[0-9])(?:\\[,;!: ]|\{,\})(?=[0-9]{3}(?![0-9]))")
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x2212: "-", 0x3000: " "}
_POWER = re.compile(
    r"(?<=[0-9.])\s{0,5}(?:\\times|\\cdot|[×·⋅*xX])\s{0,5}10\s?\^\s?(?:\{\s?([+-]?[0-9]{1,6})\s?\}|([+-]?[0-9]{1,6}))"
)
_UNIT = re.compile(
    r"(?<=[0-9.}])(?:[\s$~]|\\[,; ])*+"
    r"((?:\\(?:text|mathrm|mbox)\s*\{|[A-Za-zµΩ])[^0-9=<>]{0,60}(?:(?<=[\^{A-Za-z-])[0-9])?\}{0,2}[.$\s]*)\Z"
)


def stated_number(
    completion: str, *, source: str = "auto", conflicts: Conflicts = "last", think: str | None = "think", **_: float
) -> str | None:
    """The number that a completion states, as written; None for no number or several."""
    declared, _problem = _declared_texts(completion, source=source, conflicts=conflicts, think=think)
    values = {parse_number(part, units=True) for part in declared}
    return declared[-1].strip() if len(values) == 1 and None not in values else None


@Traits(home="inline", pure=True, stated=stated_number, stricter={"conflicts": "reject"})
def numeric(
    completion: str,
    answer: Any,
    *,
    rel_tol: Annotated[float, Range(0, 1, open_high=True)] = 1e-9,
    abs_tol: Annotated[float, Range(0, finite=True)] = 0.0,
    source: Literal["auto", "last"] = "auto",
    conflicts: Conflicts = "last",
    think: TagName | None = "think",
) -> Verdict:
    r"""Score 1 where ``|value - answer| <= max(abs_tol, rel_tol · |answer|)``, computed exactly.

    >>> numeric("The answer is 1,000.", "1e3").score, numeric("0.33", "1/3", rel_tol=0.02).score
    (1.0, 1.0)

    The tolerance is relative to the expected value only, so that a large claim cannot widen it. Numbers may have a
    sign, thousands separators, an exponent ("6e23", ``6\times10^{23}``), one division ("3/4"), and signs of
    currency or percent around them, which are dropped on both sides: "10%" is 10. A unit after the number is dropped
    in the completion only. Infinity and NaN are no numbers, and neither is anything of more than
    1000 digits.

    Use it when the answer is a number and a tolerance is acceptable (measurements, physics, GSM8K); for fractions,
    intervals, formulas and units take ``math``.

    Scores: 1 correct; 0 wrong (another number, or several); 0 unparsable (no number); None, error, where ``answer`` is
    no finite number.

    Args:
        completion: the text to check.
        answer: the expected number, as a number or text, also in the form "reasoning #### 42". Anything else excludes
            the row.
        rel_tol: tolerance as a share of the answer.
        abs_tol: tolerance in absolute terms.
        source: "auto": ``\boxed{…}`` or ``<answer>…</answer>``, else a number after ``####``, else "the answer is …",
            else the full text, as ``math`` reads them; "last": the last number anywhere, which pays for rambling.
        conflicts: "last": the last statement of the strongest form counts. "reject": different ones score 0.
        think: tag of the thinking section that is left out; None leaves nothing out.
    """
    expected = _gold(answer)
    if expected is None:
        return excused(f"the answer column holds no finite number: {show(answer)}")
    declared, problem = _declared_texts(completion, source=source, conflicts=conflicts, think=think)
    if not declared:
        return Verdict(0.0, Status.UNPARSABLE, problem or f"no number (source {source!r})")
    values = {parse_number(text, units=True) for text in dict.fromkeys(declared)}
    if len(values) > 1:
        return Verdict(0.0, Status.WRONG, f"several different answers: {show(', '.join(t[:20] for t in declared[:5]))}")
    value = values.pop()
    if value is None:
        return Verdict(0.0, Status.UNPARSABLE, f"{show(declared[-1])} is not a finite number")
    allowed = max(Fraction(str(abs_tol)), Fraction(str(rel_tol)) * abs(expected))
    right = abs(value - expected) <= allowed
    return Verdict(1.0 if right else 0.0, detail=f"{show(declared[-1])} against {show(answer)}")


def _plain(text: str) -> str:
    """The text in ASCII digits, with powers of ten as exponents."""
    return _POWER.sub(lambda match: f"e{match[1] or match[2]}", text.translate(_WIDE))


def parse_number(text: str, *, units: bool = False) -> Fraction | None:
    """The exact value of a text that is one number; None for anything else. ``units``: drop a unit after it."""
    if len(text) > 4 * _DIGITS:
        return None
    text = _plain(_THIN.sub("", text))
    if units and (unit := _UNIT.search(text)) is not None and unit_readings(unit[1].strip(" .$\n\t")):
        text = text[: unit.start()]
    match = _WHOLE.fullmatch(text)
    if not match:
        return None
    top, bottom = _exact(match["top"]), _exact(match["bottom"] or "1")
    if top is None or not bottom:
        return None
    return (-top if match["sign"] == "-" else top) / bottom


def _exact(text: str) -> Fraction | None:
    mantissa, _, exponent = text.lower().replace(",", "").partition("e")
    if len(mantissa) > _DIGITS or len(exponent) > 6 or abs(int(exponent or "0")) > _DIGITS:
        return None
    return Fraction(text.replace(",", "").rstrip(".") if not exponent else f"{mantissa.rstrip('.')}e{exponent}")


def _gold(answer: Any) -> Fraction | None:
    if isinstance(answer, bool):
        return None
    if isinstance(answer, int):
        return Fraction(answer)
    if isinstance(answer, float):
        return Fraction(str(answer)) if math.isfinite(answer) else None
    if not isinstance(answer, str):
        return None
    return parse_number(gold_text(answer))


def _declared_texts(completion: str, *, source: str, conflicts: Conflicts, think: str | None) -> tuple[list[str], str]:
    """The texts that a completion states as its number; or the reason for their absence."""
    if source == "last":
        return _ANY.findall(_plain(answer_part(completion, think)))[-1:], ""
    stated = extract(completion, Options(conflicts=conflicts, think=think))
    if stated.problem == NO_ANSWER:
        text = answer_part(completion, think)
        return ([text], "") if text.strip() else ([], "")
    # "The answer is in the box" states no number
    asides = [text for text in stated.asides if parse_number(text, units=True) is not None]
    return [*stated.answers, *asides], stated.problem
