"""Rules of composition: one table of what excludes and what needs what in an objective, and its one reader."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_plus.objectives.pieces import Piece, piece_registries
from grpo_plus.objectives.presets import Preset


@dataclass(frozen=True)
class Draft:
    """The choices of a config before they are an objective; the rules judge it.

    Attributes:
        what: the objective in messages.
        preset: the row of the table of objectives it starts from.
        corrected: TRL's `use_bias_correction_kl`.
        per: what the advantage estimator gives one number for: completion, step or token.
        pieces: those that exist; a rule about another one is not read.
    """

    what: str
    preset: Preset
    keywords: Mapping[str, Any]
    beta: Any
    corrected: bool
    per: str
    pieces: Mapping[str, Piece]

    @property
    def whole(self) -> bool:
        """A user's function is the whole loss."""
        return self.pieces["surrogate"].kind == "loss"

    @property
    def reads(self) -> str:
        """The only ratio of the surrogate, in words."""
        (ratio, *_) = self.pieces["surrogate"].ratios
        return "no ratio" if ratio == "none" else f"the {ratio} ratio itself"

    @property
    def units(self) -> str:
        """What a surrogate with one reduction is a mean over."""
        return "nodes" if self.pieces["surrogate"].pulls is None else "groups"

    @property
    def why_no_kl(self) -> str:
        """The reason against any KL term; empty where there may be one."""
        return self.preset.why_no_kl or getattr(self.pieces.get("surrogate"), "why_no_kl", "")

    @property
    def kl(self) -> Any:
        """The KL term as it is written, or the preset's."""
        return self.keywords.get("kl", None if self.why_no_kl else self.preset.kl)

    @property
    def no_kl(self) -> bool:
        """No KL term is chosen."""
        return self.kl is None or (isinstance(self.kl, str) and self.kl.lower() == "none")

    @property
    def own_kl(self) -> bool:
        """The user's loss reads `beta` and the reference itself."""
        return self.preset.own_kl and "kl" not in self.keywords

    @property
    def has_kl(self) -> bool:
        """There is a KL term that acts."""
        return bool(self.beta) and not self.why_no_kl and not self.no_kl

    @property
    def term(self) -> Mapping[str, Any]:
        """The options of the KL term; empty where there is none."""
        term = self.kl if isinstance(self.kl, Mapping) else {"estimator": self.kl}
        return term if self.has_kl else {}

    @property
    def in_reward(self) -> bool:
        """The KL term is taken from the reward."""
        return bool(self.term.get("placement") == "reward")

    @property
    def unbiased(self) -> bool:
        """The config wants the ratio to multiply the KL estimate."""
        return self.term.get("unbiased") is True

    @property
    def multiplies(self) -> bool:
        """The algorithm lets the ratio multiply a KL estimate."""
        return self.preset.unbiased and self.term.get("placement", "loss") == "loss"

    @property
    def stop(self) -> Any:
        """The share of settled tokens at which the inner iterations end."""
        return self.keywords.get("stop_fraction")

    @property
    def rise(self) -> Any:
        """The least rise of the objective with which the inner iterations go on."""
        return self.keywords.get("stop_rise")

    @property
    def skips(self) -> Any:
        """Rows that have reached all of their targets are left out."""
        return self.keywords.get("skip_settled")

    @property
    def settling(self) -> str:
        """The surrogates that settle."""
        surrogates = piece_registries["surrogate"]
        return ", ".join(name for name in surrogates if surrogates.get(name).settles)

    @property
    def estimators(self) -> str:
        """The KL estimators there are."""
        return ", ".join(piece_registries["kl"])


@dataclass(frozen=True)
class Rule:
    """One thing that a composition may not do.

    Attributes:
        about: the kinds of pieces that the rule looks at, separated by spaces.
        broken: whether a draft breaks the rule.
        message: for `str.format`: ``d`` is the draft, and each piece stands under its kind.
    """

    about: str
    broken: Callable[[Draft], bool]
    message: str


