"""Multiple choice: the one letter that a completion declares."""

import re
import unicodedata
from typing import Annotated, Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import show
from grpo_verifiers.options import Matches, TagName
from grpo_verifiers.reading.boxes import answer_tags, stated_boxes
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.verdict import Status, Verdict, excused

Letters = Annotated[
    str, Matches(r"(?!.*(.).*\1)[A-Z]{2,26}", "2 to 26 different capital letters in a row, such as 'ABCD'")
]
_OPEN = r"(?:[\s*_\"'`($\[{]|\\[(\[]){0,12}(?:\\(?:boxed|text|textbf|mathrm|mathbf)\s{0,3}\{[\s(]{0,3}){0,2}"
_CLOSE = r"[\s*_\"'`)\]}.$]{0,12}"
_LINK = r"(?:[\s*_]{0,9}(?:(?i:is|are|be|would|should|must|will|the|correct|option|choice|letter|answer|likely)\b|:|=))"
_CUE = (
    rf"(?:(?i:\b(?:answer|option|choice))\b(?={_LINK}{{0,6}}[\s*_]{{0,9}}(?:(?i:is|are|be)\b|:|=)){_LINK}{{1,8}}"
    r"|(?:答案|选项|選項|正解)[\s*_]{0,9}(?:应该|應該)?(?:是|为|為|选|選|は|:)[\s*_]{0,9}:?)"
)
_CHOSEN = (  # a sentence of its own: neither "If I choose B" nor "We choose B to be the midpoint"
    r"(?i:(?:\A|[.!?:;\n])[\s*_]{0,9}"
    r"(?:(?![^.!?;\n]{0,80}\b(?:if|when|unless|suppose|assume|why|whether|first|initially|earlier|had|were|once)\b)"
    r"[^.!?;\n]{1,80},\s{1,3})?"
    r"(?:(?:so|thus|therefore|hence|then|finally|overall|in conclusion)\b,?\s{1,3}){0,2}"
    r"(?:I|we)(?:['’](?:ll|d|ve|m|re)|\s{1,3}(?:will|would|have|am|are))?\s{1,3}"
    r"(?:cho(?:ose|sen?|osing)|(?:pick|select)(?:ed|ing)?|(?:go(?:ing)?|went)\s{1,3}with))"
    r"(?:[\s*_]{0,9}(?i:the|option|choice|answer|letter)\b){0,3}[\s*_]{0,9}:?"
)
_ASIDE = r"(?![^\n.!?;]{0,200}\?)(?!\W{0,9}(?i:as|to be|so that|instead|earlier|before|at first|and (?:get|find))\b)"
_AFTER = r"(?i:\s{1,3}is\s{1,3}(?:the\s{1,3})?(?:correct|right|best)\b)"
_JOIN = r"(?:\s{0,3}(?:,|/|&|\+|;|\||、|(?i:\b(?:and|or|and/or|both|also)\b)|或|和)){1,3}\s{0,3}"


def stated_letter(completion: str, *, letters: str = "ABCDE", **options: Any) -> str | None:
    """The letter that a completion declares; None for no letter or several."""
    verdicts = ((letter, choice(completion, letter, letters=letters, **options)) for letter in letters)
    return next((letter for letter, verdict in verdicts if verdict.status is Status.CORRECT), None)


