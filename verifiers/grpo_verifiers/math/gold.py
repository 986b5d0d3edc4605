"""The gold answer of a row, extracted, parsed and cached; the letter of a multiple-choice answer."""

import re
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

from grpo_verifiers.math.grammar.read import read, strip_delimiters, without_text_commands
from grpo_verifiers.math.grammar.tokens import MAX_CHARS, ParseError
from grpo_verifiers.math.tree import Node
from grpo_verifiers.math.words.vocabulary import MAX_DIGITS
from grpo_verifiers.reading.boxes import AnswerBox, boxes, unnest
from grpo_verifiers.reading.phrases import hash_answers, phrases

# text between the boxes of one list: "and", ", ", "papers and"
_SEPARATOR = re.compile(r"\b(?:and|or)\b|[,;]")
_WORD = re.compile(r"[A-Za-z]+")
MAX_BETWEEN = 80
MAX_INTEGER = 10**MAX_DIGITS


@dataclass(frozen=True)
class Gold:
    """A gold answer without the prose around it, its tree or the problem, and its letter if it is an option."""

    text: str
    node: Node | None = None
    option: str = ""
    problem: str = ""


def as_text(answer: Any) -> str:
    """A gold cell as text; datasets store numbers, too."""
    if isinstance(answer, str):
        return answer
    if answer is None or answer != answer:  # noqa: PLR0124 - a missing cell of a table is NaN
        return ""
    if isinstance(answer, Integral) and not -MAX_INTEGER < answer < MAX_INTEGER:
        raise TypeError("a gold answer as an integer of more than 300 digits: store it as text.")
    if isinstance(answer, bool) or not isinstance(answer, Integral | float):
        raise TypeError(
            f"a gold answer must be text or a number, not {type(answer).__name__}: {str(answer)[:60]!r}. "
            "Name the column that holds it, or join several answers with commas."
        )
    # 3.0 in a float column is the integer 3, and the smallest floats are written without an exponent
    return f"{answer:.15f}".rstrip("0").rstrip(".") if isinstance(answer, float) and abs(answer) < 1e15 else str(answer)


@lru_cache(maxsize=1024)
def gold_of(answer: str) -> Gold:
    """Read a gold answer as datasets store it: bare, delimited, boxed, or at the end of a worked solution."""
    text = gold_text(answer)
    if not text:
        return Gold(text, problem="empty")
    try:
        return Gold(text, read(text), option=option_of(text) or "")
    except ParseError as error:
        if letter := option_of(text):
            return Gold(text, ("v", letter), option=letter)
        return Gold(text, problem=str(error))
    except RecursionError:
        return Gold(text, problem="nested too deeply")


def gold_text(answer: str) -> str:
    """The answer inside a gold cell."""
    text = answer.strip()
    boxed = boxes(text)
    contents = _last_boxes(text, boxed.items)
    if contents:
        return ", ".join(dict.fromkeys(contents))
    if boxed.open:  # a gold cut off inside its box
        return text[max(text.rfind("\\boxed{") + 7, text.rfind("\\fbox{") + 6) :].strip()
    if "\\boxed" in text or "\\fbox" in text:
        return ""
    lines = hash_answers(text) or ([text.rpartition("####")[2].strip()] if "####" in text else [])
    if lines:
        return lines[-1]
    if len(text) > 40 or "answer" in text.lower():
        stated = phrases(text[-MAX_CHARS:])
        if stated:
            return stated[-1][0]
    return strip_delimiters(text)


def _leads_to(between: str) -> bool:
    """True if the text between two boxes joins them into one list: at most two words besides a separator."""
    if len(between) > MAX_BETWEEN or re.search(r"\d", between):
        return False
    words = [word for word in _WORD.findall(between) if word not in {"text", "quad", "qquad", "mbox"}]
    joins = sum(word in {"and", "or"} for word in words)
    return joins <= 1 and len(words) - joins <= (2 if _SEPARATOR.search(between) else 0)


def _last_boxes(text: str, items: list[AnswerBox]) -> list[str]:
    """The last box and those that lead up to it as parts of one list."""
    contents: list[str] = []
    following: AnswerBox | None = None
    for box in reversed(items):
        if following is not None and not _leads_to(text[box.end : following.start]):
            break
        if content := unnest(box.content):
            contents.append(content)
        following = box
    return contents[::-1]


_OPTION = re.compile(r"\s*(?:\(\s*([A-J])\s*\)|([A-J])(?:\s*[).:,。]|(?=不是)))\s*(.*)", re.DOTALL)
_APPLIED = "'^*!_+=/"  # (B)^2 is a formula, (B) 2 an option with its text
_EXCLUDED = re.compile(
    r"(?:can't be|cannot be|can not be|isn't|is not|not|non|nicht|不是)\s*\(?[A-J]\)?"
    r"(?:\s*(?:,|or|nor|and)\s*\(?[A-J]\)?(?![A-Za-z]))*"
)
_OTHER = re.compile(r"(?<![A-Za-z'])[A-J](?![A-Za-z'])|\b(?:or|not|and|either|neither|maybe|but)\b")


def option_of(text: str) -> str | None:
    """The letter in ``D. 14 meters`` or ``(D), not (A)``; None if no text follows, or a second option may count."""
    if len(text) > 400:
        return None
    match = _OPTION.fullmatch(without_text_commands(text))
    if match is None or not match[3].strip() or match[3][0] in _APPLIED or _OTHER.search(_EXCLUDED.sub("", match[3])):
        return None
    return match[1] or match[2]
