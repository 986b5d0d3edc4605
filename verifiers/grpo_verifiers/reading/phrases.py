"""Answers stated in prose: "the answer is 42", "Answer: 42", ``#### 42``, the last number."""

import re

MAX_PHRASES = 16
MAX_LENGTH = 300

_AFTER = re.compile(
    r"s?\*{0,2}(?P<middle>[^\n.:=$\\]{0,80}?)"
    r"(?:\b(?:is|are|was|equals|be)\b(?:\s*:)?|:|=)[\s*]*"
    r"(?:(?:then|therefore|thus|simply|just|clearly|indeed|exactly|hence|equal to|given by)\b[\s:]*)*",
    re.IGNORECASE,
)
_NO_STATEMENT = re.compile(
    r"\b(?:choice|choices|options?|not|isn't|cannot|can't|wrong|incorrect|possible|whether|if)\b", re.IGNORECASE
)
_BEFORE = re.compile(
    r"(?:wrong|incorrect|possible|not (?:the|an)|no|multiple|which|what|whose|whether the|if the)\s+(?:final\s+)?\Z",
    re.IGNORECASE,
)
# "half of the answer is 5", "the answer minus one is 5": the value is a function of the answer.
_DONE_BEFORE = re.compile(
    r"(?:of|than|from|by|plus|minus|times|over|under|twice|thrice|half|double|triple|quarter|negative|square"
    r"|percent)\s+"
    r"(?:(?:the|our|my|this|your|that)\s+)?(?:(?:final|correct|right|actual)\s+)?\Z",
    re.IGNORECASE,
)
_DONE_AFTER = re.compile(
    r"\b(?:plus|minus|times|squared|cubed|divided|multiplied|doubled|tripled|halved|reduced|increased|decreased"
    r"|negated|inverted|"
    r"modulo|mod|rounds?|over|factorial|less|more|percent)\b|[-+*/^%]\s*\d",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"(?:not|unknown|unclear|either|neither|one of|between)\b", re.IGNORECASE)
_AGAIN = re.compile(r"(?:the|my|our)?\s*(?:final|correct)?\s*answer\b", re.IGNORECASE)
_DELIMITED = re.compile(
    r"\$\$(?P<a>[^$]{1,600})\$\$|\\\[(?P<b>.{1,600}?)\\\]|\\\((?P<c>.{1,600}?)\\\)|\$(?P<d>[^$\n]{1,600}?)"
    r"(?<!\\)\$(?!\d)",
    re.DOTALL,
)
_SENTENCE = re.compile(r"[.!?](?=\s|\*|$)|\n|<")
_CLAUSE = re.compile(
    r"\s*(?:[,;(]|\s(?:because|since|which|where|(?<!times )as|so|for|when)\b|\s(?:—|-(?!\s*[\d$\\]))\s)"
)
_ALTERNATIVE = re.compile(
    r"[\s,;(.]*(?:or|and|not|maybe|possibly|perhaps|alternatively|although|but|rather|no|negative)\b"
    r"|\s*(?:when|if|for)\b[^.\n]{0,60}\b(?:and|or|else|otherwise)\s+\$?-?\d"
    r"|\s*[,;]\s*(?:\$[^$\n]{1,40}\$|-?\d[\d.,/]*)\s*(?:[.,;]|\Z)",
    re.IGNORECASE,
)
_HASHES = re.compile(
    r"(?<!#)####(?!#)[ \t]*+(?:\*\*)?+([-+]?[ \t]*+\\?[$€£]?[ \t]*+[-+]?[\d.][\d.,/ \t]*+\\?%?)[ \t]*+\.?[ \t]*+\$?"
    r"(?:\*\*)?\.?[ \t]*+$",
    re.MULTILINE,
)
_LAST_LINE = re.compile(r"####(?!#)[ \t]*([-+]?\\?[$€£]?\d[\d.,/]{0,40} [A-Za-z][A-Za-z .^/-]{0,40})")
_NUMBER = re.compile(
    r"(?<![\w.])[-−]?(?:\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\}|(?:\d{1,3}(?:(?:,|\{,\}|\\!|,\\!)\d{3})+(?!\d)|\d+)"
    r"(?:[.,]\d+)?(?:/\d+)?|\.\d+)(?:\s*(?:\\?%|percent\b|pct\b))?",
    re.IGNORECASE,
)


def phrases(text: str) -> list[tuple[str, int]]:
    """The values of the last sentences such as "the answer is ...", in order, each with its offset."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters change length in lower case; offsets must not move
        lower = text
    spots: list[int] = []
    at = len(lower)
    while len(spots) < MAX_PHRASES and (at := lower.rfind("answer", 0, at)) >= 0:
        spots.append(at)
    return [stated for spot in reversed(spots) if (stated := _statement(text, spot)) is not None]


def _statement(text: str, spot: int) -> tuple[str, int] | None:
    match = _AFTER.match(text, spot + len("answer"))
    if match is None:
        return None
    rest = text[match.end() : match.end() + 2 * MAX_LENGTH]
    if rest.isspace() or rest.lstrip().startswith(("\\boxed", "<answer")) or (value := _sentence_value(rest)) is None:
        return None
    if _REFUSED.match(rest) or _AGAIN.match(rest):
        return None
    middle = match["middle"]
    if _NO_STATEMENT.search(middle) or _DONE_AFTER.search(middle):
        return None
    if _BEFORE.search(text[max(0, spot - 30) : spot]) or _DONE_BEFORE.search(text[max(0, spot - 40) : spot]):
        return None
    return value, match.end()


def _sentence_value(rest: str) -> str | None:
    """The value at the start of a sentence, with the words after it if they may be a unit or a second answer."""
    math = _DELIMITED.match(rest.lstrip(" *"))
    if math:
        content = next(group for group in math.groups() if group is not None)
        tail = rest.lstrip(" *")[math.end() :]
        if "boxed" in content:
            return None
    else:
        content, tail = "", rest
    end = _SENTENCE.search(tail)
    sentence = tail[: end.start()] if end else tail[:MAX_LENGTH]
    following = tail[end.start() : end.start() + 60] if end else ""
    clause = _CLAUSE.search(sentence) if content or not _LIST.match(sentence) else None
    words = sentence[: clause.start()] if clause else sentence
    beyond = sentence[clause.start() :] if clause else following
    if _ALTERNATIVE.match(beyond):
        return f"{content}{sentence}{following}".strip()
    words = words.strip(" *.:")
    if content:
        return f"{content} \\text{{ {words} }}" if words and "\\" not in words and "$" not in words else content + words
    return words or None


_LIST = re.compile(r"\s*[-(\[{\\]|\s*[^\s,]+,\s*[-\d(]")


def hash_answers(text: str) -> list[str]:
    """Numbers after ``####`` that end their line, and a number with words on the last line; no headings."""
    if "#" not in text or "####" not in text:
        return []
    numbers = [match.group(1).strip() for match in _HASHES.finditer(text)]
    last = _LAST_LINE.fullmatch(text.rstrip().rpartition("\n")[2].strip())
    return numbers if last is None else [*numbers, last[1].strip()]


def last_number(text: str) -> str | None:
    """The last number of a text."""
    numbers = [match.group().strip() for match in _NUMBER.finditer(text[-2000:])]
    return numbers[-1] if numbers else None
