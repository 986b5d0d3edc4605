"""Scores that no statistic can use: infinite ones, and those so large that float32 makes them infinite.

A verifier's are errors of that check; those of plain reward functions and step scorers arrive here. They score 0, as an
error does: the completion must not gain by them, and a run must not end by one.
"""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from grpo_verifiers.redaction import get_logger
from grpo_verifiers.verdict import LARGEST

logger = get_logger("grpo_plus.rewards")

Steps = list[list[tuple[int, int, float]]]


class Unusable:
    """Replaces unusable scores by 0, counts them and warns once for each source, in the main process.

    ``sources`` are those that have given one.
    """

    def __init__(self, *, main: bool) -> None:
        self._main = main
        self.sources: set[str] = set()

    def rewards(self, rewards_NK: Tensor, names: Sequence[str]) -> tuple[Tensor, dict[str, float]]:
        """The rewards of all ranks' completions, and ``rewards/NAME/unusable`` (share) of every source seen so far."""
        bad_NK = rewards_NK.isinf()
        metrics = {}
        for name, count in zip(names, bad_NK.sum(dim=0).tolist(), strict=True):
            share = self._told(f"the reward function {name!r}", count, len(rewards_NK))
            if share is not None:
                metrics[f"rewards/{name}/unusable"] = share
        return rewards_NK.masked_fill(bad_NK, 0.0), metrics

    def steps(self, rows: Sequence[Sequence[Any]]) -> tuple[Steps, dict[str, float]]:
        """A step scorer's ``(first, one past the last, score)`` of all ranks' completions, and ``steps/unusable``."""
        found: Steps = [
            [(first, last, 0.0 if math.isinf(score) else score, *rest) for first, last, score, *rest in steps]
            for steps in rows
        ]
        scores = [step[2] for steps in rows for step in steps]
        share = self._told("the step scorer", sum(map(math.isinf, scores)), len(scores))
        return found, {} if share is None else {"steps/unusable": share}

    def _told(self, source: str, count: int, total: int) -> float | None:
        """The share, once a source has given an unusable score."""
        if count and source not in self.sources:
            self.sources.add(source)
            if self._main:
                logger.warning(
                    "%s gave an infinite score, or one beyond %.2g, %d times in %d: such a score counts as 0. Bound "
                    "what it returns; None says that it does not apply.",
                    source,
                    LARGEST,
                    count,
                    total,
                )
        return count / max(1, total) if source in self.sources else None
