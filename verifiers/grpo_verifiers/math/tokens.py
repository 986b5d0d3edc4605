"""LaTeX to tokens, in one linear pass with a cap on length."""

import re
from typing import NamedTuple

from grpo_verifiers.budget import spend
from grpo_verifiers.math.clean import ascii_latex

MAX_CHARS = 4000
MAX_TOKENS = 1200


class ParseError(ValueError):
    """The text is no mathematics that this grammar knows; the message says why."""


class Token(NamedTuple):
    r"""One token.

    Attributes:
        kind: ``num``, ``word`` (letters), ``cmd`` (name without backslash), ``text`` (content of ``\text``), ``op``.
        text: what it says.
        spaced: white space stood before it.
    """

    kind: str
    text: str
    spaced: bool = False


_TOKEN = re.compile(
    r"(?P<space>\s+|~)"
    r"|(?P<text>\\(?:text(?:bf|it|rm|sf|tt|normal|up)?|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mathscr|mathfrak|mbox"
    r"|hbox|bf|rm|operatorname\*?|boldsymbol|bm)\s*\{)"
    r"|\\begin\s*\{(?P<begin>[a-zA-Z]+\*?)\}"
    r"|\\end\s*\{(?P<end>[a-zA-Z]+\*?)\}"
    r"|\\(?P<cmd>[a-zA-Z]+)"
    r"|\\(?P<esc>.)"
    r"|(?P<num>(?:\d+(?:\.\d*)?|\.\d+))"
    r"|(?P<word>(?:and|or)(?=[A-Z](?![A-Za-z]))|[A-Za-z]+)"
    r"|(?P<op><=|>=|!=|==|\*\*|~=|[-+*/^_=<>()\[\]{}|!,;:&%'$.?])",
    re.DOTALL,
)
_GLUED = re.compile(r"q?quad(?=[a-zA-Z])")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?![\d]|,\d)(?:\.\d+)?")
_SPACED = re.compile(r"\d{1,3}(?:(?: |\\,|\\ )\d{3})+(?!\d)(?:\.\d+)?")
_SIZES_LIST = """
left right mleft mright big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle
scriptstyle limits nolimits quad qquad thinspace medspace thickspace enspace hspace space mathstrut strut rm bf it
middle allowbreak
"""
_SIZES = frozenset(_SIZES_LIST.split())
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "lbrace": "{", "rbrace": "}", "geq": "ge", "leq": "le",
    "geqslant": "ge", "leqslant": "le", "gt": "gt", "lt": "lt", "neq": "ne", "cdotp": "cdot", "ast": "cdot",
    "times": "cdot", "simeq": "approx", "varnothing": "emptyset", "degree": "circ", "lvert": "vert", "rvert": "vert",
    "mid": "vert", "land": "and", "wedge": "and", "lor": "or", "vee": "or", "colon": "colon", "dbinom": "binom",
    "tbinom": "binom", "lbrack": "[", "rbrack": "]", "arcctg": "arccot", "ctg": "cot", "tg": "tan", "lg": "lg",
    "infin": "infty", "isin": "in",
}  # fmt: skip
_OPS = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "ne": "!=", "vert": "|", "cdot": "*", "div": "/", "colon": ":",
        "approx": "~=", "[": "[", "]": "]"}  # fmt: skip
_RAW_OPS = {"**": "^", "==": "="}
_ESCAPED = {"{": "\\{", "}": "\\}", "%": "%", "$": "$", "|": "|", "&": "&", "_": "_"}


def tokenize(text: str) -> list[Token]:
    """The tokens of a piece of LaTeX.

    Raises:
        ParseError: too long, or a character that is no mathematics.
    """
    if len(text) > MAX_CHARS:
        raise ParseError(f"longer than {MAX_CHARS} characters")
    spend(len(text))
    text = ascii_latex(text)
    tokens: list[Token] = []
    at, depth, spaced = 0, 0, False
    while at < len(text):
        if depth == 0 and text[at].isdigit():
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
            at = _text(text, at, tokens, spaced=spaced)
        elif kind == "esc":
            if value in " ,;:!/":
                spaced = spaced or value != "!"
                continue
            tokens.append(_escaped(value, spaced))
        elif kind == "cmd":
            glued = _GLUED.match(value)
            if glued:  # \\quadx: the space command ran into a letter
                at, value = match.start() + 1 + glued.end(), glued.group()
            if value in _SIZES:
                spaced = True
                # \left. and \right. are invisible delimiters
                if value in ("left", "right") and text[at : at + 1] == ".":
                    at += 1
                continue
            value = _SAME.get(value, value)
            tokens.append(Token("op", _OPS[value], spaced) if value in _OPS else _command(value, spaced))
        else:
            tokens.append(Token(kind or "op", _RAW_OPS.get(value, value), spaced))
        last = tokens[-1].text if tokens else ""
        depth += (last in ("(", "[", "{", "\\{")) - (last in (")", "]", "}", "\\}"))
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


def _text(text: str, at: int, tokens: list[Token], *, spaced: bool) -> int:
    """Append the content of a text command that starts at ``at``; return where it ends."""
    depth, start = 1, at
    while at < len(text) and depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    if depth:
        raise ParseError("a text command is not closed")
    content = text[start : at - 1]
    stripped = content.strip().strip("$").strip()
    if re.fullmatch(r"[-+]?\d[\d,.]*", stripped):
        tokens.extend(token._replace(spaced=True) for token in tokenize(stripped))
    else:
        words = content.split()
        if len(words) > 1 and words[-1] in {"and", "or"}:  # "hours and" is a unit and a separator
            tokens.append(Token("text", " ".join(words[:-1]), spaced))
            content, spaced = words[-1], True
        tokens.append(Token("text", content, spaced))
    return at
