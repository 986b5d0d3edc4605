"""Trees: rows with a common start, laid out so that the shared tokens run once.

Completions share their prompt; completions with the same tool calls and results share these turns, too. A tree is cut
into nodes at the points where its rows differ. The tokens of a node have the same positions in all its rows, and attend
to the node and the nodes above it, so the log-probabilities of a row and their gradient are those of the unpacked row.
(Tree attention as in Cai et al. 2024, Medusa, there used for decoding.)

Rows split before the first token with different labels, so each row has a copy of that token and no token has two
labels. A shared token has one log-probability for all its rows; their gradients add up.

With dropout rows share the mask of shared tokens: each row is still a valid sample, so the mean gradient is the same,
but rows are no longer independent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from grpo_plus.engine.rows import Rows


@dataclass(frozen=True)
class Node:
    """Steps ``start`` to ``end`` of all its ``rows``; they attend to the node ``above`` and its ancestors."""

    start: int
    end: int
    rows: tuple[int, ...]
    above: int | None = None

    @property
    def size(self) -> int:
        """The number of tokens."""
        return self.end - self.start


@dataclass(frozen=True)
class Tree:
    """Nodes in depth-first order; the first has all rows."""

    nodes: tuple[Node, ...]

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows of the tree."""
        return self.nodes[0].rows

    @cached_property
    def size(self) -> int:
        """The number of tokens."""
        return sum(node.size for node in self.nodes)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The start of each node, in tokens of the tree."""
        sizes = [node.size for node in self.nodes]
        return tuple(np.cumsum([0, *sizes[:-1]]).tolist())

    @cached_property
    def until(self) -> tuple[int, ...]:
        """The end of the last token that attends to each node."""
        until = [place + node.size for place, node in zip(self.places, self.nodes, strict=True)]
        for number in range(len(self.nodes) - 1, 0, -1):
            above = self.nodes[number].above
            assert above is not None
            until[above] = max(until[above], until[number])
        return tuple(until)

    def pieces(self, number: int) -> list[tuple[int, int]]:
        """Return place and size of the nodes above a node, top first."""
        result, above = [], self.nodes[number].above
        while above is not None:
            result.append((self.places[above], self.nodes[above].size))
            above = self.nodes[above].above
        return result[::-1]


def grow(rows: Rows, chosen: Sequence[int], branches: int | None, least: float | None = None) -> list[Tree]:
    """Return the trees of the chosen rows, at most ``branches`` rows each (None: no limit), longest first.

    Without ``least`` rows share their prompts. With it they share any common start that saves at least so many tokens
    (above 0).
    """
    trees: list[Tree] = []
    if least is None:
        groups: dict[bytes, list[int]] = {}
        for row in chosen:
            groups.setdefault(rows.keys[row], []).append(row)
        for members in groups.values():
            # Neighbours of about the same length make trees of about the same size, which pad each other least.
            members.sort(key=lambda row: -rows.completions[row])
            for part in _parts(members, branches):
                trees += _cut(rows, part, [0] + [rows.prompts[part[0]] - 1] * (len(part) - 1), 0.0)
    else:
        places, common = in_order([rows.steps[row] for row in chosen])
        order = [chosen[place] for place in places]
        trees = _cut(rows, order, common, least)
        if branches is not None and any(len(tree.rows) > branches for tree in trees):
            place = {row: number for number, row in enumerate(order)}
            parts = [part for tree in trees for part in _parts(tree.rows, branches)]
            trees = [
                tree
                for part in parts
                for tree in _cut(rows, part, [0, *(common[place[row]] for row in part[1:])], least)
            ]
    return sorted(trees, key=lambda tree: -tree.size)


def in_order(sequences: Sequence[np.ndarray]) -> tuple[list[int], list[int]]:
    """Return the sorted order of sequences of non-negative integers, and the length of each common start with the last.

    >>> in_order([np.array([3, 1, 2]), np.array([5]), np.array([3, 1])])
    ([2, 0, 1], [0, 2, 0])
    """
    order = sorted(range(len(sequences)), key=lambda place: sequences[place].astype(">i8").tobytes())
    common = [0] * len(order)
    for place in range(1, len(order)):
        one, other = sequences[order[place - 1]], sequences[order[place]]
        length = min(len(one), len(other))
        differ = one[:length] != other[:length]
        common[place] = int(differ.argmax()) if differ.any() else length
    return order, common


def _parts(members: Sequence[int], most: int | None) -> list[Sequence[int]]:
    step = len(members) if most is None else most
    return [members[start : start + step] for start in range(0, len(members), step)]


def _cut(rows: Rows, members: Sequence[int], common: Sequence[int], least: float) -> list[Tree]:
    """Return the trees of rows in sorted order; ``common`` counts the first steps shared with the previous row."""
    forest: list[list[Node]] = []
    todo: list[tuple[int, int, int, int | None]] = [(0, len(members), 0, None)]
    while todo:
        first, last, start, above = todo.pop()
        if last - first == 1:
            row = members[first]
            cuts, end = [first, last], rows.prompts[row] + rows.completions[row] - 1
        else:
            end = min(common[first + 1 : last])
            cuts = [first, *(place for place in range(first + 1, last) if common[place] == end), last]
        saved = (len(cuts) - 2) * (end - start)
        if end > start and (len(cuts) == 2 or saved >= least):
            if above is None:
                forest.append([])
            forest[-1].append(Node(start, end, tuple(members[first:last]), above))
            start, above = end, len(forest[-1]) - 1
        if last - first > 1:
            todo += [(cuts[k], cuts[k + 1], start, above) for k in range(len(cuts) - 2, -1, -1)]
    return [Tree(tuple(nodes)) for nodes in forest]
