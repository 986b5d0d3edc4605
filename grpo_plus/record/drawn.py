"""The trainer's side of the record of prompts: which were drawn, and how they stand after each sampled batch."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from grpo_plus import _trl
from grpo_plus.record.files import PROMPTS
from grpo_plus.record.prompts import TEXT_KEPT, Followed, PromptLog, Summary, totals
from grpo_plus.record.recorder import Recorder
from grpo_plus.record.sample import as_text
from grpo_plus.selection.history import digest_of
from grpo_plus.training.hooks import Completions, Hook


class DrawnPrompts(Hook):
    """Writes ``prompts.jsonl`` of a run that chooses what it draws.

    ``summary`` is how a selection knows the prompts; None: they are known here, a bounded number of them.
    """

    name = "record_prompts"
    after = ("Advantages",)

    def __init__(self, recorder: Recorder, summary: Summary | None, *, writes: bool = True) -> None:
        self._recorder = recorder
        self._writes = writes  # where the run chooses what it draws; elsewhere a state of before is let go
        self._summary = summary
        self._scored: list[tuple[Sequence[bytes], torch.Tensor]] = []  # of this batch, one a round
        self._texts: dict[bytes, str] = {}
        self._followed: Followed | None = None
        self._log: PromptLog | None = None

    def training(self) -> AbstractContextManager[None]:
        """A new run knows no prompt."""
        self._scored, self._texts, self._log = [], {}, None
        if self._writes and self._summary is None:
            data = self.host.train_dataset
            rows = len(data) if hasattr(data, "__len__") else None
            self._followed = Followed(self.host.num_generations, rows)
        return nullcontext()

    def scored(self, completions: Completions, rewards_NK: torch.Tensor) -> torch.Tensor:
        """Note the prompts of a round, and what their completions were rewarded with."""
        if not self._writes or not self.host.model.training:
            return rewards_NK
        prompts = [row.get("prompt") for row in completions.rows]
        mine = [digest_of(prompt) for prompt in prompts]
        texts = {digest: as_text(prompt)[:TEXT_KEPT] for digest, prompt in zip(mine, prompts, strict=True)}
        everywhere = _trl.gather_objects(mine)
        seen = [each for found in _trl.gather_objects([texts]) for each in found.items()]
        with self._recorder.unharmed():
            self._scored.append((everywhere, totals(rewards_NK, self.host.reward_weights)))
            self._texts |= dict(seen)
        return rewards_NK

    def batch(self, output: dict[str, Any]) -> None:  # noqa: ARG002 - all of its rounds count
        """Take the rounds into the history; write down how the prompts stand, where the batch is sampled."""
        rounds, self._scored = self._scored, []
        texts, self._texts = self._texts, {}
        if not rounds:
            return
        with self._recorder.unharmed():
            if self._followed is not None:
                index = [prompt for prompts, _ in rounds for prompt in prompts]
                self._followed.observe(index, torch.cat([given for _, given in rounds]))
            self._lines().see(texts)
            if self._recorder.sampled:
                step = int(self.host.state.global_step) + 1  # the step that trains on it
                self._recorder.keep(PROMPTS, self._lines().line() | {"step": step})

    def _lines(self) -> PromptLog:
        if self._log is None:
            summary = self._followed.summary if self._followed is not None else self._summary
            assert summary is not None
            self._log = PromptLog(summary)
        return self._log

    def state_dict(self) -> dict[str, Any]:
        """What is known of the prompts, where it is known here."""
        return self._followed.state_dict() if self._followed is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""
        if self._followed is not None:
            self._followed.load_state_dict(state)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The evidence."""
        return self._followed.tensors() if self._followed is not None else {}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Go on from it."""
        if self._followed is not None:
            self._followed.load_tensors(tensors)
