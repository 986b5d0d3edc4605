"""Trackers (tensorboard, trackio, wandb ...) that fail while training: that costs their lines, and not the run."""

import functools
from collections.abc import Callable
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK

from grpo_plus.trl.host import Host
from grpo_verifiers.redaction import get_logger, redact_text

logger = get_logger("grpo_plus.trackers")

KINDS = (*INTEGRATION_TO_CALLBACK.values(), PrinterCallback, ProgressCallback)
"""The callbacks of ``report_to``, and those that print."""
EVENTS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_") and not name.endswith("_begin"))
"""The events that a tracker may fail in. In ``on_train_begin`` it says what is wrong with its settings."""


def guard_trackers(host: Host) -> None:
    """Keep trackers that fail from ending the run; they are asked again at the next log."""
    for tracker in host.callback_handler.callbacks:
        if not isinstance(tracker, KINDS):
            continue
        failures: set[str] = set()
        for event in EVENTS:
            method = getattr(tracker, event)
            if not hasattr(method, "__wrapped__"):
                setattr(tracker, event, _guarded(method, type(tracker).__name__, failures))


def _guarded(method: Callable[..., Any], name: str, failures: set[str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        try:
            return method(*arguments, **keywords)
        except Exception as error:  # noqa: BLE001 - a picture of the run must not end it
            told = redact_text(f"{type(error).__name__}: {error}")
            if told not in failures:
                failures.add(told)
                logger.warning("%s failed, training goes on: %s", name, told)
            return None

    return guarded
