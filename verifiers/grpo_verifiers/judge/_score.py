"""The number in a judge's reply: exactly one, in range, where it was asked for."""

import math
import re

from grpo_verifiers._show import show
from grpo_verifiers.reading.thinking import answer_part

_NUMBER = r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_LINE = re.compile(rf"score\s{{0,3}}[:=]\s{{0,3}}{_NUMBER}(?:\s{{0,3}}/\s{{0,3}}{_NUMBER})?\.?", re.IGNORECASE)
_DECORATION = re.compile(r"[*_`#>$]+")


def read_score(reply: str, low: float, high: float, pattern: str | None = None) -> float:
    """The score in ``reply``, scaled to 0 … 1.

    Without a pattern, the last line must be ``Score: x`` (or ``x/high``), and no other such line may say otherwise.
    With one, all its matches must agree.

    Raises:
        ValueError: there is no score, more than one, or one out of range.
    """
    reply = answer_part(reply, "think")
    if pattern is None:
        lines = [_DECORATION.sub("", line).strip() for line in reply.splitlines() if line.strip()]
        found = [match for line in lines if (match := _LINE.fullmatch(line))]
        if not found or _LINE.fullmatch(lines[-1]) is None:
            raise ValueError(f"the reply does not end with a line 'Score: x': {show(lines[-1] if lines else '', 100)}")
        if any(match[2] is not None and float(match[2]) != high for match in found):
            raise ValueError(f"the score is out of another number than {high:g}: {show(found[-1].group())}")
        texts = [match[1] for match in found]
    else:
        texts = [match[1] or "" for match in re.finditer(pattern, reply)]
        if not texts:
            raise ValueError("score_pattern does not match the reply")
    try:
        values = {float(text) for text in texts}
    except ValueError as error:
        raise ValueError(f"score_pattern captured no number: {show(', '.join(texts))}") from error
    if len(values) > 1:
        raise ValueError(f"the reply states several scores: {show(', '.join(texts))}")
    value = values.pop()
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"the score {value:g} is outside of {low:g} to {high:g}")
    return (value - low) / (high - low)
