r"""Mathematics: is the final answer of a completion the gold answer?

The final answer is the content of ``\boxed{...}``, ``\fbox{...}`` or ``<answer>...</answer>``, else the text after
``#### ...``, else after "the answer is"; with ``last_number=True``, else the last number. Only the answer part of the
completion is read (``reading/thinking.py``), without phantoms and lines after a LaTeX comment sign.

Golds may have any form in which datasets store them: bare (``\frac43``), in dollar signs, in a box, after ``####``, or
at the end of a worked solution. Several boxes or items separated by commas are a list, in no order; brackets are a
tuple. Values with names are compared by name; against a tuple without names, in the order of the letters.
Commas between inequalities mean "and", unless no number is left then.

Answers that do not count, and the option that accepts them:

============================================== ======================== ==========================================
answer                                         verdict                  option
============================================== ======================== ==========================================
different boxes, tags or "Answer:" lines       the last counts          ``conflicts="reject"``: wrong
a box and another number as "the answer is"    the box counts           ``conflicts="reject"``: wrong
a retracted answer ("wait, 43")                it counts                none
a box in a box with other content              unparsable               none
a last box that is not closed                  unparsable               none
``-\boxed{5}``, ``\boxed{5}^2``, not \boxed{5} unparsable               none
``41 = 42``, a chain with a false link         wrong                    none
``17\times 23`` for 391, ``\sqrt{16}`` for 4   wrong                    ``evaluated=False``
``(x+1)^2`` for the prompt "Expand (x+1)^2"    wrong                    none
``\sum``, ``\int``, ``\lim`` for a value       unparsable               none
``\frac{2}{4}`` for ``\frac12``                wrong                    ``reduced=False``
``5\text{ m}`` for ``5\text{ cm}``             wrong                    ``units="ignore"``
words after a value that are not a unit        wrong                    none
``5 squared`` for 25                           wrong                    ``evaluated=False``
counted objects: ``5 red marbles``             correct                  none
``5/1/2024`` for May 1 or January 5            wrong                    none: equal to ``5/1/2024`` only
``3:30`` for ``3:30 PM``                       correct                  none
``0.75 (3/4)`` for ``\frac34``, ``m + n = 25``  correct                  none: both forms have to be right
for 25, ``\int f = 25`` for 25
``0.333...`` for ``\frac13``                   unparsable               none: ``0.\overline{3}``, ``0.(3)`` are right
``3rd`` for 3, ``no`` for ``false``            wrong                    none
``x^2+c`` for ``x^2+C``                        correct                  none
``204`` or ``204_6`` for ``204_5``             wrong                    none
``[1, 2]`` for ``(1, 2)``, items in wrong order wrong                   none
``0.333`` or ``0.3334`` for ``\frac13``         wrong                    ``decimals=3`` (first of the two)
``0.3333`` for ``\frac13``, ``3.1416`` for pi  correct                  ``decimals=0``
``2x + 4 = 8`` for ``x = 2``, ``3x - 6 > 0``   wrong                    none
for ``x > 2``, ``x^2 < 1`` for ``-1 < x < 1``
``BA`` for ``AB`` as the only answer           wrong                    none
``0.5`` for 50%, 10 for 10%                    correct                  ``percent="value"`` rejects the second
``1000,99`` for 1000.99                        correct                  none
``x = 5`` for 5, ``2x+1`` for ``y = 2x+1``     correct                  none
``|x| < 1``, ``]-1, 1[``, ``x > -1 and x < 1``, correct                 none
``x > -1, x < 1`` for ``-1 < x < 1``
``30^\circ`` for ``\frac{\pi}{6}``, and back   correct                  none
``x - y = 2`` for ``y = x - 2``, ``x = 2`` for correct                  none
``2x + 4 = 8``: several unknowns, not solved
a unit, currency or degree sign left out       correct                  none
a number in a box that is one sentence         correct                  none
``John has 7 apples``, ``x = 3 only``          correct                  none: lists of ``math/remarks.py``
``y = Ke^x`` for ``y = Ce^x``                  correct                  none
============================================== ======================== ==========================================

Units are those of ``math/words/units.py``, notations those of ``math/grammar/read.py``; answers in words
(no solution, does not exist, yes) are compared by ``math/compare/wording.py``.

A power tower, a factorial of millions, thousands of nested brackets are turned away before anything computes them.
Equality is decided exactly (rational functions over square roots, pi, e and i), else at many digits; nothing of a
completion is ever evaluated as code. Integrals, sums and limits are no gold: `check_golds` lists them.
"""

