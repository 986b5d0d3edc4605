"""A warm-started LoRA adapter goes on as the adapter of the run, and as its reference."""

from pathlib import Path
from typing import Any

from peft import PeftConfig, load_peft_weights, set_peft_model_state_dict

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.training.hooks import Hook
from grpo_plus.training.pieces import whole
from grpo_plus.training.reference import NAME, add_copy, copy_weights
from grpo_verifiers.errors import ConfigError


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
            self._load(model)
        if host.beta == 0.0 and NAME not in model.peft_config:
            return
        if NAME not in model.peft_config:
            add_copy(model)
        copy_weights(model)

    def _load(self, model: Any) -> None:
        try:
            set_peft_model_state_dict(model, load_peft_weights(str(self.folder), device="cpu"))
        except RuntimeError as error:
            if "size mismatch" not in str(error):
                raise
            then, now = PeftConfig.from_pretrained(str(self.folder)).to_dict(), model.peft_config["default"].to_dict()
            other = ", ".join(
                f"{key} {then[key]} then, {now[key]} now" for key in ("r", "target_modules") if then[key] != now[key]
            )
            text = f"warm_start: this run began with the adapter in {self.folder}, whose shapes are not this config's"
            raise ConfigError([f"{text} ({other or 'another model'}): put the options of LoRA back."]) from error
