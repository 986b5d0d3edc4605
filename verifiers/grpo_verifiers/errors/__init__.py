"""The exceptions of this package: one base, and each also the standard type a caller would catch."""

from collections.abc import Iterable

from grpo_verifiers.redaction import RedactedError, redact_text


class VerifierError(RedactedError):
    """Base of every error that this package raises on purpose; its message shows no secret."""


class UnknownNameError(VerifierError, LookupError):
    """An unknown name: no registry entry, entry point or reference."""


class DuplicateNameError(VerifierError, ValueError):
    """A name registered twice; the message shows both sides."""


class PluginError(VerifierError, ImportError):
    """A plug-in or reference that cannot be imported; its own traceback is the cause."""


class KeywordError(VerifierError, TypeError):
    """Keyword arguments that a function does not take, or of the wrong type."""


class ColumnError(VerifierError, ValueError):
    """Dataset columns that a verifier needs and the dataset lacks."""


class VerifierFailedError(VerifierError, RuntimeError):
    """A verifier that cannot do its work at all: the run stops rather than train on noise."""


class UnavailableError(VerifierError, RuntimeError):
    """Raised by a check when an external resource fails (a server, a file): the completion is left out."""


Problem = str | PluginError
"""A problem in words, or a plug-in that cannot be imported, with its own traceback as the cause."""


class ConfigError(RedactedError, ValueError):
    """A config that cannot run; the message lists every problem, and no secret."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(dict.fromkeys(redact_text(str(problem)) for problem in problems))
        lines = [f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)]
        several = "\n".join([f"the config has {len(self.problems)} problems:", *lines])
        super().__init__(self.problems[0] if len(self.problems) == 1 else several)

    def __reduce__(self) -> "tuple[type[ConfigError], tuple[tuple[str, ...]]]":
        return (type(self), (self.problems,))


class BrokenPluginError(ConfigError, PluginError):
    """A config with a plug-in that cannot be imported among its problems; the plug-in's traceback is the cause."""


def raise_all(problems: Iterable[Problem]) -> None:
    """Raise a `ConfigError` unless ``problems`` is empty."""
    listed = list(problems)
    broken = [problem for problem in listed if isinstance(problem, PluginError)]
    if broken:
        causes = [problem.__cause__ for problem in broken if problem.__cause__ is not None]
        several = BaseExceptionGroup("several plug-ins cannot be imported", causes) if len(causes) > 1 else None
        raise BrokenPluginError(listed) from several or next(iter(causes), None)
    if listed:
        raise ConfigError(listed)
