"""Times of day and dates: parse and compare them."""

import re
from functools import lru_cache
from typing import NamedTuple

_MONTHS_LIST = "january february march april may june july august september october november december"
_MONTHS = _MONTHS_LIST.split()
_MONTH = {name[:size]: value for value, name in enumerate(_MONTHS, start=1) for size in range(3, len(name) + 1)}
_NAMES = "|".join(sorted(_MONTH, key=len, reverse=True))
_CLOCK = re.compile(
    r"(\d{1,2})(?:[:.](\d{2}))?(?::(\d{2}))?\s*(?:(a|p)\.?\s?m\b\.?|o'?clock)?"
    r"(?:\s*(?:in the (morning|afternoon|evening)))?",
    re.IGNORECASE,
)
_PADDED = re.compile(r"\d{1,2}:0\d|0\d:\d{2}|\d{1,2}:\d{2}:\d{2}")  # a time and no ratio
_DAY, _YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?:\s*,?\s+(?P<year>\d{4}))?"
_DATES = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})",
        rf"(?P<month>{_NAMES})\.?\s+{_DAY}{_YEAR}",
        rf"(?:the\s+)?{_DAY}\s+(?:of\s+)?(?P<month>{_NAMES})\.?{_YEAR}",
    )
]
_SLASHES = re.compile(r"\d{1,2}/\d{1,2}/\d{4}|\d{4}/\d{1,2}/\d{1,2}|\d{1,2}\.\d{1,2}\.\d{4}")
_NAMED_TIMES = {"noon": (12, 0, "p"), "midnight": (0, 0, "a"), "12 noon": (12, 0, "p"), "12 midnight": (0, 0, "a")}
_DAY_PART = {"morning": "a", "afternoon": "p", "evening": "p"}


class Clock(NamedTuple):
    """A time of day as written; ``half`` is ``a`` or ``p``, or empty if the text names no half of the day."""

    hour: int
    minute: int
    second: int = 0
    half: str = ""


@lru_cache(maxsize=1024)
def moment(text: str) -> "Clock | tuple[int, int, int] | str | None":
    """Parse a time, a date as (year or 0, month, day), or a date in slashes, which stays a text; None otherwise."""
    text = " ".join(text.replace("\\", " ").strip(" ,").split())
    if (clock := _NAMED_TIMES.get(text.casefold())) is not None:
        return Clock(clock[0], clock[1], 0, clock[2])
    match = _CLOCK.fullmatch(text)
    if match is not None and (match[4] or match[5] or text.casefold().endswith("clock") or _PADDED.fullmatch(text)):
        hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
        half = (match[4] or "").casefold() or _DAY_PART.get((match[5] or "").casefold(), "")
        if minute > 59 or second > 59 or hour > 24 or (half and not 1 <= hour <= 12):
            return None
        return Clock(hour, minute, second, half)
    if _SLASHES.fullmatch(text):
        return text
    if (match := next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None)) is None:
        return None
    month, day = _MONTH.get(match["month"].casefold()) or int(match["month"]), int(match["day"])
    return (int(match["year"] or 0), month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None


def clock_of_ratio(first: int, second: int) -> Clock | None:
    """The time that ``15:30`` may be."""
    return Clock(first, second) if 0 <= first <= 24 and 10 <= second <= 59 else None


def same_moment(left: object, right: object) -> bool:
    """True if two moments are the same; a half of the day that one side leaves out is the other's."""
    if not (isinstance(left, Clock) and isinstance(right, Clock)):
        return left == right
    if left[:3] == right[:3] and "" in (left.half, right.half):
        return True
    return _minutes(left) == _minutes(right)


def _minutes(clock: Clock) -> tuple[int, int, int]:
    hour = clock.hour % 12 + 12 * (clock.half == "p") if clock.half else clock.hour % 24
    return hour, clock.minute, clock.second
