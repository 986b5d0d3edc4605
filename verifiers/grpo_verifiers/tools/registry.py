"""Tools and environments by name: ``@tool`` and ``@environment`` register, ``get_tool`` and ``get_environment`` find.

A tool is a function that the model calls, or a class: made anew for each completion, and then called. An environment is
a class with a method ``reset``, whose other public methods the model calls. Keyword-only parameters of a function, and
the parameters of a class, are options for the config; all others are the model's to fill.
"""

import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from grpo_verifiers.errors import KeywordError
from grpo_verifiers.errors.messages import label_problem, short
from grpo_verifiers.exec.spec import reference_to
from grpo_verifiers.lazy import installed
from grpo_verifiers.options import FolderPath, hints_of, keywords_of, option_problems, spell
from grpo_verifiers.redaction import redact
from grpo_verifiers.registry import Registry, import_reference, is_reference, source_of
from grpo_verifiers.tools.methods import (
    NOT_TOOLS,
    blank,
    environment_members,
    reset_columns,
    reset_problems,
    reset_takes,
)
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.schema import schema_of, signature_problems

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_TIMEOUT = 10.0
_CALLABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


@dataclass(frozen=True)
class Definition:
    """A tool or an environment before it is configured: a config may set another ``timeout``, in seconds a call."""

    name: str
    fn: Callable[..., Any]
    timeout: float = DEFAULT_TIMEOUT


def _plain(name: str) -> str:
    return name.rpartition(":")[2].rpartition(".")[2] if is_reference(name) else name


def _adopt_tool(name: str, value: Any) -> Definition:
    if isinstance(value, Definition):
        return value
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        raise KeywordError(
            f"tool {name!r} is {short(value)} ({type(value).__name__}), expected a function, or a class whose "
            "instances are called."
        )
    return Definition(_plain(name), value)


def _adopt_environment(name: str, value: Any) -> Definition:
    if isinstance(value, Definition):
        return value
    if not inspect.isclass(value):
        raise KeywordError(
            f"environment {name!r} is {short(value)} ({type(value).__name__}), expected a class with a method reset."
        )
    return Definition(_plain(name), value)


TOOL_BUILTINS = {
    "calculator": "grpo_verifiers.tools.calculator:calculator",
    "python": "grpo_verifiers.tools.python:python",
    "search_documents": "grpo_verifiers.tools.search:search_documents",
}
"""The tools of this package; imported on first use."""

TOOLS: Registry[Definition] = Registry("tool", builtins=TOOL_BUILTINS, group="grpo_plus.tools", adopt=_adopt_tool)
ENVIRONMENTS: Registry[Definition] = Registry("environment", group="grpo_plus.environments", adopt=_adopt_environment)


