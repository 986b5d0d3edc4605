"""Named compositions. Defaults are those of TRL, or of the paper where TRL has no such loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_plus.objectives.pieces import Piece


@dataclass(frozen=True)
class Preset:
    """One row of the table of objectives.

    Attributes:
        surrogate: a name, or a user's whole loss as a piece.
        kl: None where there is no KL term, and `beta` must be 0.
        keywords: of the surrogate, where they differ from its defaults.
        unbiased: whether the KL estimate may be multiplied by the ratio; False where the algorithm never does.
        why_no_kl: what to say to somebody who sets `beta` all the same.
        own_kl: a user's loss that reads `beta` and the reference itself.
    """

    name: str
    surrogate: str | Piece = "clip"
    ratio: str = "token"
    reduce: str = "sequence_mean"
    kl: str | None = "k3"
    keywords: Mapping[str, Any] = field(default_factory=dict)
    unbiased: bool = True
    why_no_kl: str = ""
    own_kl: bool = False

    @property
    def fn(self) -> object:
        """The user's function behind it, by which a registry recognises it."""
        return self.surrogate.fn if isinstance(self.surrogate, Piece) else None


GRPO = Preset("grpo")
GRPO_CLIP = Preset(
    "grpo_clip", kl=None, why_no_kl="it is 'grpo' without the KL term: use objective 'grpo', or set beta to 0"
)
SEQUENCE_GRPO = Preset("sequence_grpo", ratio="sequence_sum")
DR_GRPO = Preset("dr_grpo", reduce="constant")
DAPO = Preset("dapo", reduce="token_mean")
GSPO = Preset("gspo", ratio="sequence")
GSPO_TOKEN = Preset("gspo_token", ratio="sequence_token")
CISPO = Preset("cispo", "cispo", reduce="token_mean")
DIS = Preset("dis", "dis", reduce="token_mean")
DPPO_TV = Preset("dppo_tv", "dppo_tv", reduce="token_mean")
DPPO_KL = Preset("dppo_kl", "dppo_kl", reduce="token_mean")
UP = Preset("up", "up")
FIPO = Preset("fipo", "fipo", reduce="token_mean")
SAPO = Preset("sapo", "sapo")
LUSPO = Preset("luspo", ratio="sequence", reduce="sequence_sum")
VESPO = Preset("vespo", "vespo", reduce="token_mean")
GMPO = Preset("gmpo", "gmpo", unbiased=False)
REINFORCE = Preset("reinforce", "logp", ratio="none", reduce="token_mean")
PPO_CLIP = Preset("ppo_clip", reduce="token_mean", keywords={"dual": 3.0})
TARGET = Preset(
    "target",
    "target",
    ratio="none",
    reduce="token_mean",
    kl=None,
    why_no_kl="it says where each probability should go, so a KL term has nothing to hold back: set beta to 0",
)
TPO = Preset("tpo", "tpo", ratio="none", reduce="sequence_sum")
REAL = Preset("real", "real", ratio="none", reduce="sequence_sum")

NAMES = tuple(preset.name for preset in list(globals().values()) if isinstance(preset, Preset))