def _is_rise(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1


_ONE_NUMBER = (
    " is one number a completion, which has no meaning with advantages per {d.per}: use ratio token or sequence_token "
    "(objective 'gspo_token'), or an advantage estimator per completion."
)

RULES = (
    # Pieces beside each other.
    Rule(
        "surrogate",
        lambda d: d.whole and "surrogate" in d.keywords,
        "{d.what} is one whole function: it has no surrogate to choose.",
    ),
    Rule(
        "surrogate ratio",
        lambda d: d.whole and "ratio" in d.keywords,
        "{d.what} is one whole function: it has no ratio to choose.",
    ),
    Rule(
        "surrogate ratio",
        lambda d: (
            "ratio" in d.keywords
            and bool(d.pieces["surrogate"].ratios)
            and d.pieces["ratio"].name not in d.pieces["surrogate"].ratios
        ),
        "{d.what}: the surrogate {surrogate.name!r} reads {d.reads}, so ratio {ratio.name!r} would change nothing: "
        "remove ratio.",
    ),
    Rule(
        "surrogate ratio",
        lambda d: d.pieces["ratio"].name == "none" and not d.pieces["surrogate"].ratios and not d.whole,
        "{d.what}: the surrogate {surrogate.name!r} needs a ratio, and ratio is 'none'. For plain policy gradients "
        "use the surrogate 'logp'.",
    ),
    Rule(
        "surrogate reduce",
        lambda d: d.pieces["surrogate"].reduce not in ("", d.pieces["reduce"].name),
        "{d.what}: the surrogate {surrogate.name!r} is a mean over {d.units}, so its reduction is {surrogate.reduce}, "
        "not {reduce.name!r}: remove reduce.",
    ),
    # The KL term: whether there is one.
    Rule(
        "",
        lambda d: isinstance(d.beta, int | float) and d.beta < 0,
        "beta is {d.beta!r}, expected at least 0: it would reward divergence.",
    ),
    Rule(
        "",
        lambda d: bool(d.why_no_kl and d.beta),
        "{d.what} has no KL term, but beta is {d.beta!r}: {d.why_no_kl}.",
    ),
    Rule(
        "",
        lambda d: bool(d.why_no_kl) and not d.no_kl,
        "{d.what} has no KL term, but kl is {d.kl!r}: {d.why_no_kl}, and remove kl.",
    ),
    Rule(
        "",
        lambda d: d.no_kl and bool(d.beta) and not d.why_no_kl and not d.own_kl,
        "{d.what}: kl is {d.kl!r}, but beta is {d.beta!r}: set beta to 0, or choose an estimator ({d.estimators}).",
    ),
    Rule(
        "",
        lambda d: "kl" in d.keywords and not d.no_kl and not d.beta and not d.why_no_kl,
        "{d.what}: kl is {d.kl!r}, but beta is 0, so nothing would read it: set beta, or remove kl.",
    ),
    # The KL term: the ratio that multiplies it.
    Rule(
        "",
        lambda d: d.unbiased and not d.corrected,
        "{d.what}: kl.unbiased is true, but use_bias_correction_kl is false: remove one of them.",
    ),
    Rule(
        "",
        lambda d: d.unbiased and d.corrected and d.in_reward,
        "{d.what}: kl.unbiased has no meaning with placement 'reward', where the estimate is a number and the ratio is "
        "1: remove it.",
    ),
    Rule(
        "",
        lambda d: d.unbiased and d.corrected and not d.in_reward and not d.preset.unbiased,
        "{d.what} never multiplies its KL estimate by the ratio: remove kl.unbiased.",
    ),
    Rule(
        "kl",
        lambda d: d.unbiased and d.multiplies and not d.pieces["kl"].takes_ratio,
        "{d.what}: kl.unbiased is true, but the ratio never multiplies {kl.name!r}: as it is its gradient is "
        "that of the reverse KL, and times the ratio it is not. Remove kl.unbiased.",
    ),
    # The end of the inner iterations.
    Rule(
        "",
        lambda d: d.stop is not None and not _is_share(d.stop),
        "{d.what}: stop_fraction is {d.stop!r}, expected more than 0 and at most 1.",
    ),
    Rule(
        "surrogate",
        lambda d: _is_share(d.stop) and not d.pieces["surrogate"].settles,
        "{d.what}: stop_fraction counts tokens that feel no pull any more, and {surrogate.name!r} pulls every token "
        "for ever: remove it, or use one of {d.settling}.",
    ),
    Rule(
        "",
        lambda d: d.rise is not None and not _is_rise(d.rise),
        "{d.what}: stop_rise is {d.rise!r}, expected a finite number of at least 0.",
    ),
    Rule(
        "",
        lambda d: d.skips is not None and not isinstance(d.skips, bool),
        "{d.what}: skip_settled is {d.skips!r}, expected true or false.",
    ),
    Rule(
        "surrogate",
        lambda d: d.skips is True and d.pieces["surrogate"].name != "target",
        "{d.what}: skip_settled leaves out rows that are at their targets, and {surrogate.name!r} has none: remove it, "
        "or use target.",
    ),
    # Advantages of parts of a completion.
    Rule(
        "ratio",
        lambda d: d.per != "completion" and d.pieces["ratio"].per_completion,
        "{d.what}: the ratio {ratio.name!r}" + _ONE_NUMBER,
    ),
    Rule(
        "surrogate",
        lambda d: d.per != "completion" and d.pieces["surrogate"].per_completion,
        "{d.what}: the surrogate {surrogate.name!r}" + _ONE_NUMBER,
    ),
    Rule(
        "kl",
        lambda d: d.per == "step" and d.in_reward,
        "{d.what}: kl placement 'reward' takes the divergence from the completion's reward, which an advantage "
        "estimator of step scores does not look at: use placement 'loss'.",
    ),
)


def broken_rules(draft: Draft) -> list[str]:
    """The messages of all rules that a draft breaks."""
    read = (rule for rule in RULES if set(rule.about.split()) <= draft.pieces.keys())
    return [rule.message.format(d=draft, **draft.pieces) for rule in read if rule.broken(draft)]
