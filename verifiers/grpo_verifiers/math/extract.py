"""Extract the final answer of a completion, or the reason for its absence.

Forms of a statement, strongest first: boxes and ``<answer>`` tags, ``####`` lines, "the answer is ...", and only with
``last_number``, the last number.
"""

import re
from dataclasses import dataclass
from operator import attrgetter

from grpo_verifiers.math.options import Options
from grpo_verifiers.reading.boxes import answer_tags, stated_boxes
from grpo_verifiers.reading.phrases import hash_answers, last_number, phrases
from grpo_verifiers.reading.thinking import answer_part

MAX_STATEMENTS = 64
NO_ANSWER = "no answer found"
_STRUCK = re.compile(r"\**(?:~~|<(?:s|del|strike)>)", re.IGNORECASE)


@dataclass(frozen=True)
class StatedAnswers:
    """The distinct answers that count, in order; or the reason for their absence."""

    answers: tuple[str, ...] = ()
    every: tuple[str, ...] = ()  # all statements of the form, where only the last one counts
    asides: tuple[str, ...] = ()  # weaker statements; a different answer in one of them is a contradiction
    problem: str = ""


def extract(completion: str, options: Options) -> StatedAnswers:
    """Find the final answer of a completion."""
    text = answer_part(completion, options.think)
    strict = options.conflicts == "reject"
    boxes, problem = stated_boxes(text, last_only=not strict)
    if problem:
        return StatedAnswers(problem=problem)
    stated = sorted([*boxes, *answer_tags(text)], key=attrgetter("start"))
    strong = [each.content.strip() for each in stated]
    if any(_STRUCK.match(part) for part in strong):
        return StatedAnswers(problem="the answer is struck out")
    if strong:
        start, end = stated[-1].start, stated[-1].end
        if is_modified(text, start, end):
            return StatedAnswers(problem="the answer is a part of a formula, or is denied")
        asides = [*hash_answers(text), *(value for value, _ in phrases(text))] if strict else []
        return _select(strong, asides, options)
    if lines := hash_answers(text):
        return _select(lines, [value for value, _ in phrases(text)] if strict else [], options)
    sentences = phrases(text)
    if sentences:
        return _select([value for value, _ in sentences], [], options)
    if options.last_number and (number := last_number(text)) is not None:
        return StatedAnswers((number,))
    nothing = completion.strip() and not text.strip()
    return StatedAnswers(problem="nothing outside the thinking section" if nothing else NO_ANSWER)


def _select(strong: list[str], weak: list[str], options: Options) -> StatedAnswers:
    distinct = list(dict.fromkeys(strong))
    if options.conflicts == "last":
        return StatedAnswers((strong[-1],), tuple(distinct[:MAX_STATEMENTS]))
    if len(distinct) > MAX_STATEMENTS:
        return StatedAnswers(problem=f"more than {MAX_STATEMENTS} different answers")
    return StatedAnswers(tuple(distinct), asides=tuple(dict.fromkeys(part for part in weak if part not in distinct)))


