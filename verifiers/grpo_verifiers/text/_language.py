"""The share of a completion that keeps to the script of its language."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.text._scripts import LANGUAGES, SCRIPTS, script_of, split_prose
from grpo_verifiers.verdict import Status, Verdict

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
        expected = _dominant(_letters(_text_of(prompt)))
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
    return Verdict(share, detail=f"expected {' or '.join(sorted(expected))}, found {strangers or 'nothing else'}"[:200])


def _letters(text: str, expected: frozenset[str] = frozenset()) -> Counter[str]:
    prose, sections = split_prose(text)
    if "Greek" not in expected:
        prose = _LONE_GREEK.sub(" ", prose)
    found = Counter({char: n for char, n in Counter(prose).items() if char.isalpha()})
    found.update({char: n for char, n in Counter(sections).items() if script_of(char) not in _SYMBOLIC})
    counts: Counter[str] = Counter()
    for char, n in found.items():
        if (script := script_of(char)) is not None:
            counts[script] += n
    return counts


def _dominant(counts: Counter[str]) -> frozenset[str]:
    """The script most letters have.

    The three of Japanese count as one, told from Chinese by a tenth of kana, and each of their characters as three
    letters: bare variable names must not outvote the words of a question.
    """
    kana = counts["Hiragana"] + counts["Katakana"]
    family = kana + counts["Han"]
    others = Counter({script: n for script, n in counts.items() if script not in LANGUAGES["ja"]})
    script, most = others.most_common(1)[0] if others else ("", 0)
    if 3 * family > most:
        return LANGUAGES["ja"] if 10 * kana >= family else LANGUAGES["zh"]
    return frozenset({script}) if script else frozenset()


def _text_of(prompt: Any) -> str:
    """A prompt's own words: the text itself, or those of the last user message."""
    if prompt is None or isinstance(prompt, str):
        return prompt or ""
    users = [m for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
    content = users[-1].get("content") if users else None
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(p["text"]) for p in parts if isinstance(p, Mapping) and isinstance(p.get("text"), str))
