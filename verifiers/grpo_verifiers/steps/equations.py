r"""The equations that a piece of text states, in plain text or LaTeX: one linear pass, nothing is evaluated.

Words end an equation, and some words make the adjacent side unreliable: in "half of 10 = 5" and "3 apples and 2 = 5"
the side has more text than its numbers, and the link is left out. An omitted side is empty.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

WORD_SIGNS = ("equals", "gives", "makes", "yields", "is")
"""Words for a sign of equality; all but the first only between numbers."""
MAX_SIDE = 200
"""Characters of a side; a longer one is left out."""

_TOKEN = re.compile(
    r"(?P<soft>\\\\|&|\n)"
    r"|(?P<text>\\(?:text(?:bf|it|rm|normal)?|mbox|mathrm|operatorname)\s{0,9}\{[^{}]{0,200}\})"
    r"|(?P<stop>\\[()\[\]]|\\(?:begin|end)\s{0,9}\{[a-z*]{1,20}\}|\\(?:q?quad|implies|iff|[rR]ightarrow|therefore|because)"
    r"(?![a-zA-Z])|[-=]>|<<|>>|[⇒→;?\"“”…]|\.{2,})"
    r"|(?P<other>[!<>+*/-]=|[<>≠≤≥]|\\(?:neq?|leq?|geq?|lt|gt|in|sim|propto|cong|to|mid)(?![a-zA-Z]))"
    r"|(?P<rel>:=|=:|={1,3}|\\(?:approx|simeq|equiv)(?![a-zA-Z])|[≈≡]|~=)"
    r"|(?P<num>\d{1,3}(?:,\d{3})++(?!\d)(?:\.\d+)?|\d++(?:\.\d+)?|\.\d+)"
    r"|(?P<cmd>\\[a-zA-Z]+)"
    r"|\\(?P<esc>.)"
    r"|(?P<word>[^\W\d_]{2,}+(?:['’-][^\W\d_]+)*+)"
    r"|(?P<letter>[^\W\d_])"
    r"|(?P<op>\*\*|//|[-+*/^!%()\[\]{}|,_:'$.×÷·⋅−–√°²³])"
    r"|(?P<space>[^\S\n]+)"
    r"|(?P<any>.)",
    re.DOTALL,
)
_DASHED = re.compile(r"^[ \t]*+[-–][ \t]++", re.MULTILINE)
# The mark of an item of a list; "(3) + 4" has no mark.
_ITEM = re.compile(r"^[ \t]*+(?:[-–*+•]|\(?(?:\d{1,3}|[a-zA-Z])[.)](?=[ \t]++[^-+*/^=×÷·!\s]))(?=[ \t])", re.MULTILINE)
_SIGNS = ("=", "≈", "≡", "approx", "simeq", "equiv", *WORD_SIGNS)
_MARKUP = re.compile(r"</?[A-Za-z]\w{0,30}>")  # a tag ends the text before it
_WORK = frozenset({"+", "-", "*", "/", "^", "**", "×", "÷", "·", "⋅", "−", "–", "!", "%", "√", "²", "³"})
_UNREAD = frozenset({":", "//", "\\bmod", "\\pmod", "\\mod", "\\pod"})
_OPENERS, _CLOSERS = frozenset("([{"), frozenset(")]}")
_ABOUT = frozenset({"\\approx", "\\simeq", "≈", "~="})
_FUNCTIONS = frozenset({"sin", "cos", "tan", "log", "ln", "gcd", "lcm", "max", "min", "sqrt", "floor", "ceil"})
_BEFORE_LIST = """
of half third quarter twice thrice double triple plus minus times multiplied divided by over than per percent squared
cubed sum difference product quotient remainder ratio mod dozen hundred thousand million billion power root
if suppose supposing assume assuming not isn't cannot can't whether let say guess try maybe unless
"""
_AFTER_LIST = """
plus minus times multiplied divided over mod squared cubed percent dozen hundred thousand million billion half and
is wrong false incorrect not isn't would cannot remainder
"""
_THAN_LIST = "more less fewer greater larger smaller bigger higher lower longer shorter short away off too"
_THAN = frozenset(_THAN_LIST.split())  # after "3 + 4 is 2"
_BEFORE, _AFTER = frozenset(_BEFORE_LIST.split()), frozenset(_AFTER_LIST.split())


class _Token(NamedTuple):
    kind: str
    text: str
    spaced: bool
    start: int
    end: int


@dataclass(frozen=True)
class EquationChain:
    """A written chain ``a = b = c``.

    Attributes:
        sides: of the signs, in LaTeX or plain text; empty where a side is missing or cannot be trusted.
        signs: ``"="``, ``"~="``, or ``"?"`` for relations that are not looked at.
        cut: the text ends with the last side, so that its last number may go on.
        dash: a dash precedes the first side; it may be the mark of an item or a sign.
        at: offsets of the signs in the text.
    """

    sides: tuple[str, ...]
    signs: tuple[str, ...]
    cut: bool = False
    dash: bool = False
    at: tuple[int, ...] = ()


def chains(text: str) -> list[EquationChain]:
    """The equations of a text, in order."""
    if not any(sign in text for sign in _SIGNS):
        return []
    text = _MARKUP.sub(lambda match: ";" + " " * (len(match.group()) - 1), text)
    dashes = {match.end() for match in _DASHED.finditer(text)}
    masked = _ITEM.sub(lambda match: " " * len(match.group()), text)
    result: list[EquationChain] = []
    for before, piece, after in _pieces(_tokens(masked)):
        chain = _chain(before, piece, after, len(text))
        if chain is not None:
            result.append(replace(chain, dash=piece[0].start in dashes))
    return result


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    spaced = False
    for match in _TOKEN.finditer(text):
        kind, value = match.lastgroup or "any", match.group(match.lastgroup or "any")
        if kind == "esc":
            kind, value = ("op", value) if value in "%_|" else ("any", value)
            if value in " ,;:!$":
                kind = "space"
        if kind == "cmd" and value in {"\\boxed", "\\fbox", "\\left", "\\right", "\\displaystyle", "\\mathbf", "\\bf"}:
            kind = "space"
        if kind == "space":
            spaced = True
            continue
        if kind == "word" and value == "equals":
            kind = "rel"
        tokens.append(_Token(kind, value, spaced, match.start(), match.end()))
        spaced = False
    return tokens


Edge = _Token | None
Piece = tuple[Edge, list[_Token], Edge]


def _pieces(tokens: list[_Token]) -> list[Piece]:
    """Runs of mathematics, each with the word or stop on either side (None: an edge that ends it for certain)."""
    pieces: list[Piece] = []
    current: list[_Token] = []
    brackets: list[int] = []  # where in the current run brackets are open
    before: Edge = None
    at = 0

    def flush(edge: Edge) -> None:
        nonlocal before
        if current:
            pieces.append((before, current[:], edge))
        current.clear()
        brackets.clear()
        before = edge

    while at < len(tokens):
        token = tokens[at]
        previous = current[-1] if current else None
        following = tokens[at + 1] if at + 1 < len(tokens) else None
        at += 1
        if token.kind == "soft":
            while at < len(tokens) and tokens[at].kind == "soft":
                at += 1
            continues = at < len(tokens) and tokens[at].kind == "rel"
            if not continues and not (previous is not None and previous.kind == "rel"):
                flush(None)
        elif token.text == "$" and (_is_currency(previous, following) or _joins_formulas(previous, following)):
            continue
        elif token.text in WORD_SIGNS and _states(current, following):
            current.append(token._replace(kind="rel"))
        elif (
            token.kind == "stop"
            or token.text in {"$", "."}
            or (token.text == ":" and not _between_digits(previous, token, following))
        ):
            flush(None)
        elif token.kind in {"word", "text", "any"}:
            if any(current[at].text == "{" for at in brackets):
                current.append(token._replace(kind="word"))  # a name, or unreadable: no end of a side
            elif token.text in _FUNCTIONS and following is not None and following.text == "(":
                current.append(token._replace(kind="cmd", text="\\" + token.text))
            else:
                flush(token)
        elif token.kind == "letter" and token.text in "xX" and _between_numbers(previous, tokens[at : at + 2]):
            current.append(token._replace(kind="op", text="*"))
        elif token.kind in {"rel", "other"}:
            if brackets:  # a bracket around words, or around everything: the equation begins inside it
                inside = current[brackets[-1] + 1 :]
                current[:] = current[: brackets[-1]]
                flush(None)
                current.extend(inside)
            current.append(token)
        elif token.text in _OPENERS:
            brackets.append(len(current))
            current.append(token)
        elif token.text in _CLOSERS:
            if brackets:
                brackets.pop()
                current.append(token)
            else:
                flush(None)
        elif token.text == "," and not brackets:
            flush(None)
        else:
            current.append(token)
    flush(None)
    return pieces


def _joins_formulas(previous: Edge, following: Edge) -> bool:
    """True if a dollar sign is next to a sign of equality between two formulas: ``$2+2$ = $4$``."""
    return (previous is not None and previous.kind == "rel") or (
        following is not None and following.kind == "rel" and previous is not None
    )


def _states(current: list[_Token], following: Edge) -> bool:
    """True if a word such as "is" connects arithmetic and a number: "3 + 4 is 7"."""
    if not current or not (current[-1].kind == "num" or current[-1].text in _CLOSERS):
        return False
    worked = any(token.text in _WORK for token in current) and not any(token.kind == "other" for token in current)
    return worked and following is not None and (_begins_value(following) or following.text == "-")


def _begins_value(token: _Token) -> bool:
    return token.kind == "num" or token.text in {"(", "$", "\\frac", "\\sqrt"}


def _is_currency(previous: Edge, following: Edge) -> bool:
    """True if a dollar sign precedes an amount: after a number it closes a formula."""
    if following is None or following.kind != "num" or following.spaced:
        return False
    return previous is None or previous.kind in {"rel", "other"} or previous.text in (_WORK | _OPENERS)


def _between_digits(previous: Edge, token: _Token, following: Edge) -> bool:
    """True if a colon is a ratio or a time."""
    near = previous is not None and previous.kind == "num" and not token.spaced
    return near and following is not None and following.kind == "num" and not following.spaced


def _between_numbers(previous: Edge, ahead: list[_Token]) -> bool:
    left = previous is not None and (previous.kind == "num" or previous.text in _CLOSERS)
    if len(ahead) == 2 and ahead[0].text == "$" and not ahead[1].spaced:  # 3 x $4
        ahead = ahead[1:]
    return left and bool(ahead) and (ahead[0].kind == "num" or ahead[0].text in _OPENERS)


def _chain(before: Edge, piece: list[_Token], after: Edge, length: int) -> EquationChain | None:
    signs = [token for token in piece if token.kind in {"rel", "other"}]
    if not any(token.kind == "rel" for token in signs):
        return None
    parts: list[list[_Token]] = [[]]
    for token in piece:
        if token.kind in {"rel", "other"}:
            parts.append([])
        else:
            parts[-1].append(token)
    sides = [_side(part) for part in parts]
    if parts[0] and before is not None and _misleads(before, parts[0]):
        sides[0] = ""
    if parts[-1] and after is not None and _continues(parts[-1][-1], signs[-1], after):
        sides[-1] = ""
    texts = tuple("?" if s.kind == "other" else "~=" if s.text in _ABOUT else "=" for s in signs)
    offsets = tuple(token.start for token in signs)
    return EquationChain(tuple(sides), texts, cut=bool(parts[-1]) and parts[-1][-1].end == length, at=offsets)


def _misleads(before: _Token, side: list[_Token]) -> bool:
    """True if the text before an equation may belong to its first side."""
    if _word(before) in _BEFORE or before.end == side[0].start:
        return True
    if not any(token.text in _WORK or token.kind == "cmd" for token in side):
        return True  # a number alone, after a word
    return len(side) > 1 and side[0].text in _WORK and side[1].spaced


def _continues(last: _Token, sign: _Token, after: _Token) -> bool:
    """True if the text after an equation may belong to its last side."""
    if _word(after) in _AFTER or last.end == after.start or last.text in _WORK - {"!", "%", "²", "³"}:
        return True
    return sign.kind == "rel" and sign.text.isalpha() and _word(after) in _THAN


def _word(token: _Token) -> str:
    if token.kind == "text":
        words = token.text.partition("{")[2].rstrip("}").split()
        return words[-1].lower() if words else ""
    return token.text.lower().replace("’", "'")


def _side(part: list[_Token]) -> str:
    """The text of one side; empty if it cannot be read."""
    while part and part[0].text in {"*", "**"}:  # bold type
        part = part[1:]
    while part and part[-1].text in {"*", "**"}:
        part = part[:-1]
    if not part or any(token.text in _UNREAD or token.kind == "word" for token in part):
        return ""  # for example a ratio, a time, an integer division or a congruence
    if any(token.text == "%" and follower.kind == "num" for token, follower in pairwise(part)):
        return ""  # the remainder in a programming language
    text = "".join((" " if token.spaced and at else "") + token.text for at, token in enumerate(part))
    return text if len(text) <= MAX_SIDE else ""
