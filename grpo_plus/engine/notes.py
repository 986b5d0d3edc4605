"""Sentences for the log, each said once."""

import logging

logger = logging.getLogger("grpo_plus.engine")


class Notes:
    """Remembers what was said, so that a reason that holds at every step is read once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        """Log a sentence, unless it was logged before."""
        if sentence not in self._said:
            self._said.add(sentence)
            logger.warning("update engine: %s.", sentence)
