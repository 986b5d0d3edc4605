"""Nouns for counted objects, as in "5 red marbles": they leave the number before them unchanged.

A phrase has at most four words. The last is a plural or a word of the gold. Words of ``QUANTITY`` are excluded: they
change the number before them.
"""

import re

from grpo_verifiers.math.words.numerals import is_numeral
from grpo_verifiers.math.words.vocabulary import word_list

MAX_PHRASE = 4
QUANTITY = word_list("quantity")
_FOREIGN = word_list("foreign quantity")
_OPERATIONS = frozenset({"square", "cube", "root", "more", "fewer"})
_WORD = re.compile(r"[^\W\d_]+")
_IRREGULAR = {
    "people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "teeth": "tooth",
    "geese": "goose", "dice": "die", "vertices": "vertex", "indices": "index", "matrices": "matrix", "axes": "axis",
    "leaves": "leaf", "loaves": "loaf", "wolves": "wolf", "shelves": "shelf", "bacteria": "bacterium",
    **{name: name for name in ("sheep", "fish", "deer")},
}  # fmt: skip


def singular(word: str) -> str:
    """One spelling for the one and the many of a noun."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zzes", "oes", "uses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def is_counted(word: str, gold_words: frozenset[str] = frozenset()) -> bool:
    """True if a word is a noun for counted objects."""
    if word in gold_words or word in {"zeros", "zeroes"}:
        return True
    if not word.isascii():
        return word.isalpha() and not any(part in word for part in _FOREIGN)
    if word in QUANTITY or is_numeral(word) or "illion" in word or word.endswith(("wards", "wise")):
        return False
    if word in _IRREGULAR or word in _IRREGULAR.values():
        return True
    return len(word) >= 4 and word.endswith("s") and not word.endswith(("ss", "'s", "us", "is"))


def noun_phrase(
    words: list[str], gold_words: frozenset[str] = frozenset(), *, mass: bool = False
) -> tuple[str, frozenset[str]] | None:
    """Noun and adjectives of a lower-case phrase for counted objects, or None; ``mass``: it follows "of"."""
    if words == ["times"]:
        return "time", frozenset()
    if mass and words[:1] in (["the"], ["a"], ["an"]):
        words = words[1:]
    if "of" in words[1:]:  # slices of pizza, values of n
        cut = words.index("of")
        if len(words) == cut + 2 and len(words[-1]) == 1:
            return noun_phrase(words[:cut], gold_words)
        before, after = noun_phrase(words[:cut], gold_words), noun_phrase(words[cut + 1 :], gold_words, mass=True)
        return None if before is None or after is None else before
    if not 0 < len(words) <= MAX_PHRASE:
        return None
    *first, noun = words
    if not is_counted(noun, gold_words) and not (mass and _is_neutral(noun)):
        return None
    if singular(noun) == "root" and {"square", "cube"} & set(first):
        return None
    if not all(word in gold_words or _is_neutral(word) for word in first):
        return None
    return singular(noun), frozenset(singular(word) for word in first)


def _is_neutral(word: str) -> bool:
    """True if an adjective of a counted object leaves its number unchanged."""
    return len(word) > 2 and word not in QUANTITY and not is_numeral(word)


def is_label(text: str) -> bool:
    """True if words left of an equals sign name a value, without an operation on it such as ``half of x``."""
    words = _WORD.findall(text.casefold())
    return not any(word in QUANTITY or word in _OPERATIONS or is_numeral(word) for word in words)
