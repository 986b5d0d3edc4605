"""GRPO on Hugging Face TRL with the advantage estimator, the objective and the verifier as parts."""

import logging
import warnings
from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.advantages import register_advantage as register_advantage
    from grpo_plus.config import GRPOPlusConfig as GRPOPlusConfig
    from grpo_plus.objectives import register_objective as register_objective
    from grpo_plus.selection import register_selection as register_selection
    from grpo_plus.trainer import GRPOPlusTrainer as GRPOPlusTrainer
    from grpo_plus.training.observers import OnFinding as OnFinding

__version__ = "0.1.0"

# TRL itself sets these options; on a CPU bitsandbytes recommends faster kernels in every process.
warnings.filterwarnings("ignore", r"`(is_)?gradient_checkpointing\w*` is deprecated", FutureWarning)
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

_WHERE = {
    "advantages": "register_advantage",
    "config": "GRPOPlusConfig",
    "objectives": "register_objective",
    "selection": "register_selection",
    "trainer": "GRPOPlusTrainer",
    "training.observers.on_finding": "OnFinding",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
