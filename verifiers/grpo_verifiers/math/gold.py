"""The gold answer of a row: extracted, shorthand expanded, parsed once and kept."""

import re
from dataclasses import dataclass
from functools import lru_cache

from grpo_verifiers.math.boxes import Box, boxes, unnested
from grpo_verifiers.math.phrases import hashed, phrases
from grpo_verifiers.math.read import read, undelimited
from grpo_verifiers.math.tokens import MAX_CHARS, ParseError
from grpo_verifiers.math.tree import Node

# at most three words between two boxes, one of them a connective or a comma: "papers and"
_JOINED = re.compile(r"[\s$\\]*(?:[\w{}()\\]+[\s$]+){0,3}?(?:,|;|and|or|\\text\s*\{\s*(?:and|or)\s*\}|\s)?(?:[\s$\\]+\w+){0,1}[\s$\\]*")


@dataclass(frozen=True)
class Gold:
    """A gold answer.

    Attributes:
        text: the answer itself, without boxes, delimiters or the prose of a solution around it.
        node: its tree; None where this grammar cannot read it (an algebra system may).
        problem: why there is no tree, or no answer at all.
        empty: there is nothing to compare with.
    """

    text: str
    node: Node | None = None
    problem: str = ""
    empty: bool = False


@lru_cache(maxsize=1024)
def gold_of(answer: str) -> Gold:
    """Read a gold answer as datasets store it: bare, delimited, boxed, or at the end of a worked solution."""
    text = gold_text(answer)
    if not text:
        return Gold(text, problem="empty", empty=True)
    try:
        return Gold(text, read(text))
    except ParseError as error:
        return Gold(text, problem=str(error))
    except RecursionError:
        return Gold(text, problem="nested too deeply")


def gold_text(answer: str) -> str:
    """The answer inside a gold cell."""
    text = answer.strip()
    boxed = boxes(text)
    contents = _last_boxes(text, boxed.found)
    if contents:
        return ", ".join(dict.fromkeys(contents))
    if boxed.open:
        # a gold cut off inside its box: what there is of it
        return text[max(text.rfind("\\boxed{") + 7, text.rfind("\\fbox{") + 6) :].strip()
    lines = hashed(text) or ([text.rpartition("####")[2].strip()] if "####" in text else [])
    if lines:
        return lines[-1]
    if len(text) > 40 or "answer" in text.lower():
        stated = phrases(text[-MAX_CHARS:])
        if stated:
            return stated[-1][0]
    return undelimited(text)


def _last_boxes(text: str, found: list[Box]) -> list[str]:
    """The last box and those that lead up to it as parts of one list."""
    contents: list[str] = []
    following: Box | None = None
    for box in reversed(found):
        if following is not None and not _JOINED.fullmatch(text[box.end : following.start]):
            break
        if content := unnested(box.content):
            contents.append(content)
        following = box
    return contents[::-1]
