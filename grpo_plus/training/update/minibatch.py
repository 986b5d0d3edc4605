"""From a generation batch to the micro-batches of an objective: counts, prompts, targets, and metrics back.

All functions take tensors and callables that communicate between ranks, so they run without a trainer.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_plus.objectives.batch import COIN, KEEP, SHARE, Counts, Metric, TokenBatch
from grpo_plus.objectives.group import GroupScores
from grpo_plus.objectives.objective import Objective
from grpo_plus.objectives.reduce import over_tokens
from grpo_plus.objectives.target import make_targets

Gather = Callable[[Tensor], Tensor]
"""All ranks' rows of a tensor, in the order of the ranks; narrower ones are padded with zeros on the right."""

TOKENS = "num_items_in_batch"
COMPLETIONS, PROMPTS, PROMPT_TOKENS = "num_completions_in_batch", "num_prompts_in_batch", "prompt_tokens"
TARGET_TOTAL = "target_weight_sum"
TARGETS = ("target_logps", "target_sign", "target_weights")
GROUPS, PULL, GROUP_LOSS = "group_numbers", "group_pull", "group_loss"
"""Keys of a generation batch, (B,) each: the number of the row's group over all ranks; see `objectives/group.py`."""
PICTURES = ("pixel_values", "num_images")


def trained_mask(inputs: Mapping[str, Any]) -> Tensor:
    """Return the policy's own completion tokens, (B, T), without masked completions and those of share 0."""
    mask: Tensor = inputs["completion_mask"].bool()
    if "tool_mask" in inputs:
        mask = mask & inputs["tool_mask"].bool()
    return (mask & (inputs[SHARE] != 0).unsqueeze(1)) if SHARE in inputs else mask


def prompt_keys(prompt_ids: Tensor, prompt_mask: Tensor, groups_B: Tensor, *, by_group: bool) -> Tensor:
    """Return integers, (B, 2), that are equal for equal prompts, on any rank and with any padding.

    ``by_group``: groups must be equal, too. Equal tokens may belong to different images, and a prompt that was sampled
    twice with shares counts twice.
    """
    digests = []
    for ids, mask, group in zip(prompt_ids.tolist(), prompt_mask.tolist(), groups_B.tolist(), strict=True):
        words = [token for token, present in zip(ids, mask, strict=True) if present]
        digest = hashlib.sha256(repr((words, group if by_group else None)).encode()).digest()
        digests.append([int.from_bytes(digest[i : i + 8], "big", signed=True) for i in (0, 8)])
    return torch.tensor(digests, dtype=torch.long, device=prompt_ids.device).reshape(-1, 2)


def add_counts(output: dict[str, Any], groups_B: Tensor, *, rank: int, gather: Gather) -> Tensor:
    """Add the counts of the generation batch to it, over all ranks, and return all ranks' prompt numbers, (N,).

    The tokens of the batch are weighted by shares; those of a prompt are not: a share is the weight of its mean.
    """
    shared = SHARE in output
    by_group = shared or any(output.get(name) is not None for name in PICTURES)
    keys = prompt_keys(output["prompt_ids"], output["prompt_mask"], groups_B, by_group=by_group)
    prompts_N: Tensor = torch.unique(gather(keys), dim=0, return_inverse=True)[1]
    if shared:
        add_shares(output, gather)
    tokens_N = gather(trained_mask(output).sum(-1))
    count = int(prompts_N.max()) + 1
    per_prompt = torch.zeros(count, dtype=tokens_N.dtype, device=tokens_N.device).index_add_(0, prompts_N, tokens_N)
    rows = len(keys)
    output[PROMPT_TOKENS] = per_prompt[prompts_N][rank * rows : (rank + 1) * rows]
    output[COMPLETIONS] = torch.tensor(len(prompts_N), device=tokens_N.device)
    output[PROMPTS] = torch.tensor(count, device=tokens_N.device)
    return prompts_N


def add_shares(output: dict[str, Any], gather: Gather) -> None:
    """Count the tokens of a generation batch, over all ranks, by the shares of their rows."""
    share_B, rows = output[SHARE], len(output["completion_ids"])
    if not share_B.is_floating_point() or share_B.shape != (rows,):
        kind = f"{share_B.dtype} of shape {tuple(share_B.shape)}"
        raise ValueError(f"the generation batch has shares ({SHARE!r}) that are {kind}, expected floats ({rows},).")
    share_N = gather(share_B)
    wrong_N = share_N[~(share_N.isfinite() & (share_N >= 0))]
    if len(wrong_N):
        raise ValueError(f"the generation batch has a share ({SHARE!r}) of {wrong_N[0]:g}, expected 0 or more, finite.")
    output[TOKENS] = (share_N * gather(trained_mask(output).sum(-1))).sum()


