"""How the prompts of a run stand: how many are always, never or sometimes solved, and the pass rates of a sample."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from grpo_plus import _trl
from grpo_plus.record.files import PROMPTS
from grpo_plus.record.recorder import Recorder
from grpo_plus.record.sample import as_text
from grpo_plus.selection.history import PromptHistory, digest_of
from grpo_plus.training.hooks import Completions, Hook

FOLLOWED = 4096
"""Prompts whose history is kept where no selection keeps it: the first ones that are drawn."""
SAMPLED = 120
"""Of these, those whose pass rates are written down."""
TEXT_KEPT = 600
"""Characters of a sampled prompt."""
KEY = 16
"""Characters of a digest that a line has."""
DECAY = 0.7
"""What a visit of a prompt leaves of the evidence of those before, as by default in a selection."""

Summary = Callable[[], Mapping[str, Any]]
_EVIDENCE = ("counts", "sums", "groups", "live", "drawn")
_KINDS = ("unseen", "impossible", "died_out", "between")


def totals(rewards_NK: Tensor, weights_K: Tensor) -> Tensor:
    """(N,) weighted sums of the rewards that were given, on the CPU; NaN where none was."""
    totals_N = (rewards_NK * weights_K.to(rewards_NK)).nansum(dim=1)
    return totals_N.masked_fill(rewards_NK.isnan().all(dim=1), math.nan).cpu()


class Followed:
    """The history of the first prompts that are drawn, bounded; ``rows`` are those of the dataset, None for a stream.

    Its summary has the keys of a selection's; ``unseen`` is None once more prompts were drawn than are followed.
    """

    def __init__(self, num_generations: int, rows: int | None) -> None:
        self._rows = rows
        self._more = False
        self._index: dict[bytes, int] = {}
        self._history = PromptHistory.empty([0] * FOLLOWED, num_generations)

    def observe(self, prompts: Sequence[bytes], totals_N: Tensor) -> None:
        """Take in the total rewards of a batch's completions, each of the prompt with this digest."""
        known = []
        for place, prompt in enumerate(prompts):
            if prompt in self._index or len(self._index) < FOLLOWED:
                known.append((self._index.setdefault(prompt, len(self._index)), place))
            else:
                self._more = True
        if known:
            numbers, places = zip(*known, strict=True)
            self._history = self._history.observed(numbers, totals_N[list(places)], decay=DECAY)

    def summary(self) -> dict[str, Any]:
        """The counts of the four kinds and the rates of the first prompts."""
        history, count = self._history, len(self._index)
        impossible, died, rates = history.impossible(), history.died_out(), history.pass_rates()
        unseen = None if self._more or self._rows is None else max(0, self._rows - count)
        kinds = int(impossible.sum()), int(died.sum())
        sample = [
            [digest.hex(), float(history.drawn[place]), float(rates[place]) if history.seen[place] else None]
            for digest, place in list(self._index.items())[:SAMPLED]
        ]
        between = int(history.seen.sum()) - sum(kinds)
        found = dict(zip(_KINDS, (unseen, *kinds, between), strict=True))
        return {**found, "graded": history.graded, "sample": sample}

    def state_dict(self) -> dict[str, Any]:
        """Whatever is no tensor; empty at the start."""
        if not self._index:
            return {}
        ends = [None if math.isnan(end) else end for end in (self._history.low, self._history.high)]
        return {"ends": ends, "graded": self._history.graded, "more": self._more}

    def tensors(self) -> dict[str, Tensor]:
        """The digests and the evidence."""
        digests = torch.tensor([list(digest) for digest in self._index], dtype=torch.uint8)
        evidence = torch.stack([getattr(self._history, name)[: len(self._index)] for name in _EVIDENCE])
        return {"prompts": digests, "evidence": evidence} if self._index else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""
        self._more = bool(state["more"])
        low, high = (math.nan if end is None else float(end) for end in state["ends"])
        self._history = replace(self._history, low=low, high=high, graded=bool(state["graded"]))

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from them."""
        self._index = {bytes(row): place for place, row in enumerate(tensors["prompts"].tolist())}
        held: dict[str, Any] = {name: torch.zeros(FOLLOWED, dtype=torch.float64) for name in _EVIDENCE}
        for name, values in zip(_EVIDENCE, tensors["evidence"], strict=True):
            held[name][: len(values)] = values
        self._history = replace(self._history, **held)


class PromptLog:
    """Makes a line of the record of each summary: the counts, and of the sample what has changed since the last line.

    ``summary`` is a selection's, or that of `Followed`.
    """

    def __init__(self, summary: Summary) -> None:
        self._summary = summary
        self._sample: set[str] | None = None
        self._written: dict[str, tuple[float, float]] = {}
        self._texts: dict[str, str] = {}
        self._told: set[str] = set()

    def see(self, prompts: Mapping[bytes, str]) -> None:
        """The texts of drawn prompts by digest; those of the sample are kept until they are written."""
        if self._sample is None or len(self._sample) < SAMPLED:
            self._sample = {each[0] for each in self._summary()["sample"]}
        for digest, text in prompts.items():
            if (key := digest.hex()) in self._sample and key not in self._told:
                self._texts[key] = text

    def line(self) -> dict[str, Any]:
        """What is known by now."""
        summary = self._summary()
        changed = []
        for key, drawn, rate in summary["sample"]:
            if rate is not None and self._written.get(key) != (drawn, rate):
                self._written[key] = drawn, rate
                changed.append({"prompt": key[:KEY], "drawn": round(drawn, 3), "rate": round(rate, 4)})
        texts, self._texts = self._texts, {}
        self._told |= texts.keys()
        kinds = {name: summary[name] for name in _KINDS}
        texts = {key[:KEY]: text for key, text in texts.items()}
        return {"kind": "prompts", **kinds, "graded": summary["graded"], "changed": changed, "texts": texts}


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
        self._scored: list[tuple[Sequence[bytes], Tensor]] = []  # of this batch, one a round
        self._texts: dict[bytes, str] = {}
        self._followed: Followed | None = None

    def training(self) -> AbstractContextManager[None]:
        """A new run knows no prompt."""
        self._scored, self._texts = [], {}
        if self._writes:
            summary = self._summary
            if summary is None:
                data = self.host.train_dataset
                rows = len(data) if hasattr(data, "__len__") else None
                self._followed = Followed(self.host.num_generations, rows)
                summary = self._followed.summary
            self._log = PromptLog(summary)
        return nullcontext()

    def scored(self, completions: Completions, rewards_NK: Tensor) -> Tensor:
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
            self._log.see(texts)
            if self._recorder.sampled:
                step = int(self.host.state.global_step) + 1  # the step that trains on it
                self._recorder.keep(PROMPTS, self._log.line() | {"step": step})

    def state_dict(self) -> dict[str, Any]:
        """What is known of the prompts, where it is known here."""
        return self._followed.state_dict() if self._followed is not None else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from it."""
        if self._followed is not None:
            self._followed.load_state_dict(state)

    def tensors(self) -> dict[str, Tensor]:
        """The evidence."""
        return self._followed.tensors() if self._followed is not None else {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from it."""
        if self._followed is not None:
            self._followed.load_tensors(tensors)
