r"""Read a text as an answer: without dollar signs, in a special notation, or in a phrase around a value.

============================================== ======================================================================
``1.234,5``, ``1 234,5``, ``1.234.567``        1234.5, 1234.5, 1234567
``0.(3)``, ``0.1\dot{6}``                      repeating decimals; ``0.333...`` does not say which digits repeat
``1.2 x 10^5``, ``1.2e5``                      scientific notation
``3rd``, ``third``                             ordinals: equal to each other and to no number
``3 to 5``, ``5 out of 36``                    the ratio 3:5, the fraction 5/36
``1010 in base 2``, ``binary 1010``, ``0b1010`` ``1010_2``
``3:30 PM``, ``2024-05-01``, ``1 May 2024``    times and dates; ``5/1/2024`` is equal to nothing but itself
============================================== ======================================================================

A phrase has closed words before its value, and a unit or a counted thing after it. Nothing is dropped: a word before
the value that is not in ``_LEAD`` and a word after it that is neither unit nor counted thing make it unreadable.
``minus`` and ``negative`` are signs.
"""

import re
from functools import lru_cache

from grpo_verifiers.math.grammar.parser import parse, plain_number
from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.tree import INFINITY, Node, number
from grpo_verifiers.math.words.moments import moment
from grpo_verifiers.math.words.nouns import QUANTITY, is_counted
from grpo_verifiers.math.words.numerals import is_numeral, number_in_words, ordinal
from grpo_verifiers.math.words.units import unit_readings
from grpo_verifiers.math.words.vocabulary import FUNCTIONS, MAX_DIGITS, is_unit_word, word_list

MAX_NOTATION = 80
_GROUPS = re.compile(r"([-+]?[1-9]\d{0,2}(?:\.\d{3})+),(\d+)|([-+]?[1-9]\d{0,2}(?:(?: |~|\\,|\\ )\d{3})+),(\d+)")
_POINTS = re.compile(r"[-+]?[1-9]\d{0,2}(?:(?:\.\d{3}){2,}|(?:'\d{3})+)")
_NO_DIGIT = re.compile(r"[^-+\d]|\\,")
_REPEATING = re.compile(r"([-+]?\d*\.\d*)(?:\((\d+)\)|\\dot\s*\{?(\d)\}?(?:(\d*)\\dot\s*\{?(\d)\}?)?)")
_SCIENTIFIC = re.compile(
    r"([-+]?\d{1,30}(?:\.\d{1,30})?)\s*(?:[eE]\+?|[xX]\s*10\s*\^\s*\{?\s*\+?)(-?\d{1,3})\s*\}?(?:\s+([A-Za-z].*))?"
)
_RATIO = re.compile(r"(\d+(?:\.\d+)?) to (\d+(?:\.\d+)?)(?: to (\d+(?:\.\d+)?))?")
_SHARE = re.compile(r"(\d+) (?:out of|in) (\d+)")
_PRICE = re.compile(r"(USD|EUR|GBP|INR|JPY|CNY|Rs\.?)\s*(\d[\d,]*(?:\.\d+)?)")
_DIGITS = r"(?P<digits>[0-9A-Za-z]{1,60})"
_BASE = r"base[ -]?(?P<base>\w{1,9})|(?P<name>binary|octal|hexadecimal|hex)"
_WORDED_BASES = (
    re.compile(rf"{_DIGITS},?\s*\(?\s*(?:in\s+)?(?:{_BASE})\s*\)?"),
    re.compile(rf"(?:{_BASE}):?\s+{_DIGITS}"),
)
_SUBSCRIPT = re.compile(rf"\(?{_DIGITS}\)?\s*_\s*\{{?\s*(?:base )?\s*(?P<base>\d\d?|[A-Za-z]{{3,9}})\s*\}}?")
_PREFIXED = re.compile(r"0([xbo])([0-9a-f]{1,60})", re.IGNORECASE)
_MEMBER = re.compile(r"\d*[a-z]")  # 2a_{11} may be twice a member of a sequence
_NAMES = {"binary": 2, "octal": 8, "hexadecimal": 16, "hex": 16, "b": 2, "o": 8, "x": 16}
_MAY_BE_OTHER = re.compile(r"'|[A-Za-z:/(]|\d-\d|\\dot|[.,]\d{3}[.,]|\d{3},")


