"""Options of functions: a signature declares the allowed values, and one check reads every signature.

``k: Annotated[int, Range(1)] = 4`` says everything; type checkers see an integer. Words are a ``Literal``, a tag's name
is a ``TagName``, and any other object with a method ``problem(value)`` can be added to the type in the same way.
"""

import contextlib
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from grpo_verifiers.errors.messages import counted, did_you_mean, short, unknown

_EXPONENT = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d+\Z")


@runtime_checkable
class Constraint(Protocol):
    """A condition on the value of an option, in the ``Annotated`` of its type."""

    def problem(self, value: Any) -> str | None:
        """The value expected instead, in words; None when this one is fine."""


@dataclass(frozen=True)
class Range:
    """The values of a number.

    >>> Range(0, 1, open_low=True).words()
    'more than 0 and at most 1'
    >>> Range(1).problem(0)
    'at least 1'

    An open end is excluded. ``finite`` excludes infinity where no end does. Numbers from ``integer_from`` on must be
    integers. ``text`` replaces the description of the range in messages.
    """

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    finite: bool = False
    integer_from: float | None = None
    text: str = ""

    def holds(self, value: Any) -> bool:
        """True for a number in the range; an integer beyond the largest float never is."""
        inside = self.low <= value <= self.high
        at_open_end = (self.open_low and value == self.low) or (self.open_high and value == self.high)
        broken = self.integer_from is not None and value >= self.integer_from and value % 1 != 0
        too_large = _is_infinite(value) and (self.finite or value not in (math.inf, -math.inf))
        return inside and not at_open_end and not broken and not too_large

    def problem(self, value: Any) -> str | None:
        """The range in words for a number outside of it; None for any other value."""
        if isinstance(value, bool) or not isinstance(value, Real) or self.holds(value):
            return None
        return self.words()

    def words(self) -> str:
        """The range, for a message after "expected"."""
        if self.text:
            return self.text
        ends = self._ends()
        return " and ".join([*ends, *(["finite" if ends else "a finite number"] if self.finite else [])])

    def phrase(self, kind: str) -> str:
        """The type and the range: "an integer from 1 to 64"."""
        if self.text:
            return self.text
        kind = f"a finite {kind.partition(' ')[2]}" if self.finite and kind == "a number" else kind
        if kind == "an integer" and self.low > -math.inf and self.high < math.inf:
            return f"{kind} from {_plain(self.low)} to {_plain(self.high)}"
        return f"{kind} of {' and '.join(self._ends())}" if self._ends() else kind

    def _ends(self) -> list[str]:
        low, high = "more than" if self.open_low else "at least", "less than" if self.open_high else "at most"
        return [f"{word} {_plain(end)}" for word, end in ((low, self.low), (high, self.high)) if math.isfinite(end)]


@dataclass(frozen=True)
class Matches:
    """Text that fully matches a regular expression; ``text`` describes it in messages."""

    pattern: str
    text: str

    def problem(self, value: Any) -> str | None:
        """The words, for a text that does not match."""
        return self.text if isinstance(value, str) and re.fullmatch(self.pattern, value) is None else None


@dataclass(frozen=True)
class IsPattern:
    """Text that is a regular expression with ``groups`` groups; None: any number."""

    groups: int | None = None

    def problem(self, value: Any) -> str | None:
        """The reason why a text is no regular expression, or has another number of groups."""
        if not isinstance(value, str):
            return None
        try:
            groups = re.compile(value).groups
        except (re.error, OverflowError, RecursionError) as error:
            return f"a pattern (no regular expression: {error})"
        if self.groups is None or groups == self.groups:
            return None
        return f"a pattern with {counted(self.groups, 'group')}, not {groups}"


@dataclass(frozen=True)
class FolderPath:
    """The path of a folder that exists. Tools get it absolute, so the folder they run in does not matter."""

    def problem(self, value: Any) -> str | None:
        """The words, for a path where no folder is."""
        return "a folder that exists" if isinstance(value, str) and not Path(value).expanduser().is_dir() else None


TagName = Annotated[
    str,
    Matches(
        r"[A-Za-z][A-Za-z0-9_.-]{0,63}",
        "a tag's name: letters, digits, '_', '-' and '.', starting with a letter, without angle brackets (such as "
        "'think')",
    ),
]
"""The name of a tag, without its angle brackets."""


