"""Checks of text: form, length, repetition, language, and answers that need no mathematics to compare.

Every check is a plain function: ``completion`` first, dataset columns after it, options keyword-only; it returns a
``Verdict``.
"""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.text._choice import choice as choice
    from grpo_verifiers.text._exact import exact as exact
    from grpo_verifiers.text._exact import regex as regex
    from grpo_verifiers.text._format import tag_count as tag_count
    from grpo_verifiers.text._format import think_format as think_format
    from grpo_verifiers.text._json_schema import json_schema as json_schema
    from grpo_verifiers.text._language import language as language
    from grpo_verifiers.text._length import length_cosine as length_cosine
    from grpo_verifiers.text._length import length_kimi as length_kimi
    from grpo_verifiers.text._length import length_overlong as length_overlong
    from grpo_verifiers.text._numeric import numeric as numeric
    from grpo_verifiers.text._repetition import repetition as repetition

_NAMES = {
    "choice": f"{__name__}._choice",
    "exact": f"{__name__}._exact",
    "json_schema": f"{__name__}._json_schema",
    "language": f"{__name__}._language",
    "length_cosine": f"{__name__}._length",
    "length_kimi": f"{__name__}._length",
    "length_overlong": f"{__name__}._length",
    "numeric": f"{__name__}._numeric",
    "regex": f"{__name__}._exact",
    "repetition": f"{__name__}._repetition",
    "tag_count": f"{__name__}._format",
    "think_format": f"{__name__}._format",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two
