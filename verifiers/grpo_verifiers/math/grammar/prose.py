"""A phrase around one value: closed words before it, a unit or a counted thing after it.

Nothing is dropped: a word before the value that is not in ``LEAD`` and a word after it that is neither unit nor counted
thing make the phrase unreadable. ``minus`` and ``negative`` are signs.
"""

import re

from grpo_verifiers.math.grammar.notations import notation
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.tree import INFINITY, Node
from grpo_verifiers.math.words.nouns import QUANTITY, is_counted
from grpo_verifiers.math.words.numerals import is_numeral, spoken
from grpo_verifiers.math.words.units import unit_readings
from grpo_verifiers.math.words.vocabulary import FUNCTIONS, is_unit_word, word_list

MAX_PROSE = 400
_DIRECT = word_list("direct")
_LEAD = word_list("lead") | _DIRECT
_OF = word_list("of")
_SHORT = QUANTITY | {"per", "of", "the", "and", "in", "all", "sq", "cu", "to", "old", "ft", "th", "ten", "mod"}
_SHORT |= {"red", "big", "new", "hot", "dry", "wet"}
_SIGNS = {"minus": "-", "negative": "-", "plus": "", "positive": ""}
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_LEADING = re.compile(r"\s*(?P<word>[^\W\d_]+(?:['’-][^\W\d_]+)*)\s*(?P<stop>[,:=](?!\d))?(?=[\s\d$\\(.-]|$)")
_LONG_WORD = re.compile(r"(?<![\\A-Za-z{])[^\W\d_]{2,}")
_NUMBER = re.compile(
    r"[-+]?\s*(?P<currency>\\?[$€£])?\s*(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+(?:\s+\d+(?=/\d))?)?(?:\.\d+)?(?<=\d)(?P<percent>\s*\\?%)?(?:\s*/\s*\d+)?(?![\w^_!(])"
)
_TAIL = re.compile(r"[A-Za-zµΩ°(][A-Za-zµΩ0-9\s/^{}().·*'’$-]*")
_EXPONENT = re.compile(r"\^\s*\{?-?\d\}?|(?<=[A-Za-z])-?\d")
_CONNECTED = re.compile(r"\b(?:and|or|nor|but|not|is|are|=)\b|[,;]")
_DELIMITERS = re.compile(r"\\[()\[\]]")
_CLOSING = re.compile(
    r"\s+(?:is|are)\s+(?:the|our|my)?\s*(?:final|correct)?\s*(?:answer|result|solution)s?\s*$", re.IGNORECASE
)
_COUNTED_OUT = re.compile(r"\s*an? (?:half|dozen|hundred|thousand|million|third|fourth|fifth|tenth)\b", re.IGNORECASE)
_OPERATION = re.compile(
    r"\s*(?:(?:square|cube|root)s?\s+(?:root\s+)?of|of\s+(?:the|our|my)\s+(?:final\s+|correct\s+)?(?:answer|result|number))\b",
    re.IGNORECASE,
)


def phrase(text: str) -> Node | None:
    """The tree of a value with words around it; None where the text is no such phrase."""
    if len(text) > MAX_PROSE or _LONG_WORD.search(text) is None:
        return None
    text = _DELIMITERS.sub(" ", text)
    text = _CLOSING.sub("", " ".join(text.split()).rstrip(" .!"))
    lead = _lead(text)
    if lead is None:
        return None
    name, sign, at = lead
    rest = text[at:].strip()
    node = notation(rest) or _value(rest)
    if node is None:
        return None
    if sign:
        if node[0] == "-":
            return None
        node = (node[0], ("-", node[1]), node[2]) if node[0] == "unit" else ("-", node)
    return ("rel", (("v", name), node), "=") if name else node


