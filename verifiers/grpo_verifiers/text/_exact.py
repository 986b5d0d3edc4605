"""The answer, letter by letter, or a pattern."""

import re
import unicodedata
from typing import Annotated, Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import show
from grpo_verifiers.options import IsPattern, TagName
from grpo_verifiers.reading.boxes import tag_sections
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.verdict import Status, Verdict, excused


def stated_text(completion: str, *, tag: str | None = None, think: str | None = "think", **_: Any) -> str | None:
    """The text that a completion states; None for no text or several."""
    parts = _parts(completion, tag=tag, think=think)
    return parts[0] if len(parts) == 1 and parts[0].strip() else None


@Traits(home="inline", pure=True, stated=stated_text)
def exact(
    completion: str,
    answer: Any,
    *,
    tag: TagName | None = None,
    think: TagName | None = "think",
    ignore_case: bool = False,
    collapse_whitespace: bool = False,
) -> Verdict:
    """Score 1 where the completion, outside its thinking, is the answer and nothing else.

    >>> exact("<think>5?</think> 4 ", "4").score, exact("It is 4.", "4").score
    (1.0, 0.0)

    Use it when the answer is one word or a fixed text, and the prompt asks for nothing else, or for that text inside
    a tag.

    Scores: 1 correct; 0 wrong (another text, or several tags that differ); 0 unparsable (no such tag); None, error,
    where ``answer`` is empty or no text.

    Args:
        completion: the text to check.
        answer: the expected text or number; a list accepts any of its members. An empty one excludes the row.
        tag: take the content of ``<tag>…</tag>`` instead of the full text; several different contents score 0.
        think: tag of the thinking section that is left out; None leaves nothing out.
        ignore_case: compare regardless of case.
        collapse_whitespace: treat every run of whitespace as one space.
    """
    golds = list(answer) if isinstance(answer, list | tuple | set | frozenset) else [answer]
    texts = [g if isinstance(g, str) else str(g) for g in golds if isinstance(g, str | int | float)]

    def fold(text: str) -> str:
        text = unicodedata.normalize("NFC", text.casefold() if ignore_case else text)
        return " ".join(text.split()) if collapse_whitespace else text.strip()

    accepted = {fold(text) for text in texts}
    if len(texts) < len(golds) or not texts or any(not text.strip() for text in accepted):
        return excused(f"the answer column holds no text to compare with: {show(answer)}")
    stated = {fold(part) for part in _parts(completion, tag=tag, think=think)}
    if not stated:
        return Verdict(0.0, Status.UNPARSABLE, f"no <{tag}>…</{tag}> outside the thinking")
    if len(stated) > 1:
        return Verdict(0.0, Status.WRONG, f"{len(stated)} different <{tag}> sections")
    text = stated.pop()
    return Verdict(1.0 if text in accepted else 0.0, detail=f"{show(text)} against {show(answer)}")


def _parts(completion: str, *, tag: str | None, think: str | None) -> list[str]:
    """The texts that a completion states: its answer part, or the contents of a tag in it."""
    text = answer_part(completion, think)
    return [section.content for section in tag_sections(text, tag)] if tag else [text]


@Traits(home="process", timeout=5.0, pure=True)
def regex(
    completion: str,
    *,
    pattern: Annotated[str, IsPattern()],
    mode: Literal["fullmatch", "search"] = "fullmatch",
    think: TagName | None = "think",
) -> Verdict:
    r"""Score 1 where the pattern matches the completion outside its thinking, without white space around it.

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
    """
    match = getattr(re.compile(pattern), mode)(answer_part(completion, think).strip())
    return Verdict(1.0, detail=f"matched {show(match.group())}") if match else Verdict(0.0, detail="no match")
