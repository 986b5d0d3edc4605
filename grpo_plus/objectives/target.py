"""`target`: a target for each probability; there is no pull beyond it.

A node is one token after one completion prefix of one prompt. The sign of the sum of the advantages of all completions
through it makes it good or bad. The target of a good node's probability is p_old^a (a < 1, up), that of a bad one
p_old^b (b > 1, down); the loss is the remaining distance, in log space, and zero beyond. There is no ratio to clip, no
KL term, and no weight of group size or length.

Use it when each generation batch is trained on for several steps and the change of a probability should be explicit,
rather than follow from a learning rate and a clip.

Assumes several optimizer steps on each generation batch. The gradient of the first one is the sign of the target
alone, so with a single step the exponents would change nothing; a training config with one is refused.

Degenerate case: advantages that cancel, or that are all zero, leave a node without a target. Targets of one context
that sum to more than 1 are scaled down (`fit_to_one`).

Config:
    objective: {name: target, good_exponent: 0.5, bad_exponent: 2.0}
    num_iterations: 2
"""

# ruff: noqa: RUF001 - formulas

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Metric, Terms, TokenBatch
from grpo_plus.objectives.pieces import Piece
from grpo_verifiers.options import Range

TOLERANCE = 0.01
"""A token this close to its target, in nats, counts as settled."""

_CANCELS = 1e-5


@dataclass(frozen=True)
class Targets:
    """The targets of every token of N completions.

    Attributes:
        logps: (N, T) log of the target probability; the old one without a target.
        sign: (N, T) 1 good, -1 bad, 0 without a target.
        weights: (N, T) one over the occurrences of the token's node; 0 without a target.
    """

    logps: Tensor
    sign: Tensor
    weights: Tensor


def target(
    batch: TokenBatch,
    ratio: Tensor,  # noqa: ARG001 - the signature of every surrogate
    *,
    good_exponent: Annotated[float, Range(0, 1)] = 0.5,  # noqa: ARG001 - read by `make_targets`
    bad_exponent: Annotated[float, Range(1)] = 2.0,  # noqa: ARG001 - same
) -> Terms:
    """The distance to the target of each probability, one-sided: nothing pulls beyond it.

    Args:
        batch: the tokens, with their targets.
        ratio: not read.
        good_exponent: the target of a good token is p_old to this power: 1 leaves it, 0 means certainty.
        bad_exponent: the target of a bad token is p_old to this power: 1 leaves it.
    """
    if batch.target_logps is None or batch.target_sign is None or batch.target_weights is None:
        raise ValueError(
            "the surrogate 'target' needs target_logps, target_sign and target_weights, which this batch lacks: the "
            "trainer that computes the loss computes them once per generation batch."
        )
    pulled = batch.mask & (batch.target_sign != 0)
    left = torch.where(pulled, batch.target_sign * (batch.target_logps - batch.logps), 0.0)
    settled = pulled & (left.detach() <= TOLERANCE)
    metrics = {
        "target/at_target": Metric(settled.float(), where=pulled),
        "target/distance": Metric(left.detach().clamp(min=0), where=pulled),
        "target/signed": Metric(pulled.float()),
    }
    return Terms(-batch.target_weights * left.clamp(min=0), metrics, settled=settled, pulled=pulled)


TARGET = Piece(
    "surrogate",
    "target",
    target,
    "−max(0, ±(log p* − lp_t)), p* = p_old^{good_exponent} (good) or p_old^{bad_exponent} (bad), fitted to sum ≤ 1",
    ratios=("none",),
    reduce="token_mean",
    why_no_kl="the surrogate 'target' sets a target for each probability",
    settles=True,
)