def option_problems(
    subject: str,
    fn: Callable[..., Any],
    values: Mapping[str, Any],
    *,
    skip: Collection[str] = (),
    where: str = "keyword",
    bare: bool = False,
    more: Mapping[str, inspect.Parameter] = types.MappingProxyType({}),
) -> list[str]:
    """Problems of calling ``fn`` with the options ``values``.

    Unknown names (with the nearest match), missing ones, and values that the annotations do not admit: ``int`` passes
    for ``float``, ``bool`` for no number, NaN for nothing. The caller fills the parameters in ``skip`` itself.

    >>> def top(*, k: Annotated[int, Range(1)] = 4): ...
    >>> option_problems("top", top, {"k": 0, "n": 2}, bare=True)
    ['top: k is 0, expected an integer of at least 1.', "top: unknown keyword 'n'. There is: k."]

    In messages, ``subject`` names the function ("advantage estimator 'sign'") and ``where`` is the word for one option
    ("key"); ``bare`` leaves that word out of those about ranges. ``more`` has further parameters.
    """
    allowed = {**keywords_of(fn, skip), **more}
    hints = hints_of(fn) | {name: p.annotation for name, p in more.items()}
    is_open = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(fn).parameters.values())
    problems = []
    for name, value in values.items():
        if name in allowed:
            hint = hints.get(name, Any)
            shown = name if bare and fits(value, hint, ranges=False) else f"{where} {name!r}"
            problems += [f"{subject}: {problem}" for problem in value_problems(shown, value, hint)]
        elif not is_open or name in skip:
            problems.append(f"{subject}: {unknown(where, name, allowed)}")
    missing = [name for name, p in allowed.items() if p.default is p.empty and name not in values]
    return problems + [f"{subject}: {where} {name!r} is required and missing." for name in missing]


def value_problems(name: str, value: Any, hint: Any) -> Iterator[str]:
    """The problem with one value; of a list, those of its items."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (list, Sequence) and args and isinstance(value, origin) and not isinstance(value, str | bytes):
        for at, item in enumerate(value):
            yield from value_problems(f"{name}[{at}]", item, args[0])
    elif (expected := _expected(value, hint)) is not None:
        literals = (kind for kind, _ in _members(hint) if typing.get_origin(kind) is typing.Literal)
        words = [word for kind in literals for word in typing.get_args(kind) if isinstance(word, str)]
        near = did_you_mean(value, words) if isinstance(value, str) else ""
        yield f"{name} is {short(value, 200)}, expected {expected}.{near}"


def _expected(value: Any, hint: Any) -> str | None:
    """The values that an annotation admits, in words; None where it admits this one."""
    if fits(value, hint):
        return None
    for kind, marks in _members(hint):
        if fits(value, kind):  # of the right type, so it breaks a constraint
            words = (mark.problem(value) for mark in marks if not isinstance(mark, Range))
            return next(filter(None, words), spell(hint))
    number = not isinstance(value, bool) and isinstance(value, Real) and value == value  # noqa: PLR0124 - NaN is none
    return " or ".join(_spell(kind, marks, finite=number) for kind, marks in _members(hint))


def _members(hint: Any) -> Iterator[tuple[Any, list[Constraint]]]:
    """The alternatives of an annotation, each with its constraints."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        marks = [mark for mark in args[1:] if isinstance(mark, Constraint)]
        yield from ((kind, [*marks, *more]) for kind, more in _members(args[0]))
    elif origin in (typing.Union, types.UnionType):
        for arg in args:
            yield from _members(arg)
    else:
        yield hint, []


def keywords_of(fn: Callable[..., Any], skip: Collection[str] = ()) -> dict[str, inspect.Parameter]:
    """The parameters of ``fn`` that can be set by keyword, without those in ``skip``."""
    return {
        name: parameter
        for name, parameter in inspect.signature(fn).parameters.items()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD) and name not in skip
    }


