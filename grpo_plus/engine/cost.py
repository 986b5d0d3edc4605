"""The cost of a pass by the shape of the model, and the choice of the cheapest layout of a micro-batch.

Costs are in floating-point operations of a forward and a backward pass; only their ratios matter. The counts are the
usual ones (Kaplan et al. 2020, appendix: 2 operations per weight and token forward, twice that backward), attention is
counted over all pairs a dense mask holds and over half of them under a plain causal mask.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.engine.branches import bundled, padded_pairs, stretches
from grpo_plus.engine.rows import Rows, columns
from grpo_plus.engine.trees import Tree, grow
from grpo_plus.memory.shape import head_sizes, largest

NOT_WORTH_IT = 0.95
"""The largest cost of another layout relative to TRL's: estimates err, and TRL's has no set-up."""

_LAYER_OVERHEAD = {"cpu": 2e8, "other": 3e10}
"""Fixed work of a layer in a pass, in operations: about 3 ms on a core that does 75 GFLOP/s (measured),
and the launches of some 60 kernels on an accelerator (estimated at 0.3 ms and 100 TFLOP/s)."""

_BUNDLE_OVERHEAD = 0.1
"""Fixed work of each further call of attention, relative to that of a pass."""


@dataclass(frozen=True)
class Shape:
    """A model's shape in operations.

    Attributes:
        token: operations per token in the linear layers and the head.
        pair: operations per pair of tokens in attention.
        overhead: fixed work of a pass, in operations.
        token_bytes: rough activation memory of a token until the backward pass.
        pair_bytes: memory of a pair of tokens in masks, and in attention weights if they are materialised.
        state_bytes: memory of a copy of a token's attention states.
    """

    token: float
    pair: float
    overhead: float
    token_bytes: float
    pair_bytes: float
    state_bytes: float

    def cost(self, batch: int, length: int, *, dense: bool) -> float:
        """Return the operations of one pass over ``batch`` sequences of ``length`` tokens."""
        pairs = length * length * (1.0 if dense else 0.5)
        return batch * (length * self.token + pairs * self.pair) + self.overhead

    def memory(self, batch: int, length: int) -> float:
        """Return the bytes that one pass stores until its backward pass."""
        return batch * (length * self.token_bytes + length * length * self.pair_bytes)

    def of_branches(self, trees: Sequence[Tree]) -> tuple[float, float]:
        """Return the operations of one pass over joined trees, and the bytes that it stores."""
        tokens, bundles = sum(tree.size for tree in trees), bundled(list(stretches(trees)))
        pairs = sum(padded_pairs(bundle) for bundle in bundles)
        copies = sum(len(bundle) * max(3 * one.own + 2 * one.shared for one in bundle) for bundle in bundles)
        operations = tokens * self.token + pairs * self.pair + self.overhead * (1 + _BUNDLE_OVERHEAD * len(bundles))
        return operations, tokens * self.token_bytes + pairs * self.pair_bytes + copies * self.state_bytes

    @property
    def least(self) -> float:
        """The least number of saved tokens that is worth one more call of attention."""
        return max(1.0, _BUNDLE_OVERHEAD * self.overhead / self.token)


def shape_of(config: Any, *, device: str, eager: bool) -> Shape:
    """Return the shape of a text model's config; ``eager`` attention materialises its weights."""
    hidden = largest(config, "hidden_size", "n_embd") or 1
    layers = largest(config, "num_hidden_layers", "n_layer") or 1
    heads, groups, width = head_sizes(config)
    inner = largest(config, "intermediate_size", "n_inner") or 4 * hidden
    experts = largest(config, "num_experts_per_tok") or 0
    if experts:
        inner = experts * (largest(config, "moe_intermediate_size") or inner)
    weights = layers * (2 * hidden * heads * width + 2 * hidden * groups * width + 3 * hidden * inner)
    weights += hidden * (largest(config, "vocab_size") or 1)
    return Shape(
        token=6.0 * weights,
        pair=12.0 * heads * width * layers,
        overhead=layers * _LAYER_OVERHEAD.get(device, _LAYER_OVERHEAD["other"]),
        token_bytes=4.0 * layers * (8 * hidden + 3 * inner),
        pair_bytes=8.0 * heads * layers if eager else 5.0,
        state_bytes=4.0 * layers * heads * width,
    )


@dataclass(frozen=True)
class PassPlan:
    """A layout (``packed``, ``trimmed`` or ``stock``) of some rows with its estimated cost in operations.

    Only ``packed`` has passes: the trees of each. With ``joined`` the trees of a pass form one row without padding.
    """

    layout: str
    passes: tuple[tuple[Tree, ...], ...] = ()
    cost: float = 0.0
    joined: bool = False


def split_passes(trees: Sequence[Tree], shape: Shape, *, most_tokens: int | None = None) -> list[list[Tree]]:
    """Batch trees, longest first, into passes; a new pass starts if it costs less than the padding."""
    passes: list[list[Tree]] = []
    for tree in trees:
        if passes:
            longest, count = passes[-1][0].size, len(passes[-1])
            waste = shape.cost(1, longest, dense=True) - shape.cost(1, tree.size, dense=True)
            fits = most_tokens is None or (count + 1) * longest <= most_tokens
            if fits and waste <= shape.overhead:
                passes[-1].append(tree)
                continue
        passes.append([tree])
    return passes