def notation(text: str) -> Node | None:
    """The tree of an answer in one of these notations; None for any other text."""
    if len(text) > MAX_NOTATION or _MAY_BE_OTHER.search(text) is None:
        return None
    if (match := _GROUPS.fullmatch(text)) is not None:
        integer, decimals = (match[1], match[2]) if match[1] else (match[3], match[4])
        return parse(f"{_NO_DIGIT.sub('', integer)}.{decimals}")
    if _POINTS.fullmatch(text):
        return parse(_NO_DIGIT.sub("", text))
    if (match := _REPEATING.fullmatch(text)) is not None:
        return parse(f"{match[1]}\\overline{{{match[2] or match[3] + (match[4] or '') + (match[5] or '')}}}")
    if (match := _SCIENTIFIC.fullmatch(text)) is not None:
        node = parse(f"{match[1]} \\times 10^{{{match[2]}}}")
        if match[3] is None:
            return node
        return ("unit", node, match[3]) if unit_readings(match[3]) is not None else None
    if (match := _SHARE.fullmatch(text)) is not None:
        return parse(f"{match[1]}/{match[2]}")
    if (match := _PRICE.fullmatch(text)) is not None:
        return ("unit", parse(match[2]), match[1].strip("."))
    if (match := _RATIO.fullmatch(text)) is not None:
        return parse(":".join(part for part in match.groups() if part))
    if ordinal(text) is not None or moment(text) is not None:
        return ("text", text)
    return _in_base(text)


def _in_base(text: str) -> Node | None:
    if (match := _PREFIXED.fullmatch(text)) is not None:
        return _based(match[2], _NAMES[match[1].lower()])
    if (match := _SUBSCRIPT.fullmatch(text)) is not None:
        digits, base = match["digits"], _number(match["base"])
        if digits.isdigit():
            return _based(digits, base)
        is_name = len(digits) == 1 or (base != 16 and _MEMBER.fullmatch(digits)) or not _exist(digits, base)
        return None if is_name else _based(digits, base)
    match = next(filter(None, (pattern.fullmatch(text) for pattern in _WORDED_BASES)), None)
    if match is None or not any(char.isdigit() for char in match["digits"]):
        return None
    return _based(match["digits"], _NAMES[match["name"]] if match["name"] else _number(match["base"]))


def _based(digits: str, base: int) -> Node:
    if not _exist(digits, base):
        raise ParseError(f"the digits {digits[:20]} do not exist in base {base}")
    return ("base", digits.lower(), base)


def _exist(digits: str, base: int) -> bool:
    return 2 <= base <= 36 and all(int(digit, 36) < base for digit in digits)


def _number(text: str) -> int:
    """The number in digits or in a word; 0 for any other text."""
    node = number(int(text)) if text.isdigit() else number_in_words(text)
    return int(node[1]) if node is not None and node[0] == "n" and node[2] is None else 0


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
    """The tree of a value with words around it; None for any other text."""
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
    """The single-letter name and the sign before a value, and the offset of the value; None for other words."""
    at, names, words = 0, [], []
    sign: str | None = None
    while (match := _LEADING.match(text, at)) is not None:
        word = match["word"]
        folded = word.casefold()
        if sign is not None or number_in_words(word) is not None or _COUNTED_OUT.match(text, at):
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
    """True if a letter after these words is the name of the value: not in "the square of x is"."""
    if words[-1] == "of":
        return len(words) > 1 and words[-2] == "value"
    return words[-1] in _DIRECT | {"number", "integer", "value"}


def _next_is_copula(text: str, at: int) -> bool:
    following = _WORD.match(text[at:].lstrip())
    return following is not None and following.group() in {"is", "equals"}


def _introduces(words: list[str]) -> bool:
    """True if the last words before a value introduce it as the answer, without an operation on it."""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last == "of":
        return before in _OF
    if last == "to":
        return before == "equal"
    if last in {"a", "an", "the"}:
        return before in _DIRECT | {"", "by"}
    return last in _DIRECT or (last == "all" and before == "in")


def _value(rest: str) -> Node | None:
    """A number, number words or a formula, with the words after it."""
    match = _NUMBER.match(rest)
    if match and match.group().strip():
        tail = rest[match.end() :].strip()
        if not tail:
            return _parse_or_none(rest)
        return None if _is_product(rest[match.end() :]) else _with_tail(match.group(), tail)
    if rest.casefold() == "infinity":
        return INFINITY
    words = rest.split()
    for count in range(min(len(words), 8), 0, -1):
        node = number_in_words(" ".join(words[:count]))
        if node is not None:
            tail = " ".join(words[count:])
            return node if not tail else ("unit", node, tail) if _is_tail(tail) else None
    word = _LONG_WORD.search(rest)
    if word is None:
        return _parse_or_none(rest) if rest else None
    if not word.start() or (not rest[word.start() - 1].isspace() and _is_product(rest[word.start() :])):
        return None
    return _with_tail(rest[: word.start()].strip(), rest[word.start() :])