def takes_first(fn: Any, raises: type[TypeError], *, of: str, takes: str, named: str) -> None:
    """Raise unless ``fn``, called ``of`` in messages, is a function with a first parameter ``named``, a ``takes``."""
    parameters: list[inspect.Parameter] = []
    if callable(fn) and not isinstance(fn, type):
        with contextlib.suppress(TypeError, ValueError):
            parameters = list(inspect.signature(fn).parameters.values())
    ways = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in ways:
        form = f"expected a function ({named}, *, keywords) -> Tensor, whose first parameter is the {takes}"
        raise raises(f"{of} is {short(fn)}, {form}.")


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The evaluated annotations of a function, class or callable object, ``Annotated`` included.

    One that cannot be evaluated (a type imported for type checkers only) is left out: its values go unchecked.
    """
    target: Any = fn.__init__ if inspect.isclass(fn) else fn
    if not hasattr(target, "__annotations__"):
        target = getattr(fn, "__call__", fn)  # noqa: B004 - the method itself is needed
    names = getattr(inspect.unwrap(target), "__globals__", {})
    hints: dict[str, Any] = {}
    for name, annotation in getattr(target, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        with contextlib.suppress(Exception):  # evaluating an annotation may raise anything
            hints |= typing.get_type_hints(alone, names, include_extras=True)
    return hints


def fits(value: Any, hint: Any, *, ranges: bool = True) -> bool:
    """True where a value from a config fits an annotation; without ``ranges`` where it has its type.

    >>> fits(True, int), fits(1, float), fits(0, Annotated[int, Range(1)])
    (False, True, False)
    """
    if hint is Any or isinstance(hint, typing.TypeVar):
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        marks = [mark for mark in args[1:] if ranges and isinstance(mark, Constraint)]
        return fits(value, args[0], ranges=ranges) and not any(mark.problem(value) for mark in marks)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arg, ranges=ranges) for arg in args)
    if origin is typing.Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return not math.isnan(value) if isinstance(value, float) else not _is_infinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is None:
        return isinstance(value, hint) if isinstance(hint, type) else True
    if not isinstance(origin, type):
        return True
    if not isinstance(value, origin) or isinstance(value, str | bytes):
        return False
    items: Any = value
    pairs: list[tuple[Any, Any]] = []
    if issubclass(origin, Mapping) and len(args) == 2:
        pairs = [pair for key, item in items.items() for pair in ((key, args[0]), (item, args[1]))]
    elif issubclass(origin, tuple) and not (len(args) == 2 and args[1] is Ellipsis):
        if len(items) != len(args):
            return False
        pairs = list(zip(items, args, strict=True))
    elif issubclass(origin, tuple) or (issubclass(origin, Collection) and len(args) == 1):
        pairs = [(item, args[0]) for item in items]
    return all(fits(item, arg, ranges=ranges) for item, arg in pairs)


def spell(hint: Any) -> str:
    """An annotation in words for a message.

    >>> spell(Annotated[int, Range(1, 64)] | None)
    'an integer from 1 to 64 or nothing'
    """
    return " or ".join(_spell(kind, marks) for kind, marks in _members(hint))


def _spell(kind: Any, marks: Collection[Constraint], *, finite: bool = True) -> str:
    """One alternative in words; ``finite`` is False for a value that is no number."""
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in typing.get_args(kind))
    if typing.get_origin(kind) in (list, Sequence) and typing.get_origin(typing.get_args(kind)[0]) is Annotated:
        return f"a list, each item {spell(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is Callable:
        return "a function"
    names = {float: "a number", int: "an integer", bool: "true or false", str: "a string", type(None): "nothing"}
    name = names.get(kind, str(kind).replace("typing.", "").replace("collections.abc.", ""))
    for mark in marks:
        if isinstance(mark, Range) and kind in (int, float):
            return (mark if finite else replace(mark, finite=False)).phrase(name)
        if kind is str and isinstance(mark, Matches):
            return mark.text
    return name


def numbers(value: Any) -> Any:
    """The value with strings such as ``3e-4``, which YAML 1.1 takes for text, turned into floats.

    >>> numbers({"beta": "3e-4", "name": "1e"})
    {'beta': 0.0003, 'name': '1e'}
    """
    if isinstance(value, str) and _EXPONENT.match(value):
        return float(value)
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [numbers(item) for item in value]
    return value


def _is_infinite(value: Any) -> bool:
    try:
        return math.isinf(value)
    except OverflowError:  # an integer beyond the largest float
        return True


def _plain(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:g}"
