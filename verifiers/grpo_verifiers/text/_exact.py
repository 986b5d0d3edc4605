"""The answer, letter by letter."""

import unicodedata
from typing import Any, Literal

from grpo_verifiers.errors.messages import show
from grpo_verifiers.reading.tags import tagged
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.text._options import one_of, require, tag_name
from grpo_verifiers.verdict import Status, Verdict, excused

_FORMS = ("none", "NFC", "NFKC")


def exact(
    completion: str,
    answer: Any,
    *,
    tag: str | None = None,
    think: str | None = "think",
    strip: bool = True,
    ignore_case: bool = False,
    collapse_whitespace: bool = False,
    unicode: Literal["none", "NFC", "NFKC"] = "NFC",
) -> Verdict:
    """Score 1 where the completion, outside its thinking, is the answer and nothing else.

    Args:
        completion: the text to check.
        answer: the expected text or number; a list accepts any of its members. An empty one excludes the row.
        tag: take the content of ``<tag>…</tag>`` instead of the whole text; several different contents score 0.
        think: tag of the thinking section that is left out; None leaves nothing out.
        strip: ignore whitespace around both sides.
        ignore_case: compare regardless of case.
        collapse_whitespace: treat every run of whitespace as one space.
        unicode: normal form of both sides. "NFKC" also folds wide letters, and turns "x²" into "x2".
    """
    require("exact", check_options(tag=tag, think=think, unicode=unicode))
    golds = list(answer) if isinstance(answer, list | tuple | set | frozenset) else [answer]
    texts = [g if isinstance(g, str) else str(g) for g in golds if isinstance(g, str | int | float)]

    def fold(text: str) -> str:
        text = text if unicode == "none" else unicodedata.normalize(unicode, text)
        text = text.casefold() if ignore_case else text
        text = " ".join(text.split()) if collapse_whitespace else text
        return text.strip() if strip else text

    wanted = {fold(text) for text in texts}
    if len(texts) < len(golds) or not texts or any(not text.strip() for text in wanted):
        return excused(f"the answer column holds no text to compare with: {show(answer)}")
    found = {fold(part) for part in stated(completion, tag=tag, think=think)}
    if not found:
        return Verdict(0.0, Status.UNPARSABLE, f"no <{tag}>…</{tag}> outside the thinking")
    if len(found) > 1:
        return Verdict(0.0, Status.WRONG, f"{len(found)} different <{tag}> sections")
    said = found.pop()
    return Verdict(1.0 if said in wanted else 0.0, detail=f"{show(said)} against {show(answer)}")


def stated(completion: str, *, tag: str | None = None, think: str | None = "think") -> list[str]:
    """What a completion states: its answer part, or the contents of a tag in it."""
    text = answer_part(completion, think)
    return [section.content for section in tagged(text, tag)] if tag else [text]


def check_options(*, tag: str | None, think: str | None, unicode: str, **_: bool) -> list[str]:
    """The problems with these values."""
    problems = one_of("unicode", unicode, _FORMS)
    for name, value in (("tag", tag), ("think", think)):
        problems += [] if value is None else tag_name(name, value)
    return problems
