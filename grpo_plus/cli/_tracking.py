"""Check before a model loads that the trackers in ``report_to`` are installed."""

from typing import Any

from grpo_plus.cli import UserError

_PROBED = ("tensorboard", "wandb", "trackio", "mlflow", "comet_ml", "swanlab", "clearml", "dvclive", "neptune")
"""Trackers whose installation the host can check."""


def check_trackers(report_to: Any) -> None:
    """Refuse (`UserError`) trackers that are not installed; the config has checked their names."""
    from transformers.integrations import get_available_reporting_integrations

    names = [report_to] if isinstance(report_to, str) else list(report_to or ())
    for name in names:
        if name in ("none", "all"):
            continue
        if name in _PROBED and name not in get_available_reporting_integrations():
            raise UserError(
                f"report_to is {name!r}, but {name} is not installed: pip install {name}, or set report_to: none."
            )
