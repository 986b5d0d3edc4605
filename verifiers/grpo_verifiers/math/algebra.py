"""math-verify for answers outside the grammar: sets by property, inequalities in absolute values, odd notations.

Runs in a worker process only: neither its parser nor its solver bounds its time. It takes no alarm of its own.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from grpo_verifiers.math.gold import MAX_GOLD
from grpo_verifiers.math.outcome import Outcome, settled
from grpo_verifiers.math.tree import Node, names
from grpo_verifiers.math.words.lexicon import word_list


def open_to_algebra(gold: Node, gold_text: str, answer: str) -> bool:
    """True if an answer that this grammar cannot read may still be shown to an algebra system.

    Only for golds with variables or sets, where notations are many; and only what is short, shallow and neither
    prose nor a restatement of the question.
    """
    if gold[0] == "v" or not (names(gold) or gold[0] in {"span", "paren", "cup", "cap", "minus", "rel"}):
        return False
    return harmless(answer, gold_text)


_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
_KNOWN = word_list("commands")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
# Rows, words, derivatives and marks on what is no name.
_UNDONE = re.compile(r"\\\\|&|;|\b(?:or|and|not)\b|'|\^\s*\{\s*[(\[]\s*\w+\s*[)\]]|[\d)}\]]\s*_")
_SAFE = re.compile(r"[\sa-zA-Z0-9\\{}()\[\]|+*/^_=<>,.:;!&'-]*\Z")


def harmless(text: str, gold: str) -> bool:
    """True if an answer is small and plain enough for a parser that was not made for hostile input."""
    # signs of equality only where the gold has them, too
    if text.count("=") > gold.count("=") or len(text) > 300 or not _SAFE.match(text) or _UNDONE.search(text):
        return False
    if not _KNOWN.issuperset(_COMMAND.findall(text)):
        return False
    depth = deepest = 0
    for char in text:
        depth += (char in "{([") - (char in "})]")
        deepest = max(deepest, depth)
    if deepest > 8 or depth or text.count("^") > 8 or text.count("\\cup") > 10 or text.count("|") > 6:
        return False
    if re.search(r"\d{16}|\d{3}\s*!|!\s*\)?\s*!|\^\s*\{?\s*-?\s*\d{3}|\^\s*\{[^{}]*\^", text):
        return False
    return not _WORDS.search(re.sub(r"\\(?:text|mathrm|operatorname)\s*\{[^{}]*\}", "", text))


def equal(gold: str, answer: str) -> Outcome:
    """True if math-verify finds two pieces of LaTeX equal.

    Both have to be understood to their last character, and neither may be large or deep.
    """
    if not harmless(answer, gold) or len(gold) > MAX_GOLD:
        return False, "the answer cannot be compared"
    try:
        left, right = _parsed(gold), _parsed(answer)
    except Exception as error:  # noqa: BLE001 - its parser raises whatever it meets
        return False, f"the answer cannot be compared: {type(error).__name__}"
    from math_verify import grader

    grader.TIMEOUT_WARNING_SHOWN = True  # the deadline is the worker's, and nobody needs to be told
    same = grader.verify(left, right, strict=True, allow_set_relation_comp=True, timeout_seconds=None)
    return settled(bool(same), "not equal")


def unreadable(gold: str) -> str:
    """The reason why math-verify cannot read a gold answer either; empty when it can."""
    if len(gold) > MAX_GOLD:
        return f"longer than {MAX_GOLD} characters"
    try:
        _parsed(gold)
    except Exception as error:  # noqa: BLE001 - its parser raises whatever it meets
        return f"math-verify: {type(error).__name__}"
    return ""


@lru_cache(maxsize=512)
def _parsed(text: str) -> Any:
    from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
    from latex2sympy2_extended.latex2sympy2 import _Latex2Sympy
    from math_verify.grader import should_treat_as_complex

    logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)
    config = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
    )
    normal = normalize_latex(text, config=config)
    parser = _Latex2Sympy().create_parser(normal)
    parser.math()
    following = parser.getTokenStream().LA(1)
    if following != -1:
        raise ValueError("only a beginning of the text is mathematics")
    real = not should_treat_as_complex(normal)
    return latex2sympy(normal, is_real=real, convert_degrees=False, normalization_config=None)
