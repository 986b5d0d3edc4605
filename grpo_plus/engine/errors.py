"""Errors of the engine."""


class EngineError(ValueError):
    """An engine setting that cannot be honoured here; the message says why and what to set instead."""
