"""Answers in words that say the same: a closed table.

Words of one line are the same answer. ``yes`` is not ``true``, no value is not no solution, and infinity is neither.
"""

import re

_TABLE = """
dne, d n e, does not exist, do not exist, doesn't exist, undefined, not defined, is not defined, nonexistent,
    non-existent, limit does not exist, limit doesn't exist, value does not exist, no limit, not exist, is
    undefined, limit dne
no solution, no solutions, no real solution, no real solutions, no real roots, no real root, no roots, none, no
    solution exists, no solutions exist, no real solution exists, no real solutions exist, empty set, null set,
    there is no solution, there are no solutions, there are no real solutions, there is no real solution, no such
    number, no such numbers, no such integer, no such integers, no such value, no such values, impossible, not
    possible, it is impossible, inconsistent, no answer, equation has no solution, equation has no solutions, system
    has no solution, solution set is empty, equation has no real solutions, there are none, there is none, no
    integer solutions, no values, no value
infinitely many, infinitely many solutions, infinite solutions, infinite number of solutions, infinite, an infinite
    number of solutions, there are infinitely many solutions, infinitely many real solutions
diverges, diverge, divergent, series diverges, integral diverges, it diverges, is divergent, does not converge
converges, converge, convergent, series converges, integral converges, it converges, is convergent
yes, yes it is, yes it does, yes they are
no, no it is not, no it isn't, no it does not, no it doesn't, no they are not
true, it is true, statement is true
false, it is false, statement is false
never, never true
always, always true
"""
_LINES = re.sub(r"\n +", " ", _TABLE.strip().replace("'", " ")).splitlines()
_MEANINGS = {saying: line.partition(",")[0] for line in _LINES for saying in line.split(", ")}
_ARTICLE = re.compile(r"^the ")


def meaning(text: str) -> str | None:
    """The first saying of the line on which a text in lower case stands; None where it is on none."""
    return _MEANINGS.get(_ARTICLE.sub("", text))
