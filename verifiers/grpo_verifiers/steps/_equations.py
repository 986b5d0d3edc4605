r"""The equations that a piece of text states, in plain text or LaTeX: one linear pass, nothing is evaluated.

Words end an equation, and what stands beside them decides whether the side next to them can be trusted: in "half of
10 = 5" and "3 apples and 2 = 5" the side is not what it seems, and the link is left out. A side that is left out is
empty.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

MAX_SIDE = 200
"""Characters of a side; a longer one is left out."""

_TOKEN = re.compile(
    r"(?P<soft>\\\\|&|\n)"
    r"|(?P<text>\\(?:text(?:bf|it|rm|normal)?|mbox|mathrm|operatorname)\s{0,9}\{[^{}]{0,200}\})"
    r"|(?P<stop>\\[()\[\]]|\\(?:begin|end)\s{0,9}\{[a-z*]{1,20}\}|\\(?:q?quad|implies|iff|[rR]ightarrow|therefore|because)"
    r"(?![a-zA-Z])|[-=]>|<<|>>|[⇒→;?\"“”…]|\.{2,})"
    r"|(?P<other>[!<>:+*/-]=|[<>≠≤≥≡]|\\(?:neq?|leq?|geq?|lt|gt|equiv|in|sim|propto|cong|to|mid)(?![a-zA-Z])|=:)"
    r"|(?P<rel>={1,3}|\\(?:approx|simeq)(?![a-zA-Z])|≈|~=)"
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
# The mark of an item of a list; "(3) + 4" is none.
_ITEM = re.compile(
    r"^[ \t]*+(?:(?P<dash>[-–])|[*+•]|\(?(?:\d{1,3}|[a-zA-Z])[.)](?=[ \t]++[^-+*/^=×÷·!\s]))(?=[ \t])", re.MULTILINE
)
_WORK = frozenset({"+", "-", "*", "/", "^", "**", "×", "÷", "·", "⋅", "−", "–", "!", "%", "√", "²", "³"})
_OPENERS, _CLOSERS = frozenset("([{"), frozenset(")]}")
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
_BEFORE, _AFTER = frozenset(_BEFORE_LIST.split()), frozenset(_AFTER_LIST.split())


class _Token(NamedTuple):
    kind: str
    text: str
    spaced: bool
    start: int
    end: int


@dataclass(frozen=True)
class Chain:
    """``a = b = c`` as it is written.

    Attributes:
        sides: of the signs, in LaTeX or plain text; empty where a side is missing or cannot be trusted.
        signs: ``"="``, ``"~="``, or ``"?"`` for relations that are not looked at.
        cut: the text ends with the last side, so that its last number may go on.
        dash: a dash stands before the first side, which may be the mark of an item or a sign.
    """

    sides: tuple[str, ...]
    signs: tuple[str, ...]
    cut: bool = False
    dash: bool = False


def chains(text: str) -> list[Chain]:
    """The equations of a text, in order."""
    if "=" not in text and "≈" not in text and "approx" not in text and "simeq" not in text and "equals" not in text:
        return []
    dashes = {match.end() for match in _ITEM.finditer(text) if match["dash"]}
    masked = _ITEM.sub(lambda match: " " * len(match.group()), text)
    found: list[Chain] = []
    for before, piece, after in _pieces(_tokens(masked)):
        chain = _chain(before, piece, after, len(text))
        if chain is not None:
            first = piece[0].start
            found.append(replace(chain, dash=bool(dashes) and _start_of_blank(text, first) in dashes))
    return found


def _start_of_blank(text: str, at: int) -> int:
    """Where the spaces before an offset begin."""
    while at and text[at - 1] in " \t":
        at -= 1
    return at


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
            kind, value = "rel", "="
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
            goes_on = at < len(tokens) and tokens[at].kind == "rel"
            if not goes_on and not (previous is not None and previous.kind == "rel"):
                flush(None)
        elif token.text == "$" and _is_currency(previous, following):
            continue
        elif (
            token.kind == "stop"
            or token.text in {"$", "."}
            or (token.text == ":" and not _between_digits(previous, token, following))
        ):
            flush(None)
        elif token.kind in {"word", "text", "any"}:
            if token.text in _FUNCTIONS and following is not None and following.text == "(":
                current.append(token._replace(kind="cmd", text="\\" + token.text))
            else:
                flush(token)
        elif token.kind == "letter" and token.text in "xX" and _between_numbers(previous, following):
            current.append(token._replace(kind="op", text="*"))
        elif token.kind in {"rel", "other"}:
            if brackets:  # a bracket around words, or around the whole: the equation begins inside it
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


def _is_currency(previous: Edge, following: Edge) -> bool:
    """Whether a dollar sign stands before an amount: after a number it closes a formula."""
    if following is None or following.kind != "num" or following.spaced:
        return False
    return previous is None or previous.kind in {"rel", "other"} or previous.text in (_WORK | _OPENERS)


def _between_digits(previous: Edge, token: _Token, following: Edge) -> bool:
    """Whether a colon is a ratio or a time."""
    near = previous is not None and previous.kind == "num" and not token.spaced
    return near and following is not None and following.kind == "num" and not following.spaced


def _between_numbers(previous: Edge, following: Edge) -> bool:
    left = previous is not None and (previous.kind == "num" or previous.text in _CLOSERS)
    return left and following is not None and (following.kind == "num" or following.text in _OPENERS)


def _chain(before: Edge, piece: list[_Token], after: Edge, length: int) -> Chain | None:
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
    if parts[-1] and after is not None and (_word(after) in _AFTER or _glued(parts[-1][-1], after)):
        sides[-1] = ""
    if parts[-1] and after is not None and parts[-1][-1].text in (_WORK - {"!", "%", "²", "³"}):
        sides[-1] = ""
    texts = tuple("?" if s.kind == "other" else "=" if set(s.text) == {"="} else "~=" for s in signs)
    return Chain(tuple(sides), texts, cut=bool(parts[-1]) and parts[-1][-1].end == length)


def _misleads(before: _Token, side: list[_Token]) -> bool:
    """Whether what stands before an equation may belong to its first side."""
    if _word(before) in _BEFORE or _glued(before, side[0]):
        return True
    if not any(token.text in _WORK or token.kind == "cmd" for token in side):
        return True  # a number alone, after a word
    return len(side) > 1 and side[0].text in _WORK and side[1].spaced


def _glued(left: _Token, right: _Token) -> bool:
    return left.end == right.start


def _word(token: _Token) -> str:
    if token.kind == "text":
        words = token.text.partition("{")[2].rstrip("}").split()
        return words[-1].lower() if words else ""
    return token.text.lower().replace("’", "'")


def _side(part: list[_Token]) -> str:
    """The text of one side; empty if it is none that can be read."""
    while part and part[0].text in {"*", "**"}:  # bold type
        part = part[1:]
    while part and part[-1].text in {"*", "**"}:
        part = part[:-1]
    if not part or any(token.text in {":", "//"} for token in part):
        return ""  # a ratio, a time, a division of a programming language
    if any(token.text == "%" and follower.kind == "num" for token, follower in pairwise(part)):
        return ""  # the remainder in a programming language
    text = "".join((" " if token.spaced and at else "") + token.text for at, token in enumerate(part))
    return text if len(text) <= MAX_SIDE else ""
