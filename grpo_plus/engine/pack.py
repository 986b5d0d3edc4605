"""Trees laid out as the tokens of a pass: under a mask, or joined into one row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from grpo_plus.engine.rows import Rows, labels_of, tokens_of
from grpo_plus.engine.trees import Tree

IGNORED = -100
"""Label of a position that is not scored."""


@dataclass(frozen=True)
class Bundle:
    """N stretches of a row, each with its queries and keys, padded to the same size.

    Attributes:
        query: positions of the queries in the row, (N, Q), 0 for padding.
        key: positions of the keys, (N, K).
        visible: the attention mask, (N, 1, Q, K); padding queries attend to something too.
    """

    query: torch.Tensor
    key: torch.Tensor
    visible: torch.Tensor
    _masks: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the additive mask of attention, built once for all layers."""
        if dtype not in self._masks:
            hidden = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
            self._masks[dtype] = hidden.masked_fill_(~self.visible, -torch.inf)
        return self._masks[dtype]


@dataclass(frozen=True)
class Branches:
    """The attention of a row of trees: its bundles, and the index of each token among all their queries, (L,)."""

    bundles: tuple[Bundle, ...]
    back: torch.Tensor

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """A shape that fits no attention over the row, so that the placeholder is never used as a mask."""
        return (1, 1, 1, len(self.back) + 1)

    def mask(self) -> torch.Tensor:
        """Return a placeholder that keeps a model from building a mask; branches have their own."""
        return torch.zeros(self.mask_shape, dtype=torch.bool, device=self.back.device)


@dataclass(frozen=True)
class Packed:
    """A batch of trees, padded to the longest.

    Attributes:
        input_ids: tokens, (T, L).
        position_ids: (T, L), the position of each token in its own row.
        labels: (T, L), the token to score at each position, `IGNORED` elsewhere.
        until: (T, L), the end of the last token that attends to a token; 0 for padding.
        scored: flat positions in (T, L) of the scored tokens, as often as rows read them.
        target: flat positions of the same tokens in (B, C), each once.
        branching: some tree has more than one node; otherwise a plain causal mask is exact.
        branches: the attention of joined trees; None if attention separates them by restarting positions.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor
    until: torch.Tensor
    scored: torch.Tensor
    target: torch.Tensor
    branching: bool
    branches: Branches | None = None


def lay_out(trees: Sequence[Tree], rows: Rows, device: torch.device | str, *, joined: bool = False) -> Packed:
    """Return the tokens of trees, each in its own row, or ``joined`` into one row without padding.

    Attention must separate joined trees.
    """
    sizes = [tree.size for tree in trees]
    shape = (1, sum(sizes)) if joined else (len(trees), max(sizes))
    completion_width = rows.width - rows.prompt_width
    tokens, labels, until = np.zeros(shape, np.int64), np.full(shape, IGNORED, np.int64), np.zeros(shape, np.int64)
    positions = np.tile(np.arange(shape[1]), (shape[0], 1))
    scored, target = [], []
    for index, tree in enumerate(trees):
        line, before = (0, sum(sizes[:index])) if joined else (index, 0)
        for node, place, end in zip(tree.nodes, tree.places, tree.until, strict=True):
            here = (line, slice(before + place, before + place + node.size))
            steps = rows.steps[node.rows[0]][node.start : node.end]
            targets = labels_of(steps)
            tokens[here], labels[here] = tokens_of(steps), np.where(targets < 0, IGNORED, targets)
            positions[here], until[here] = np.arange(node.start, node.end), before + end
            offsets = (targets >= 0).nonzero()[0]
            for row in node.rows:
                scored.append(offsets + (line * shape[1] + before + place))
                target.append(offsets + (row * completion_width + node.start + 1 - rows.prompts[row]))

    def there(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return Packed(
        input_ids=there(tokens),
        position_ids=there(positions),
        labels=there(labels),
        until=there(until),
        scored=there(np.concatenate(scored)),
        target=there(np.concatenate(target)),
        branching=any(len(tree.nodes) > 1 for tree in trees),
    )


def tree_mask(until_TL: torch.Tensor) -> torch.Tensor:
    """Return the attention mask, (T, 1, L, L) bool: a token sees the past of its row, padding only itself."""
    tree, place = (torch.arange(count, device=until_TL.device) for count in until_TL.shape)
    return sees(until_TL)(tree[:, None, None], None, place[:, None], place)[:, None]


def sees(until_TL: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return the mask as a function of single positions, for the block masks of FlexAttention."""

    def visible(tree: torch.Tensor, _: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key == query) | ((key < query) & (query < until_TL[tree, key]))

    return visible
