"""Trees: the completions of one prompt laid out so that the prompt is run once.

A tree is the first P-1 tokens of a prompt, then for each completion a branch: its own copy of the prompt's last token
and the completion without its last token, from which nothing is predicted. A branch sees the shared part and itself, at
the positions it would have alone, so its log-probabilities and their gradient are those of the unpacked row. (Tree
attention as in Cai et al. 2024, Medusa, there used for decoding.) Under dropout the branches share the prompt's draw:
each is still a draw of its own row, so the mean gradient is the same, but they are no longer independent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

SHARED, FILL = -1, -2
"""Branch number of the tokens that every branch sees, and of padding."""

IGNORED = -100
"""Label of a position that is not scored."""


@dataclass(frozen=True)
class Rows:
    """The rows of a micro-batch as numbers on the host: all that planning needs.

    Prompts and completions are numbers of tokens; keys are equal for rows whose prompts have the same tokens. The
    widths count columns, padding included.
    """

    prompts: Sequence[int]
    completions: Sequence[int]
    keys: Sequence[bytes]
    prompt_width: int
    width: int


@dataclass(frozen=True)
class Tree:
    """One prompt and some of its completions, which are the branches; lengths are in tokens."""

    prompt: int
    rows: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def size(self) -> int:
        """Tokens of the tree."""
        return self.prompt - 1 + sum(self.lengths)


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
        branch: (T, L), number of the branch a token belongs to, `SHARED` or `FILL`.
        scored: flat positions in (T, L) of the scored tokens.
        target: flat positions in (B, C) that they belong to.
        branching: whether any tree has more than one branch; without one a plain causal mask is exact.
        branches: how joined trees attend; None where attention tells them apart by positions that start anew.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor
    branch: torch.Tensor
    scored: torch.Tensor
    target: torch.Tensor
    branching: bool
    branches: Branches | None = None


def read_rows(input_ids_BS: torch.Tensor, attention_mask_BS: torch.Tensor, completion_width: int) -> Rows | None:
    """Measure the rows of a batch; None where padding is not left of the prompt and right of the completion."""
    ids = input_ids_BS.cpu()
    mask = attention_mask_BS.cpu().bool()
    width = ids.shape[1]
    prompt_width = width - completion_width
    prompt_mask, completion_mask = mask[:, :prompt_width], mask[:, prompt_width:]
    prompts, completions = prompt_mask.sum(1), completion_mask.sum(1)
    left = torch.arange(prompt_width) >= prompt_width - prompts[:, None]
    right = torch.arange(completion_width) < completions[:, None]
    if prompt_width == 0 or not (torch.equal(left, prompt_mask) and torch.equal(right, completion_mask)):
        return None
    lengths = prompts.tolist()
    array = ids[:, :prompt_width].contiguous().numpy()
    keys = [array[row, prompt_width - length :].tobytes() for row, length in enumerate(lengths)]
    return Rows(lengths, completions.tolist(), keys, prompt_width, width)


def grow(rows: Rows, chosen: Sequence[int], branches: int | None) -> list[Tree]:
    """The trees of the chosen rows, at most ``branches`` completions each (None: all of a prompt), longest first."""
    groups: dict[bytes, list[int]] = {}
    for row in chosen:
        groups.setdefault(rows.keys[row], []).append(row)
    trees = []
    for members in groups.values():
        # Neighbours of about the same length make trees of about the same size, which pad each other least.
        members.sort(key=lambda row: -rows.completions[row])
        step = len(members) if branches is None else branches
        for start in range(0, len(members), step):
            part = tuple(members[start : start + step])
            trees.append(Tree(rows.prompts[part[0]], part, tuple(rows.completions[row] for row in part)))
    return sorted(trees, key=lambda tree: -tree.size)


def lay_out(trees: Sequence[Tree], input_ids_BS: torch.Tensor, rows: Rows) -> Packed:
    """Copy the trees' tokens out of a batch whose prompts are padded left and completions right; ``rows`` measures it.

    Each tree needs at least one branch, every branch and prompt at least one token.
    """
    device = input_ids_BS.device
    length = max(tree.size for tree in trees)
    completion_width = rows.width - rows.prompt_width
    source = torch.full((len(trees), length), -1)
    wanted = torch.full((len(trees), length), -1)
    positions = torch.arange(length).repeat(len(trees), 1)
    branch = torch.full((len(trees), length), FILL)
    scored, target = [], []
    for index, tree in enumerate(trees):
        shared = tree.prompt - 1
        first = tree.rows[0] * rows.width + rows.prompt_width - tree.prompt
        source[index, :shared] = torch.arange(first, first + shared)
        branch[index, :shared] = SHARED
        at = shared
        for number, (row, tokens) in enumerate(zip(tree.rows, tree.lengths, strict=True)):
            here = slice(at, at + tokens)
            begin = row * rows.width + rows.prompt_width - 1
            source[index, here] = torch.arange(begin, begin + tokens)
            wanted[index, here] = torch.arange(begin + 1, begin + 1 + tokens)
            positions[index, here] = torch.arange(shared, shared + tokens)
            branch[index, here] = number
            scored.append(torch.arange(index * length + at, index * length + at + tokens))
            target.append(torch.arange(row * completion_width, row * completion_width + tokens))
            at += tokens
    flat = input_ids_BS.reshape(-1)
    source, wanted = source.to(device), wanted.to(device)
    return Packed(
        input_ids=torch.where(source >= 0, flat[source.clamp(min=0)], 0),
        position_ids=positions.to(device),
        labels=torch.where(wanted >= 0, flat[wanted.clamp(min=0)], IGNORED),
        branch=branch.to(device),
        scored=torch.cat(scored).to(device),
        target=torch.cat(target).to(device),
        branching=any(len(tree.rows) > 1 for tree in trees),
    )


def join(packed: Packed) -> Packed:
    """The same trees behind one another in one row without padding, for attention that keeps them apart."""
    real = packed.branch != FILL
    place = real.reshape(-1).cumsum(0) - 1
    return Packed(
        input_ids=packed.input_ids[real][None],
        position_ids=packed.position_ids[real][None],
        labels=packed.labels[real][None],
        branch=packed.branch[real][None],
        scored=place[packed.scored],
        target=packed.target,
        branching=packed.branching,
    )


def tree_mask(branch_TL: torch.Tensor) -> torch.Tensor:
    """Who sees whom, (T, 1, L, L) bool: the past that is shared or of one's own branch.

    Padding sees itself and the shared part, so that no row of the mask is empty; nothing else sees padding.
    """
    length = branch_TL.shape[1]
    causal_LL = torch.ones(length, length, dtype=torch.bool, device=branch_TL.device).tril()
    query, key = branch_TL[:, :, None], branch_TL[:, None, :]
    return (causal_LL & ((key == SHARED) | (key == query)))[:, None]


def sees(branch_TL: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The same as a function of single positions, of which FlexAttention makes its block masks."""

    def visible(tree: torch.Tensor, _: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        seen = branch_TL[tree, key]
        return (key <= query) & ((seen == SHARED) | (seen == branch_TL[tree, query]))

    return visible
