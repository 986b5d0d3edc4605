"""Log-probabilities without gradient, in fewer rows at a time once memory has run out.

Rows do not see each other, so the numbers are the same up to rounding; with dropout, which is active where a model in
training mode scores, smaller parts draw other masks.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from grpo_plus.memory.errors import StepTooLargeError, attempt, release
from grpo_plus.memory.undo import Undo
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

Scores = TypeVar("Scores")


class Scoring:
    """Makes the passes without gradient of a trainer.

    ``noted`` notes the random state that a pass starts from, ``advice`` says what to change in the config, and
    ``count`` is told how often a pass ran again. ``most_rows`` are the rows of a pass at most, once memory has run out.
    """

    def __init__(self, *, noted: Callable[[], Undo], advice: Callable[[], str], count: Callable[[int], None]) -> None:
        self._noted = noted
        self._advice = advice
        self._count = count
        self.most_rows: int | None = None

    def run(
        self,
        score: Callable[[int | None], Scores],
        *,
        rows: int,
        batch_size: int | None,
        refusal: Callable[[], str | None],
    ) -> Scores:
        """Score all rows, ``batch_size`` a pass; None for all.

        ``score`` is given the rows of a pass, ``refusal`` says why there can be no smaller parts; None if there can.

        Raises:
            StepTooLargeError: the parts cannot get smaller.
        """
        rewind = self._noted()
        failures = 0
        size = batch_size
        if self.most_rows is not None:
            size = min(batch_size or rows, self.most_rows)
        scores, failure = attempt(partial(score, size))
        while failure is not None:
            failures += 1
            size = self._smaller(min(size or rows, rows), failure, refusal())
            rewind()
            release()
            scores, failure = attempt(partial(score, size))
        if failures:
            self._count(failures)
        assert scores is not None
        return scores

    def _smaller(self, size: int, failure: str, reason: str | None) -> int:
        if reason is not None:
            raise StepTooLargeError(
                f"out of memory in a pass without gradient: {failure}. It cannot be run in smaller parts: {reason}. "
                f"{self._advice()}"
            )
        if size <= 1:
            raise StepTooLargeError(
                f"out of memory in a pass without gradient, with one completion at a time: {failure}. {self._advice()}"
            )
        self.most_rows = size // 2
        logger.warning(
            "Out of memory in a pass without gradient (%s). It runs again with at most %d completions at a time, and "
            "so do the next ones: the same log-probabilities up to rounding (dropout, where there is any, draws other "
            "masks).",
            failure,
            self.most_rows,
        )
        return self.most_rows
