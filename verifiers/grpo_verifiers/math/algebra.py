"""math-verify for what the grammar does not know: sets by property, inequalities in absolute values, odd notations.

Runs in a worker process only: neither its parser nor its solver bounds its time. It takes no alarm of its own.
"""

import logging
from functools import lru_cache
from typing import Any

from grpo_verifiers.math.form import harmless
from grpo_verifiers.math.gold import MAX_GOLD
from grpo_verifiers.math.leaf import Outcome


def equal(gold: str, answer: str) -> Outcome:
    """Whether math-verify finds two pieces of LaTeX equal.

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
    return bool(same), "" if same else "not equal"


def unreadable(gold: str) -> str:
    """Why math-verify cannot read a gold answer either; empty when it can."""
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
