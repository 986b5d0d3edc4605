"""Rules of composition: requirements and exclusions of the pieces of an objective."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_plus.objectives.pieces import Piece, piece_registries
from grpo_plus.objectives.presets import Preset
from grpo_verifiers.rules import ConfigPart, excludes, needs


@dataclass(frozen=True)
class Draft:
    """The choices of a config before they are an objective, as input of the rules.

    Attributes:
        title: the objective in messages.
        preset: the row of the table of objectives.
        corrected: TRL's `use_bias_correction_kl`.
        per: the unit of the advantage estimator's values: completion, step or token.
        pieces: the existing pieces; a rule about a missing one does not apply.
    """

    title: str
    preset: Preset
    keywords: Mapping[str, Any]
    beta: Any
    corrected: bool
    per: str
    pieces: Mapping[str, Piece]

    @property
    def reads(self) -> str:
        """The only ratio of the surrogate, in words."""
        (ratio, *_) = self.pieces["surrogate"].ratios
        return "no ratio" if ratio == "none" else f"the {ratio} ratio itself"

    @property
    def units(self) -> str:
        """The unit of a mean, for a surrogate with one reduction."""
        return "nodes" if self.pieces["surrogate"].pulls is None else "groups"

    @property
    def why_no_kl(self) -> str:
        """The reason against any KL term; empty if one is allowed."""
        return self.preset.why_no_kl or getattr(self.pieces.get("surrogate"), "why_no_kl", "")

    @property
    def kl(self) -> Any:
        """The KL term of the config, or the preset's."""
        return self.keywords.get("kl", None if self.why_no_kl else self.preset.kl)

    @property
    def no_kl(self) -> bool:
        """True if no KL term is chosen."""
        return self.kl is None or (isinstance(self.kl, str) and self.kl.lower() == "none")

    @property
    def own_kl(self) -> bool:
        """True if the user's loss reads `beta` and the reference itself."""
        return self.preset.own_kl and "kl" not in self.keywords

    @property
    def has_kl(self) -> bool:
        """True if there is a KL term with an effect."""
        return bool(self.beta) and not self.why_no_kl and not self.no_kl

    @property
    def term(self) -> Mapping[str, Any]:
        """The options of the KL term; empty without one."""
        term = self.kl if isinstance(self.kl, Mapping) else {"estimator": self.kl}
        return term if self.has_kl else {}

    @property
    def in_reward(self) -> bool:
        """True if the KL term is taken from the reward."""
        return bool(self.term.get("placement") == "reward")

    @property
    def unbiased(self) -> bool:
        """True if the config sets ``unbiased``."""
        return self.term.get("unbiased") is True

    @property
    def multiplies(self) -> bool:
        """True if the algorithm allows the ratio to multiply a KL estimate."""
        return self.preset.unbiased and self.term.get("placement", "loss") == "loss"

    @property
    def settling(self) -> str:
        """The surrogates that settle."""
        surrogates = piece_registries["surrogate"]
        return ", ".join(name for name in surrogates if surrogates.get(name).settles)

    @property
    def estimators(self) -> str:
        """The names of all KL estimators."""
        return ", ".join(piece_registries["kl"])

    def get(self, name: str) -> Any:
        """Return a keyword, or None if it is not set."""
        return self.keywords.get(name)

    def of(self, trait: str, kind: str = "surrogate") -> Any:
        """Return a trait of a piece, or None without the piece."""
        return getattr(self.pieces.get(kind), trait, None)


# fmt: off
_PARTS = "Take ratio token or sequence_token (objective 'gspo_token'), or an advantage estimator per completion"
RULES = ConfigPart("{c.title}", bool, (
    # Combinations of pieces.
    excludes("surrogate", "it is one full function", way="Remove it",
             when=lambda c: c.of("kind") == "loss" and "surrogate" in c.keywords),
    excludes("ratio", "it is one full function", way="Remove it",
             when=lambda c: c.of("kind") == "loss" and "ratio" in c.keywords),
    excludes("ratio", "{c.pieces[surrogate].name!r} reads {c.reads}", way="Remove ratio",
             when=lambda c: "ratio" in c.keywords and "ratio" in c.pieces and bool(c.of("ratios"))
             and c.of("name", "ratio") not in c.of("ratios")),
    needs("a ratio", "{c.pieces[surrogate].name!r} reads one, and ratio is 'none'",
          way="For plain policy gradients use the surrogate 'logp'",
          when=lambda c: c.of("kind") == "surrogate" and c.of("name", "ratio") == "none" and not c.of("ratios")),
    excludes("reduce", "{c.pieces[surrogate].name!r} is a mean over {c.units}, so its reduction "
             "is {c.pieces[surrogate].reduce}", way="Remove reduce",
             when=lambda c: "reduce" in c.pieces and c.of("reduce") not in (None, "", c.of("name", "reduce"))),
    # The KL term: its presence.
    excludes("beta {c.beta!r}", "it would reward divergence", way="Set it to 0 or more",
             when=lambda c: isinstance(c.beta, int | float) and c.beta < 0),
    excludes("beta {c.beta!r}", "{c.why_no_kl}", way="Set it to 0", when=lambda c: bool(c.why_no_kl and c.beta)),
    excludes("kl {c.kl!r}", "{c.why_no_kl}", way="Remove kl", when=lambda c: bool(c.why_no_kl) and not c.no_kl),
    needs("a KL estimator", "beta is {c.beta!r}", way="Set beta to 0, or choose one ({c.estimators})",
          when=lambda c: c.no_kl and bool(c.beta) and not c.why_no_kl and not c.own_kl),
    needs("beta", "kl is {c.kl!r}, and with beta 0 nothing would read it", way="Set beta, or remove kl",
          when=lambda c: "kl" in c.keywords and not c.no_kl and not c.beta and not c.why_no_kl),
    # The KL term: the ratio that multiplies it.
    excludes("kl.unbiased", "use_bias_correction_kl is false", when=lambda c: c.unbiased and not c.corrected),
    excludes("kl.unbiased", "with placement 'reward' the estimate is a number and the ratio is 1", way="Remove it",
             when=lambda c: c.unbiased and c.corrected and c.in_reward),
    excludes("kl.unbiased", "it never multiplies its KL estimate by the ratio", way="Remove it",
             when=lambda c: c.unbiased and c.corrected and not c.in_reward and not c.preset.unbiased),
    excludes("kl.unbiased", "the gradient of {c.pieces[kl].name!r} is that of the reverse KL without the ratio, and "
             "with it is not", way="Remove it",
             when=lambda c: c.unbiased and c.multiplies and c.of("takes_ratio", "kl") is False),
    # The end of the inner iterations.
    excludes("stop_fraction", "it counts tokens without a further pull, and {c.pieces[surrogate].name!r} always pulls "
             "all", way="Remove it, or use one of {c.settling}",
             when=lambda c: c.of("settles") is False and type(c.get("stop_fraction")) in (int, float)
             and 0 < c.get("stop_fraction") <= 1),
    # Advantages of parts of a completion.
    excludes("advantages per {c.per}", "its ratio is one number a completion", way=_PARTS,
             when=lambda c: c.per != "completion" and c.of("per_completion", "ratio")),
    excludes("advantages per {c.per}", "its surrogate is one number a completion", way=_PARTS,
             when=lambda c: c.per != "completion" and c.of("per_completion")),
    excludes("kl placement 'reward'", "an estimator of step scores does not look at the completion's reward",
             way="Use placement 'loss'", when=lambda c: c.per == "step" and c.in_reward),
))
# fmt: on