def _is_product(tail: str) -> bool:
    """True if letters that touch a value are factors: ``2ab``, but not ``2kg``."""
    return not tail[:1].isspace() and unit_readings(tail) is None


def _with_tail(value: str, tail: str) -> Node | None:
    if not _is_tail(tail):
        return None
    if tail.startswith("and "):
        integer, words = _parse_or_none(value), tail[4:].split()
        if integer is None or integer[0] != "n" or integer[2] is not None:
            return None
        for count in range(min(len(words), 3), 1, -1):
            part, left = number_in_words(" ".join(words[:count])), " ".join(words[count:])
            if part is not None and part[0] == "/" and (not left or _is_tail(left)):
                return ("unit", ("mixed", integer, part), left) if left else ("mixed", integer, part)
        return None
    node = _parse_or_none(value)
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


def _parse_or_none(text: str) -> Node | None:
    try:
        return parse(text)
    except ParseError:
        return None


MAX_LONG = 20_000  # only a number may be longer than the limit of the tokenizer
_DOLLAR = re.compile(r"(?<!\\)\$")
_PROSE = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|tt|normal)?|mathrm|mathbf|mathtt|mbox)\s*\{([^{}]*)\}")
_WORDS_ONLY = re.compile(r"[^\W\d_]+(?:[\s'’-]{1,3}[^\W\d_]+){0,60}[.!]?")
_GREEK = frozenset("αβγδεζηθικλμνξοπρστυφχψωΓΔΘΛΞΠΣΦΨΩℝℤℕℚℂ")
_SOLUTIONS = re.compile(r"(?i)(?:the )?(?:real )?(?:solutions|answers|roots|zeros|values)(?: of [a-z])? are:? ")
_SPACES = re.compile(r"\s+")
_DECIMAL_COMMA = re.compile(r"([-+]?(?:0|\d{4,}|\d+(?!,\d{3}$))),(\d+)")
_MIXED = re.compile(r"([-+]?\d+)\s+and\s+(?:\\[dt]?frac\s*\{(?=\d+\}\{\d+\}$))?(\d+)(?:/|\}\{)(\d+)\}?")


def without_text_commands(text: str) -> str:
    r"""The text with ``\text{...}`` and its like replaced by their content."""
    return _TEXT.sub(r"\1", text)


def strip_delimiters(text: str) -> str:
    """The text without math delimiters; a lone dollar sign is a currency and stays."""
    text = text.strip()
    if text.startswith(("\\(", "\\[")):
        for opener, closer in (("\\(", "\\)"), ("\\[", "\\]")):  # or one inside the other
            text = text[2:-2].strip() if text.startswith(opener) and text.endswith(closer) else text
    dollars = len(_DOLLAR.findall(text)) if "$" in text else 0
    if dollars and dollars % 2 == 0:
        text = _DOLLAR.sub(" ", text).strip()
    elif dollars == 1 and text.endswith("$"):
        text = text[:-1] + "\\text{ dollars}"
    return text.strip("*").strip() if text.startswith("**") else text


_PLAIN = re.compile(
    r"(-?)(?:([0-9]{1,40})(?:\.([0-9]{1,40})|/([0-9]{1,40}))?|\\[dt]?frac\{([0-9]{1,40})\}\{([0-9]{1,40})\})"
)


def plain(text: str) -> Node | None:
    """The tree of an integer, a decimal or a fraction of integers; None for everything else."""
    match = _PLAIN.fullmatch(text)
    if match is None:
        return None
    sign, integer, decimals, below, top, bottom = match.groups()
    if below or bottom:
        node: Node = ("/", plain_number(integer or top), plain_number(below or bottom))
    else:
        node = plain_number(f"{integer}.{decimals or ''}")
    return ("-", node) if sign else node


@lru_cache(maxsize=512)
def read(text: str) -> Node:
    """The tree of an answer as stated."""
    if len(text) > MAX_LONG:
        raise ParseError(f"an answer of more than {MAX_LONG} characters")
    text = strip_delimiters(text).replace("{:}", ":")
    if (number := plain(text)) is not None:
        return number
    if (special := notation(_SPACES.sub(" ", without_text_commands(text)).strip(" ."))) is not None:
        return special
    if len(text) > MAX_DIGITS and text.isascii() and text.isdigit():
        return ("big", text.lstrip("0") or "0")
    text = _SOLUTIONS.sub("", set_in_words(text) or text)
    if _PROSE.search(text) and (worded := phrase(without_text_commands(text))) is not None:
        return worded
    return ("text", text) if _is_sentence(text) else parse(text)