from typing import TYPE_CHECKING, Any

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.math.options import Conflicts, Decimals, Matching, Options, Percent
from grpo_verifiers.options import TagName, option_problems
from grpo_verifiers.reading.messages import prompt_text
from grpo_verifiers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from grpo_verifiers.base.golds import ColumnReport
__all__ = ["check_golds", "math"]


def check_golds(answers: "Iterable[Any]", **options: Any) -> "ColumnReport":
    """Check a column of gold answers: each must be readable and accept itself. Takes the options of :func:`math`.

    >>> check_golds(["4", "1/2"]).ok
    True
    """
    from grpo_verifiers.math.judge import check_answers

    if problems := option_problems("math", Options, options, where="option", bare=True):
        raise ValueError("\n".join(problems))
    return check_answers(answers, Options(**options))


def stated(completion: str, **options: Any) -> str | None:
    """The answer that a completion states; None for no answer or several. Takes the options of :func:`math`."""
    from grpo_verifiers.math.extract import extract

    answers = extract(completion, Options(**options)).answers
    return answers[0] if len(answers) == 1 else None


_STRICT = {"conflicts": "reject", "evaluated": True}
"""An honest model needs neither several answers in turn nor a copy of the question."""


@Traits(home="process", timeout=5.0, pure=True, golds=check_golds, stated=stated, stricter=_STRICT)
def math(
    completion: str,
    answer: str,
    prompt: Any = None,
    *,
    conflicts: Conflicts = "last",
    last_number: bool = False,
    evaluated: bool = True,
    reduced: bool = True,
    units: Matching = "match",
    percent: Percent = "either",
    decimals: Decimals = 4,
    think: TagName | None = "think",
) -> Verdict:
    r"""Score 1 where the completion's final answer is the gold answer.

    >>> math("The answer is $0.5$.", "1/2").score, math(r"\boxed{42}, no, \boxed{43}", "42").score
    (1.0, 0.0)

    Use it when answers are mathematics: numbers, fractions, sets, intervals, equations, units. It is the check of MATH,
    AIME and GSM8K.

    Scores: 1 correct; 0 wrong; 0 unparsable (no answer stated, or one that cannot be read); 0 timeout; None, not
    applicable, where ``answer`` cannot be read.

    Run it in a worker process with a deadline: nearly all answers are decided in microseconds, but not all.

    Args:
        completion: the model's text.
        answer: the gold answer as datasets store it, a text: bare (``3/4``), in dollar signs, in a box, after ``####``,
            or at the end of a worked solution.
        prompt: the question. An answer that is one of its formulas word for word is wrong where the gold is another
            form of it: "Expand (x+1)^2". Numbers, names, sets and the gold's own form never count as copied.
        conflicts: ``"last"``: only the last statement of the strongest form counts; boxes with an item each are a
            list where the gold is one. ``"reject"``: everything stated as the answer must be right.
        last_number: where no answer is stated, the last number of the text counts as one.
        evaluated: the answer must be worked out as far as the gold is.
        reduced: fractions of integers must be in lowest terms, unless the gold's are not.
        units: ``"match"``: a unit may be left out, but not be another one. ``"ignore"``: units never matter.
        percent: ``"either"``: 10% is both 10 and 0.1. ``"value"``: it is 0.1 only.
        decimals: a decimal of this many significant digits or more, rounded or cut correctly, may replace an
            irrational or repeating value; 0 requires exact values.
        think: tag of a thinking section that is left out, like those of common models; None leaves nothing out.
    """
    from grpo_verifiers.math.judge import judge

    options = Options(conflicts, last_number, evaluated, reduced, units, percent, decimals, think)
    return judge(completion, answer, options, prompt_text(prompt))
