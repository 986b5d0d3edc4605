"""The verifiers that come with the package, and how each is run.

``home`` is where it runs unless told otherwise, ``timeout`` as in ``@verifier``. ``fast`` names a function of the same
arguments that runs in the trainer, in bounded time: it returns a verdict, or None to let the worker decide, or a
mapping of arguments that stands for the same question in fewer characters. ``pure`` checks depend on their arguments
only: equal questions are asked once. ``option_checks`` names a mapping with, under the verifier's name, a function that
takes its options and says what is wrong with their values. ``steps``: it gives scores of steps. ``golds`` names a
function from gold answers and options to a report on those that cannot be used; ``trials``, one from the values of a
row and options to completions whose verdicts are known beforehand, which are then judged. ``gold_columns`` are columns
that this check reads beside the verifier's own, where they are there. ``gold_sample``: rows that are looked at when
training starts; all where it is left out.
"""

from collections.abc import Mapping
from typing import Any

BUILTINS: dict[str, str] = {
    "choice": "grpo_verifiers.text:choice",
    "code": "grpo_verifiers.code:code",
    "code_steps": "grpo_verifiers.steps:code_steps",
    "exact": "grpo_verifiers.text:exact",
    "json_schema": "grpo_verifiers.text:json_schema",
    "judge": "grpo_verifiers.judge:judge",
    "language": "grpo_verifiers.text:language",
    "length_cosine": "grpo_verifiers.text:length_cosine",
    "length_kimi": "grpo_verifiers.text:length_kimi",
    "length_overlong": "grpo_verifiers.text:length_overlong",
    "math": "grpo_verifiers.math:math",
    "math_steps": "grpo_verifiers.steps:math_steps",
    "numeric": "grpo_verifiers.text:numeric",
    "prm": "grpo_verifiers.steps:prm",
    "regex": "grpo_verifiers.text:regex",
    "repetition": "grpo_verifiers.text:repetition",
    "tag_count": "grpo_verifiers.text:tag_count",
    "think_format": "grpo_verifiers.text:think_format",
}

_JUDGE = "grpo_verifiers.judge:OPTIONS_CHECKS"
_STEPS = "grpo_verifiers.steps:OPTIONS_CHECKS"
_TEXT = "grpo_verifiers.text:OPTIONS_CHECKS"
_INLINE = {"home": "inline", "pure": True, "option_checks": _TEXT}
_WORKER = {"home": "process", "timeout": 5.0, "pure": True, "option_checks": _TEXT}

TRAITS: dict[str, Mapping[str, Any]] = {
    "choice": _INLINE,
    # Programs run in boxes of their own, each with its own time limit; here only their answers are compared.
    "code": {
        "isolation": "inline",
        "timeout": 3600.0,
        "max_concurrency": 4096,
        "pure": True,
        "option_checks": "grpo_verifiers.code:OPTIONS_CHECKS",
        "trials": "grpo_verifiers.code:trials",
        "gold_columns": ("solution",),
        "gold_sample": 12,
    },
    "code_steps": {
        "isolation": "inline",
        "timeout": 3600.0,
        "max_concurrency": 4096,
        "pure": True,
        "steps": True,
        "option_checks": _STEPS,
    },
    "exact": _INLINE,
    "json_schema": _WORKER,
    # It bounds and repeats its requests itself; what waits for its turn there must not be called late here.
    "judge": {"home": "inline", "timeout": 3600.0, "max_concurrency": 4096, "option_checks": _JUDGE},
    "language": _INLINE,
    "length_cosine": _INLINE,
    "length_kimi": _INLINE,
    "length_overlong": _INLINE,
    "math": {
        **_WORKER,
        "fast": "grpo_verifiers.math:fast",
        "golds": "grpo_verifiers.math:check_golds",
        "option_checks": "grpo_verifiers.math:OPTIONS_CHECKS",
    },
    "math_steps": {
        **_WORKER,
        "fast": "grpo_verifiers.steps:quick_math_steps",
        "steps": True,
        "option_checks": _STEPS,
    },
    "numeric": _INLINE,
    # In the trainer it has the training device; a timeout moves it into a worker process, which has the CPU only.
    "prm": {"home": "inline", "steps": True, "option_checks": _STEPS},
    "regex": _WORKER,
    "repetition": _INLINE,
    "tag_count": _INLINE,
    "think_format": _INLINE,
}
