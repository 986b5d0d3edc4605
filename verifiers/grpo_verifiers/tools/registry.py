"""Tools and environments by name: ``@tool`` and ``@environment`` register, ``get_tool`` and ``get_environment`` find.

A tool is a function that the model calls, or a class, instantiated for each completion. An environment is a class with
``reset`` and public methods for the model. Keyword-only parameters of a function, and the parameters of a class, are
options for the config; the model fills all other parameters.
"""

import inspect
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from grpo_verifiers.errors import KeywordError
from grpo_verifiers.errors.messages import label_problem, short
from grpo_verifiers.exec.spec import reference_to
from grpo_verifiers.lazy import installed
from grpo_verifiers.options import FolderPath, Range, hints_of, keywords_of, option_problems, value_problems
from grpo_verifiers.redaction import redact
from grpo_verifiers.registry import Registry, absolute, import_reference, is_reference, source_of
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.schema import (
    NOT_TOOLS,
    blank,
    environment_members,
    reset_columns,
    reset_problems,
    schema_of,
    signature_problems,
)

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TIMEOUT = 10.0
_Timeout = Annotated[float, Range(0, open_low=True, finite=True, text="a finite number of seconds, more than 0")]
_CALLABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


@dataclass(frozen=True)
class Definition:
    """A tool or an environment before it is configured: a config may set another ``timeout``, in seconds a call."""

    name: str
    fn: Callable[..., Any]
    timeout: float = DEFAULT_TIMEOUT


_EXPECTED = {"tool": "a function, or a class whose instances are called", "environment": "a class with a method reset"}


def _adopt(kind: str, name: str, value: Any) -> Definition:
    if isinstance(value, Definition):
        return value
    if not (inspect.isclass(value) or (kind == "tool" and inspect.isfunction(value))):
        raise KeywordError(f"{kind} {name!r} is {short(value)} ({type(value).__name__}), expected {_EXPECTED[kind]}.")
    return Definition(name.rpartition(":")[2].rpartition(".")[2] if is_reference(name) else name, value)


TOOL_BUILTINS = {
    "calculator": "grpo_verifiers.tools.calculator:calculator",
    "python": "grpo_verifiers.tools.python:python",
    "search_documents": "grpo_verifiers.tools.search:search_documents",
}
"""The tools of this package; imported on first use."""

TOOLS: Registry[Definition] = Registry(
    "tool", builtins=TOOL_BUILTINS, group="grpo_plus.tools", adopt=partial(_adopt, "tool")
)
ENVIRONMENTS: Registry[Definition] = Registry(
    "environment", group="grpo_plus.environments", adopt=partial(_adopt, "environment")
)
_REGISTRIES = {"tool": TOOLS, "environment": ENVIRONMENTS}


def tool(name: str, *, timeout: float = DEFAULT_TIMEOUT) -> Callable[[F], F]:
    """Register a function or class as a tool and return it unchanged.

    >>> @tool("doc_add")
    ... def add(a: int, b: int) -> str:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         a: the first
    ...         b: the second
    ...     '''
    ...     return str(a + b)
    >>> add(1, 2), TOOLS.get("doc_add").name
    ('3', 'doc_add')
    >>> TOOLS.unregister("doc_add")

    Args:
        name: its name in configs.
        timeout: seconds that one call may take.
    """
    return _decorator("tool", name, timeout)


def environment(name: str, *, timeout: float = DEFAULT_TIMEOUT) -> Callable[[F], F]:
    """Register a class as an environment and return it unchanged.

    It takes the same options as `tool`.

    >>> @environment("doc_echo")
    ... class Echo:
    ...     def reset(self, **columns):
    ...         return "Say something."
    >>> ENVIRONMENTS.get("doc_echo").fn is Echo
    True
    >>> ENVIRONMENTS.unregister("doc_echo")
    """
    return _decorator("environment", name, timeout)


def _decorator(kind: str, name: Any, timeout: Any) -> Callable[[F], F]:
    if not isinstance(name, str):
        raise TypeError(f'@{kind} needs a name: write @{kind}("my_{kind}") above it.')
    for problem in value_problems("timeout", timeout, _Timeout):
        raise KeywordError(f"{kind} {name!r}: {problem}")

    def register(fn: F) -> F:
        _adopt(kind, name, fn)
        _REGISTRIES[kind].register(name, Definition(name, fn, float(timeout)), source=source_of(fn))
        return fn

    return register


