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

_WHERE = {
    "_choice": "choice",
    "_exact": "exact regex",
    "_format": "tag_count think_format",
    "_json_schema": "json_schema",
    "_language": "language",
    "_length": "length_cosine length_kimi length_overlong",
    "_numeric": "numeric",
    "_repetition": "repetition",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
