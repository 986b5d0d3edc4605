"""Model text to tokens, in one linear pass with a cap on length: ASCII LaTeX first, brackets facing inward last."""

import re
import unicodedata
from typing import NamedTuple

MAX_CHARS = 4000
MAX_TOKENS = 1200


class ParseError(ValueError):
    """The text does not fit this grammar; the message is the reason."""


class Token(NamedTuple):
    r"""A piece of a formula; ``spaced`` if white space stood before it.

    Kinds: ``num``, ``word`` (letters), ``cmd`` (name without backslash), ``text`` (content of ``\text``), ``op``.
    """

    kind: str
    text: str
    spaced: bool = False


_UNICODE = {
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
_TABLE: dict[int, str] = {ord(sign): latex for sign, latex in _UNICODE.items()}
_TABLE.update({ord(char): "" for char in _INVISIBLE})
_TABLE.update({code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code not in _TABLE})
# A root sign applies to all digits of a number, a command to one digit.
_ROOTED = re.compile(r"(?<=[√∛])\s*(\d+(?:\.\d+)?)")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# Commas in braces: thousands before three digits, unless only a zero comes first; a decimal comma elsewhere.
_THOUSANDS = re.compile(r"(?<=\d)(?<!(?<!\d)0)(?:\{,\}|(?:\\!)?,\s?\\!)\s?(?=\d{3}(?!\d))")
_DECIMALS = re.compile(r"(?<=\d)\{,\}(?=\d)")
# A doubled backslash before a letter is a JSON escaping error, except among rows of a matrix.
_DOUBLED = re.compile(r"\\\\(?=[a-zA-Z])")


def ascii_latex(text: str) -> str:
    """The text with Unicode signs and digits written as LaTeX and ASCII.

    A character that has no such spelling stays, and no later step accepts it.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
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


# Letters of words in other scripts: Latin with accents, Cyrillic, Hebrew to Thai, kana, Chinese characters, Hangul.
_OTHER_SCRIPTS = "À-ÖØ-öø-ɏЀ-ӿ\u0590-\u0fffḀ-ỿ\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(
    r"(?P<space>\s+|~)"
    r"|(?P<text>\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mathscr|mathfrak|mbox"
    r"|hbox|bf|rm|operatorname\*?|boldsymbol|bm)\s*\{)"
    r"|\\begin\s*\{(?P<begin>[a-zA-Z]+\*?)\}"
    r"|\\end\s*\{(?P<end>[a-zA-Z]+\*?)\}"
    r"|\\(?P<cmd>[a-zA-Z]+)"
    r"|\\(?P<esc>.)"
    rf"|(?P<foreign>[A-Za-z]*[{_OTHER_SCRIPTS}][A-Za-z{_OTHER_SCRIPTS}]*)"
    r"|(?P<num>(?:\d+(?:\.\d*)?|\.\d+))"
    r"|(?P<word>(?:and|or)(?=[A-Z](?![A-Za-z]))|[A-Za-z]+)"
    r"|(?P<op><=|>=|!=|==|\*\*|~=|[-+*/^_=<>()\[\]{}|!,;:&%'$.?])",
    re.DOTALL,
)
_GLUED = re.compile(r"q?quad(?=[a-zA-Z])")
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?![\d]|,\d)(?:\.\d+)?")
_SPACED = re.compile(r"[1-9]\d{0,2}(?:(?: |\\,|\\ )\d{3})+(?!\d)(?:\.\d+)?")
_SIZES_LIST = """
left right mleft mright big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle
scriptstyle limits nolimits quad qquad thinspace medspace thickspace enspace hspace space mathstrut strut rm bf it
middle allowbreak tiny scriptsize footnotesize small normalsize large Large LARGE huge Huge checkmark
"""
_SIZES = frozenset(_SIZES_LIST.split())
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "lbrace": "{", "rbrace": "}", "geq": "ge", "leq": "le",
    "geqslant": "ge", "leqslant": "le", "gt": "gt", "lt": "lt", "neq": "ne", "cdotp": "cdot", "ast": "cdot",
    "times": "cdot", "simeq": "approx", "varnothing": "emptyset", "degree": "circ", "lvert": "vert", "rvert": "vert",
    "mid": "vert", "land": "and", "wedge": "and", "lor": "or", "vee": "or", "colon": "colon", "dbinom": "binom",
    "nicefrac": "frac", "sfrac": "frac",
    "tbinom": "binom", "lbrack": "[", "rbrack": "]", "arcctg": "arccot", "ctg": "cot", "tg": "tan", "lg": "lg",
    "infin": "infty", "isin": "in",
}  # fmt: skip
_OPS = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "ne": "!=", "vert": "|", "cdot": "*", "div": "/", "colon": ":",
        "approx": "~=", "[": "[", "]": "]"}  # fmt: skip
_COLOUR = re.compile(r"\s*\{\s*(?!white|transparent|none)[a-zA-Z]{3,20}(?:!\d{1,3})?\s*\}")
# Letters that are no unit, and commands that are never put around one.
_NO_UNITS = frozenset("eijkxyznpqπ")
_BOLD = frozenset({"mathbf", "mathcal", "mathscr", "mathfrak", "boldsymbol", "bm", "mathit"})
_LETTERS = re.compile(r"[^\W\d_]{2,}")
_SIGNS = re.compile(r"\\[$%]")
_COMMAND = re.compile(r"\\[a-zA-Z]{2,}")
_OPTIONS = re.compile(r"[A-Z](?:\s*,\s*[A-Z])+")
_CAPITALS = re.compile(r"[A-Z]")
_JOINING = re.compile(r"\b(?:and|or)\b|&")
_UNBRACED = frozenset({"mathrm", "mathbf", "mathit", "mathsf", "text", "boldsymbol", "bm"})
_DEPTHS = {"(": 1, "[": 1, "{": 1, "\\{": 1, ")": -1, "]": -1, "}": -1, "\\}": -1}
_RAW_OPS = {"**": "^", "==": "="}
_ESCAPED = {"{": "\\{", "}": "\\}", "%": "%", "$": "$", "|": "|", "&": "&", "_": "_"}


def tokenize(text: str) -> list[Token]:
    """The tokens of a piece of LaTeX."""
    if len(text) > MAX_CHARS:
        raise ParseError(f"longer than {MAX_CHARS} characters")
    text = ascii_latex(text)
    tokens: list[Token] = []
    at, depth, spaced = 0, 0, False
    may_group = "," in text or " " in text or "\\" in text
    while at < len(text):
        if may_group and depth == 0 and text[at].isdigit():
            grouped = _GROUPED.match(text, at) or _SPACED.match(text, at)
            if grouped:
                tokens.append(Token("num", re.sub(r"[^\d.]", "", grouped.group()), spaced))
                at, spaced = grouped.end(), False
                continue
        match = _TOKEN.match(text, at)
        if match is None:
            raise ParseError(f"unexpected character {text[at]!r}")
        at = match.end()
        kind = match.lastgroup
        value = match.group(kind) if kind else ""
        if kind == "space":
            spaced = True
            continue
        if kind == "text":
            at = _text(text, at, tokens, value.strip("\\{ \t\n*"), spaced=spaced)
        elif kind == "foreign":
            tokens.append(Token("text", value, spaced))
        elif kind == "esc":
            if value in " ,;:!/":
                spaced = spaced or value != "!"
                continue
            tokens.append(_escaped(value, spaced))
        elif kind == "cmd":
            glued = _GLUED.match(value)
            if glued:  # \\quadx: the space command ran into a letter
                at, value = match.start() + 1 + glued.end(), glued.group()
            if value in _SIZES or value in _UNBRACED:
                spaced = True
                # \left. and \right. are invisible delimiters
                if value in ("left", "right") and text[at : at + 1] == ".":
                    at += 1
                continue
            if value in {"color", "textcolor"} and (colour := _COLOUR.match(text, at)):
                at, spaced = colour.end(), True
                continue
            value = _SAME.get(value, value)
            tokens.append(Token("op", _OPS[value], spaced) if value in _OPS else _command(value, spaced))
        else:
            tokens.append(Token(kind or "op", _RAW_OPS.get(value, value), spaced))
        last = tokens[-1].text if tokens else ""
        depth += _DEPTHS.get(last, 0)
        spaced = False
        if len(tokens) > MAX_TOKENS:
            raise ParseError(f"more than {MAX_TOKENS} tokens")
    return tokens


def _command(value: str, spaced: bool) -> Token:
    return Token("op", "\\" + value, spaced) if value in "{}" else Token("cmd", value, spaced)


def _escaped(value: str, spaced: bool) -> Token:
    if value == "\\":
        return Token("cmd", "\\", spaced)
    if value not in _ESCAPED:
        raise ParseError(f"unexpected \\{value}")
    return Token("op", _ESCAPED[value], spaced)


def _text(text: str, at: int, tokens: list[Token], command: str, *, spaced: bool) -> int:
    """Append the content of a text command that starts at ``at``; return where it ends."""
    depth, start = 1, at
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    if depth:
        raise ParseError("a text command is not closed")
    content = text[start : at - 1]
    stripped = content.strip().strip("$").strip()
    if content.strip() in {"$", "\\$"}:
        tokens.append(Token("op", "$", spaced))
    elif _is_no_text(stripped, first=not tokens):
        tokens.extend([token._replace(spaced=True) if not n else token for n, token in enumerate(tokenize(stripped))])
    elif stripped in {"pi", "\\pi"}:
        tokens.append(Token("cmd", "pi", spaced))
    elif _is_styled(stripped):
        tokens.extend(tokenize(stripped))
    elif len(stripped) == 1 and stripped.isalpha() and (stripped in _NO_UNITS or command in _BOLD):
        tokens.append(Token("word", stripped, spaced))
    else:
        words = content.split()
        if len(words) > 1 and words[-1] in {"and", "or"}:  # "hours and" is a unit and a separator
            tokens.append(Token("text", " ".join(words[:-1]), spaced))
            content, spaced = words[-1], True
        tokens.append(Token("text", content, spaced))
    return at


def _is_styled(content: str) -> bool:
    """True if a command only changes the look of a formula: it has commands in it and no words."""
    if "\\" not in content or "\\text" in content or "\\math" in content or content[0] in "%$":
        return False
    return _LETTERS.search(_COMMAND.sub(" ", content)) is None and _COMMAND.match(content.strip(" $")) is not None


def _is_no_text(content: str, *, first: bool) -> bool:
    """True if the content of a text command is mathematics: no words, and no unit with an exponent."""
    if (
        not content
        or content in {"and", "or", "&"}
        or _LETTERS.search(_JOINING.sub(" ", content))
        or "\\" in _SIGNS.sub("", content)
    ):
        return False
    if content[0] in "+-.(<>[\\" or content[0].isdigit():
        return len(content) > 1 or content.isdigit()
    if _OPTIONS.fullmatch(content):  # letters in an order of their own are a sequence, not a list
        return sorted(_CAPITALS.findall(content)) == _CAPITALS.findall(content)
    signs = "=,<>+^-*/" if first else "=,<>+"
    return any(sign in content for sign in signs) or _JOINING.search(content) is not None


# Two ends between brackets, of which either may face outward: ]0,1[.
_INTERVAL = re.compile(
    r"(\[|(?:(?<![\w})])|(?<=cup)|(?<=cap)|(?<=minus)|(?<=\\in)|(?<=left))\])([^][(),;]+[,;][^][(),;]*[^][(),;+\-*/=<>^\s])\s*"
    r"([\])]|\[(?=\s*(?:\Z|[,;)}\].&$]|\\(?:cup|cap|setminus|backslash|text|mathrm|quad|end|[}\\ ,;]))))"
)


def facing_inward(text: str) -> str:
    """The text with outward brackets replaced by round ones."""
    if "[" not in text and "]" not in text:
        return text
    return _INTERVAL.sub(lambda each: each[1].replace("]", "(") + each[2] + each[3].replace("[", ")"), text)
