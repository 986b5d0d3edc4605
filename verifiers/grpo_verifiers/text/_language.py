"""The share of a completion that keeps to the script of its language."""

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Any

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.reading.messages import question_text
from grpo_verifiers.verdict import Status, Verdict

_CODES = """
Latin: af az ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la lt lv ms mt nl no pl pt ro sk sl so sq sv sw tl
Latin: tr uz vi zu
Cyrillic: be bg kk ky mk mn ru sr tg uk
Arabic: ar fa ps ur
Devanagari: hi mr ne sa
Han Hiragana Katakana: ja
Han: zh
Ethiopic: am, Bengali: bn, Greek: el, Gujarati: gu, Hebrew: he, Armenian: hy, Georgian: ka, Khmer: km, Kannada: kn
Hangul: ko, Lao: lo, Malayalam: ml, Myanmar: my, Gurmukhi: pa, Sinhala: si, Tamil: ta, Telugu: te, Thai: th
"""
LANGUAGES: dict[str, frozenset[str]] = {
    code: frozenset(scripts.split())
    for scripts, _, codes in (entry.partition(":") for entry in _CODES.strip().replace(",", "\n").split("\n"))
    for code in codes.split()
}
SCRIPTS = frozenset().union(*LANGUAGES.values())

# Unicode names start with the script; these first words are symbols that happen to be letters, or need another word.
_SYMBOL_WORDS = (
    "MATHEMATICAL MODIFIER MICRO OHM KELVIN ANGSTROM DOUBLE-STRUCK SCRIPT BLACK-LETTER INFORMATION FEMININE MASCULINE "
    "ALEF BET GIMEL DALET ROTATED TURNED SUPERSCRIPT SUBSCRIPT EULER PLANCK ESTIMATED"
)
_SYMBOLS = frozenset(_SYMBOL_WORDS.split())
_RENAMED = {"Cjk": "Han", "Ideographic": "Han"}
_PAIRS = {"```": "```", "$$": "$$", "\\[": "\\]", "\\(": "\\)", "`": "`", "$": "$"}
_OPEN = re.compile(r"```|\$\$|\\\[|\\\(|`|\$")
_INLINE = ("`", "$")


@lru_cache(maxsize=8192)
def script_of(char: str) -> str | None:
    """The script of a letter ("Latin", "Han"); None for any other character."""
    if not char.isalpha():
        return None
    words = unicodedata.name(char, "UNKNOWN").split()
    if words[0] in {"FULLWIDTH", "HALFWIDTH"}:
        words = words[1:]
    if words[0] in _SYMBOLS:
        return None
    name = words[0].title()
    return _RENAMED.get(name, name)


def split_prose(text: str) -> tuple[str, str]:
    """A text without its closed maths and code sections, and those sections; one pass, openers without an end stay."""
    last = {end: text.rfind(end) for end in _PAIRS.values()}
    prose, sections = [], []
    prose_start = place = 0
    while match := _OPEN.search(text, place):
        start, inside = match.span()
        end = _PAIRS[match.group()]
        place = inside
        if last[end] < inside:
            continue
        stop = text.index(end, inside)
        if end in _INLINE and "\n" in text[inside:stop]:
            continue
        prose.append(text[prose_start:start])
        sections.append(text[inside:stop])
        prose_start = place = stop + len(end)
    return "\n".join([*prose, text[prose_start:]]), "\n".join(sections)


_LONE_GREEK = re.compile(r"(?<![\u0370-\u03ff])[\u0370-\u03ff](?![\u0370-\u03ff])")
_SYMBOLIC = ("Latin", "Greek")


def _option_problems(*, language: str) -> list[str]:
    if language == "prompt" or language in LANGUAGES or language in SCRIPTS:
        return []
    return [unknown("language", language, ["prompt", *LANGUAGES, *SCRIPTS])]


@Traits(home="inline", pure=True, option_problems=_option_problems)
def language(completion: str, prompt: Any = None, *, language: str = "prompt") -> Verdict:
    """Score the share of letters that are written in the expected script.

    >>> language("The answer is four.", language="en").score
    1.0

    Judged by script: it tells Chinese from English, not French from English. In maths and code, Latin and Greek letters
    are identifiers and do not count; other scripts do, so that a ``$…$`` is no place to hide.

    Use it when a model mixes languages while it thinks, as models trained by reinforcement alone do. Give it a small
    weight.

    Paper: the language-consistency reward of DeepSeek-R1, arXiv:2501.12948, section 2.3.2.

    Scores: the share of letters, from 0 (wrong) to 1 (correct), partial between; 0 unparsable without letters; None,
    not applicable, where the prompt has none to take a script from.

    Config:
        verifiers: [{name: language, weight: 0.1}]

    Args:
        completion: the text to check, thinking included.
        prompt: a text or a list of messages, for ``language="prompt"``.
        language: a language code ("en", "zh", "ja"), a script ("Latin"), or "prompt": the script of the question's
            letters; a prompt without letters leaves the completion out.
    """
    if language == "prompt":
        expected = _dominant(_letters(question_text(prompt, "\n")))
        if not expected:
            return Verdict(None, Status.NOT_APPLICABLE, "the prompt has no letters to take a script from")
    else:
        expected = LANGUAGES.get(language) or frozenset({language})
    counts = _letters(completion, expected)
    total = sum(counts.values())
    if not total:
        return Verdict(0.0, Status.UNPARSABLE, "no letters outside maths and code")
    share = sum(counts[script] for script in expected) / total
    strangers = ", ".join(f"{n} {script}" for script, n in counts.most_common() if script not in expected)
    return Verdict(share, detail=f"expected {' or '.join(sorted(expected))}, got {strangers or 'nothing else'}"[:200])


def _letters(text: str, expected: frozenset[str] = frozenset()) -> Counter[str]:
    prose, sections = split_prose(text)
    if "Greek" not in expected:
        prose = _LONE_GREEK.sub(" ", prose)
    letters = Counter({char: n for char, n in Counter(prose).items() if char.isalpha()})
    letters.update({char: n for char, n in Counter(sections).items() if script_of(char) not in _SYMBOLIC})
    counts: Counter[str] = Counter()
    for char, n in letters.items():
        if (script := script_of(char)) is not None:
            counts[script] += n
    return counts


def _dominant(counts: Counter[str]) -> frozenset[str]:
    """The script of most letters.

    The three of Japanese count as one, which differs from Chinese by a tenth of kana. Each of their characters counts
    as three letters: bare variable names must not outvote the words of a question.
    """
    kana = counts["Hiragana"] + counts["Katakana"]
    family = kana + counts["Han"]
    remaining = Counter({script: n for script, n in counts.items() if script not in LANGUAGES["ja"]})
    script, most = remaining.most_common(1)[0] if remaining else ("", 0)
    if 3 * family > most:
        return LANGUAGES["ja"] if 10 * kana >= family else LANGUAGES["zh"]
    return frozenset({script}) if script else frozenset()
