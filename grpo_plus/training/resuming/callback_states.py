"""Callbacks of transformers that have a state in checkpoints, such as the patience of an early stop, go on from it."""

from collections import defaultdict
from typing import Any

from transformers.trainer_callback import ExportableState

from grpo_plus.training.hooks import Hook


class CallbackStates(Hook):
    """Gives callbacks the attributes that the checkpoint has of them; what they were made with stays.

    The host does so only under ``restore_callback_states_from_checkpoint``, and makes them anew from the checkpoint.
    """

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Of several of one class the host appends states at every checkpoint: theirs are the last."""
        if args.restore_callback_states_from_checkpoint:
            return
        same = defaultdict(list)
        for callback in self.host.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                same[type(callback).__name__].append(callback)
        for name, callbacks in same.items():
            kept = state.stateful_callbacks.get(name, [])
            kept = kept if isinstance(kept, list) else [kept]
            for callback, own in zip(reversed(callbacks), reversed(kept), strict=False):
                for attribute, value in own.get("attributes", {}).items():
                    setattr(callback, attribute, value)