@Traits(home="inline", pure=True, stated=stated_letter, stricter={"conflicts": "reject"})
def choice(
    completion: str,
    answer: Any,
    *,
    letters: Letters = "ABCDE",
    conflicts: Literal["last", "reject"] = "last",
    think: TagName | None = "think",
) -> Verdict:
    r"""Score 1 where the completion, outside its thinking, declares the right letter and no other.

    >>> choice("The answer is (B).", "B").score, choice("A or B", "B").score
    (1.0, 0.0)

    A declaration is a letter in ``\boxed{…}`` or ``<answer>…</answer>``, after "answer is" and its like, before "is the
    correct answer", or a text that is nothing but an option. The last one counts; "A or B" scores 0.

    Use it when the answer is a letter of a multiple-choice question.

    Scores: 1 correct; 0 wrong (another letter, or several); 0 unparsable (no letter declared); None, error, where
    ``answer`` names no letter.

    Args:
        completion: the text to check.
        answer: the right letter ("B", "(b)", "B. Paris") or its index from 0. Anything else excludes the row.
        letters: the letters that name options.
        conflicts: "last": the last declaration counts. "reject": different ones score 0.
        think: tag of the thinking section that is left out; None leaves nothing out.
    """
    gold = _gold(answer, letters)
    if gold is None:
        return excused(f"the answer column has none of the letters {letters}: {show(answer)}")
    text = answer_part(completion, think)
    folded = unicodedata.normalize("NFKC", text)
    text = folded if len(folded) <= 2 * len(text) + 100 else text  # ligatures of words make it far longer
    boxed, problem = stated_boxes(text, last_only=conflicts == "last")
    fields = [(box.start, box.content) for box in boxed] + [(tag.start, tag.content) for tag in answer_tags(text)]
    declarations = [] if problem else _declarations(text, fields, letters)
    if not declarations:
        return Verdict(0.0, Status.UNPARSABLE, problem or f"no declaration of one of {letters}")
    last = max(declarations, key=lambda item: item[0])[1]
    declared = last if conflicts == "last" else frozenset().union(*(each for _, each in declarations))
    if len(declared) > 1:
        return Verdict(0.0, Status.WRONG, f"several different answers: {', '.join(sorted(declared))}")
    return Verdict(1.0 if declared == {gold} else 0.0, detail=f"{min(declared)} against {gold}")


def _declarations(text: str, fields: list[tuple[int, str]], letters: str) -> list[tuple[int, frozenset[str]]]:
    """The places of declarations, and the letters of each; a small letter counts with a parenthesis only."""
    small = letters.lower()
    one = rf"([{letters}](?![A-Za-z0-9_'’])|[{small}](?=\)))"
    more = re.compile(rf"(?:{_CLOSE}{_JOIN}{_OPEN}|[ \t*)\]]{{1,4}}[(\[]?){one}")
    declarations = [(place, _in_field(field, letters)) for place, field in fields]
    declarations += _listed(rf"{_CUE}{_OPEN}{one}", more, text)
    alone = rf"^[ \t*_(\[]{{0,12}}([{letters}]|[{small}](?=[).]))[ \t)\].*_]{{0,12}}$"
    judged = rf"(?<![A-Za-z0-9_])([{letters}]\)?|[{small}]\)){_AFTER}"
    declarations += [(m.start(1), frozenset(m[1][0].upper())) for m in re.finditer(judged, text)]
    declarations = [(place, chosen) for place, chosen in declarations if chosen]
    if not declarations:
        declarations = _listed(rf"{_CHOSEN}{_OPEN}{one}{_ASIDE}", more, text)
    if not declarations:
        declarations = [(m.start(1), frozenset(m[1].upper())) for m in re.finditer(alone, text, re.MULTILINE)]
    if not declarations and "\n" not in text.strip() and (chosen := _in_field(text, letters)):
        declarations = [(0, chosen)]
    return declarations


def _listed(pattern: str, more: re.Pattern[str], text: str) -> list[tuple[int, frozenset[str]]]:
    """The places of a pattern, with the letter of its group and those that are joined to it."""
    places = []
    for match in re.finditer(pattern, text):
        listed, end = {match[1].upper()}, match.end()
        while joined := more.match(text, end):
            listed.add(joined[1].upper())
            end = joined.end()
        places.append((match.start(1), frozenset(listed)))
    return places


def _in_field(content: str, letters: str) -> frozenset[str]:
    """The letters of a field that has only an answer: alone, listed, or in front of an option's text."""
    bare = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\b|[\\{}$*_\"'`]", " ", content[:2000]).strip()
    if re.match(rf"[(\[]?[{letters.lower()}](?:[)\].:]|$)", bare):
        return frozenset(letter.upper() for letter in re.findall(rf"(?<!\w)([{letters.lower()}])(?:[)\].:]|$)", bare))
    if re.match(rf"[(\[]?[{letters}](?:[)\].:]|$|(?:{_JOIN}|[ \t]{{1,3}})[(\[]?[{letters}]\b)", bare) is None:
        return frozenset()
    return frozenset(re.findall(rf"(?<![A-Za-z0-9'])([{letters}])(?![A-Za-z0-9'])", bare))


def _gold(answer: Any, letters: str) -> str | None:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return letters[answer] if 0 <= answer < len(letters) else None
    option = r"[(\[]?([A-Za-z])(?:[)\].:]{1,2}(?:\s.*)?)?"
    match = re.fullmatch(option, answer.strip(), re.DOTALL) if isinstance(answer, str) else None
    letter = match[1].upper() if match else ""
    return letter if letter and letter in letters else None
