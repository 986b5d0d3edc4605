"""How far an answer is worked out: final numbers, fractions in lowest terms, arithmetic left undone."""

import re
from math import gcd, prod

from grpo_verifiers.math.canon import canon
from grpo_verifiers.math.forms import NotAlgebraicError, TooBigError, UndefinedError, rational
from grpo_verifiers.math.tree import Node, children, names, walk

_WORK = frozenset({"!", "binom"})
_WORK_FUNCTIONS = frozenset({"gcd", "lcm", "min", "max", "det", "floor", "ceil", "Re", "Im"})


def is_final(node: Node) -> bool:
    r"""Whether a node is a number as one writes a result: ``42``, ``-3/4``, ``3\frac12``, ``5\%``, ``2\cdot10^{5}``."""
    kind = node[0]
    if kind in {"n", "big"}:
        return True
    if kind in {"-", "%"}:
        return is_final(node[1]) and node[1][0] != "-"
    if kind == "/":
        return _integer(node[1]) and _integer(node[2])
    if kind == "mixed":
        return True
    if kind == "^":
        return node[1] == ("n", 10, None) and _integer(node[2])
    if kind == "*" and len(node) == 3:
        return node[1][0] == "n" and node[2][0] == "^" and is_final(node[2])
    return False


def open_to_algebra(gold: Node, gold_text: str, answer: str) -> bool:
    """Whether an answer that this grammar cannot read may still be shown to an algebra system.

    Only for golds with variables or sets, where notations are many; and only what is short, shallow and neither
    prose nor a restatement of the question.
    """
    if gold[0] == "v" or not (names(gold) or gold[0] in {"span", "paren", "cup", "cap", "minus", "rel"}):
        return False
    return harmless(answer, gold_text)


_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{4,}")
# Commands whose meaning an algebra system is known to take whole; what it does not know it may leave out in silence.
_KNOWN_LIST = """
frac dfrac tfrac cfrac sqrt sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh log ln exp lg left right
cdot times div pi infty le leq ge geq lt gt ne neq leqslant geqslant in notin cup cap setminus mathbb mathbf mathrm mid
lvert rvert vert quad qquad displaystyle text binom emptyset varnothing big Big bigl bigr alpha beta gamma delta epsilon
varepsilon theta lambda mu nu rho sigma tau phi varphi psi omega eta xi zeta kappa iota lfloor rfloor lceil rceil subset
"""
_KNOWN = frozenset(_KNOWN_LIST.split())
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
# Rows, words, derivatives and marks on what is no name.
_UNDONE = re.compile(r"\\\\|&|;|\b(?:or|and|not)\b|'|\^\s*\{\s*[(\[]\s*\w+\s*[)\]]|[\d)}\]]\s*_")
_SAFE = re.compile(r"[\sa-zA-Z0-9\\{}()\[\]|+*/^_=<>,.:;!&'-]*\Z")


def harmless(text: str, gold: str) -> bool:
    """Whether an answer is small and plain enough for a parser that was not made for hostile input."""
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


def _integer(node: Node) -> bool:
    if node[0] == "-":
        node = node[1]
    return bool(node[0] == "n" and node[2] is None)


def is_reduced(node: Node) -> bool:
    """Whether every quotient in the tree is in lowest terms, as far as its integer factors go."""
    for top in walk(node):
        if top[0] == "/":
            above, below = _coefficient(top[1]), _coefficient(top[2])
            if below == 0 or gcd(above, below) != 1 or (below == 1 and _integer(top[2])):
                return False
    return True


def _coefficient(node: Node) -> int:
    """The product of a term's integer factors."""
    if node[0] == "-":
        return _coefficient(node[1])
    if node[0] == "*":
        return prod(_coefficient(part) for part in node[1:])
    return int(node[1]) if _integer(node) else 1


def undone(node: Node) -> str:
    """What is left to compute in an answer; empty when nothing is.

    A part that is a rational number must be written as one. A constant must not be a product of sums.
    """
    if is_final(node):
        return ""
    if node[0] == "binom" and names(node[1]) and not names(node[2]):
        return undone(node[1])  # a polynomial
    if node[0] in _WORK or (node[0] == "f" and node[1] in _WORK_FUNCTIONS):
        return "an unevaluated " + {"!": "factorial", "binom": "binomial"}.get(node[0], str(node[1]))
    if node[0] in {"+", "*", "/", "^", "root", "-", "abs", "pm", "mixed"} and not names(node):
        try:
            value = rational(canon(node)) if node[0] != "pm" else None
        except TooBigError:
            return "a number left as an expression too large to compute"
        except (NotAlgebraicError, UndefinedError):
            value = None
        if value is not None:
            return "arithmetic that is not carried out"
        if node[0] == "*" and sum(is_final(part) for part in node[1:]) > 1:
            return "a product of numbers that is not carried out"
        sums = [part for part in node[1:] if isinstance(part, tuple) and part and part[0] in {"+", "pm"}]
        if (node[0] == "*" and len(sums) > 1) or (node[0] == "^" and node[1][0] in {"+", "pm"}):
            return "a product of sums that is not multiplied out"
    for part in children(node):
        if found := undone(part):
            return found
    return ""
