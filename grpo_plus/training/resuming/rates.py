"""Settings of optimizer and schedule that changed since a checkpoint, which holds their old values.

Torch's optimizers and schedules load the options that they were saved with: a new learning rate would play no part.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

OPTIMIZER: Mapping[str, str] = {
    "learning_rate": "initial_lr",
    "weight_decay": "weight_decay",
    "adam_beta1": "betas",
    "adam_beta2": "betas",
    "adam_epsilon": "eps",
}
"""Fields of the config, and the option of an optimizer's groups that each sets."""

_BY_RESULT = ("reduce_lr_on_plateau", "greedy")
"""Schedules that follow a metric, so that their rate depends on all that was before."""


def follows_the_step(kind: str) -> bool:
    """The learning rate of a schedule is a function of the step alone."""
    return kind not in _BY_RESULT


@contextmanager
def new_rates(optimizer: Any, schedule: Any, changed: Mapping[str, tuple[Any, Any]]) -> Iterator[None]:
    """Around the loading of a checkpoint's optimizer and schedule: what ``changed`` stays as the run has set it.

    The learning rate becomes that of the new schedule at the checkpoint's step. One that follows a metric keeps what it
    has reached, in proportion.
    """
    names = {key for field, key in OPTIMIZER.items() if field in changed}
    fresh = [{key: group[key] for key in names if key in group} for group in optimizer.param_groups]
    yield
    for group, options in zip(optimizer.param_groups, fresh, strict=True):
        group.update(options)
    if isinstance(schedule, LambdaLR):
        if "learning_rate" in changed:
            schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        rates = [
            base * at(schedule.last_epoch) for base, at in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
        ]
    else:
        then, now = changed.get("learning_rate", (1, 1))
        rates = [group["lr"] * (now / then if then else 1) for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates  # noqa: SLF001 - what torch's own `get_last_lr` gives
