"""The pieces an objective is composed of, by name: ratios, surrogates, KL estimators, reductions."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from grpo_plus.recipe.bounds import Bounds
from grpo_verifiers.options import keywords_of, option_problems
from grpo_verifiers.registry import Registry

Kind = Literal["ratio", "surrogate", "kl", "reduce", "loss"]
POSITIONAL: Mapping[Kind, tuple[str, ...]] = {
    "ratio": ("batch",),
    "surrogate": ("batch", "ratio"),
    "kl": ("logps", "ref_logps"),
    "reduce": ("values", "batch"),
    "loss": ("batch",),
}
"""What a piece of each kind is called with. A loss is a user's whole objective: (B, T) values to minimise."""


@dataclass(frozen=True)
class Piece:
    """One piece and what may be composed with it.

    Attributes:
        kind: what it is a piece of.
        name: what it is called.
        fn: the function.
        formula: what it computes, for `explain`.
        bounds: the values its keywords may have.
        ratios: for surrogates, the ratios they may stand on, the first one by default; empty for any.
        reduce: for surrogates, the only reduction they go with; empty for any.
        why_no_kl: for surrogates, the reason against a KL term beside them; empty where there may be one.
        per_completion: the ratio, or what the surrogate makes of it, is one number a completion, so that it has no
            meaning beside advantages per token.
        zero_advantage_means_zero_gradient: for surrogates.
        weighs_itself: the surrogate reads the importance weights of another sampler itself.
        focuses_itself: the surrogate reads the focus mask itself.
        settles: the surrogate says which tokens feel no pull any more, so that `stop_fraction` has something to count.
        weighs_kl: the ratio, rather than the token ratio, multiplies an unbiased KL estimate.
        takes_ratio: for KL estimators, that a ratio may multiply them.
    """

    kind: Kind
    name: str
    fn: Callable[..., Any]
    formula: str = ""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    ratios: tuple[str, ...] = ()
    reduce: str = ""
    why_no_kl: str = ""
    per_completion: bool = False
    zero_advantage_means_zero_gradient: bool = False
    weighs_itself: bool = False
    focuses_itself: bool = False
    settles: bool = False
    weighs_kl: bool = False
    takes_ratio: bool = True

    @property
    def built_in(self) -> bool:
        """Whether the function is one of this package."""
        return str(getattr(self.fn, "__module__", "")).startswith("grpo_plus.objectives.")

    def keywords(self) -> dict[str, inspect.Parameter]:
        """The keywords that may be set."""
        return keywords_of(self.fn, self._called_with())

    def problems(self, given: Mapping[str, Any]) -> list[str]:
        """What is wrong with keywords for this piece."""
        what = f"the {self.kind} {self.name!r}"
        found = option_problems(what, self.fn, given, skip=self._called_with())
        for name, bounds in self.bounds.items():
            problem = bounds.problem(name, given.get(name))
            found += [f"{what}: {problem}"] if problem else []
        return found

    def _called_with(self) -> list[str]:
        return list(inspect.signature(self.fn).parameters)[: len(POSITIONAL[self.kind])]


def adopt(kind: Kind) -> Callable[[str, Any], Piece]:
    """A converter for references and entry points: a plain function becomes a piece of this kind."""

    def convert(name: str, value: Any) -> Piece:
        if isinstance(value, Piece):
            if value.kind != kind:
                raise TypeError(f"{name!r} is a {value.kind}, not a {kind}.")
            return value
        return piece_of(kind, name, value)

    return convert


def piece_of(kind: Kind, name: str, fn: Any, **declared: Any) -> Piece:
    """A piece from a user's function, which must be callable with what its kind is called with."""
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


_NAMES: dict[Kind, tuple[str, ...]] = {
    "ratio": ("token", "sequence", "sequence_token", "sequence_sum", "none"),
    "surrogate": ("clip", "is", "logp", "cispo", "sapo", "gmpo", "vespo", "target"),
    "kl": ("k1", "k2", "k3"),
    "reduce": ("sequence_mean", "token_mean", "constant", "sequence_sum", "prompt_mean"),
}

_WORDS: dict[Kind, str] = {
    "ratio": "ratio",
    "surrogate": "surrogate",
    "kl": "KL estimator",
    "reduce": "reduction",
}

piece_registries: dict[Kind, Registry[Piece]] = {
    kind: Registry(
        _WORDS[kind],
        builtins={name: f"grpo_plus.objectives.builtin:{kind.upper()}_{name.upper()}" for name in names},
        adopt=adopt(kind),
    )
    for kind, names in _NAMES.items()
}
"""One registry a kind."""
