"""A pattern of your own."""

import re
from typing import Literal

from grpo_verifiers.errors.messages import show
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.text._options import one_of, require, tag_name
from grpo_verifiers.verdict import Verdict

_MODES = ("fullmatch", "search")


def regex(
    completion: str,
    *,
    pattern: str,
    mode: Literal["fullmatch", "search"] = "fullmatch",
    think: str | None = "think",
    strip: bool = True,
) -> Verdict:
    r"""Score 1 where the pattern matches the completion outside its thinking.

    A pattern that backtracks without end runs into the verifier's deadline and scores 0 as a timeout.

    Args:
        completion: the text to check.
        pattern: a Python regular expression; flags go inline, such as ``(?is)`` for "ignore case" and "``.`` matches
            newlines". ``$`` also matches before a final newline; ``\Z`` does not.
        mode: "fullmatch" must match all of the text, "search" any part of it: easily met by listing candidates.
        think: tag of the thinking section that is left out; None leaves nothing out, for patterns of format.
        strip: leave whitespace around the text out.
    """
    require("regex", check_options(pattern=pattern, mode=mode, think=think))
    text = answer_part(completion, think)
    text = text.strip() if strip else text
    found = getattr(re.compile(pattern), mode)(text)
    return Verdict(1.0, detail=f"matched {show(found.group())}") if found else Verdict(0.0, detail="no match")


def check_options(*, pattern: str, mode: str, think: str | None, **_: bool) -> list[str]:
    """The problems with these values."""
    problems = one_of("mode", mode, _MODES) + ([] if think is None else tag_name("think", think))
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError, TypeError) as error:
        problems.append(f"pattern {show(pattern)} is no regular expression: {error}.")
    return problems
