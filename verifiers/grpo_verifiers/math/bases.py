r"""Numbers in bases whose digits are letters, too: ``1A_{16}``, ``\text{FF}_{16}``, ``0x1A``, a whole answer each."""

import re

from grpo_verifiers.math.tree import Node

_BASED = re.compile(
    r"(?:\\(?:text|mathrm|mathtt|textrm|texttt)\s*\{|\()?\s*([0-9A-Za-z]{1,60})\s*[})]?"
    r"\s*_\s*(?:\{\s*)?(?:\\(?:text|mathrm)\s*\{)?\s*(?:base\s*\}?\s*)?(\d\d|eleven|twelve|sixteen)\s*\}?\s*\}?"
)
_PREFIXED = re.compile(r"0([xX][0-9A-Fa-f]{1,60}|[bB][01]{1,60}|[oO][0-7]{1,60})")
_MEMBER = re.compile(r"\d*[a-z]")  # 2a_{11} may be twice a member of a sequence
_NAMES = {"eleven": 11, "twelve": 12, "sixteen": 16}
_PREFIXES = {"x": 16, "o": 8, "b": 2}


def based_number(text: str) -> Node | None:
    """The number that an answer of digits and letters with a base is; None where it is something else."""
    if "_" not in text and not text.startswith("0"):
        return None
    if (prefixed := _PREFIXED.fullmatch(text)) is not None:
        return ("base", prefixed[1][1:].lower(), _PREFIXES[prefixed[1][0].lower()])
    match = _BASED.fullmatch(text)
    if match is None:
        return None
    digits, base = match[1], _NAMES.get(match[2]) or int(match[2])
    if not 11 <= base <= 36 or digits.isdigit() or any(int(digit, 36) >= base for digit in digits):
        return None
    if len(digits) == 1 or (base != 16 and _MEMBER.fullmatch(digits)):
        return None
    return ("base", digits.lower(), base)
