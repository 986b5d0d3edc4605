"""The figures of the step-time split that are logged with every training step, by name."""

PARTS = ("rollout", "scoring", "update")
"""Parts of a step: drawing completions, rewards, and everything else (log-probabilities of the old and the
reference policy, forward and backward passes, the optimizer)."""


def metric(part: str) -> str:
    """The name under which a part's seconds are logged: of an optimizer step, the mean since the last log."""
    return f"time/{part}"
