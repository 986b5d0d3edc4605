"""Named compositions. Defaults are those of TRL, or of the paper if TRL has no such loss."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_plus.objectives.pieces import Piece


@dataclass(frozen=True)
class Preset:
    """One row of the table of objectives.

    Attributes:
        surrogate: a name, or a user's full loss as a piece.
        kl: None for no KL term, and `beta` must be 0.
        keywords: of the surrogate, if they differ from its defaults.
        unbiased: the ratio may multiply the KL estimate; False if the algorithm never does that.
        why_no_kl: the reason in the error for a `beta` other than 0.
        own_kl: a user's loss that reads `beta` and the reference itself.
        about: its docstring, in the layout of CONTRIBUTING.md; by default that of its surrogate.
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
    about: str = ""

    @property
    def fn(self) -> object:
        """The user's function, by which a registry recognises it."""
        return self.surrogate.fn if isinstance(self.surrogate, Piece) else None


GRPO = Preset(
    "grpo",
    about="""The clipped objective of GRPO: token ratios, the mean over each completion's tokens, then over completions.

    Use it when you want the published algorithm: every completion counts alike, a token of a long one less.

    Paper: DeepSeekMath, arXiv:2402.03300.

    Degenerate case: before the first update on a batch every ratio is 1, and nothing is clipped.
    """,
)
GRPO_CLIP = Preset(
    "grpo_clip",
    kl=None,
    why_no_kl="it is 'grpo' without the KL term (use objective 'grpo' for one)",
    about="""GRPO without a KL term, and a config that sets `beta` is refused.

    Use it when training needs no reference policy and should refuse one that is set by accident.

    Paper: DeepSeekMath, arXiv:2402.03300, without its KL term.

    Degenerate case: as ``grpo``.
    """,
)
SEQUENCE_GRPO = Preset(
    "sequence_grpo",
    ratio="sequence_sum",
    about="""GRPO with one ratio a completion, the product of its token ratios: the exact importance weight.

    Use it when completions are short, a few tokens: the ratio of a long one leaves the clip's bounds in one step.

    Degenerate case: completions of one token are those of ``grpo``.
    """,
)
DR_GRPO = Preset(
    "dr_grpo",
    reduce="constant",
    about="""Dr. GRPO: the sum over tokens by a constant length, so that no completion gains by being long or short.

    Use it when wrong completions grow longer and longer under ``grpo``, whose mean over tokens punishes long mistakes
    less. The paper takes the advantage ``center`` with it.

    Paper: Dr. GRPO, arXiv:2503.20783.

    Degenerate case: the loss is small if `max_completion_length` is far above the lengths of completions.

    Config:
        advantage: center
        objective: dr_grpo
    """,
)
DAPO = Preset(
    "dapo",
    reduce="token_mean",
    about="""DAPO's loss: the clip, and the mean over all tokens of the batch, so that every token counts alike.

    Use it when completions are long and differ in length. For the full paper, clip higher with ``epsilon_high``, and
    sample new prompts for dead groups.

    Paper: DAPO, arXiv:2503.14476.

    Degenerate case: a batch of very long wrong completions is mostly about these.

    Config:
        objective: {name: dapo, epsilon_low: 0.2, epsilon_high: 0.28}
        dead_groups: resample
    """,
)
GSPO = Preset(
    "gspo",
    ratio="sequence",
    about="""GSPO: the clip on one ratio a completion, the geometric mean of its token ratios.

    Use it when ratios of single tokens are noisy, above all with mixtures of experts. Its ratios stay near 1, so the
    paper clips at 3e-4 and 4e-4; with 0.2 nothing would be clipped.

    Paper: GSPO, arXiv:2507.18071.

    Degenerate case: advantages per token have no meaning with one ratio a completion, and are refused.

    Config:
        objective: {name: gspo, epsilon_low: 0.0003, epsilon_high: 0.0004}
    """,
)
GSPO_TOKEN = Preset(
    "gspo_token",
    ratio="sequence_token",
    about="""GSPO with gradients token by token: the value of the completion's ratio, the gradient of each token's own.

    Use it when advantages differ from token to token (``process``, ``gae``) and the ratio should be GSPO's.

    Paper: GSPO, arXiv:2507.18071, section 4.3.

    Degenerate case: with one advantage a completion its gradient is that of ``gspo``.

    Config:
        objective: {name: gspo_token, epsilon_low: 0.0003, epsilon_high: 0.0004}
    """,
)
CISPO = Preset("cispo", "cispo", reduce="token_mean")
DIS = Preset("dis", "dis", reduce="token_mean")
DPPO_TV = Preset("dppo_tv", "dppo_tv", reduce="token_mean")
DPPO_KL = Preset("dppo_kl", "dppo_kl", reduce="token_mean")
UP = Preset("up", "up")
FIPO = Preset("fipo", "fipo", reduce="token_mean")
SAPO = Preset("sapo", "sapo")
LUSPO = Preset(
    "luspo",
    ratio="sequence",
    reduce="sequence_sum",
    about="""LUSPO: GSPO's ratio, and the sum over a completion's tokens instead of their mean.

    Use it when ``gspo`` makes completions shorter and shorter: its mean over tokens gives long ones less weight.

    Paper: LUSPO, arXiv:2602.05261.

    Degenerate case: the loss grows with the length; lower the learning rate when coming from ``gspo``.

    Config:
        objective: {name: luspo, epsilon_low: 0.0003, epsilon_high: 0.0004}
    """,
)
VESPO = Preset("vespo", "vespo", reduce="token_mean")
GMPO = Preset("gmpo", "gmpo", unbiased=False)
REINFORCE = Preset(
    "reinforce",
    "logp",
    ratio="none",
    reduce="token_mean",
    about="""REINFORCE: the advantage times the log-probability, without a ratio or a clip.

    Use it when each generation batch is trained on for one step: every ratio is then 1.

    Paper: Williams, 1992, Simple statistical gradient-following algorithms for connectionist reinforcement learning.

    Assumes on-policy samples: after the first optimizer step on a batch its gradient is biased.

    Degenerate case: negative advantages push a probability down without a bound.
    """,
)
PPO_CLIP = Preset(
    "ppo_clip",
    reduce="token_mean",
    keywords={"dual": 3.0},
    about="""PPO's clip with a floor for negative advantages (dual clip), and the mean over all tokens.

    Use it when advantages are a critic's (``gae``), or when negative advantages with large ratios upset training.

    Paper: PPO, arXiv:1707.06347; dual clip: arXiv:1912.09729.

    Degenerate case: before the first update on a batch every ratio is 1, and nothing is clipped.
    """,
)
TARGET = Preset(
    "target",
    "target",
    ratio="none",
    reduce="token_mean",
    kl=None,
    why_no_kl="it sets a target for each probability, so a KL term has no use",
)
TPO = Preset("tpo", "tpo", ratio="none", reduce="sequence_sum")
REAL = Preset("real", "real", ratio="none", reduce="sequence_sum")

NAMES = tuple(preset.name for preset in list(globals().values()) if isinstance(preset, Preset))
