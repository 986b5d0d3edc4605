"""Checks of text: form, length, repetition, language, and answers that need no mathematics to compare.

Every check is a plain function: ``completion`` first, dataset columns after it, options keyword-only; it returns a
``Verdict``.
"""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_verifiers.text._choice import choice as choice
    from grpo_verifiers.text._exact import exact as exact
    from grpo_verifiers.text._json_schema import json_schema as json_schema
    from grpo_verifiers.text._language import language as language
    from grpo_verifiers.text._length_cosine import length_cosine as length_cosine
    from grpo_verifiers.text._length_kimi import length_kimi as length_kimi
    from grpo_verifiers.text._length_overlong import length_overlong as length_overlong
    from grpo_verifiers.text._numeric import numeric as numeric
    from grpo_verifiers.text._regex import regex as regex
    from grpo_verifiers.text._repetition import repetition as repetition
    from grpo_verifiers.text._tag_count import tag_count as tag_count
    from grpo_verifiers.text._think_format import think_format as think_format

_CHECKS = (
    "choice",
    "exact",
    "json_schema",
    "language",
    "length_cosine",
    "length_kimi",
    "length_overlong",
    "numeric",
    "regex",
    "repetition",
    "tag_count",
    "think_format",
)
_NAMES = {name: f"{__name__}._{name}" for name in _CHECKS}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two
