"""The exceptions of this package: one base, and each also the standard type a caller would catch."""

from grpo_verifiers.redaction import RedactedError


class VerifierError(RedactedError):
    """Base of every error that this package raises on purpose; its message shows no secret."""


class UnknownNameError(VerifierError, LookupError):
    """A name that no registry entry, entry point or reference answers to."""


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
    """Raised by a check where something outside is missing (a server, a file): the completion is left out."""