def make_targets(
    *,
    prompts_N: Tensor,
    tokens_NT: Tensor,
    present_NT: Tensor,
    trained_NT: Tensor,
    old_logps_NT: Tensor,
    advantages_NT: Tensor,
    good_exponent: Annotated[float, Range(0, 1)] = 0.5,
    bad_exponent: Annotated[float, Range(1)] = 2.0,
) -> Targets:
    """Return targets of all completions of a generation batch, of all ranks: a node may span ranks.

    ``prompts_N`` are integers, equal for equal prompts. ``present_NT`` is False for padding; tokens that are not
    trained are only part of prefixes. Log-probabilities are from before the update. Advantages may be (N, 1), one a
    completion. The exponents are a and b of this module's docstring.
    """
    trained = trained_NT & present_NT
    nodes_M, contexts_M = _walk(prompts_N, tokens_NT, trained)
    old_M = old_logps_NT[trained].double()
    advantage_M = advantages_NT.expand_as(old_logps_NT)[trained].double()
    count = int(nodes_M.max()) + 1 if nodes_M.numel() else 0

    def total(values_M: Tensor) -> Tensor:
        return torch.zeros(count, dtype=torch.float64, device=values_M.device).index_add_(0, nodes_M, values_M)

    occurrences = total(torch.ones_like(old_M))
    net, gross = total(advantage_M), total(advantage_M.abs())
    sign = torch.where(net.abs() <= _CANCELS * gross, 0.0, net.sign())
    old = total(old_M) / occurrences  # occurrences differ by rounding only
    context = torch.zeros(count, dtype=torch.long, device=old.device)
    context[nodes_M] = contexts_M
    goal = torch.where(sign > 0, good_exponent * old, torch.where(sign < 0, bad_exponent * old, old))
    goal = fit_to_one(goal, old, sign, context)

    def spread(per_node: Tensor, elsewhere: Tensor) -> Tensor:
        spread_NT = elsewhere.clone()
        spread_NT[trained] = per_node[nodes_M].to(spread_NT.dtype)
        return spread_NT

    nothing = torch.zeros_like(old_logps_NT)
    weights = torch.where(sign != 0, 1 / occurrences, 0.0)
    return Targets(spread(goal, old_logps_NT), spread(sign, nothing), spread(weights, nothing))


def _walk(prompts_N: Tensor, tokens_NT: Tensor, trained_NT: Tensor) -> tuple[Tensor, Tensor]:
    """Node and context numbers of the trained tokens, in the order of a mask.

    All completions advance together by position: two share a context as long as all their tokens are equal.
    """
    rows, width = tokens_NT.shape
    nodes_NT = torch.zeros_like(tokens_NT, dtype=torch.long)
    contexts_NT = torch.zeros_like(nodes_NT)
    _, here_N = torch.unique(prompts_N, return_inverse=True)
    stride = int(tokens_NT.max()) + 1 if tokens_NT.numel() else 1
    for position in range(width):
        contexts_NT[:, position] = here_N
        _, here_N = torch.unique(here_N * stride + tokens_NT[:, position], return_inverse=True)
        nodes_NT[:, position] = here_N
    offsets = torch.arange(width, device=tokens_NT.device) * rows  # numbers start again at every position
    _, nodes_M = torch.unique((nodes_NT + offsets)[trained_NT], return_inverse=True)
    _, contexts_M = torch.unique((contexts_NT + offsets)[trained_NT], return_inverse=True)
    return nodes_M, contexts_M


def fit_to_one(goal: Tensor, old: Tensor, sign: Tensor, context: Tensor) -> Tensor:
    """Log-targets whose probabilities sum to at most 1 in every context.

    If they exceed it, the good ones are scaled down together, but none below its old probability: those stay there and
    the rest share the remainder. All arguments have one value a node: the log-target, the old log-probability, the
    sign (1 good, -1 bad, 0 without a target, which is ignored) and the context's number.
    """
    contexts = int(context.max()) + 1 if context.numel() else 0

    def total(values: Tensor, which: Tensor) -> Tensor:
        sums = torch.zeros(contexts, dtype=values.dtype, device=values.device)
        return sums.index_add_(0, context, torch.where(which, values, 0.0))

    probability, floor = goal.exp(), old.exp()
    free = sign > 0
    at_floor = torch.zeros_like(free)
    bad = total(probability, sign < 0)
    over = (bad + total(probability, free)) > 1
    log_scale = torch.zeros(contexts, dtype=goal.dtype, device=goal.device)
    while True:
        budget = (1 - bad - total(floor, at_floor)).clamp(min=0)
        share = torch.where(over, budget.log() - total(probability, free).log(), 0.0)
        log_scale = torch.where(over, share.clamp(max=0), log_scale)
        below = free & over[context] & (goal + log_scale[context] < old)
        if not bool(below.any()):
            break
        at_floor, free = at_floor | below, free & ~below
    scaled = torch.where(free, goal + log_scale[context], goal)
    return torch.where(at_floor, old, scaled)
