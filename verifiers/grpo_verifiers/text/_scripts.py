"""The scripts of letters and of languages."""

import re
import unicodedata
from functools import lru_cache

_CJK = frozenset({"Han", "Hiragana", "Katakana"})
_LATIN = (
    "af az ca cs cy da de en eo es et eu fi fr ga gl hr hu id is it la lt lv ms mt nl no pl pt ro sk sl so sq sv sw tl "
    "tr uz vi zu"
)
LANGUAGES: dict[str, frozenset[str]] = {
    **dict.fromkeys(_LATIN.split(), frozenset({"Latin"})),
    **dict.fromkeys(("be", "bg", "kk", "ky", "mk", "mn", "ru", "sr", "tg", "uk"), frozenset({"Cyrillic"})),
    **dict.fromkeys(("ar", "fa", "ps", "ur"), frozenset({"Arabic"})),
    **dict.fromkeys(("hi", "mr", "ne", "sa"), frozenset({"Devanagari"})),
    "am": frozenset({"Ethiopic"}),
    "bn": frozenset({"Bengali"}),
    "el": frozenset({"Greek"}),
    "gu": frozenset({"Gujarati"}),
    "he": frozenset({"Hebrew"}),
    "hy": frozenset({"Armenian"}),
    "ja": _CJK,
    "ka": frozenset({"Georgian"}),
    "km": frozenset({"Khmer"}),
    "kn": frozenset({"Kannada"}),
    "ko": frozenset({"Hangul"}),
    "lo": frozenset({"Lao"}),
    "ml": frozenset({"Malayalam"}),
    "my": frozenset({"Myanmar"}),
    "pa": frozenset({"Gurmukhi"}),
    "si": frozenset({"Sinhala"}),
    "ta": frozenset({"Tamil"}),
    "te": frozenset({"Telugu"}),
    "th": frozenset({"Thai"}),
    "zh": frozenset({"Han"}),
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
    """The script of a letter ("Latin", "Han"); None for everything that is no letter of a word."""
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
    kept = place = 0
    while match := _OPEN.search(text, place):
        start, inside = match.span()
        end = _PAIRS[match.group()]
        place = inside
        if last[end] < inside:
            continue
        stop = text.index(end, inside)
        if end in _INLINE and "\n" in text[inside:stop]:
            continue
        prose.append(text[kept:start])
        sections.append(text[inside:stop])
        kept = place = stop + len(end)
    return "\n".join([*prose, text[kept:]]), "\n".join(sections)
