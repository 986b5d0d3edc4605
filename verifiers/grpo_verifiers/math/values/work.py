"""Work left in an answer: numbers that are not final, fractions not in lowest terms, open arithmetic."""

from math import gcd, prod

from grpo_verifiers.math.tree import Node, children, names, walk
from grpo_verifiers.math.values.canon import NotAlgebraicError, TooBigError, UndefinedError, canon, rational

_WORK = frozenset({"!", "binom"})
_WORK_FUNCTIONS = frozenset({"gcd", "lcm", "min", "max", "det", "floor", "ceil", "Re", "Im"})


def is_final(node: Node) -> bool:
    r"""True if a node is a number as one writes a result: ``42``, ``-3/4``, ``3\frac12``, ``5\%``, ``2\cdot10^{5}``."""
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


def _integer(node: Node) -> bool:
    if node[0] == "-":
        node = node[1]
    return bool(node[0] == "n" and node[2] is None)


def is_reduced(node: Node) -> bool:
    """True if every quotient in the tree is in lowest terms, as far as its integer factors go."""
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


def remaining_work(node: Node) -> str:
    """Work left in an answer: rational parts not written as a number, constants as products of sums; else empty."""
    if is_final(node):
        return ""
    if node[0] == "binom" and names(node[1]) and not names(node[2]):
        return remaining_work(node[1])  # a polynomial
    if node[0] in _WORK or (node[0] == "f" and node[1] in _WORK_FUNCTIONS):
        return "an unevaluated " + {"!": "factorial", "binom": "binomial"}.get(node[0], str(node[1]))
    if node[0] in {"+", "*", "/", "^", "root", "-", "abs", "pm", "mixed"} and not names(node):
        try:
            value = rational(canon(node))
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
        if work := remaining_work(part):
            return work
    return ""
