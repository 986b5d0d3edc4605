"""A piece of text read as an answer: without dollar signs, without prose around a single formula."""

import re
from functools import lru_cache

from grpo_verifiers.math.grammar.notations import notation
from grpo_verifiers.math.grammar.numbers import plain
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.grammar.prose import phrase
from grpo_verifiers.math.grammar.tokens import ParseError
from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.words.vocabulary import MAX_DIGITS

MAX_LONG = 20_000  # only a number may be longer than what is tokenized
_DOLLAR = re.compile(r"(?<!\\)\$")
_PROSE = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{2,}")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_WORDS_ONLY = re.compile(r"[^\W\d_]+(?:[\s'’-]{1,3}[^\W\d_]+){0,60}[.!]?")
_GREEK = frozenset("αβγδεζηθικλμνξοπρστυφχψωΓΔΘΛΞΠΣΦΨΩℝℤℕℚℂ")
_SOLUTIONS = re.compile(r"(?i)(?:the )?(?:real )?(?:solutions|answers|roots|zeros|values)(?: of [a-z])? are:? ")
_SPACES = re.compile(r"\s+")
_DECIMAL_COMMA = re.compile(r"([-+]?(?:0|\d{4,}|\d+(?!,\d{3}$))),(\d+)")
_MIXED = re.compile(r"([-+]?\d+)\s+and\s+(?:\\[dt]?frac\s*\{(?=\d+\}\{\d+\}$))?(\d+)(?:/|\}\{)(\d+)\}?")


def without_text_commands(text: str) -> str:
    r"""The text with ``\text{...}`` and its like replaced by their content."""
    return _TEXT.sub(r"\1", text)


def undelimited(text: str) -> str:
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


@lru_cache(maxsize=512)
def read(text: str) -> Node:
    """The tree of an answer as stated."""
    if len(text) > MAX_LONG:
        raise ParseError(f"an answer of more than {MAX_LONG} characters")
    text = undelimited(text).replace("{:}", ":")
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
    """``1000,99`` as a decimal number, ``3 and 1/2`` as a mixed number; None where the text is something else."""
    text = without_text_commands(undelimited(text)).strip()
    if (match := _DECIMAL_COMMA.fullmatch(text)) is not None:
        return read(f"{match[1]}.{match[2]}")
    if (match := _MIXED.fullmatch(text)) is not None:
        return read(f"{match[1]}\\frac{{{match[2]}}}{{{match[3]}}}")
    return None


_KINDS = {
    "real number": "R", "real": "R", "real value": "R", "integer": "Z", "whole number": "Z", "rational number": "Q",
    "rational": "Q", "natural number": "N", "positive real number": "R^+", "positive real": "R^+",
    "negative real number": "R^-", "nonnegative real number": "R_{>=0}", "non-negative real number": "R_{>=0}",
    "positive integer": "Z^+", "negative integer": "Z^-", "nonnegative integer": "Z_{>=0}",
    "nonzero real number": "R^*",
    "non-negative integer": "Z_{>=0}", "nonnegative real": "R_{>=0}", "non-negative real": "R_{>=0}",
}  # fmt: skip
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


def _spoken(text: str) -> str:
    return " ".join(_MARKUP.sub(lambda match: f" {match[1] or ''} ", text).split()).strip(" .")


def set_in_words(text: str) -> str | None:
    """A named set of numbers, with what is left out of it, in LaTeX; None where the words say something else."""
    if len(text) <= 200 and (match := _BOUND.fullmatch(_spoken(text))) is not None:
        return f"{match['name']} {_sign(match['order'])} {match['bound']}"
    if len(text) > 200 or not re.search(r"\b(?:all|any|every)\b", text[:60], re.IGNORECASE):
        return None
    plain = _spoken(text)
    match = _WORDS.fullmatch(plain[:1].lower() + plain[1:])
    if match is None or match["kind"].strip() not in _KINDS:
        return None
    domain, _, sign = _KINDS[match["kind"].strip()].partition("^")
    letter, _, bound = domain.partition("_")
    found = f"\\mathbb{{{letter}}}" + (f"^{sign}" if sign else "") + (f"_{bound}" if bound else "")
    if match["order"]:
        return f"x {_sign(match['order'])} {match['bound'].strip()}" + ("" if letter == "R" else f", x \\in {found}")
    return f"{found} \\setminus \\{{{match['without'].strip()}\\}}" if match["without"] else found


def _sign(order: str) -> str:
    """The sign for words such as "greater than or equal to"."""
    words = order.removeprefix("strictly ")
    sign = ">" if words.split()[0] in {"greater", "more", "larger"} or words == "at least" else "<"
    return sign + ("=" if "equal" in words or words.startswith("at ") else "")