def _lead(text: str) -> tuple[str, str, int] | None:
    """The single-letter name and the sign before a value, and where the value begins; None for other words."""
    at, names, words = 0, [], []
    sign: str | None = None
    while (match := _LEADING.match(text, at)) is not None:
        word = match["word"]
        folded = word.casefold()
        if sign is not None or spoken(word) is not None or _COUNTED_OUT.match(text, at):
            break
        if folded in _SIGNS:
            sign = _SIGNS[folded]
        elif _OPERATION.match(text, at):
            return None
        elif folded in _LEAD:
            words.append(folded)
        elif len(word) == 1 and match["stop"] is None and _next_is_copula(text, match.end()):
            if words and not _introduces_name(words):
                return None
            names.append(word)
            words.append("it")
        elif len(word) == 1:
            break
        elif is_counted(folded):
            words.append("thing")
        elif notation(text[at:].strip()) is not None:
            break
        else:
            return None
        if match["stop"] in {"=", ":"}:
            words.append("is")
        at = match.end()
    if words and not _introduces(words):
        return None
    if len(names) > 1 or (names and "is" not in words and "equals" not in words and "are" not in words):
        return None
    return (names[0] if names else ""), sign or "", at


def _introduces_name(words: list[str]) -> bool:
    """True if a letter after these words is the thing that has the value: not in "the square of x is"."""
    if words[-1] == "of":
        return len(words) > 1 and words[-2] == "value"
    return words[-1] in _DIRECT | {"number", "integer", "value"}


def _next_is_copula(text: str, at: int) -> bool:
    following = _WORD.match(text[at:].lstrip())
    return following is not None and following.group() in {"is", "equals"}


def _introduces(words: list[str]) -> bool:
    """True if the last words before a value say that it is the answer, and not that something is done to it."""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "of":
        return before in _OF
    if last == "to":
        return before == "equal"
    if last in {"a", "an", "the"}:
        return before in _DIRECT | {"", "by"}
    return last in _DIRECT or (last == "all" and before == "in")


def _value(rest: str) -> Node | None:
    """A number, number words or a formula, with what is after it."""
    match = _NUMBER.match(rest)
    if match and match.group().strip():
        tail = rest[match.end() :].strip()
        if not tail:
            return _parsed(rest)
        return None if _is_product(rest[match.end() :]) else _with_tail(match.group(), tail)
    if rest.casefold() == "infinity":
        return INFINITY
    words = rest.split()
    for count in range(min(len(words), 8), 0, -1):
        node = spoken(" ".join(words[:count]))
        if node is not None:
            tail = " ".join(words[count:])
            return node if not tail else ("unit", node, tail) if _is_tail(tail) else None
    found = _LONG_WORD.search(rest)
    if found is None:
        return _parsed(rest) if rest else None
    if not found.start() or (not rest[found.start() - 1].isspace() and _is_product(rest[found.start() :])):
        return None
    return _with_tail(rest[: found.start()].strip(), rest[found.start() :])


def _is_product(tail: str) -> bool:
    """True if letters that touch a value are factors: ``2ab``, but not ``2kg``."""
    return not tail[:1].isspace() and unit_readings(tail) is None


def _with_tail(value: str, tail: str) -> Node | None:
    if not _is_tail(tail):
        return None
    if tail.startswith("and "):
        whole, words = _parsed(value), tail[4:].split()
        if whole is None or whole[0] != "n" or whole[2] is not None:
            return None
        for count in range(min(len(words), 3), 1, -1):
            part, left = spoken(" ".join(words[:count])), " ".join(words[count:])
            if part is not None and part[0] == "/" and (not left or _is_tail(left)):
                return ("unit", ("mixed", whole, part), left) if left else ("mixed", whole, part)
        return None
    node = _parsed(value)
    if node is None or node[0] in {"text", "list", "rel"}:
        return None
    return ("unit", node, tail)


def _is_tail(tail: str) -> bool:
    if tail.rstrip(".") == "min" or (" " not in tail and unit_readings(tail) is not None):
        return True
    first = _WORD.match(tail)
    if _TAIL.fullmatch(tail) is None or (first is not None and first.group() in FUNCTIONS | {"log", "sqrt", "pi"}):
        return False
    if any(char.isdigit() for char in _EXPONENT.sub("", tail)):
        return False
    # two or three letters are a product of variables, unless they are a unit or a noun
    if not all(_is_short_word(word) for word in _LONG_WORD.findall(tail)):
        return False
    return _LONG_WORD.search(tail) is not None and (not _CONNECTED.search(tail) or tail.startswith("and "))


def _is_short_word(word: str) -> bool:
    folded = word.casefold()
    return len(word) > 3 or is_numeral(word) or is_unit_word(word) or folded in _SHORT or is_counted(folded)


def _parsed(text: str) -> Node | None:
    try:
        return parse(text)
    except ParseError:
        return None
