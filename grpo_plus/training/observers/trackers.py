"""Keeps a run alive if a tracker (tensorboard, trackio, wandb ...) fails: only its lines are lost."""

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
"""Events in which a tracker may fail. In ``on_train_begin`` it reports errors of its settings."""


def guard_trackers(host: Host) -> None:
    """Keep failing trackers from ending the run; they are called again at the next log."""
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
        except Exception as error:  # noqa: BLE001 - tracking must not end the run
            text = redact_text(f"{type(error).__name__}: {error}")
            if text not in failures:
                failures.add(text)
                logger.warning("%s failed, training continues: %s", name, text)
            return None

    return guarded
