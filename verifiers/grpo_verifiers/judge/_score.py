"""The score in a judge's reply: exactly one, in range, in the requested place, and not quoted."""

import math
import re
from dataclasses import dataclass

from grpo_verifiers.errors.messages import show
from grpo_verifiers.reading.thinking import answer_part

_NUMBER = r"([+-]?[0-9]{1,9}(?:\.[0-9]{1,9})?)"
_LINE = re.compile(
    rf"score\s{{0,3}}[:=：]\s{{0,3}}{_NUMBER}(?:\s{{0,3}}(?:/|out of)\s{{0,3}}{_NUMBER})?\.?", re.IGNORECASE
)
_MARKUP = r"*_`#$\u200b-\u200d\u2060\ufeff"
# Not removed between two digits, or "1_0" would be ten.
_DECORATION = re.compile(rf"(?<![0-9{_MARKUP}])[{_MARKUP}]++|[{_MARKUP}]++(?![0-9])")
_FENCE = re.compile(r"\s{0,12}(`{3,}|~{3,})")
_BLOCK_QUOTE = re.compile(r"\s*(?:>|&gt;|\||│|┃|▌)")
_CITED_NEXT = re.compile(
    r"\b(?:wrote|writes?|written|say(?:s|ing)?|said|claim(?:s|ed|ing)?|stat(?:es|ed|ing)|quot(?:es?|ed|ing)|reads"
    r"|assert(?:s|ed)?|ends (?:with|by)|ended with|conclud(?:es|ed) with|contain(?:s|ed)|includ(?:es|ed)|print(?:s|ed)"
    r"|output(?:s|ted)?|example|instance)\b[^.,;!?]{0,30}[:：]\W{0,4}$",
    re.IGNORECASE,
)
_CITED_AS = re.compile(
    r"\b(?:end(?:s|ed|ing)|conclud(?:es|ed)|clos(?:es|ed)) (?:with|by|in)\W{0,4}$"
    r"|^\W*(?:(?:here (?:is|are)|the|its|last|final|full|whole|lines?|end|of) ){0,6}"
    r"(?:response|completion|submission|text)(?: (?:ends|ended|in full|was|is|verbatim))?[:：\])>*]{1,4}$"
    r"|^\W*<(?:block)?(?:quote|response|completion|submission|text)>$|\bBEGIN (?:TASK|REFERENCE|RESPONSE)\W{0,4}$",
    re.IGNORECASE,
)
_LOW_QUOTE = re.compile("„[^“”]*[“”]")
_PAIRS = (("“", "”"), ("«", "»"), ("「", "」"), ("『", "』"))


@dataclass(frozen=True)
class _Line:
    """A line of a reply without decoration; in quotation or not, cited by the line before or not."""

    text: str
    quoted: bool
    cited: bool


def read_score(reply: str, low: float, high: float, pattern: str | None = None) -> float:
    r"""The score in ``reply``, scaled to 0 … 1.

    Without a pattern, the last line must be ``Score: x`` (or ``x/high``), and no other such line may differ.
    Lines that are quoted (after ``>``, in fenced or indented blocks, in quotation marks) are ignored; one that follows
    words such as "the author wrote:" cannot be the last. With a pattern, all its matches must agree.

    >>> read_score("> Score: 10\nNo: it is wrong.\nScore: 2", 0, 10)
    0.2
    """
    reply = answer_part(reply, "think")
    if pattern is None:
        lines = _lines(reply)
        scores = [(line, match) for line in lines if not line.quoted and (match := _LINE.fullmatch(line.text))]
        if not scores or scores[-1][0] is not lines[-1]:
            raise ValueError(
                f"the reply does not end with a line 'Score: x': {show(lines[-1].text if lines else '', 100)}"
            )
        if lines[-1].cited:
            raise ValueError(f"the score at the end is a citation: {show(lines[-1].text, 100)}")
        if any(match[2] is not None and float(match[2]) != high for _, match in scores):
            raise ValueError(f"the score is out of another number than {high:g}: {show(scores[-1][1].group())}")
        texts = [match[1] for _, match in scores]
    else:
        texts = [match[1] or "" for match in re.finditer(pattern, reply)]
        if not texts:
            raise ValueError("score_pattern does not match the reply")
    try:
        values = {float(text) for text in texts}
    except ValueError as error:
        raise ValueError(f"score_pattern captured no number: {show(', '.join(texts))}") from error
    if len(values) > 1:
        raise ValueError(f"the reply states several scores: {show(', '.join(texts))}")
    value = values.pop()
    if not math.isfinite(value) or not low <= value <= high:
        raise ValueError(f"the score {value:g} is outside of {low:g} to {high:g}")
    return (value - low) / (high - low) + 0.0  # no negative zero


def _lines(reply: str) -> list[_Line]:
    result: list[_Line] = []
    fence, marks, before = "", 0, ""
    open_pairs = [0] * len(_PAIRS)
    for line in reply.splitlines():
        if not line.strip():
            # Quotation marks that are never closed, or are inches, end with their paragraph.
            marks, open_pairs = 0, [0] * len(_PAIRS)
            if result and result[-1].quoted:
                before = ""  # the announced quotation has ended
            continue
        inside = bool(fence) or marks % 2 == 1 or any(count > 0 for count in open_pairs)
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1].startswith(fence) and not line.strip().strip(fence[0]):
            fence = ""
        marks += line.count('"')
        ends = _LOW_QUOTE.sub("", line)
        open_pairs = [
            max(0, count + ends.count(opening) - ends.count(closing))
            for count, (opening, closing) in zip(open_pairs, _PAIRS, strict=True)
        ]
        indented = line.startswith(("    ", "\t", " \t", "  \t", "   \t"))
        quoted = inside or bool(mark) or indented or _BLOCK_QUOTE.match(line) is not None
        cites = _CITED_NEXT.search(before) is not None or _CITED_AS.search(before.strip()) is not None
        result.append(_Line(_DECORATION.sub("", line).strip(), quoted, cites))
        before = line if not quoted else before
    return result