MAX_AROUND = 120
_FORMULA = re.compile(
    r"(?:(?:\A|[=$({,\s])-"
    r"|\\(?:cdot|times|div|pm|mp|neq?|not|neg|lnot|leq?|geq?|lt|gt|ln|log|sin|cos|tan|sqrt|lfloor|lceil)\s*|\\not\s*="
    r"|[\w)}]\s+[<>]\s+|\$[^$<>]*[<>≤≥≠]\s*|[\w)}!]\s*[+/^]\s*|[\w)}]_|\$[^$=]*[\w)]\s*[-*]\s*|\$\s*\|\s*"
    r"|[−±√≠≤≥¬]\s*|!=\s*|<>\s*|\(\s*-\s*|(?:\A|[=($:,\s])–|\d\s*[-−–*·×]\s*|\$\s*-\s*|-\\\$"
    r"|-\s*(?:\\[,;! ]|\\left)?\s*[(\[|]?\s*(?<=[(\[|])\s*|\b(?:log|ln|sqrt|abs|sin|cos|gcd|lim|binom"
    r"|overline)(?:_?\{?\w?\}?)[\s({]*|(?<!\\)\b[a-zA-Z]\(\s*"
    r"|(?:\\[dt]?frac(?:\s*\{[^{}]*\})?|\\sqrt(?:\[[^\]]*\])?|\^|_)\s*\{\s*)\Z"
)
_CHANGED = re.compile(
    r"\b(?:anything but|other than|except|half of|twice|double|negative|minus"
    r"|(?:more|less|fewer|greater|larger|smaller|higher|lower) than|at (?:most|least)|up to|over|under|below"
    r"|above|between"
    r"|(?:two|three|four|five|ten|\d) times|triple|either|neither|exceeds|divides|bounded by|close to|far from"
    r"|by no means"
    r"|no longer|diff(?:erent|ers) from|(?:squares?|cubes?|roots?|reciprocal|opposite|third|quarter|multiples?"
    r"|divisors?"
    r"|factors?|digits|\d%?) of|reject(?:ing|ed|s)?|excluding|avoid|(?:do not"
    r"|don['’]t) write)(?: equal to)?[\s$(\\[]*\Z",
    re.IGNORECASE,
)
# Between a denial and the box only words that refer to the answer are allowed: "not divisible by 3 is" denies nothing.
_DENIED = re.compile(
    r"(?:\b(?:not|cannot|never|doubt|nobody|false|untrue|wrong|incorrect|suppose|assume|whether"
    r"|pretend|mistaken?|trap|tempting|naive|erroneous|thought|had it|if)|n['’]t)\b"
    r"(?:[\s']+(?:true|that|think|believe|exactly|been|it|s|is|be|was|were|the|an?|this|final|correct|right"
    r"|answer|result|would|could|say"
    r"|equal|to)\b){0,9}:?[\s$(\\[*]*\Z",
    re.IGNORECASE,
)
_STRUCK_BEFORE = re.compile(
    r"(?:\\(?:[bxh]?cancel|sout|st|xout|verb.?|color\{white\}|textcolor\{white\})\s*\{?\s*\$?|~~\s*|<(?:s|del"
    r"|strike)>\s*"
    r"|display:\s*none[^<>]*>\s*|\\iffalse\b[^\n]*)\Z",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"\s*(?:\^(?!\s*\{?\s*(?:\\circ|o\b))|\+\s*[\d\\a-z]|[\s$]*\\(?:cdot|times|div|pm|mp|neq?|leq?|geq?|lt"
    r"|gt)(?![a-z])"
    r"|!\s*[$=]|[xyzni]\s*[$+]|/\s*\d|[<>]\s*[\d\\a-z]+\$"
    r"|[-–−*/:]\s?\d|\\(?:sqrt|pi|frac|infty|ldots|dots|not|bmod|pmod|mod)(?![a-z])|\(\d+\)|_\{?\d|[²³⁻½¼¾‰±]"
    r"|,\s*(?:-?\d+|\\infty)\s*[)\]}$]"
    r"|[$\s\\)\]*`.,;:—–(\[<-]*(?:(?:which|but|this|that|it) )*(?:is |was |would be |must be |should be )?"
    r"(?:incorrect|wrong|false|invalid|rejected|extraneous|impossible|mistaken|isn['’]t (?:right|correct|valid)"
    r"|not (?:right|correct|valid|the answer)|does(?: not|n['’]t) work|fails|off by)\b|\s*\(no\)|\s*[✗❌✘]"
    r"|(?:\\[,;]|[$\s\\)\]*`])*(?:text\s*\{\s*|mathrm\s*\{\s*)?(?:\?|(?:squared|cubed|factorial|unless|half"
    r"|score|bn|mn|mod|short)\b"
    r"|(?:minus|plus|times|or|to|of|out of|in|through|point|vs)\s+(?:\d|\$\d|five|a half|one half)|and (?:a"
    r"|one) half|or (?:more|less|so)\b"
    r"|(?:text\s*\{\s*or\s*\})|at (?:least|most)\b|give or take|below zero|per ?cent of\b"
    r"|(?:hundred|thousand|[a-z]+illion|dozen|lakh|crore|googol|tenth|hundredth|[a-z]+(?:and|ion)th)s?\b))"
    r"|[.,]?\d|[kKMG]\b|\s*(?:\.\s*)?(?:Wrong|Incorrect|False|Not correct)[.!,]"
)


def _is_changed(before: str) -> bool:
    """True if a sign or a word before an answer changes it."""
    return bool(
        _FORMULA.search(before) or _CHANGED.search(before) or _DENIED.search(before) or _STRUCK_BEFORE.search(before)
    )


_INTEGER = re.compile(r"\{\s*(-?\d{1,40})\s*\}\Z")
_EQUAL_BEFORE = re.compile(r"(?:\A|\$|\\\[|\\\()\s*(-?\d{1,40})\s*=\s*\Z")
_EQUAL_AFTER = re.compile(r"\s*(?:=>?|≈|→|\\approx|\\to)\s*(-?\d{1,40})\s*(?:\$|\.?\s*\Z|\.\s)")


def is_modified(text: str, start: int, end: int) -> bool:
    """True if the text right before or after an answer changes its meaning."""
    before = text[max(0, start - MAX_AROUND) : start].rpartition("\n")[2]
    after = text[end : end + MAX_AROUND]
    if before and ((before[-1].isdigit() and text[start] == "\\") or _is_changed(before)):
        return True
    if after and _AFTER.match(after) is not None:
        return True
    return ("=" in before[-3:] or after[:1] in "= ≈→\\") and _is_false(before, text[start:end], after)


def _is_false(before: str, box: str, after: str) -> bool:
    r"""True if a box is equated to a different integer: ``43 = \boxed{42}``."""
    number = _INTEGER.search(box)
    sides = (_EQUAL_BEFORE.search(before), _EQUAL_AFTER.match(after))
    return number is not None and any(other is not None and int(other[1]) != int(number[1]) for other in sides)
