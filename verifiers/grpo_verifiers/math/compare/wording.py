"""Answers in words: sayings, options, times and dates, sequences of letters.

``yes`` is not ``true``, no value is not no solution, and infinity is neither. The sayings that mean the same are a
closed table in ``words/lexicon.txt``.
"""

import re

from grpo_verifiers.math.compare.leaf import Outcome, outcome_of
from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.words.moments import clock_of_ratio, moment, same_moment
from grpo_verifiers.math.words.numerals import ordinal
from grpo_verifiers.math.words.vocabulary import section

_LINES = re.sub(r"\n +", " ", section("sayings").replace("'", " ")).splitlines()
_MEANINGS = {saying: line.partition(",")[0] for line in _LINES for saying in line.split(", ")}
_THE = re.compile(r"^the ")


def meaning(text: str) -> str | None:
    """The first of the sayings that mean the same as a text in lower case; None if the table lacks it."""
    return _MEANINGS.get(_THE.sub("", text))


# The prime of a letter stays, quotes around one do not.
_TEXT_EDGE = re.compile(r"(?:[\s.,:;!?*\"`()\[\]{}$]|(?<!(?<![\w'])[^\W\d_])')+")


def normal_text(text: str) -> str:
    """Words without case, punctuation at the edges of words and repeated spaces."""
    return " ".join(part for part in _TEXT_EDGE.split(text.casefold()) if part)


def words_of(node: Node) -> str | None:
    """The text of a node: a word, a letter, or letters that the grammar took for a product."""
    if node[0] == "text":
        return normal_text(node[1])
    if node[0] == "v" and node[1].isalpha():
        return str(node[1]).casefold()
    if node[0] == "list" and all(part[0] == "v" and len(part[1]) == 1 for part in node[1:]):
        return " ".join(part[1].casefold() for part in node[1:])
    if node == ("set",):
        return "empty set"
    if node[0] == "unit":
        inner = words_of(node[1])
        return None if inner is None else normal_text(f"{inner} {node[2]}")
    if node[0] == "*" and all(part[0] == "v" and len(part[1]) == 1 for part in node[1:]):
        return "".join(part[1] for part in node[1:]).casefold()
    return None


_SEQUENCE = re.compile(r"[a-z](?: [a-z])+")
_ARTICLE = re.compile(r"^(?:a|an|the|on) (?=[^\W\d_]{3})")
_CHOICE = re.compile(r"(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s*\(?([A-J])\)?\.?")


def texts(gold: Node, answer: Node) -> Outcome:
    """True if two answers mean the same in words; letters in another order are different words."""
    moments = [_moment(node) for node in (gold, answer)]
    if None not in moments:
        return outcome_of(same_moment(*moments), "a different time or date")
    if gold[0] == "v" and answer[0] == "text" and (named := _CHOICE.fullmatch(answer[1].strip())):
        return outcome_of(named[1] == gold[1], "a different option")
    left, right = (None if words is None else _ARTICLE.sub("", words) for words in (words_of(gold), words_of(answer)))
    if left is None or right is None:
        return False, "words where a value is expected" if left is None else "a value where words are expected"
    same = left == right or (meaning(left) is not None and meaning(left) == meaning(right))
    if not same and _SEQUENCE.fullmatch(left):  # "C, A, B" and "CAB"
        same = left.replace(" ", "") == right.replace(" ", "")
    if not same and (place := ordinal(left)) is not None:
        same = place == ordinal(right)
    return outcome_of(same, "different words")


def _moment(node: Node) -> object:
    if node[0] == "text":
        return moment(node[1])
    if node[0] == "ratio" and len(node) == 3 and all(part[0] == "n" and part[2] is None for part in node[1:]):
        return clock_of_ratio(int(node[1][1]), int(node[2][1]))
    return None