def choose(
    rows: Rows,
    chosen: Sequence[int],
    shape: Shape,
    *,
    stock_rows: int,
    packing: bool,
    sharing: bool,
    branching: bool,
    deep: bool,
    joining: bool,
    trimming: bool,
    single_pass: bool,
    forced: str = "auto",
    most_tokens: int | None = None,
) -> PassPlan:
    """Return the cheapest exact plan for the chosen rows, each of which has a prompt and a completion.

    ``rows`` is the complete micro-batch. TRL would run ``stock_rows`` in place of the chosen ones, padded to all
    columns. The flags are the exact treatments: with ``deep`` rows may share more than their prompt. ``single_pass`` is
    for processes that must agree on the number of passes. A ``forced`` layout is used if it is possible; ``auto``
    forces none. ``most_tokens`` bounds a pass, except for a single longer row.
    """
    stock = shape.cost(stock_rows, rows.width, dense=rows.padded)
    bound = shape.memory(stock_rows, rows.width)
    width = sum(columns(rows, chosen, left=trimming))
    ragged = any(rows.prompts[row] + rows.completions[row] < width for row in chosen)
    plans = [PassPlan("trimmed", cost=shape.cost(len(chosen), width, dense=ragged))]
    if packing and joining and forced != "trimmed":
        parts = _fill(grow(rows, chosen, 1), most_tokens)
        cost = sum(shape.cost(1, tree.size, dense=False) - shape.overhead for part in parts for tree in part)
        plans.append(PassPlan("packed", parts, cost + shape.overhead * len(parts), joined=True))
    elif packing and forced != "trimmed":
        limits = _Limits(bound, most_tokens, single_pass)
        trees = grow(rows, chosen, None if sharing else 1)
        near = list(_of_trees(rows, trees, shape, limits, branching=branching))
        plans += near
        if sharing and deep:
            deeper = grow(rows, chosen, None, shape.least)
            if sum(tree.size for tree in deeper) < sum(tree.size for tree in trees):
                enough = NOT_WORTH_IT * min(plan.cost for plan in near)
                far = _of_trees(rows, deeper, shape, limits, branching=branching, least=shape.least)
                plans += [plan for plan in far if plan.cost <= enough]
    if forced != "auto":
        plans = [plan for plan in plans if plan.layout == forced] or plans
    best = min(plans, key=lambda plan: plan.cost)
    return best if forced != "auto" or best.cost <= NOT_WORTH_IT * stock else PassPlan("stock", cost=stock)


@dataclass(frozen=True)
class _Limits:
    """Most bytes of a plan with shared tokens, most tokens of a pass, and the restriction to one pass."""

    memory: float
    most_tokens: int | None
    single_pass: bool

    def bind(self, trees: Sequence[Tree]) -> bool:
        return self.most_tokens is not None and trees[0].size > self.most_tokens


def _of_trees(
    rows: Rows, trees: list[Tree], shape: Shape, limits: _Limits, *, branching: bool, least: float | None = None
) -> Iterator[PassPlan]:
    """Yield plans for these trees, and for trees with fewer and fewer rows, cut as by `grow` with ``least``."""
    chosen = [row for tree in trees for row in dict.fromkeys(tree.rows)]
    for branches in _halvings(max(len(tree.rows) for tree in trees)):
        trees = trees if branches >= max(len(tree.rows) for tree in trees) else grow(rows, chosen, branches, least)
        if branching and branches > 1 and (limits.single_pass or not limits.bind(trees)):
            parts = _fill(trees, None if limits.single_pass else limits.most_tokens)
            costs, stored = zip(*map(shape.of_branches, parts), strict=True)
            if sum(stored) <= limits.memory:
                yield PassPlan("packed", parts, sum(costs), joined=True)
                branching = False  # fewer branches would run more tokens
        passes = [trees] if limits.single_pass else split_passes(trees, shape, most_tokens=limits.most_tokens)
        keeps = (shape.memory(len(part), part[0].size) for part in passes)
        if branches > 1 and (limits.bind(trees) or sum(keeps) > limits.memory):
            continue
        cost = sum(shape.cost(len(part), part[0].size, dense=any(len(t.nodes) > 1 for t in part)) for part in passes)
        yield PassPlan("packed", tuple(tuple(part) for part in passes), cost)


def _fill(trees: Sequence[Tree], most_tokens: int | None) -> tuple[tuple[Tree, ...], ...]:
    passes: list[list[Tree]] = []
    tokens = 0
    for tree in trees:
        if not passes or (most_tokens is not None and tokens + tree.size > most_tokens):
            passes.append([])
            tokens = 0
        passes[-1].append(tree)
        tokens += tree.size
    return tuple(tuple(part) for part in passes)


def _halvings(most: int) -> list[int]:
    """Return ``most``, its half rounded up, and so on down to 1."""
    sizes = [most]
    while sizes[-1] > 1:
        sizes.append((sizes[-1] + 1) // 2)
    return sizes
