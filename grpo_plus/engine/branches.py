"""Attention over trees that stand behind one another in one row, without padding.

All other layers of a model look at one token at a time, so they run over the bare tokens. Attention alone gathers them
into short sequences: each node of a tree with the nodes above it. A node then costs its own tokens times what they
see, not times the whole tree, and sequences of similar size are padded to each other nowhere but here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from grpo_plus.engine.notes import EngineError
from grpo_plus.engine.pack import Branches, Bundle
from grpo_plus.engine.trees import Tree

Attention = Callable[..., tuple[torch.Tensor, Any]]
"""A function of transformers' attention interface: (module, query, key, value, mask, ...) to output and weights."""

FILLING = 0.3
"""Of the pairs that a bundle's attention computes, at most this part is between tokens that are not there."""


@dataclass(frozen=True)
class Stretch:
    """Tokens that attend together: ``own`` from place ``at`` of the row.

    They also see those ``above``, pieces of the row by place and size, ``shared`` tokens in all.
    """

    at: int
    own: int
    above: tuple[tuple[int, int], ...]
    shared: int

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key, those after it included."""
        return self.own * (self.shared + self.own)


def stretches(trees: Sequence[Tree]) -> Iterator[Stretch]:
    """One for each node of trees behind one another."""
    before = 0
    for tree in trees:
        for number, node in enumerate(tree.nodes):
            above = tuple((before + place, size) for place, size in tree.pieces(number))
            yield Stretch(before + tree.places[number], node.size, above, sum(size for _, size in above))
        before += tree.size


def bundled(found: Sequence[Stretch]) -> list[list[Stretch]]:
    """The stretches with those of similar size together."""
    bundles: list[list[Stretch]] = []
    own = seen = pairs = 0
    for stretch in sorted(found, key=lambda one: -one.pairs):
        own, seen, pairs = max(own, stretch.own), max(seen, stretch.shared + stretch.own), pairs + stretch.pairs
        if bundles and pairs >= (1 - FILLING) * (len(bundles[-1]) + 1) * own * seen:
            bundles[-1].append(stretch)
        else:
            bundles.append([stretch])
            own, seen, pairs = stretch.own, stretch.shared + stretch.own, stretch.pairs
    return bundles


def padded_pairs(bundle: Sequence[Stretch]) -> int:
    """Pairs that the attention of a bundle computes."""
    return len(bundle) * max(one.own for one in bundle) * max(one.shared + one.own for one in bundle)


def branches_of(trees: Sequence[Tree], device: torch.device) -> Branches:
    """How trees behind one another in one row attend."""
    bundles, back, offset = [], torch.empty(sum(tree.size for tree in trees), dtype=torch.long), 0
    step = 8 if device.type == "cuda" else 1  # a card's kernels copy a mask of another width
    for members in bundled(list(stretches(trees))):
        at, own, shared = torch.tensor([(one.at, one.own, one.shared) for one in members]).T
        query_Q = torch.arange(int(own.max()))
        key_K = torch.arange(-(-int((shared + own).max()) // step) * step)
        there_NQ = query_Q < own[:, None]
        query_NQ = torch.where(there_NQ, at[:, None] + query_Q, 0)
        key_NK = torch.from_numpy(_keys(members, len(key_K)))
        last_NQ = torch.where(there_NQ, shared[:, None] + query_Q, 0)
        visible_N1QK = (key_K.to(device) <= last_NQ.to(device)[..., None])[:, None]
        back[query_NQ[there_NQ]] = offset + there_NQ.reshape(-1).nonzero()[:, 0]
        offset += query_NQ.numel()
        bundles.append(Bundle(query_NQ.to(device), key_NK.to(device), visible_N1QK))
    return Branches(tuple(bundles), back.to(device))


def _keys(members: Sequence[Stretch], width: int) -> np.ndarray:
    """Return the positions of the tokens that each stretch sees, its own last, (N, K); 0 where there is none."""
    keys_NK = np.zeros((len(members), width), np.int64)
    for number, one in enumerate(members):
        seen = [np.arange(place, place + size) for place, size in (*one.above, (one.at, one.own))]
        keys_NK[number, : one.shared + one.own] = np.concatenate(seen)
    return keys_NK


def registered(name: str) -> Attention | None:
    """The attention function of this name that is called where there are no branches; None where none is known."""
    from transformers import AttentionInterface

    known = AttentionInterface().get(name)
    return known.attention if isinstance(known, _OverBranches) else known


def install() -> None:
    """Let transformers' ``sdpa`` attention take ``branches``; without them it is what it was."""
    from transformers import AttentionInterface

    known = AttentionInterface()["sdpa"]
    if not isinstance(known, _OverBranches):
        AttentionInterface.register("sdpa", _OverBranches(known))


@dataclass(frozen=True)
class _OverBranches:
    """An attention function that follows branches where it is given any."""

    attention: Attention

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: Any = None,
        *arguments: Any,
        branches: Branches | None = None,
        **further: Any,
    ) -> tuple[torch.Tensor, Any]:
        if branches is None:
            return self.attention(module, query, key, value, attention_mask, *arguments, **further)
        tokens = (1, len(branches.back))
        whole = all((one.shape[0], one.shape[2]) == tokens for one in (query, key, value))
        if not whole or getattr(attention_mask, "shape", None) != branches.mask_shape:
            raise EngineError("an attention layer has a mask or tokens of its own, so it cannot attend by branches")
        outputs = []
        for bundle in branches.bundles:
            parts = [
                _gathered(one, places)
                for one, places in ((query, bundle.query), (key, bundle.key), (value, bundle.key))
            ]
            output_NQHD, _ = self.attention(module, *parts, bundle.mask(query.dtype), *arguments, **further)
            outputs.append(output_NQHD.flatten(0, 1))
        return torch.cat(outputs).index_select(0, branches.back)[None], None


def _gathered(states_1HLD: torch.Tensor, places_NQ: torch.Tensor) -> torch.Tensor:
    """States (N, H, Q, D) of the tokens at these places of the row."""
    chosen: torch.Tensor = _Gather.apply(states_1HLD[0].transpose(0, 1), places_NQ.reshape(-1))  # type: ignore[no-untyped-call]
    return chosen.view(*places_NQ.shape, *chosen.shape[1:]).transpose(1, 2)


class _Gather(torch.autograd.Function):
    """Rows by index; the gradient of a row that many branches see is summed in float32 on every device.

    A CPU sums so anyway; elsewhere additions into one place may be rounded to the rows' own precision each.
    """

    @staticmethod
    def forward(ctx: Any, states_LHD: torch.Tensor, places_M: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(places_M)
        ctx.rows = len(states_LHD)
        return states_LHD.index_select(0, places_M)

    @staticmethod
    def backward(ctx: Any, *pulls: torch.Tensor) -> tuple[torch.Tensor, None]:
        (pull_MHD,), (places_M,) = pulls, ctx.saved_tensors
        wide = torch.promote_types(pull_MHD.dtype, torch.float32)
        sums_LHD = torch.zeros(ctx.rows, *pull_MHD.shape[1:], dtype=wide, device=pull_MHD.device)
        return sums_LHD.index_add_(0, places_M, pull_MHD.to(wide)).to(pull_MHD.dtype), None
