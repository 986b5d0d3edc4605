"""The pairs of a run, rank by rank: those that wait for a training, those that come again, those only measured on."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_plus.reward_model.history import Example, History, packed, replayed, unpacked
from grpo_plus.reward_model.options import RewardModelOptions
from grpo_plus.reward_model.pairs import Comparison, Labelled
from grpo_plus.training.hooks import Hook
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

MOST_HELD = 256
"""Held-out pairs that are kept, the newest."""


class RewardPairs(Hook):
    """Examples of this rank, bounded, in every checkpoint; all that is drawn at random has a seed of its own.

    Attributes:
        fresh: those since the last training, the newest ``history`` of them.
        held: those of held-out prompts.
        history: those of earlier trainings.
    """

    name = "reward_model_pairs"
    rank_local = True

    def __init__(self, options: RewardModelOptions) -> None:
        self.fresh: deque[Example] = deque(maxlen=options.history)
        self.held: deque[Example] = deque(maxlen=MOST_HELD)
        self.history = History(options.history)
        self._options = options
        self._kind = Comparison if options.head == "outcome" else Labelled
        self._draws = 0
        self._packed: dict[str, Tensor] | None = None

    def generator(self) -> torch.Generator:
        """The next generator of this rank, apart from those of the run."""
        self._draws += 1
        seed = (int(self.host.args.seed) << 40) + (self.host.accelerator.process_index << 32) + self._draws
        return torch.Generator().manual_seed(seed % 2**63)

    def add(self, examples: Sequence[Example], *, held_out: bool) -> None:
        """Keep examples for the next training, or for measuring."""
        (self.held if held_out else self.fresh).extend(examples)
        self._packed = None

    def take(self) -> tuple[list[Example], int, torch.Generator]:
        """The examples of a training, how many of them come again, and the generator that shuffles them.

        The fresh ones are history from here on.
        """
        generator = self.generator()
        fresh = list(self.fresh)
        again = self.history.sample(replayed(len(fresh), self._options.replay), generator)
        self.fresh.clear()
        if self._options.replay:
            self.history.add(fresh, generator)
        self._packed = None
        return [*fresh, *again], len(again), generator

    def state_dict(self) -> dict[str, Any]:
        """How much was drawn and seen; the examples are tensors."""
        return {"draws": self._draws, "seen": self.history.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._draws, self.history.seen = int(state["draws"]), int(state["seen"])
        for store in (self.fresh, self.held, self.history.items):  # of an earlier run of the same trainer
            store.clear()
        self._packed = None

    def tensors(self) -> dict[str, Tensor]:
        """All examples."""
        if self._packed is None:
            self._packed = packed({"fresh": self.fresh, "held": self.held, "history": self.history.items})
        return self._packed

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on with these examples."""
        stores = unpacked(tensors, self._kind, ("fresh", "held", "history"))
        self.fresh.extend(stores["fresh"])
        self.held.extend(stores["held"])
        self.history.items = stores["history"]
        self._packed = None