def _is_sentence(text: str) -> bool:
    """True if a text is words only, in any script: an answer such as "the tall one" or a name."""
    if not _WORDS_ONLY.fullmatch(text):
        return False
    words = text.split()
    if not text.isascii():
        return any(char.isalpha() and not char.isascii() and char not in _GREEK for char in text)
    return len(words) > 1 and any(len(word) > 3 for word in words) and not {"and", "or"} & {w.lower() for w in words}


def other_reading(text: str) -> Node | None:
    """``1000,99`` as a decimal number, ``3 and 1/2`` as a mixed number; None if the text is something else."""
    text = without_text_commands(strip_delimiters(text)).strip()
    if (match := _DECIMAL_COMMA.fullmatch(text)) is not None:
        return read(f"{match[1]}.{match[2]}")
    if (match := _MIXED.fullmatch(text)) is not None:
        return read(f"{match[1]}\\frac{{{match[2]}}}{{{match[3]}}}")
    return None


_LETTERS = {"real": "R", "integer": "Z", "whole": "Z", "rational": "Q", "natural": "N"}
_RESTRICTED = {"positive": "^+", "negative": "^-", "nonzero": "^*", "nonnegative": "_{>=0}", "non-negative": "_{>=0}"}
_KIND = re.compile(rf"(?:({'|'.join(_RESTRICTED)}) )?({'|'.join(_LETTERS)})(?: number| value)?")
_ORDER = r"(?P<order>(?:strictly )?(?:greater|more|larger|less|smaller) than(?: or equal to)?|at least|at most)"
_BOUND = re.compile(rf"(?P<name>[a-zA-Z]) (?:is|must be|has to be) {_ORDER} (?P<bound>-?\d+(?:[./]\d+)?)")
_WORDS = re.compile(
    r"(?:the set of |(?P<is>[a-zA-Z]) (?:is|can be) )?(?:all|any|every)\s+(?:of the )?(?P<kind>[a-z -]+?)s?"
    r"(?: values?)?(?: of)?(?:\s+(?P<name>[a-zA-Z]))?\s*"
    rf"(?:,?\s*(?:that are )?{_ORDER}"
    r"\s*(?P<bound>[^=<>]{1,60})"
    r"|,?\s*(?:except(?: for)?|excluding|other than|besides|but|apart from|not equal to|\\neq?(?![a-zA-Z]))"
    r"\s*(?:(?P=name)\s*)?(?:[a-z]\s*=)?\s*(?P<without>[^=<>]{1,60}))?[.]?"
)
_MARKUP = re.compile(r"\\(?:text|textrm|mathrm|mbox)\s*\{([^{}]*)\}|\\[ ,;]|[$~]")


def _plain_words(text: str) -> str:
    return " ".join(_MARKUP.sub(lambda match: f" {match[1] or ''} ", text).split()).strip(" .")


def set_in_words(text: str) -> str | None:
    """A named set of numbers with its exceptions, in LaTeX; None for any other words."""
    if len(text) <= 200 and (match := _BOUND.fullmatch(_plain_words(text))) is not None:
        return f"{match['name']} {_sign(match['order'])} {match['bound']}"
    if len(text) > 200 or not re.search(r"\b(?:all|any|every)\b", text[:60], re.IGNORECASE):
        return None
    plain = _plain_words(text)
    match = _WORDS.fullmatch(plain[:1].lower() + plain[1:])
    kind = match and _KIND.fullmatch(match["kind"].strip())
    if match is None or kind is None:
        return None
    letter = _LETTERS[kind[2]]
    numbers = f"\\mathbb{{{letter}}}{_RESTRICTED.get(kind[1], '')}"
    if match["order"]:
        return f"x {_sign(match['order'])} {match['bound'].strip()}" + ("" if letter == "R" else f", x \\in {numbers}")
    return f"{numbers} \\setminus \\{{{match['without'].strip()}\\}}" if match["without"] else numbers


def _sign(order: str) -> str:
    """The sign for words such as "greater than or equal to"."""
    words = order.removeprefix("strictly ")
    sign = ">" if words.split()[0] in {"greater", "more", "larger"} or words == "at least" else "<"
    return sign + ("=" if "equal" in words or words.startswith("at ") else "")