def settle_coins(output: dict[str, Any], groups_B: Tensor, *, gather: Gather, divides: bool) -> None:
    """Change shares and divisor so that coins leave a loss that ``divides`` by tokens unbiased."""
    coin_B, keep = output.pop(COIN, None), output.pop(KEEP, None)
    if coin_B is None or not divides:
        return
    total = TARGET_TOTAL if TARGET_TOTAL in output else TOKENS
    tokens_BT = output[TARGETS[2]] if total == TARGET_TOTAL else trained_mask(output)
    columns = torch.stack([tokens_BT.sum(-1) * output[SHARE], coin_B, output[SHARE]], dim=1).double()
    groups_N, columns_N3 = gather(groups_B), gather(columns)
    sums_G3 = columns_N3.new_zeros(int(groups_N.max()) + 1, 3).index_add_(0, groups_N, columns_N3)
    tokens_G, guessed_G = sums_G3[:, 0], sums_G3[:, 1] / groups_N.bincount()
    tied_G, going_G = guessed_G > 0, (guessed_G > 0) & (sums_G3[:, 2] > 0)
    rest = tokens_G[~tied_G].sum() + guessed_G[tied_G & ~going_G].sum()
    divisor, factor, factors_C = over_tokens(rest, keep * tokens_G[going_G], guessed_G[going_G], float(keep))
    factor_G = factor.repeat(len(tokens_G))
    factor_G[going_G] = factors_C
    output[SHARE] = output[SHARE] * factor_G[groups_B].to(output[SHARE])
    output[total] = divisor


def add_targets(
    output: dict[str, Any], prompts_N: Tensor, *, rank: int, gather: Gather, keywords: Mapping[str, Any]
) -> None:
    """Add the targets of `target` to the generation batch. Groups may span ranks, so all rows are read.

    On the CPU: thousands of small sequential steps are slow on an accelerator.
    """
    advantages = output["advantages"]
    targets = make_targets(
        prompts_N=prompts_N.cpu(),
        tokens_NT=gather(output["completion_ids"]).cpu(),
        present_NT=gather(output["completion_mask"].int()).bool().cpu(),
        trained_NT=gather(trained_mask(output).int()).bool().cpu(),
        old_logps_NT=gather(output["old_per_token_logps"]).cpu(),
        advantages_NT=gather(advantages if advantages.dim() == 2 else advantages.unsqueeze(1)).cpu(),
        **keywords,
    )
    (rows, width), device = output["completion_ids"].shape, advantages.device
    for name, everywhere in zip(TARGETS, (targets.logps, targets.sign, targets.weights), strict=True):
        output[name] = everywhere[rank * rows : (rank + 1) * rows, :width].contiguous().to(device)
    weights = targets.weights
    if SHARE in output:
        weights = weights * gather(output[SHARE]).to(weights).unsqueeze(1)
    output[TARGET_TOTAL] = weights.sum().to(device)


def add_pulls(
    parts: Sequence[dict[str, Any]], logps_of: Sequence[Tensor], objective: Objective, *, rank: int, gather: Gather
) -> dict[str, Tensor]:
    """Add the pulls of a group-level objective to the ``parts`` of a generation batch, and return metrics.

    ``logps_of`` has the present log-probabilities of each part. Groups may span parts and ranks, so all rows are read.
    """

    def everywhere(column: Callable[[int], Tensor]) -> Tensor:
        return gather(torch.cat([column(place) for place in range(len(parts))]))

    masks = [trained_mask(part) for part in parts]
    old = [part["old_per_token_logps"] for part in parts]
    advantages = [part["advantages"].reshape(len(mask), -1)[:, 0] for part, mask in zip(parts, masks, strict=True)]
    scores = GroupScores(
        groups=everywhere(lambda place: parts[place][GROUPS]),
        logps=everywhere(lambda place: torch.where(masks[place], logps_of[place].double(), 0.0).sum(1)),
        old_logps=everywhere(lambda place: torch.where(masks[place], old[place].double(), 0.0).sum(1)),
        lengths=everywhere(lambda place: masks[place].sum(1)),
        advantages=everywhere(lambda place: advantages[place]),
    )
    pull_N, loss_N, metrics = objective.pulls(scores)
    first = rank * sum(len(mask) for mask in masks)
    for part, mask in zip(parts, masks, strict=True):
        for name, values_N in ((PULL, pull_N), (GROUP_LOSS, loss_N)):
            part[name] = values_N[first : first + len(mask)].float()
        first += len(mask)
    return metrics