def get_tool(
    name: str | Callable[..., Any],
    *,
    base: Path | str | None = None,
    label: str | None = None,
    timeout: float | None = None,
    **kwargs: Any,
) -> ToolPart:
    """Find a tool, configure it and describe it as the model sees it. Its schema needs transformers.

    >>> get_tool("calculator").methods[0].schema["function"]["parameters"]["required"]
    ['expression']

    Args:
        name: a registered name, a reference (``package.module:attr``, ``./file.py:attr``), a function or class.
        base: folder that a relative ``./file.py`` starts from.
        label: its name for messages, metrics and the model, where its own will not do: two of a kind need two.
        timeout: seconds that one call may take.
        **kwargs: its options. One that names a parameter of the model's sets it, and takes it out of the schema.

    Raises:
        UnknownNameError: nothing has that name.
        KeywordError: it is no tool, or its options are wrong; all problems in one message.
    """
    return _part("tool", name, base, label, timeout, kwargs)


def get_environment(
    name: str | Callable[..., Any],
    *,
    base: Path | str | None = None,
    label: str | None = None,
    timeout: float | None = None,
    **kwargs: Any,
) -> ToolPart:
    """Find an environment, configure it and describe it as the model sees it. Its schema needs transformers.

    Arguments and errors are those of `get_tool`; options are the parameters of the class. Its ``label``, by default the
    name of its class, is in messages, metrics and the reward's column.

    >>> get_environment("chess")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    grpo_verifiers.errors.UnknownNameError: unknown environment 'chess'. There is: nothing. ...
    """
    return _part("environment", name, base, label, timeout, kwargs)


def _part(  # noqa: PLR0917 - the arguments of both callers
    kind: str, name: Any, base: Path | str | None, label: str | None, timeout: float | None, kwargs: dict[str, Any]
) -> ToolPart:
    redact(kwargs)
    definition = _REGISTRIES[kind].resolve(name, base)
    fn: Any = definition.fn
    subject = f"{kind} {label or definition.name!r}"
    own = label or _own_name(kind, definition)
    kwargs = _absolute(fn, kwargs, base)
    methods, wrong = _methods(kind, fn, own, kwargs)
    reference = _reference(fn)
    problems = [] if label is None else [label_problem(label)]
    problems += [] if timeout is None else value_problems("timeout", timeout, _Timeout)
    if kind == "tool" and isinstance(label, str) and not _CALLABLE.match(label):
        problems.append(
            f"label is {short(label)}, expected letters, digits, '_' and '-', at most 64, starting with a letter: the "
            "model calls the tool by it."
        )
    problems += [*_missing_packages(fn), *wrong, *(_trainer_problems(fn) if kind == "environment" else ())]
    if reference is None:
        problems.append(
            f"{getattr(fn, '__qualname__', fn)!r} cannot be imported by the process that it runs in (it is local to a "
            "function, or of a notebook): put it at the top level of a file, and refer to it as ./file.py:name."
        )
    lines = [f"{subject}: {problem}" for problem in problems if problem]
    lines += option_problems(subject, _configurable(fn), kwargs, skip=_of_the_model(fn, kwargs))
    if lines or reference is None:
        raise KeywordError("\n".join(dict.fromkeys(lines)))
    seconds = float(definition.timeout if timeout is None else timeout)
    if kind == "tool":
        shape = "class" if inspect.isclass(fn) else "function"
        return ToolPart(own, reference, dict(kwargs), tuple(methods), shape, seconds)
    rewards, turns, states = (callable(getattr(fn, each, None)) for each in NOT_TOOLS if each != "reset")
    columns = reset_columns(fn)
    return ToolPart(own, reference, dict(kwargs), tuple(methods), kind, seconds, *columns, rewards, turns, states)


def _own_name(kind: str, definition: Definition) -> str:
    return definition.name if kind == "tool" and inspect.isclass(definition.fn) else definition.fn.__name__


def _methods(kind: str, fn: Any, own: str, kwargs: Mapping[str, Any]) -> tuple[list[Method], list[str]]:
    called = getattr(fn, "__call__", None)  # noqa: B004 - the method itself is needed
    targets = [("", own, fn)]
    problems = []
    if kind == "environment":
        empty, problems = blank(fn), reset_problems(fn)
        targets = [(f"the method {each!r}: ", each, getattr(empty, each)) for each in environment_members(fn)]
    elif inspect.isclass(fn):
        if not inspect.isfunction(called):
            return [], [f"the class {fn.__qualname__} has no method __call__, which would answer the model."]
        targets = [("", own, called.__get__(blank(fn)))]
    hidden: Collection[str] = () if inspect.isclass(fn) else _set_by_config(fn, kwargs)
    methods = []
    for where, name, target in targets:
        more = signature_problems(target, hidden)
        try:
            methods += [] if more else [Method(name, schema_of(target, name, hidden))]
        except KeywordError as error:
            more = [str(error)]
        problems += [f"{where}{each}" for each in more]
    return methods, problems