def tool(name: str, *, timeout: float = DEFAULT_TIMEOUT) -> Callable[[F], F]:
    """Register a function or class as a tool; it stays what it is.

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
    return _decorator("tool", TOOLS, _adopt_tool, name, timeout)


def environment(name: str, *, timeout: float = DEFAULT_TIMEOUT) -> Callable[[F], F]:
    """Register a class as an environment; it stays what it is.

    >>> @environment("doc_echo")
    ... class Echo:
    ...     def reset(self, **columns):
    ...         return "Say something."
    >>> ENVIRONMENTS.get("doc_echo").fn is Echo
    True
    >>> ENVIRONMENTS.unregister("doc_echo")

    Args:
        name: its name in configs.
        timeout: seconds that one call of a method may take.
    """
    return _decorator("environment", ENVIRONMENTS, _adopt_environment, name, timeout)


def _decorator(
    kind: str, registry: Registry[Definition], adopt: Callable[[str, Any], Definition], name: Any, timeout: Any
) -> Callable[[F], F]:
    if not isinstance(name, str):
        raise TypeError(f'@{kind} needs a name: write @{kind}("my_{kind}") above it.')
    if problem := _timeout_problem(timeout):
        raise KeywordError(f"{kind} {name!r}: {problem}")

    def register(fn: F) -> F:
        adopt(name, fn)
        registry.register(name, Definition(name, fn, float(timeout)), source=source_of(fn))
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
    redact(kwargs)
    found = _find(TOOLS, name, base)
    what = f"tool {label or found.name!r}"
    problems = _setting_problems(what, label, timeout)
    if isinstance(label, str) and not _CALLABLE.match(label):
        problems.append(
            f"{what}: label is {short(label)}, expected letters, digits, '_' and '-', at most 64, starting with a "
            "letter: the model calls the tool by it."
        )
    fn = found.fn
    kwargs = _absolute(fn, kwargs, base)
    problems += [f"{what}: {problem}" for problem in _lacking(fn)]
    if inspect.isclass(fn):
        called = getattr(fn, "__call__", None)  # noqa: B004 - the method is wanted, not whether there is one
        if not inspect.isfunction(called):
            raise KeywordError(
                f"{what}: the class {fn.__qualname__} has no method __call__, which would answer the model."
            )
        problems += _class_option_problems(what, fn, kwargs)
        target: Callable[..., Any] = called.__get__(blank(fn))
        hidden: Collection[str] = ()
        own = label or found.name
    else:
        target, own = fn, label or fn.__name__
        hidden = _set_by_config(fn, kwargs)
        problems += option_problems(what, fn, kwargs, skip=_of_the_model(fn, kwargs))
    method, more = _method(what, own, target, hidden)
    problems += more
    reference, more = _reference(what, fn)
    problems += more
    if problems:
        raise KeywordError("\n".join(dict.fromkeys(problems)))
    assert method is not None
    kind = "class" if inspect.isclass(fn) else "function"
    return ToolPart(label or own, reference, dict(kwargs), (method,), kind, _seconds(timeout, found))


def get_environment(
    name: str | Callable[..., Any],
    *,
    base: Path | str | None = None,
    label: str | None = None,
    timeout: float | None = None,
    **kwargs: Any,
) -> ToolPart:
    """Find an environment, configure it and describe it as the model sees it. Its schema needs transformers.

    >>> get_environment("chess")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    grpo_verifiers.errors.UnknownNameError: unknown environment 'chess'. There is: nothing. ...

    Args:
        name: a registered name, a reference (``package.module:attr``, ``./file.py:attr``), or a class.
        base: folder that a relative ``./file.py`` starts from.
        label: its name in messages, metrics and the reward's column; the name of its class unless given.
        timeout: seconds that one call of a method may take.
        **kwargs: parameters of its class.

    Raises:
        UnknownNameError: nothing has that name.
        KeywordError: it is no environment, or its options are wrong; all problems in one message.
    """
    redact(kwargs)
    found = _find(ENVIRONMENTS, name, base)
    cls: Any = found.fn
    what = f"environment {label or found.name!r}"
    kwargs = _absolute(cls, kwargs, base)
    problems = _setting_problems(what, label, timeout)
    problems += _class_option_problems(what, cls, kwargs)
    problems += [f"{what}: {problem}" for problem in reset_problems(cls)]
    methods = []
    empty = blank(cls)
    for member in environment_members(cls):
        method, more = _method(f"{what}: the method {member!r}", member, getattr(empty, member), ())
        problems += more
        methods += [method] if method else []
    own = {each: getattr(cls, each) for each in NOT_TOOLS if each != "reset" and getattr(cls, each, None) is not None}
    problems += [
        f"{what}: {name} is {short(value)} ({type(value).__name__}), expected a method: it would never be asked."
        for name, value in own.items()
        if not callable(value)
    ]
    for special in (each for each, value in own.items() if callable(value)):
        needs = [
            parameter.name
            for parameter in list(inspect.signature(getattr(cls, special)).parameters.values())[1:]
            if parameter.default is parameter.empty
            and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        ]
        if needs:
            problems.append(f"{what}: {special} takes {', '.join(needs)}, but is called with nothing.")
    reference, more = _reference(what, cls)
    problems += more
    if problems:
        raise KeywordError("\n".join(dict.fromkeys(problems)))
    return ToolPart(
        label or cls.__name__,
        reference,
        dict(kwargs),
        tuple(methods),
        "environment",
        _seconds(timeout, found),
        reset_columns(cls),
        reset_takes(cls),
        rewards=callable(getattr(cls, "get_reward", None)),
        turn_rewards=callable(getattr(cls, "get_turn_reward", None)),
        states=callable(getattr(cls, "state_key", None)),
    )


def duplicate_names(tools: Sequence[ToolPart], environments: Sequence[ToolPart] = ()) -> list[str]:
    """Names that one run has twice: for the model among the tools and beside each environment, and in metrics.

    Environments may share names of methods: a row has one environment.
    """
    problems = []
    owners: dict[str, str] = {}
    for part in tools:
        for method in part.methods:
            if method.name in owners:
                problems.append(
                    f"two tools are called {method.name!r} ({owners[method.name]} and {part.reference}): the model "
                    "could not tell them apart. Leave one out, or give it a label of its own."
                )
            owners.setdefault(method.name, part.reference)
    for part in environments:
        problems += [
            f"environment {part.label!r}: its method {method.name!r} has the name of a tool ({owners[method.name]}): "
            "the model could not tell them apart. Give the tool a label, or rename the method."
            for method in part.methods
            if method.name in owners
        ]
    labels: dict[str, ToolPart] = {}
    for part in (*tools, *environments):
        before = labels.setdefault(part.label, part)
        if before is not part and (before.kind == "environment" or part.kind == "environment"):
            problems.append(
                f"{before.reference} and {part.reference} are both called {part.label!r} in metrics: give one of them "
                "a label of its own."
            )
    return problems


def _find(registry: Registry[Definition], name: Any, base: Path | str | None) -> Definition:
    return registry.meant(name, base=Path(base) if base is not None else None)


def _method(what: str, name: str, fn: Callable[..., Any], hidden: Collection[str]) -> tuple[Method | None, list[str]]:
    problems = [f"{what}: {problem}" for problem in signature_problems(fn, hidden)]
    if problems:
        return None, problems
    try:
        return Method(name, schema_of(fn, name, hidden)), []
    except KeywordError as error:
        return None, [f"{what}: {error}"]


def _set_by_config(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> set[str]:
    """Parameters that the model does not fill: keyword-only ones, and those that the config sets."""
    parameters = inspect.signature(fn).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY or each.name in kwargs}


def _of_the_model(fn: Callable[..., Any], kwargs: Mapping[str, Any]) -> set[str]:
    return set(inspect.signature(fn).parameters) - _set_by_config(fn, kwargs)


def _class_option_problems(what: str, cls: Any, kwargs: Mapping[str, Any]) -> list[str]:
    if cls.__init__ is object.__init__:
        return option_problems(what, _nothing, kwargs)
    return option_problems(what, cls, kwargs)


def _absolute(fn: Any, kwargs: Mapping[str, Any], base: Path | str | None) -> dict[str, Any]:
    """The options with absolute paths of folders: a tool runs in a folder of its own."""
    hints = hints_of(fn)
    folders = [
        name
        for name, value in kwargs.items()
        if isinstance(value, str) and any(isinstance(mark, FolderPath) for mark in get_args(hints.get(name))[1:])
    ]
    return {
        **kwargs,
        **{name: str((Path(base or ".") / Path(kwargs[name]).expanduser()).resolve()) for name in folders},
    }


def _lacking(fn: Any) -> list[str]:
    """Packages that a built-in tool needs and that are not installed."""
    needs: Mapping[str, str] = getattr(fn, "needs", {})
    return [
        f"it needs the package {package}: pip install 'grpo-plus[{extra}]'."
        for package, extra in needs.items()
        if not installed(package)
    ]


@dataclass(frozen=True)
class Shown:
    """A tool or an environment for people.

    Attributes:
        kind: ``tool`` or ``environment``.
        keywords: its options, each with the values that it takes, and its default where it has one.
        methods: what the model may call; options of the config left out.
        problems: why it has no methods to show.
    """

    kind: str
    name: str
    source: str
    timeout: float
    keywords: Mapping[str, str]
    methods: tuple[Method, ...]
    problems: tuple[str, ...]


def show_part(name: str, base: Path | str | None = None) -> Shown:
    """A tool or an environment by name or reference, whether its options are complete or not.

    >>> show_part("calculator").keywords
    {'digits': 'an integer from 1 to 100 (12)'}
    """
    is_environment = name in ENVIRONMENTS
    if is_reference(name):
        value = import_reference(name, Path(base) if base is not None else None)
        is_environment = inspect.isclass(value) and hasattr(value, "reset")
    found = _find(ENVIRONMENTS if is_environment else TOOLS, name, base)
    fn: Any = found.fn
    pairs: list[tuple[Method | None, list[str]]] = []
    if is_environment:
        empty = blank(fn)
        pairs = [
            _method(f"the method {member!r}", member, getattr(empty, member), ()) for member in environment_members(fn)
        ]
        pairs.append((None, reset_problems(fn)))
    elif inspect.isclass(fn):
        called = getattr(fn, "__call__", None)  # noqa: B004 - the method is wanted, not whether there is one
        none = (None, ["it has no method __call__, which would answer the model."])
        pairs = [_method("__call__", found.name, called.__get__(blank(fn)), ()) if inspect.isfunction(called) else none]
    else:
        pairs = [_method(found.name, fn.__name__, fn, _set_by_config(fn, {}))]
    asked = (_nothing if fn.__init__ is object.__init__ else fn) if inspect.isclass(fn) else fn
    mine = set() if inspect.isclass(fn) else _of_the_model(fn, {})
    hints = hints_of(asked)
    keywords = {
        key: spell(hints.get(key, Any)).removeprefix("typing.")
        + (" (required)" if each.default is each.empty else f" ({short(each.default)})")
        for key, each in keywords_of(asked, mine).items()
    }
    methods = tuple(method for method, _ in pairs if method is not None)
    problems = tuple(problem for _, more in pairs for problem in more)
    kind = "environment" if is_environment else "tool"
    return Shown(kind, found.name, source_of(fn), found.timeout, keywords, methods, problems)


def _nothing() -> None:
    """The parameters of a class without an ``__init__``."""


def _reference(what: str, fn: Any) -> tuple[str, list[str]]:
    reference = reference_to(fn)
    if reference is None and _of_main(fn):
        reference = f"{Path(str(sys.modules['__main__'].__file__)).resolve()}:{fn.__qualname__}"
    if reference is not None:
        return reference, []
    own = getattr(fn, "__qualname__", fn)
    problem = (
        f"{own!r} cannot be imported by the process that it runs in (it is local to a function, or of a notebook): put "
        "it at the top level of a file, and refer to it as ./file.py:name."
    )
    return "", [f"{what}: {problem}"]


def _of_main(fn: Any) -> bool:
    main = sys.modules.get("__main__")
    name = getattr(fn, "__qualname__", "")
    return (
        getattr(fn, "__module__", None) == "__main__"
        and str(getattr(main, "__file__", "")).endswith(".py")
        and getattr(main, name, None) is fn
    )


def _setting_problems(what: str, label: Any, timeout: Any) -> list[str]:
    problems = [] if label is None else [label_problem(label)]
    problems += [] if timeout is None else [_timeout_problem(timeout)]
    return [f"{what}: {problem}" for problem in problems if problem]


def _timeout_problem(timeout: Any) -> str | None:
    number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if number and 0 < timeout < math.inf:
        return None
    return f"timeout is {short(timeout)}, expected a finite number of seconds, more than 0."


def _seconds(timeout: float | None, found: Definition) -> float:
    return float(found.timeout if timeout is None else timeout)
