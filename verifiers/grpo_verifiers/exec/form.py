"""The calling convention of a check, read from its signature once."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.errors import KeywordError
from grpo_verifiers.exec.samples import NOT_COLUMNS, RESERVED, Samples, completion_text

SETTINGS = frozenset({"base", "label", "columns", "timeout", "on_error", "isolation"})
"""Keywords of ``get_verifier`` itself: no option of a check may have such a name."""


@dataclass(frozen=True)
class Form:
    """The calling convention of one function.

    Attributes:
        batch: judges all completions in one call (it has a parameter ``completions``).
        first: name of the parameter for the completion; passed by position unless ``by_name``.
        by_name: pass the completion by its name.
        columns: parameters filled from the dataset, and whether each is required.
        options: keyword-only parameters, set in the config.
        reserved: parameters filled with parts of the sample that are no column.
        extras: parameters filled with TRL's own objects, which live in the trainer's process.
        logs: TRL's logging functions, where the function can do without: filled in the trainer's process only.
        open: takes every other column, too (``**kwargs``).
        is_async: a coroutine function.
    """

    batch: bool
    first: str
    by_name: bool
    columns: Mapping[str, bool]
    options: tuple[str, ...]
    reserved: tuple[str, ...]
    extras: tuple[str, ...]
    logs: tuple[str, ...]
    open: bool
    is_async: bool


def form_of(name: str, fn: Callable[..., Any]) -> Form:
    """Read a function's form."""
    if inspect.isclass(fn):
        way = f"give an instance of it ({fn.__name__}()), or put @verifier above a function"
        raise KeywordError(f"verifier {name!r} is the class {fn.__qualname__}: {way}.")
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError) as error:
        raise KeywordError(f"verifier {name!r}: {fn!r} has no signature to read parameters from: {error}.") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters)
    names = {p.name for p in parameters}
    batch = "completions" in names or (not positional and is_open and "completion" not in names)
    by_name = batch and not (positional and positional[0].name == "completions")
    if not by_name and not positional:
        raise KeywordError(
            f"verifier {name!r}: {_name(fn)} takes no completion; its first parameter must be the completion's text "
            "(def check(completion, answer): ...), or completions for a batch."
        )
    first = "completions" if batch else positional[0].name
    if not batch and first in RESERVED:
        raise KeywordError(
            f"verifier {name!r}: the first parameter of {_name(fn)} is {first!r}, but the first one takes the "
            f"completion's text. Put 'completion' before it; {first!r} is then filled as well."
        )
    if not batch and "completion" in names and first != "completion":
        raise KeywordError(f"verifier {name!r}: {_name(fn)} has the parameter 'completion', but {first!r} before it.")
    columns: dict[str, bool] = {}
    options: list[str] = []
    reserved: list[str] = []
    extras: list[str] = []
    logs: list[str] = []
    for p in parameters:
        if p.name == first or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        if p.kind is p.POSITIONAL_ONLY:
            raise KeywordError(f"verifier {name!r}: parameter {p.name!r} of {_name(fn)} cannot be passed by name.")
        if p.name in RESERVED or (batch and p.name == "prompts"):
            reserved.append(p.name)
        elif p.name in {"log_extra", "log_metric"} and p.default is not p.empty:
            logs.append(p.name)
        elif p.name in NOT_COLUMNS:
            extras.append(p.name)
        elif p.kind is p.KEYWORD_ONLY:
            options.append(p.name)
        else:
            columns[p.name] = p.default is p.empty
    if clash := sorted(SETTINGS.intersection(options)):
        raise KeywordError(
            f"verifier {name!r}: the option {clash[0]!r} of {_name(fn)} has a name that get_verifier uses itself "
            f"({', '.join(sorted(SETTINGS))}). Rename it."
        )
    target = fn if inspect.isroutine(fn) else getattr(fn, "func", fn)
    is_async = inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004
    groups = (tuple(options), tuple(reserved), tuple(extras), tuple(logs))
    return Form(batch, first, by_name, columns, *groups, open=is_open, is_async=is_async)


def _name(fn: Any) -> str:
    return f"{getattr(fn, '__qualname__', type(fn).__name__)}()"


def arguments(
    form: Form, samples: Samples, columns: Mapping[str, str], options: Mapping[str, Any], *, raw: bool, inline: bool
) -> list[tuple[Any, dict[str, Any], int | None]]:
    """The calls that judge these samples: one for each, or a single one for a batch function.

    ``columns`` maps parameter to column, where they differ; an option that names a column parameter takes its place.
    ``raw`` passes the completions unchanged (chats as chats), as TRL does. ``inline`` calls stay in this
    process, where TRL's logging functions are.
    """
    filled: dict[str, Any] = {}
    for parameter, required in form.columns.items():
        if parameter in options:
            continue
        column = columns.get(parameter, parameter)
        if required or column in samples.columns:
            filled[parameter] = samples.column(column, parameter)
    if form.open:
        for parameter, column in columns.items():
            filled.setdefault(parameter, samples.column(column, parameter))
        taken = {*filled, *options, *form.reserved, form.first, "prompts", "completions", *RESERVED}
        filled.update({name: values for name, values in samples.columns.items() if name not in taken})
    extras = {name: samples.extras.get(name) for name in (*form.extras, *(form.logs if inline else ()))}
    rows = range(len(samples))
    completions = [each if raw else completion_text(each) for each in samples.completions]
    if not form.batch:
        calls: list[tuple[Any, dict[str, Any], int | None]] = []
        for row in rows:
            own = {name: values[row] for name, values in filled.items()}
            own.update({name: samples.reserved(name, row) for name in form.reserved})
            calls.append((completions[row], {**own, **extras, **options}, None))
        return calls
    batch = {name: list(values) for name, values in filled.items()}
    requested = {*form.reserved, *(("prompts", "completion_ids") if raw and form.open else ())}
    for name in requested:
        batch[name] = [samples.reserved("prompt" if name == "prompts" else name, row) for row in rows]
    if form.by_name:
        batch["completions"] = completions
    return [(completions, {**batch, **extras, **options}, len(samples))] if len(samples) else []
