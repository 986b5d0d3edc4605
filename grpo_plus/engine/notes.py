"""Sentences for the log, each said once, and the error of a setting."""

import logging

import torch

from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus.engine")


class EngineError(ValueError):
    """An engine setting that cannot be honoured here; the message says why and what to set instead."""


class Notes:
    """Remembers what was said, so that a reason that holds at every step is read once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Log a sentence, unless it was logged before."""
        if sentence not in self._said:
            self._said.add(sentence)
            logger.log(_level(), "update engine: %s.", sentence)


def _level() -> int:
    """Loud on the first process; on the others it is there for whoever looks."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return logging.DEBUG if distributed and torch.distributed.get_rank() > 0 else logging.WARNING
