"""The words and commands of the grammar; longer lists are sections of ``lexicon.txt``."""

import re
from pathlib import Path

_TEXT = Path(__file__).with_name("lexicon.txt").read_text("utf-8")
_SECTIONS: dict[str, str] = dict(re.findall(r"^\[([a-z ]+)\]\n((?:[^\[#\n].*\n)+)", _TEXT, re.MULTILINE))


def section(name: str) -> str:
    """The lines of a section."""
    return _SECTIONS[name].rstrip("\n")


def word_list(name: str) -> frozenset[str]:
    """The words of a section."""
    return frozenset(_SECTIONS[name].split())


MAX_DEPTH = 30
MAX_DIGITS = 300
LEADS = frozenset({"if", "when", "for", "where", "whenever", "provided", "as", "iff", "on", "for all"})
OTHERS = frozenset({"otherwise", "else", "elsewhere", "if otherwise", "in all other cases", "everywhere else"})
RELATIONS = frozenset({"=", "<", ">", "<=", ">=", "!=", "~="})
FUNCTIONS = word_list("functions")
INVERSES = {name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")}
SPELLINGS = {"arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh",
             "asin": "arcsin", "acos": "arccos", "atan": "arctan", "overline": "bar",
             "widehat": "hat", "overrightarrow": "vec"}  # fmt: skip
GREEK = word_list("greek")
SIGNED = frozenset({"^+", "^-", "^*", "_+", "_-", "_>0", "_<0", "_>=0", "_<=0", "_0"})
ACCENTS = frozenset({"overline", "bar", "vec", "hat", "widehat", "tilde", "overrightarrow", "dot", "mathbb"})
CONNECTIVES = frozenset({"and", "or", ",", "&", ", and", ", or", "and/or", ";"})
SHORT_WORDS = word_list("short words")
ATOM_COMMANDS = (
    FUNCTIONS | GREEK | ACCENTS
    | {"underline", "frac", "sqrt", "binom", "pi", "infty", "log", "lfloor", "lceil", "langle", "angle", "triangle"}
    | {"emptyset", "Pr"}
)  # fmt: skip
_UNITS = word_list("bare units")


def is_word(text: str) -> bool:
    """True if an answer of two or three letters is a word, a name or a sequence and not a product."""
    return text.lower() in SHORT_WORDS or (len(text) == 3 and text.istitle()) or (len(text) > 1 and text.isupper())


def is_unit_word(text: str) -> bool:
    """True if a bare word after a value is a unit: one of the table, or too long for a product of variables."""
    if text in FUNCTIONS or text.lower() in {"and", "or", "inf", "infinity", "percent", "pct", "percentage"}:
        return False
    return text in _UNITS or text.lower() in _UNITS or (len(text) >= 4 and text != "sqrt")
