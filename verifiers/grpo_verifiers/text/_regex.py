"""A pattern of your own."""

import re
from typing import Annotated, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import show
from grpo_verifiers.options import IsPattern, TagName
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.verdict import Verdict


@Traits(home="process", timeout=5.0, pure=True)
def regex(
    completion: str,
    *,
    pattern: Annotated[str, IsPattern()],
    mode: Literal["fullmatch", "search"] = "fullmatch",
    think: TagName | None = "think",
    strip: bool = True,
) -> Verdict:
    r"""Score 1 where the pattern matches the completion outside its thinking.

    >>> regex("Answer: 42", pattern="Answer: [0-9]+").score
    1.0

    A pattern that backtracks without end runs into the verifier's deadline and scores 0 as a timeout.

    Use it when a form can be written as a pattern, and it is the same for all rows.

    Scores: 1 correct; 0 wrong (no match); 0 timeout.

    Config:
        verifiers:
          - name: regex
            pattern: 'Answer: \d+'

    Args:
        completion: the text to check.
        pattern: a Python regular expression; flags go inline, such as ``(?is)`` for "ignore case" and "``.`` matches
            newlines". ``$`` also matches before a final newline; ``\Z`` does not.
        mode: "fullmatch" must match all of the text, "search" any part of it: easily met by listing candidates.
        think: tag of the thinking section that is left out; None leaves nothing out, for patterns of format.
        strip: leave whitespace around the text out.
    """
    text = answer_part(completion, think)
    text = text.strip() if strip else text
    found = getattr(re.compile(pattern), mode)(text)
    return Verdict(1.0, detail=f"matched {show(found.group())}") if found else Verdict(0.0, detail="no match")
