"""Records prompts of a run: how many are always, never or sometimes solved, and the pass rates of a sample."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from grpo_plus.record.files import PROMPTS
from grpo_plus.record.sample import as_text
from grpo_plus.selection.history import digest_of
from grpo_plus.training.hooks import ScoredBatch, TrainerStage
from grpo_plus.training.observers.recorder import Recorder
from grpo_plus.trl.ranks import gather_objects

TEXT_KEPT = 600
"""Characters of a sampled prompt."""
KEY = 16
"""Characters of a digest that a line has."""
_KINDS = ("unseen", "impossible", "died_out", "between")


class PromptStats(TrainerStage):
    """Writes ``prompts.jsonl`` of a run with a selection, from the selection's ``summary``.

    A line has the counts, and of the sampled prompts those that have changed since the last line, each text once.
    """

    name = "record_prompts"

    def __init__(self, recorder: Recorder, summary: Callable[[], Mapping[str, Any]]) -> None:
        self._recorder, self._summary = recorder, summary
        self._begin()

    def _begin(self) -> None:
        self._texts: dict[str, str] = {}  # by digest, of prompts without a line
        self._missing: set[str] | None = None  # prompts of the sample whose text no line has; None at the start
        self._written: dict[str, tuple[float, float]] = {}

    def training(self) -> AbstractContextManager[None]:
        self._begin()
        return nullcontext()

    def record(self, batch: ScoredBatch, *, sampled: bool) -> None:
        """Collect the prompts of all rounds of a training batch; write a line for a ``sampled`` batch."""
        if not self.host.model.training:
            return
        for part in batch.rounds or (batch,):
            prompts = [row.get("prompt") for row in part.completions.rows]
            texts = {digest_of(prompt).hex(): as_text(prompt)[:TEXT_KEPT] for prompt in prompts}
            for of_rank in gather_objects([texts]):
                self._texts |= of_rank
        with self._recorder.warn_on_error():
            if self._missing is None:
                self._missing = {key for key, _, _ in self._summary()["sample"]}
            self._texts = {key: text for key, text in self._texts.items() if key in self._missing}
            if sampled:
                step = int(self.host.state.global_step) + 1  # the step that trains on it
                self._recorder.append(PROMPTS, self._line(self._summary()) | {"step": step})

    def _line(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        changed = []
        for key, count, rate in summary["sample"]:
            if rate is not None and self._written.get(key) != (count, rate):
                self._written[key] = count, rate
                changed.append({"prompt": key[:KEY], "drawn": round(count, 3), "rate": round(rate, 4)})
        texts, self._texts = self._texts, {}
        self._missing = (self._missing or set()) - texts.keys()
        texts = {key[:KEY]: text for key, text in texts.items()}
        kinds = {name: summary[name] for name in _KINDS}
        return {"kind": "prompts", **kinds, "graded": summary["graded"], "changed": changed, "texts": texts}
