"""The pieces of objectives, by name: ratios, surrogates, KL estimators, reductions."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from grpo_verifiers.options import keywords_of, option_problems
from grpo_verifiers.registry import Registry
from grpo_verifiers.rules import PartRule

Kind = Literal["ratio", "surrogate", "kl", "reduce", "loss"]
POSITIONAL: Mapping[Kind, tuple[str, ...]] = {
    "ratio": ("batch",),
    "surrogate": ("batch", "ratio"),
    "kl": ("logps", "ref_logps"),
    "reduce": ("values", "batch"),
    "loss": ("batch",),
}
"""The arguments of a piece of each kind. A loss is a user's full objective: (B, T) values to minimise."""


@dataclass(frozen=True)
class Piece:
    """One piece and its rules of composition.

    Attributes:
        formula: its formula, for `check`.
        ratios: for surrogates, the allowed ratios, the first one by default; empty for any.
        reduce: for surrogates, the only allowed reduction; empty for any.
        why_no_kl: for surrogates, the reason against a KL term; empty if one is allowed.
        per_completion: the ratio, or the surrogate's value, is one number a completion, so that advantages per token
            have no meaning.
        pulls: for surrogates of a group, from its `GroupScores` and keywords to `Pulls`.
        weighs_itself: the surrogate reads the importance weights of another sampler itself.
        focuses_itself: the surrogate reads the focus mask itself.
        settles: the surrogate marks tokens without a further pull, for `stop_fraction`.
        weighs_kl: the ratio, rather than the token ratio, multiplies an unbiased KL estimate.
        by_ratio: for surrogates, keywords act at ratios other than 1 only.
        rules: its requirements and exclusions (`grpo_verifiers.rules`).
        takes_ratio: for KL estimators, a ratio may multiply them.
    """

    kind: Kind
    name: str
    fn: Callable[..., Any]
    formula: str = ""
    ratios: tuple[str, ...] = ()
    reduce: str = ""
    why_no_kl: str = ""
    per_completion: bool = False
    zero_advantage_means_zero_gradient: bool = False
    weighs_itself: bool = False
    focuses_itself: bool = False
    settles: bool = False
    weighs_kl: bool = False
    by_ratio: bool = False
    rules: tuple[PartRule, ...] = ()
    takes_ratio: bool = True
    pulls: Callable[..., Any] | None = None

    @property
    def built_in(self) -> bool:
        """True if the function is one of this package."""
        return str(getattr(self.fn, "__module__", "")).startswith("grpo_plus.objectives.")

    def keywords(self) -> dict[str, inspect.Parameter]:
        """Return the keywords that may be set."""
        return keywords_of(self.fn, self._called_with())

    def problems(self, keywords: Mapping[str, Any]) -> list[str]:
        """Return the problems of keywords for this piece."""
        title = f"the {self.kind} {self.name!r}"
        return option_problems(title, self.fn, keywords, skip=self._called_with(), bare=True)

    def _called_with(self) -> list[str]:
        return list(inspect.signature(self.fn).parameters)[: len(POSITIONAL[self.kind])]


def adopt(kind: Kind, name: str, value: Any) -> Piece:
    """Convert the object of a reference or entry point to a piece of this kind."""
    if isinstance(value, Piece):
        if value.kind != kind:
            raise TypeError(f"{name!r} is a {value.kind}, not a {kind}.")
        return value
    return piece_of(kind, name, value)


def piece_of(kind: Kind, name: str, fn: Any, **declared: Any) -> Piece:
    """Return a piece of a user's function; raise if it does not take the arguments of its kind."""
    expected = POSITIONAL[kind]
    if not callable(fn):
        raise TypeError(f"the {kind} {name!r} is {fn!r}, expected a function ({', '.join(expected)}, *, keywords).")
    parameters = list(inspect.signature(fn).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest_required = [p.name for p in positional[len(expected) :] if p.default is p.empty]
    if len(positional) < len(expected) or rest_required:
        raise TypeError(
            f"the {kind} {name!r} takes ({', '.join(p.name for p in parameters)}), expected "
            f"({', '.join(expected)}, *, keywords)."
        )
    return Piece(kind, name, fn, **declared)


_BUILT_IN: Mapping[Kind, tuple[str, Mapping[str, str]]] = {
    "ratio": ("ratio", {"ratio": "token sequence sequence_token sequence_sum none"}),
    "surrogate": (
        "surrogate",
        {
            "surrogate": "clip is logp cispo dis sapo",
            "sequence_surrogate": "gmpo vespo",
            "dppo": "dppo_tv dppo_kl",
            "up": "up",
            "fipo": "fipo",
            "target": "target",
            "tpo": "tpo",
            "real": "real",
        },
    ),
    "kl": ("KL estimator", {"kl": "k1 k2 k3"}),
    "reduce": ("reduction", {"reduce": "sequence_mean token_mean constant sequence_sum prompt_mean"}),
}
"""Each kind in words, and the names of its built-in pieces by file of this folder; the `Piece` is NAME there."""

piece_registries: dict[Kind, Registry[Piece]] = {
    kind: Registry(
        words,
        builtins={
            name: f"grpo_plus.objectives.{file}:{name.upper()}" for file in files for name in files[file].split()
        },
        adopt=partial(adopt, kind),
    )
    for kind, (words, files) in _BUILT_IN.items()
}
"""One registry a kind."""
