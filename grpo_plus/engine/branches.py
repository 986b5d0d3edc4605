"""Attention over several trees joined into one row without padding.

All other layers of a model work on single tokens, so they run over the bare tokens. Attention alone gathers them into
short sequences: each node of a tree with the nodes above it. The cost of a node is its tokens times the tokens it
attends to, not times all tokens of the tree. Padding to sequences of similar size happens here only.
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
"""The largest share of padding among the pairs of a bundle's attention."""


@dataclass(frozen=True)
class Stretch:
    """Tokens that attend together: ``own`` tokens from position ``at`` of the row.

    They also attend to those ``above``, pieces of the row by position and size, ``shared`` tokens in total.
    """

    at: int
    own: int
    above: tuple[tuple[int, int], ...]
    shared: int

    @property
    def pairs(self) -> int:
        """The number of query-key pairs, later keys included."""
        return self.own * (self.shared + self.own)


def stretches(trees: Sequence[Tree]) -> Iterator[Stretch]:
    """Yield one stretch for each node of joined trees."""
    before = 0
    for tree in trees:
        for number, node in enumerate(tree.nodes):
            above = tuple((before + place, size) for place, size in tree.pieces(number))
            yield Stretch(before + tree.places[number], node.size, above, sum(size for _, size in above))
        before += tree.size


def bundled(unsorted: Sequence[Stretch]) -> list[list[Stretch]]:
    """Return bundles of stretches of similar size."""
    bundles: list[list[Stretch]] = []
    own = keys = pairs = 0
    for stretch in sorted(unsorted, key=lambda one: -one.pairs):
        own, keys, pairs = max(own, stretch.own), max(keys, stretch.shared + stretch.own), pairs + stretch.pairs
        if bundles and pairs >= (1 - FILLING) * (len(bundles[-1]) + 1) * own * keys:
            bundles[-1].append(stretch)
        else:
            bundles.append([stretch])
            own, keys, pairs = stretch.own, stretch.shared + stretch.own, stretch.pairs
    return bundles


def padded_pairs(bundle: Sequence[Stretch]) -> int:
    """Return the number of pairs in the attention of a bundle."""
    return len(bundle) * max(one.own for one in bundle) * max(one.shared + one.own for one in bundle)


def branches_of(trees: Sequence[Tree], device: torch.device) -> Branches:
    """Return the attention pattern of trees joined into one row."""
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
        positions = [np.arange(place, place + size) for place, size in (*one.above, (one.at, one.own))]
        keys_NK[number, : one.shared + one.own] = np.concatenate(positions)
    return keys_NK


def registered(name: str) -> Attention | None:
    """Return the attention function of this name, without support for branches; None if there is none."""
    from transformers import AttentionInterface

    attention = AttentionInterface().get(name)
    return attention.attention if isinstance(attention, _OverBranches) else attention


def install() -> None:
    """Add an argument ``branches`` to transformers' ``sdpa`` attention; without it nothing changes."""
    from transformers import AttentionInterface

    attention = AttentionInterface()["sdpa"]
    if not isinstance(attention, _OverBranches):
        AttentionInterface.register("sdpa", _OverBranches(attention))


@dataclass(frozen=True)
class _OverBranches:
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
        same_tokens = all((one.shape[0], one.shape[2]) == tokens for one in (query, key, value))
        if not same_tokens or getattr(attention_mask, "shape", None) != branches.mask_shape:
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
    """Return the states (N, H, Q, D) of the tokens at these positions of the row."""
    chosen: torch.Tensor = _Gather.apply(states_1HLD[0].transpose(0, 1), places_NQ.reshape(-1))  # type: ignore[no-untyped-call]
    return chosen.view(*places_NQ.shape, *chosen.shape[1:]).transpose(1, 2)


class _Gather(torch.autograd.Function):
    """Rows by index; the gradient of a row shared by branches is summed in float32 on every device.

    CPUs always do; other devices may round each addition to the precision of the rows.
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