def window_counts(
    inputs: Mapping[str, Any],
    *,
    rows: int,
    processes: int,
    training: bool,
    accumulation: int,
    steps_per_generation: int,
) -> Counts:
    """Return the divisors of one accumulation window on one rank; in evaluation a batch is not split."""
    part = (accumulation / steps_per_generation if training else 1.0) / processes
    # A batch of another trainer has full micro-batches of equally many rows.
    completions = inputs.get(COMPLETIONS, rows * processes * (steps_per_generation if training else 1))
    tokens = inputs[TARGET_TOTAL] if TARGET_TOTAL in inputs else inputs[TOKENS]
    tokens = torch.where(tokens > 0, tokens, 1)  # no clamp: shares may add up to less than 1
    prompts = inputs.get(PROMPTS)
    return Counts(completions * part, tokens * part, None if prompts is None else prompts * part)


def token_batch(
    inputs: Mapping[str, Any],
    logps: Tensor,
    counts: Counts,
    *,
    beta: float,
    max_completion_length: int | None,
    focus: Tensor | None = None,
    keep: Tensor | None = None,
) -> TokenBatch:
    """Build the objective's view of one micro-batch."""
    old_logps, advantages = inputs.get("old_per_token_logps"), inputs["advantages"]
    return TokenBatch(
        logps=logps,
        old_logps=logps.detach() if old_logps is None else old_logps,
        advantages=advantages if advantages.dim() == 2 else advantages.unsqueeze(1),
        mask=trained_mask(inputs),
        counts=counts,
        ref_logps=inputs.get("ref_per_token_logps"),
        beta=beta,
        weights=inputs.get("importance_sampling_ratio"),
        keep=keep,
        focus=focus,
        prompt_tokens=inputs.get(PROMPT_TOKENS),
        pull=inputs.get(PULL),
        group_loss=inputs.get(GROUP_LOSS),
        share=inputs.get(SHARE),
        max_completion_length=max_completion_length,
        **{name: inputs.get(name) for name in TARGETS},
    )


def kl_penalties(objective: Objective, output: Mapping[str, Any]) -> Tensor:
    """Estimate the KL at each token, (B, T); placement ``reward`` subtracts β times it from the rewards."""
    assert objective.kl is not None
    mask = trained_mask(output)
    inside = [torch.where(mask, output[name], 0.0) for name in ("old_per_token_logps", "ref_per_token_logps")]
    return torch.where(mask, objective.kl.estimator(*inside), 0.0)


def reduce_metrics(
    metrics: Mapping[str, Metric],
    mask: Tensor,
    *,
    total: Callable[[Tensor], Tensor],
    gather: Gather,
    share: Tensor | None = None,
) -> dict[str, float]:
    """Reduce each metric to one number over all ranks; NaN, which logging leaves out, without any value.

    Every rank must have the same metrics. ``total`` sums a tensor over the ranks, ``gather`` collects it from them.
    Means are unweighted: rows whose ``share`` is 0 are left out, all others count alike.
    """
    if share is not None:
        mask = mask[share != 0]
        metrics = {name: _of_rows(metric, share != 0) for name, metric in metrics.items()}
    means = {name: metric for name, metric in metrics.items() if metric.how == "mean"}
    ends = {name: metric for name, metric in metrics.items() if metric.how != "mean"}
    figures: dict[str, float] = {}
    if means:
        sums = total(torch.stack([_sum_and_count(metric, mask) for metric in means.values()])).tolist()
        for (name, metric), (value, count) in zip(means.items(), sums, strict=True):
            nothing = float("nan") if metric.where is not None else 0.0
            figures[name] = value / count if count else nothing
    if ends:
        # The minimum is the maximum of the negated values; a rank without a token has -inf.
        negated = torch.stack([_largest(metric, mask) for metric in ends.values()])
        everywhere = gather(negated.unsqueeze(0)).amax(0).tolist()
        for (name, metric), value in zip(ends.items(), everywhere, strict=True):
            signed = -value if metric.how == "min" else value
            figures[name] = signed if abs(value) < float("inf") else float("nan")
    return figures


def _of_rows(metric: Metric, rows_B: Tensor) -> Metric:
    where = None if metric.where is None else metric.where[rows_B]
    return Metric(metric.values[rows_B], metric.how, where)


def _sum_and_count(metric: Metric, mask: Tensor) -> Tensor:
    values = metric.values.detach().float()
    if values.size(1) == 1 and mask.size(1) != 1:
        return torch.stack([values.sum(), torch.tensor(float(len(values)), device=values.device)])
    where = mask if metric.where is None else mask & metric.where
    return torch.stack([torch.where(where, values, 0.0).sum(), where.sum().float()])


def _largest(metric: Metric, mask: Tensor) -> Tensor:
    values = metric.values.detach().float()
    counts = mask.sum(-1)
    if values.size(1) == 1 and mask.size(1) != 1:
        rows = values.squeeze(1)
    else:
        rows = torch.where(mask, values, 0.0).sum(-1) / counts.clamp(min=1)
        rows = torch.where(counts > 0, rows, float("nan"))
    signed = (-rows if metric.how == "min" else rows).nan_to_num(nan=float("-inf"))
    return signed.max() if len(signed) else signed.new_tensor(float("-inf"))