def _trainer_problems(cls: Any) -> list[str]:
    problems = []
    for name in NOT_TOOLS[1:]:
        value = getattr(cls, name, None)
        if value is not None and not callable(value):
            kind = type(value).__name__
            problems.append(f"{name} is {short(value)} ({kind}), expected a method: it would never be called.")
        elif value is not None:
            parameters = list(inspect.signature(value).parameters.values())[1:]
            several = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
            needs = [each.name for each in parameters if each.default is each.empty and each.kind not in several]
            problems += [f"{name} takes {', '.join(needs)}, but is called with nothing."] if needs else []
    return problems


def duplicate_names(tools: Sequence[ToolPart], environments: Sequence[ToolPart] = ()) -> list[str]:
    """Duplicate names of a run: for the model among the tools and each environment, and in metrics.

    Environments may share names of methods: a row has one environment.
    """
    problems = []
    owners: dict[str, str] = {}
    for part in (*tools, *environments):
        problems += [
            f"{part.kind} {part.label!r}: {name!r} is the name of another tool ({owners[name]}): the model could not "
            "choose. Remove one, give a tool a label, or rename the method."
            for name in (method.name for method in part.methods)
            if name in owners
        ]
        if part.kind != "environment":
            owners |= {method.name: part.reference for method in part.methods}
    labels: dict[str, ToolPart] = {}
    for part in (*tools, *environments):
        before = labels.setdefault(part.label, part)
        if before is not part and (before.kind == "environment" or part.kind == "environment"):
            problems.append(
                f"{before.reference} and {part.reference} are both called {part.label!r} in metrics: give one of them "
                "a label of its own."
            )
    return problems


def _set_by_config(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> set[str]:
    """Parameters that the model does not fill: keyword-only ones, and those that the config sets."""
    parameters = inspect.signature(fn).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY or each.name in kwargs}


def _of_the_model(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> set[str]:
    return set() if inspect.isclass(fn) else set(inspect.signature(fn).parameters) - _set_by_config(fn, kwargs)


def _configurable(fn: Any) -> Callable[..., Any]:
    return (lambda: None) if inspect.isclass(fn) and fn.__init__ is object.__init__ else fn


def _absolute(fn: Any, kwargs: Mapping[str, Any], base: Path | str | None) -> dict[str, Any]:
    """The options with absolute paths of folders: a tool runs in a folder of its own."""
    marks = {name: get_args(hint)[1:] for name, hint in hints_of(fn).items()}
    folders = {name for name, own in marks.items() if any(isinstance(mark, FolderPath) for mark in own)}
    return {
        name: str(absolute(value, base)) if name in folders and isinstance(value, str) else value
        for name, value in kwargs.items()
    }


def _missing_packages(fn: Any) -> list[str]:
    needs = [(name, extra) for name, extra in getattr(fn, "needs", {}).items() if not installed(name)]
    return [f"it needs the package {name}: pip install 'grpo-plus[{extra}]'." for name, extra in needs]


class PartDescription(NamedTuple):
    """A tool or an environment for people; ``problems`` are why it has no methods to show."""

    name: str
    keywords: tuple[str, ...]
    methods: tuple[Method, ...]
    problems: tuple[str, ...]


def show_part(name: str, base: Path | str | None = None) -> PartDescription:
    """Describe a tool or an environment by name or reference, even with incomplete options.

    >>> show_part("calculator").keywords
    ('digits',)
    """
    is_environment = name in ENVIRONMENTS
    if is_reference(name):
        value = import_reference(name, base)
        is_environment = inspect.isclass(value) and hasattr(value, "reset")
    kind = "environment" if is_environment else "tool"
    definition = _REGISTRIES[kind].resolve(name, base)
    fn: Any = definition.fn
    methods, problems = _methods(kind, fn, _own_name(kind, definition), {})
    where = "" if is_environment else f"{definition.name}: "
    keywords = tuple(keywords_of(_configurable(fn), _of_the_model(fn, {})))
    problems = [f"{where}{each}" for each in problems]
    return PartDescription(definition.name, keywords, tuple(methods), tuple(problems))


def _reference(fn: Any) -> str | None:
    """The reference of `reference_to`, or one by the path of the defining script."""
    main = sys.modules.get("__main__")
    file, name = str(getattr(main, "__file__", "")), getattr(fn, "__qualname__", "")
    of_main = getattr(fn, "__module__", None) == "__main__" and getattr(main, name, None) is fn
    return reference_to(fn) or (f"{Path(file).resolve()}:{name}" if of_main and file.endswith(".py") else None)
