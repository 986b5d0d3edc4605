"""The public way in: ``@verifier`` registers a check function, ``get_verifier`` finds and configures one by name.

A function that is not decorated, takes ``completions`` and has a ``**kwargs`` is a TRL reward function: it is called as
TRL calls it, with completions as they are (chats as lists of messages), ``prompts``, ``completion_ids`` and every
column.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_verifiers.base import Pending, Verifier
from grpo_verifiers.base.traits import Home, OnError, Traits, traits_of
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.errors.messages import label_problem
from grpo_verifiers.exec.form import form_of
from grpo_verifiers.exec.isolation import isolation_problems
from grpo_verifiers.function import FunctionVerifier
from grpo_verifiers.redaction import redact
from grpo_verifiers.registry import Registry, absolute, is_reference, load_plugin, source_of

__all__ = ["REGISTRY", "FunctionVerifier", "Pending", "Verifier", "get_verifier", "load_plugins", "verifier"]


BUILTINS = {
    "choice": "grpo_verifiers.text:choice",
    "code": "grpo_verifiers.code:code",
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
    "tool_used": "grpo_verifiers.steps:tool_used",
    "tool_valid": "grpo_verifiers.steps:tool_valid",
    "turn_reward": "grpo_verifiers.steps:turn_reward",
}
"""The verifiers of this package, and where each is defined; imported on first use."""
_ACCEPTED = "expected a check function, a TRL reward function (completions, **kwargs) or a verifier"


def _adopt(name: str, value: Any) -> Verifier:
    """Return the object of a built-in's path, a reference or an entry point as a verifier."""
    if name in BUILTINS and str(getattr(value, "__module__", "")).startswith(f"{__package__}."):
        return FunctionVerifier(value, name, replace(traits_of(value), builtin=True))
    if isinstance(value, Verifier):
        return value
    name = name.rpartition(":")[2] if is_reference(name) else name
    if hasattr(value, "forward") and hasattr(value, "state_dict") and not isinstance(value, type):
        raise KeywordError(
            f"verifier {name!r} is a model ({type(value).__name__}): reward models belong in reward_funcs; {_ACCEPTED}."
        )
    if not callable(value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise KeywordError(f"verifier {name!r} is a {kind}; {_ACCEPTED}.")
    form = form_of(name, value)
    return FunctionVerifier(value, name, replace(traits_of(value), raw=form.batch and form.open))


REGISTRY: Registry[Verifier] = Registry("verifier", builtins=BUILTINS, group="grpo_plus.verifiers", adopt=_adopt)


def verifier(
    name: str,
    *,
    timeout: float | None = None,
    isolation: str | None = None,
    home: Home | None = None,
    on_error: OnError | None = None,
    max_concurrency: int = 32,
    memory: float | None = None,
    env: Sequence[str] = (),
    pure: bool = False,
    steps: bool | None = None,
    option_problems: Callable[..., list[str]] | None = None,
    golds: Callable[..., Any] | None = None,
    trials: Callable[..., Any] | None = None,
    gold_columns: Sequence[str] = (),
    stated: Callable[..., str | None] | None = None,
    stricter: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], FunctionVerifier]:
    """Register a check function under a name.

    The first parameter is the completion's text (``completion``), or with the name ``completions`` all of a batch's.
    Other parameters are dataset columns by name, keyword-only ones are options. ``prompt``, ``messages``,
    ``completion_ids`` and ``completion_text`` are filled on request. It returns a number, True or False, None (does not
    apply) or a ``Verdict``; for a batch a list of them. ``async def`` functions run concurrently in the trainer.

    >>> @verifier("doc_ends_with", isolation="inline", stated=lambda completion, **_: completion.split()[-1])
    ... def ends_with(completion, answer, *, ignore_case: bool = False):
    ...     text, expected = (t.lower() if ignore_case else t for t in (completion, answer))
    ...     return text.endswith(expected)
    >>> get_verifier("doc_ends_with", ignore_case=True).verify("It is Four", answer="four")
    Verdict(score=1.0, status=<Status.CORRECT: 'correct'>, detail='', steps=())
    >>> REGISTRY.unregister("doc_ends_with")

    Args:
        name: its name in configs.
        timeout: seconds that one call may take.
        isolation: ``"process"``: in a worker that is killed at its deadline (the default); ``"inline"``: in the
            trainer, for functions that are quick and cannot hang (the default for async functions); ``"ray"``: in a
            worker as for ``"process"``, on a node of a Ray cluster.
        home: like ``isolation``, but a timeout that a user sets moves an inline check to a worker.
        on_error: the effect of an exception, or of a result that is no verdict: ``"zero"`` scores the
            completion 0, ``"null"`` leaves it out, ``"raise"`` stops the run. Unset: zero, and the run stops where it
            does nothing else. Where something outside fails (a server), raise ``UnavailableError``: that leaves out.
        max_concurrency: how many calls of an async function run at a time.
        memory: GiB of address space of a worker; 0 for no cap, 2 by default.
        env: environment variables that its workers keep although they look like secrets.
        pure: its verdicts depend on its arguments only: equal calls run once.
        steps: it scores steps (True), never does (False), or only a run can tell (None).
        option_problems: takes the options and returns problems that the signature cannot express; an error
            of this package that it raises counts as one more problem.
        golds: takes gold answers and options, and returns a report on those that cannot be used.
        trials: takes the values of a row and options, and returns completions with expected verdicts.
        gold_columns: columns that ``golds`` or ``trials`` read where the dataset has them, besides its own.
        stated: takes a completion and options, and returns the answer that it states, as the column ``answer`` would
            hold it, or None: with it samples can vote (maj@k).
        stricter: values of options that close its loopholes and that an honest completion still passes;
            ``diagnosis: {judge: strict}`` judges with these where a config has looser ones.
    """
    if not isinstance(name, str):
        raise TypeError('@verifier needs a name: write @verifier("my_check") above the function.')
    traits = Traits(
        timeout, isolation, on_error, max_concurrency, memory, _names(env), home, pure=pure, steps=steps,
        option_problems=option_problems, golds=golds, trials=trials, gold_columns=_names(gold_columns),
        stated=stated, stricter=stricter,
    )  # fmt: skip

    def register(fn: Callable[..., Any]) -> FunctionVerifier:
        verifier = FunctionVerifier(fn, name, traits)
        problems = traits.problems(f"verifier {name!r}")
        problems += [f"verifier {name!r}: {problem}" for problem in isolation_problems(verifier.isolation)]
        if verifier.isolation == "inline" and timeout is not None and not verifier.form.is_async:
            problems += [issue for issue in verifier.check() if issue not in problems]
        if problems:
            raise KeywordError("\n".join(problems))
        REGISTRY.register(name, verifier, source=_place(fn))
        return verifier

    return register


