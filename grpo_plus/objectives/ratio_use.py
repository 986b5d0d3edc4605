"""A test, by a trial batch, if an objective corrects for the sampling policy."""

from dataclasses import replace

import torch
from torch import Tensor

from grpo_plus.objectives.batch import Counts, TokenBatch
from grpo_plus.objectives.objective import Objective


def reads_old_logps(objective: Objective) -> bool:
    """Return True if the gradient depends on the log-probabilities of the sampling policy.

    >>> from grpo_plus.objectives import build_objective
    >>> reads_old_logps(build_objective("grpo", beta=0.0)), reads_old_logps(build_objective("reinforce", beta=0.0))
    (True, False)

    True for a user's function that raises on the trial batch: another check reports its error.
    """
    if objective.pulls_groups:
        return True  # the pulls, which this batch lacks, depend on them
    logps = torch.tensor([[-1.0, -0.5], [-0.7, -2.0]])
    sign = torch.tensor([[1.0], [-1.0]])
    batch = TokenBatch(
        logps=logps,
        old_logps=logps,
        advantages=sign,
        mask=torch.ones(2, 2, dtype=torch.bool),
        counts=Counts(2.0, 4.0, 1.0),
        ref_logps=logps,
        prompt_tokens=torch.tensor([4, 4]),
        target_logps=logps + sign,
        target_sign=sign.expand(2, 2),
        target_weights=torch.ones(2, 2),
        max_completion_length=2,
    )
    try:
        return not torch.equal(
            _gradient(objective, batch), _gradient(objective, replace(batch, old_logps=logps - 0.05))
        )
    except Exception:  # noqa: BLE001 - a user's function may raise anything
        return True


def _gradient(objective: Objective, batch: TokenBatch) -> Tensor:
    logps = batch.logps.clone().requires_grad_()
    loss, _ = objective.loss(replace(batch, logps=logps))
    (gradient,) = torch.autograd.grad(loss, logps)
    return gradient
