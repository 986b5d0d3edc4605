"""The answer part of a completion: the text outside its thinking sections and HTML comments.

One rule for every verifier: the answer begins after the last closing tag and ends where a later section opens. A
closing tag alone is enough, for chat templates put the opening one into the prompt. A section that is never closed
reaches to the end, so a completion that opens one first has no answer.

A tag is literal text, and no tag, between equal quotes or backticks (``"<think>"``) and inside a closed fenced block,
unless its line begins with it outside of a string in three quotes that begins and ends between the same two fences.
"Inside" means an odd number of fences both before the tag, counted from the last closing tag, and after it: thinking
that leaves a block open must not swallow the tag that ends it.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

from grpo_verifiers.reading.fences import long_strings

_NAMES = ("think", "thinking", "thought", "thoughts", "reasoning", "scratchpad", "reflection")
# A tag in a text in lower case has one of these in it: far cheaper to look for than the pattern.
_HINTS = ("think", "thought", "reasoning", "scratchpad", "reflection", "<|channel|>")
_FENCES = re.compile(r"^[ \t]*+(?:<[^<>\n]{1,40}>[ \t]*+)?(`{3,}+|~{3,}+)(?![^\n]*`)", re.MULTILINE)
_LINE = 400
_QUOTES = frozenset("\"'`")
Span = tuple[int, int]


def answer_part(completion: str, think: str | None = "think") -> str:
    """The text of a completion that is its answer.

    >>> answer_part("<think>41?</think>42"), answer_part("41?</THINK>42"), answer_part("<think>42")
    ('42', '42', '')

    ``think`` adds a thinking tag to those of common models (``<think>``, ``<reasoning>``, ``[THINK]``, ...); None
    takes the completion as it is.
    """
    if think is None:
        return completion
    spans = answer_spans(completion, think)
    return completion[slice(*spans[0])] if len(spans) == 1 else "".join(completion[slice(*span)] for span in spans)


def answer_spans(completion: str, think: str) -> list[Span]:
    """The answer part as ``(start, end)`` offsets: one span, or several around HTML comments."""
    tagged = _may_be_tagged(completion, think)
    commented = "<" in completion and "<!--" in completion
    if not tagged and not commented:
        return [(0, len(completion))]
    fences = [match.start(1) for match in _FENCES.finditer(completion)]
    start, end = _outside(completion, _tags(think), fences) if tagged else (0, len(completion))
    return _without_comments(completion, start, end, fences) if commented else [(start, end)]


def _may_be_tagged(completion: str, think: str) -> bool:
    """True if a thinking tag may be in a text: its first character is, and a hint of its name."""
    lower = completion.lower()
    if "<" not in completion and "◁" not in completion:
        return "think]" in lower
    return think.lower() in lower or any(hint in lower for hint in _HINTS)


@lru_cache(maxsize=64)
def _tags(think: str) -> re.Pattern[str]:
    """Every thinking tag; the group ``closes`` is empty for one that opens a section."""
    names = "|".join(sorted({*_NAMES, re.escape(think)}, key=len, reverse=True))
    return re.compile(
        rf"[<◁](?P<closes>/?)\s{{0,9}}(?:\w{{1,20}}:)?(?:{names})\s{{0,9}}[>▷]"
        r"|<\|(?:(?P<ends>end)|begin)_of_thought\|>|\[(?P<slash>/?)THINK\]"
        r"|<\|channel\|>(?:(?P<final>final)|\w{1,20})\b[^<>|]{0,80}(?:<\|constrain\|>\w{1,20})?<\|message\|>",
        re.IGNORECASE,
    )


def _outside(text: str, tags: re.Pattern[str], fences: Sequence[int]) -> Span:
    start, end = 0, -1
    strings: dict[int, list[Span]] = {}
    for match in tags.finditer(text):
        if _is_literal(text, match, start, fences, strings):
            continue
        if any(match.groups()):
            start, end = match.end(), -1
        elif end < 0:
            end = match.start()
    return start, len(text) if end < 0 else end


def _is_literal(
    text: str, tag: re.Match[str], since: int, fences: Sequence[int], strings: dict[int, list[Span]]
) -> bool:
    at, after = tag.span()
    if at > 0 and after < len(text) and text[at - 1] == text[after] in _QUOTES:
        return True
    if not _is_fenced(at, since, len(text), fences):
        return False
    return bool(_line_before(text, at).strip()) or _is_quoted(text, at, fences, strings)


def _is_quoted(text: str, at: int, fences: Sequence[int], strings: dict[int, list[Span]]) -> bool:
    """True if a string in three quotes is around an offset between two fences; looked for once between any two."""
    place = bisect_left(fences, at)
    if place not in strings:
        begin, end = text.find("\n", fences[place - 1]) + 1, fences[place]
        strings[place] = long_strings(text, begin, end)
    spans = strings[place]
    nearest = bisect_left(spans, (at, at)) - 1
    return nearest >= 0 and at < spans[nearest][1]


def _line_before(text: str, at: int) -> str:
    """The text before an offset in its line, as far as `_LINE` characters back."""
    return text[max(0, at - _LINE) : at].rpartition("\n")[2]


def _is_fenced(at: int, start: int, end: int, fences: Sequence[int]) -> bool:
    """True if a closed fenced block of ``[start, end)`` is around an offset."""
    place = bisect_left(fences, at)
    before, after = place - bisect_left(fences, start), bisect_left(fences, end) - place
    return before % 2 == after % 2 == 1


def _without_comments(text: str, start: int, end: int, fences: Sequence[int]) -> list[Span]:
    """A span without HTML comments; in fenced blocks and in strings, ``<!--`` begins none."""
    spans, begin, at = [], start, start
    while (at := text.find("<!--", at, end)) >= 0:
        if _is_fenced(at, start, end, fences) or _line_before(text, at).count('"') % 2:
            at += 4
            continue
        spans.append((begin, at))
        close = text.find("-->", at + 4, end)
        begin = at = end if close < 0 else close + 3
    return [span for span in (*spans, (begin, end)) if span[0] < span[1]] or [(start, start)]
