"""Trees laid out as the tokens of a pass, under a mask or behind one another in one row."""

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
    """N stretches of a row, each a few tokens and what they see, padded to each other.

    Attributes:
        query: places in the row of the tokens that look, (N, Q), 0 where there is none.
        key: places of those that are seen, (N, K).
        visible: who sees whom, (N, 1, Q, K); a query that is not there sees something all the same.
    """

    query: torch.Tensor
    key: torch.Tensor
    visible: torch.Tensor
    _masks: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    def mask(self, dtype: torch.dtype) -> torch.Tensor:
        """What is added to attention's logits: made once, where every layer would keep one of its own."""
        if dtype not in self._masks:
            hidden = torch.zeros(self.visible.shape, dtype=dtype, device=self.visible.device)
            self._masks[dtype] = hidden.masked_fill_(~self.visible, -torch.inf)
        return self._masks[dtype]


@dataclass(frozen=True)
class Branches:
    """How a row of trees attends: its bundles, and where each token of the row is among all their queries, (L,)."""

    bundles: tuple[Bundle, ...]
    back: torch.Tensor

    @property
    def mask_shape(self) -> tuple[int, ...]:
        """Fits no attention over the row, so that nothing takes for a mask what only stands in the place of one."""
        return (1, 1, 1, len(self.back) + 1)

    def mask(self) -> torch.Tensor:
        """What keeps a model from building a mask, as branches bring their own."""
        return torch.zeros(self.mask_shape, dtype=torch.bool, device=self.back.device)


@dataclass(frozen=True)
class Packed:
    """A batch of trees, padded to the longest.

    Attributes:
        input_ids: tokens, (T, L).
        position_ids: (T, L), the position of each token in its own row.
        labels: (T, L), the token to score at each position, `IGNORED` elsewhere.
        until: (T, L), where the last token that sees a token ends; 0 for padding.
        scored: flat positions in (T, L) of the scored tokens, as often as rows read them.
        target: flat positions in (B, C) that they belong to, each once.
        branching: whether any tree has more than one node; without one a plain causal mask is exact.
        branches: how joined trees attend; None where attention tells them apart by positions that start anew.
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
    """The tokens of trees, each in a row of its own, or ``joined``: behind one another in one row without padding.

    Attention has to keep joined trees apart.
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
            wanted = labels_of(steps)
            tokens[here], labels[here] = tokens_of(steps), np.where(wanted < 0, IGNORED, wanted)
            positions[here], until[here] = np.arange(node.start, node.end), before + end
            found = (wanted >= 0).nonzero()[0]
            for row in node.rows:
                scored.append(found + (line * shape[1] + before + place))
                target.append(found + (row * completion_width + node.start + 1 - rows.prompts[row]))

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
    """Who sees whom, (T, 1, L, L) bool: the past that is of one's own row, and padding nothing but itself."""
    tree, place = (torch.arange(count, device=until_TL.device) for count in until_TL.shape)
    return sees(until_TL)(tree[:, None, None], None, place[:, None], place)[:, None]


def sees(until_TL: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The same as a function of single positions, of which FlexAttention makes its block masks."""

    def visible(tree: torch.Tensor, _: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key == query) | ((key < query) & (query < until_TL[tree, key]))

    return visible
