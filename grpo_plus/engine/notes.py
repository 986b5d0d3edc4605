"""Sentences for the log, each logged once, and the error of a setting."""

import logging

import torch

from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus.engine")


class EngineError(ValueError):
    """An impossible engine setting; the message has the reason and the setting to use."""


class Notes:
    """Logs each sentence once, even if it holds at every step."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def say(self, sentence: str) -> None:
        """Log a sentence, unless it was logged before."""
        if sentence not in self._logged:
            self._logged.add(sentence)
            logger.log(_level(), "update engine: %s.", sentence)


def _level() -> int:
    """Return WARNING on the first process, DEBUG on all other ranks."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return logging.DEBUG if distributed and torch.distributed.get_rank() > 0 else logging.WARNING
