"""A warm-started LoRA adapter goes on as the adapter of the run, and as its reference."""

from pathlib import Path

from peft import load_peft_weights, set_peft_model_state_dict

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.training.hooks import Hook
from grpo_plus.training.pieces import whole
from grpo_plus.training.reference import NAME, add_copy, copy_weights


class WarmAdapter(Hook):
    """Puts the weights of ``folder`` into the run's adapter: the same numbers, in float32 where it is in float32.

    TRL's reference is the base without adapter, which is not the model that the run begins with: with a KL term it
    gets a frozen copy of the warm-started adapter.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_loading(self, host: Host) -> None:
        """Load the weights."""
        super().after_loading(host)
        model = _trl.unwrapped(host)
        adapter = [weight for weight in model.parameters() if weight.requires_grad]
        with whole(adapter, change=True):
            set_peft_model_state_dict(model, load_peft_weights(str(self.folder), device="cpu"))
        if host.beta == 0.0 and NAME not in model.peft_config:
            return
        if NAME not in model.peft_config:
            add_copy(model)
        copy_weights(model)
