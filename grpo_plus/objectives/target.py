"""`target`: say how far each probability should go, and stop there.

A node is one token after one completion prefix of one prompt. The completions that pass through it decide together
whether it is good or bad: by the sign of the sum of their advantages. A good node's probability is to become
p_old^a (a < 1, up), a bad one's p_old^b (b > 1, down); the loss is the distance that is left, in log space, and zero
beyond. There is no ratio to clip, no KL term, and no weight of group size or length.

Use it when each generation batch is trained on for several steps and how far a probability moves should be said
outright, rather than follow from a learning rate and a clip.

Assumes several optimizer steps on each generation batch. The gradient of the first one is the sign of the target
alone, so with a single step the exponents would change nothing; a training config with one is refused.

Degenerate case: advantages that cancel, or that are all zero, leave a node without a target. Targets of one context
that sum to more than 1 are made to fit (`fit_to_one`).

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
"""A token this close to its target, in nats, has arrived."""

_CANCELS = 1e-5


@dataclass(frozen=True)
class Targets:
    """The targets of every token of N completions.

    Attributes:
        logps: (N, T) log of the target probability; the old one where there is no target.
        sign: (N, T) 1 good, -1 bad, 0 without a target.
        weights: (N, T) one over the occurrences of the token's node; 0 without a target.
    """

    logps: Tensor
    sign: Tensor
    weights: Tensor


def target(
    batch: TokenBatch,
    ratio: Tensor,  # noqa: ARG001 - every surrogate is called alike
    *,
    good_exponent: Annotated[float, Range(0, 1)] = 0.5,  # noqa: ARG001 - read where the targets are made, once per generation batch
    bad_exponent: Annotated[float, Range(1)] = 2.0,  # noqa: ARG001 - same
) -> Terms:
    """The distance to the target of each probability, one-sided: nothing pulls beyond it.

    Args:
        batch: the tokens, with their targets.
        ratio: not read.
        good_exponent: the target of a good token is p_old to this power: 1 leaves it, 0 asks for certainty.
        bad_exponent: the target of a bad token is p_old to this power: 1 leaves it.
    """
    if batch.target_logps is None or batch.target_sign is None or batch.target_weights is None:
        raise ValueError(
            "the surrogate 'target' needs target_logps, target_sign and target_weights, which this batch lacks: they "
            "are made once per generation batch by the trainer that computes the loss."
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
    why_no_kl="the surrogate 'target' says how far each probability should go",
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
    """Targets of all completions of a generation batch, which must be together: a node may span ranks.

    ``prompts_N`` are integers, equal where the prompts are. ``present_NT`` is False for padding; tokens that are not
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
    wanted = torch.where(sign > 0, good_exponent * old, torch.where(sign < 0, bad_exponent * old, old))
    wanted = fit_to_one(wanted, old, sign, context)

    def spread(per_node: Tensor, elsewhere: Tensor) -> Tensor:
        spread_NT = elsewhere.clone()
        spread_NT[trained] = per_node[nodes_M].to(spread_NT.dtype)
        return spread_NT

    nothing = torch.zeros_like(old_logps_NT)
    weights = torch.where(sign != 0, 1 / occurrences, 0.0)
    return Targets(spread(wanted, old_logps_NT), spread(sign, nothing), spread(weights, nothing))


def _walk(prompts_N: Tensor, tokens_NT: Tensor, trained_NT: Tensor) -> tuple[Tensor, Tensor]:
    """Node and context numbers of the trained tokens, in the order in which a mask picks them.

    All completions are walked at once, a position at a time: two share a context as long as they shared every token.
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


def fit_to_one(wanted: Tensor, old: Tensor, sign: Tensor, context: Tensor) -> Tensor:
    """Log-targets whose probabilities sum to at most 1 in every context.

    Where they do not, the good ones are scaled down together, but none below its old probability: those stay there and
    the others share what remains. All arguments have one value a node: the log-target, the old log-probability, the
    sign (1 good, -1 bad, 0 without a target, which takes no part) and the context's number.
    """
    contexts = int(context.max()) + 1 if context.numel() else 0

    def total(values: Tensor, which: Tensor) -> Tensor:
        sums = torch.zeros(contexts, dtype=values.dtype, device=values.device)
        return sums.index_add_(0, context, torch.where(which, values, 0.0))

    probability, floor = wanted.exp(), old.exp()
    free = sign > 0
    kept = torch.zeros_like(free)
    bad = total(probability, sign < 0)
    over = (bad + total(probability, free)) > 1
    log_scale = torch.zeros(contexts, dtype=wanted.dtype, device=wanted.device)
    while True:
        budget = (1 - bad - total(floor, kept)).clamp(min=0)
        share = torch.where(over, budget.log() - total(probability, free).log(), 0.0)
        log_scale = torch.where(over, share.clamp(max=0), log_scale)
        below = free & over[context] & (wanted + log_scale[context] < old)
        if not bool(below.any()):
            break
        kept, free = kept | below, free & ~below
    scaled = torch.where(free, wanted + log_scale[context], wanted)
    return torch.where(kept, old, scaled)
