"""The declarations of a check: the keywords of ``@verifier``."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar, get_args

from grpo_verifiers.errors import VerifierError
from grpo_verifiers.errors.messages import short, unknown
from grpo_verifiers.options import Range, fits, hints_of, value_problems

Home = Literal["process", "inline"]
OnError = Literal["null", "zero", "raise"]
Fn = TypeVar("Fn", bound=Callable[..., Any])

Seconds = Annotated[float, Range(0, 1e9, open_low=True, open_high=True, text="seconds greater than 0")]
_ATTRIBUTE = "__verifier_traits__"


@dataclass(frozen=True)
class Traits:
    """The default settings of a check (place, limits), and its further abilities.

    As a decorator it returns a plain function that checks its options on direct calls, too. ``@verifier`` takes the
    same keywords, documents them, and registers the function under a name.

    >>> from typing import Annotated
    >>> from grpo_verifiers import Verdict, get_verifier
    >>> from grpo_verifiers.options import Range
    >>> @Traits(home="inline", pure=True)
    ... def brief(completion: str, *, most: Annotated[int, Range(1)] = 5) -> Verdict:
    ...     return Verdict(float(len(completion) <= most))
    >>> get_verifier(brief, most=3).verify("four").score
    0.0
    >>> brief("four", most=0)
    Traceback (most recent call last):
    ...
    ValueError: brief: most is 0, expected an integer of at least 1.

    Attributes:
        builtin: comes with this package: its workers are confined.
        raw: wants the completions as TRL has them: chats as lists of messages.
        plugins: modules that workers import first.
        boxes: an async check that runs programs in boxes of its own and waits for them, on the nodes with
            ``isolation="ray"``. Its ``option_problems`` takes ``here``, too: true for boxes on this machine.
        instead: column to the option that takes its place: one of them has to be set.
    """

    timeout: Seconds | None = None
    isolation: str | None = None
    on_error: OnError | None = None
    max_concurrency: Annotated[int, Range(1)] = 32
    memory: Annotated[float, Range(0, 1 << 20, open_high=True, text="GiB (0: no cap)")] | None = None
    env: tuple[str, ...] = ()
    home: Home | None = None
    builtin: bool = False
    raw: bool = False
    plugins: tuple[str, ...] = ()
    pure: bool = False
    steps: bool | None = None
    option_problems: Callable[..., list[str]] | None = None
    golds: Callable[..., Any] | None = None
    trials: Callable[..., Any] | None = None
    gold_columns: tuple[str, ...] = ()
    stated: Callable[..., str | None] | None = None
    boxes: bool = False
    instead: Mapping[str, str] | None = None
    stricter: Mapping[str, Any] | None = None

    def problems(self, subject: str) -> list[str]:
        """Values of a wrong type or out of range."""
        hints = hints_of(type(self))
        problems: list[str] = []
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if name == "on_error":
                if value is not None and not (isinstance(value, str) and value in get_args(OnError)):
                    problems.append(unknown(name, value, get_args(OnError)))
            elif name != "isolation":  # `FunctionVerifier` knows all places
                problems += value_problems(name, value, hints[name])
        return [f"{subject}: {problem}" for problem in problems]

    def more_problems(self, fn: Callable[..., Any], values: Mapping[str, Any], *, here: bool = True) -> list[str]:
        """Problems from the check's ``option_problems``, with defaults filled in; none if an option has a wrong type.

        ``here``: it runs on this machine.

        Raises:
            VerifierError: the check cannot work here (a package is missing, say).
        """
        if self.option_problems is None:
            return []
        hints = hints_of(fn)
        options = {name: values.get(name, p.default) for name, p in _options(fn).items()}
        typed = (
            value is not inspect.Parameter.empty and fits(value, hints.get(name, Any), ranges=False)
            for name, value in options.items()
        )
        if not all(typed):
            return []
        return self.option_problems(**options, here=here) if self.boxes else self.option_problems(**options)

    def declared_problems(self, fn: Callable[..., Any], values: Mapping[str, Any], *, here: bool = True) -> list[str]:
        """The problems from `more_problems`, with its exceptions as problems in words."""
        try:
            problems: Any = self.more_problems(fn, values, here=here)
        except VerifierError as error:
            return [str(error)]
        except Exception as error:  # noqa: BLE001 - of a plug-in: one more problem, in words
            return [f"option_problems raised {short(error)}."]
        if isinstance(problems, str) or not fits(problems, list[str] | tuple[str, ...]):
            return [f"option_problems gave {short(problems)}, expected a list of texts."]
        return list(problems)

    def __call__(self, fn: Fn) -> Fn:
        """Attach the traits to a function that checks its options whenever it is called."""
        names, hints = set(_options(fn)), hints_of(fn)

        def require(values: Mapping[str, Any]) -> None:
            options = {name: value for name, value in values.items() if name in names}
            problems = [each for name in options for each in value_problems(name, options[name], hints.get(name, Any))]
            problems += self.more_problems(fn, options)
            if problems:
                raise ValueError(f"{fn.__name__}: {' '.join(problems)}")

        @functools.wraps(fn)
        async def asynchronous(*args: Any, **options: Any) -> Any:
            require(options)
            return await fn(*args, **options)

        @functools.wraps(fn)
        def plain(*args: Any, **options: Any) -> Any:
            require(options)
            return fn(*args, **options)

        wrapped: Any = asynchronous if inspect.iscoroutinefunction(fn) else plain
        setattr(wrapped, _ATTRIBUTE, self)
        return wrapped  # type: ignore[no-any-return]  # of the type of fn, which wraps() keeps


def traits_of(fn: Callable[..., Any]) -> Traits:
    """The declarations of a function; the defaults where it has none."""
    traits = getattr(fn, _ATTRIBUTE, None)
    return traits if isinstance(traits, Traits) else Traits()


def _options(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: p for name, p in inspect.signature(fn).parameters.items() if p.kind is p.KEYWORD_ONLY}