def _names(value: Any) -> Any:
    """A tuple of several names; a single text is returned unchanged, for the check of declarations."""
    return value if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)


def _place(fn: Callable[..., Any]) -> str:
    """The place of a function. All cells of a notebook are one: an edited cell has another file each time."""
    main = sys.modules.get("__main__")
    if getattr(fn, "__module__", None) == "__main__" and not hasattr(main, "__file__"):
        return f"the notebook or prompt:{source_of(fn).rpartition(':')[2]}"
    return source_of(fn)


def get_verifier(
    name: str | Verifier | Callable[..., Any],
    *,
    base: Path | str | None = None,
    label: str | None = None,
    columns: Mapping[str, str] | None = None,
    timeout: float | None = None,
    on_error: OnError | None = None,
    isolation: str | None = None,
    plugins: Sequence[str] = (),
    **kwargs: Any,
) -> Verifier:
    """Find a verifier and configure it.

    >>> get_verifier("exact").verify("<think>5?</think>4", answer="4").score
    1.0
    >>> get_verifier("numeric", abs_tol=-1)
    Traceback (most recent call last):
    ...
    grpo_verifiers.errors.KeywordError: verifier 'numeric': abs_tol is -1, expected a finite number of at least 0.

    Args:
        name: a registered name, a reference (``package.module:attr``, ``./file.py:attr``), or the thing itself.
        base: folder that a relative ``./file.py`` starts from.
        label: its name in logs; by default ``name``.
        columns: parameter to dataset column, where they differ.
        timeout: seconds that one call may take.
        on_error: the effect of a failure: ``"zero"``, ``"null"`` or ``"raise"``.
        isolation: ``"process"``, ``"inline"`` or ``"ray"``.
        plugins: modules that its workers import first, as `load_plugins` returns them.
        **kwargs: options of the function; one that names a column parameter takes the column's place.

    Raises:
        UnknownNameError: nothing has that name.
        KeywordError: options, columns or settings that it does not take; all of them in one message.
    """
    redact(kwargs)  # remembers secrets, so that later messages hide them
    if isinstance(name, Verifier):
        source = name
    elif isinstance(name, str):
        source = REGISTRY.get(name, base=base)
    else:
        source = _adopt(getattr(name, "__name__", type(name).__name__), name)
    settings = {"timeout": timeout, "on_error": on_error, "isolation": isolation}
    changed = {key: value for key, value in settings.items() if value is not None}
    if label is not None and (problem := label_problem(label)):
        raise KeywordError(f"verifier {source.label!r}: {problem}")
    if not isinstance(source, FunctionVerifier):
        return _relabel(source, label, {**changed, **kwargs, **({"columns": columns} if columns else {})})
    configured = source
    if source is not name or label or columns or kwargs or changed or plugins:
        configured = source.derive(label=label, columns=columns, options=kwargs, plugins=tuple(plugins), **changed)
    if problems := configured.check():
        raise KeywordError("\n".join(problems))
    return configured


def _relabel(part: Verifier, label: str | None, extra: Mapping[str, Any]) -> Verifier:
    if extra:
        raise KeywordError(
            f"verifier {part.label!r} is a composition and takes no {', '.join(sorted(extra))}: set that on its parts."
        )
    if label is None or label == part.label:
        return part
    copied = copy.copy(part)
    copied.label = copied.__name__ = label
    return copied


def load_plugins(references: Sequence[str], base: Path | str | None = None) -> tuple[str, ...]:
    """Import plug-in modules (dotted names, or ``.py`` paths that start from ``base``), so that their decorators run.

    Returns the same references with absolute paths, for ``get_verifier(plugins=…)``: its workers then import them too.
    """
    for reference in references:
        load_plugin(reference, base)
    return tuple(str(absolute(each, base)) if each.endswith(".py") else each for each in references)
