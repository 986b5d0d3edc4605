"""Model text to plain ASCII LaTeX: Unicode signs, invisible characters, spacing commands. Linear in the text."""

import re
import unicodedata

_SIGNS = {
    "−": "-", "‐": "-", "‑": "-", "‒": "-", "–": "-", "﹣": "-", "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ",
    "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "∕": "/", "⁄": "/", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ",
    "≠": r"\ne ", "≈": r"\approx ", "∞": r"\infty ", "π": r"\pi ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ",
    "±": r"\pm ", "∓": r"\mp ", "°": r"^{\circ}", "√": r"\sqrt ", "∛": r"\sqrt[3] ",
    "∅": r"\emptyset ", "½": r"\frac{1}{2}",
    "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "²": "^{2}", "³": "^{3}",
    "€": r"\euro ", "£": r"\pounds ", "¥": r"\yen ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ",
    "λ": r"\lambda ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    "ℂ": r"\mathbb{C}", "∉": r"\notin ", "∧": r"\land ", "∨": r"\lor ", "∖": r"\setminus ", "≡": r"\equiv ",
    "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u3000": " ", "’": "'",
    "′": "'", "，": ",", "。": ".",
}  # fmt: skip
# Characters that no reader sees and that change nothing; direction overrides are not among them: they change the order.
_INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\u2061\u2062\u2063\u2064\ufeff"
_TABLE: dict[int, str] = {ord(sign): latex for sign, latex in _SIGNS.items()}
_TABLE.update({ord(char): "" for char in _INVISIBLE})
_TABLE.update({code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code not in _TABLE})

# Signs of roots reach over a whole number, commands over one digit.
_ROOTED = re.compile(r"(?<=[√∛])\s*(\d+(?:\.\d+)?)")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# Commas in braces: thousands before three digits, unless only a zero comes first; a decimal comma elsewhere.
_THOUSANDS = re.compile(r"(?<=\d)(?<!(?<!\d)0)(?:\{,\}|(?:\\!)?,\s?\\!)\s?(?=\d{3}(?!\d))")
_DECIMALS = re.compile(r"(?<=\d)\{,\}(?=\d)")
# A doubled backslash before a letter is JSON escaping gone wrong, unless rows of a matrix are around.
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")


def ascii_latex(text: str) -> str:
    """The text with Unicode signs and digits written as LaTeX and ASCII.

    A character that has no such spelling stays, and no later step accepts it.
    """
    if not text.isascii():
        if "√" in text or "∛" in text:
            text = _ROOTED.sub(r"{\1}", text)
        text = _NOT_ASCII.sub(_digit, text.translate(_TABLE))
    if "\\\\" in text and "\\begin" not in text and "array" not in text:
        text = _DOUBLED.sub(r"\\", text)
    if "," in text:
        text = _DECIMALS.sub(".", _THOUSANDS.sub("", text))
    return text


def _digit(match: re.Match[str]) -> str:
    value = unicodedata.decimal(match.group(), None)
    return match.group() if value is None else str(value)
