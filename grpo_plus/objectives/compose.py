"""Build an `Objective` from a name and keywords of a config, or collect every problem, before the run."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from grpo_plus.objectives.kl import pull
from grpo_plus.objectives.objective import BoundPiece, KLTerm, Objective
from grpo_plus.objectives.pieces import Kind, Piece, piece_registries
from grpo_plus.objectives.presets import Preset
from grpo_plus.objectives.registry import objectives
from grpo_plus.objectives.rules import RULES, Draft
from grpo_plus.objectives.schedule import parse_schedule
from grpo_verifiers.errors import PluginError, Problem, VerifierError, raise_all
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import Range, keywords_of, numbers, option_problems
from grpo_verifiers.rules import broken_rules

_NOT_HERE = {
    "bnpo": "its divisor is the token count of the micro-batch, so its gradient depends on how a batch is split: use "
    "'dapo', which divides by the count of the full batch, or leave objective unset and set loss_type to bnpo"
}


def _stops(*, stop_fraction: Annotated[float, Range(0, 1, open_low=True)] | None = None) -> None:
    """The signature of the keywords of every objective, except its pieces."""


SELECTORS = ("ratio", "surrogate", "kl", "reduce", *keywords_of(_stops))
"""Keywords of every objective; the rest are its surrogate's and its reduction's."""


def _kl(
    *,
    estimator: Any = None,
    unbiased: bool | None = None,
    placement: Literal["loss", "reward"] = "loss",
    schedule: Any = "constant",
) -> None:
    """The signature of a KL term."""


def build_objective(
    name: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    beta: float,
    use_bias_correction_kl: bool = True,
) -> Objective:
    """Return the objective of a config.

    >>> print(build_objective("dapo", {"epsilon_high": 0.28}, beta=0.0).formula())
    objective dapo
      J = min(r·A, clip(r, 1 − 0.2, 1 + 0.28)·A)
      r: ρ_t = exp(lp_t − old_t)
      loss = reduce(−J), reduce = Σ_t / tokens

    Args:
        name: a preset, a registered objective, a reference to a function, or the function.
        kwargs: its keywords: pieces (``ratio``, ``surrogate``, ``kl``, ``reduce``), ``stop_fraction``,
            and the keywords of its surrogate and reduction.
        beta: TRL's coefficient of the KL term.
        use_bias_correction_kl: TRL's field, the default of ``kl: {unbiased: …}``.

    Raises:
        ConfigError: every problem of the composition.
    """
    objective, problems = compose_objective(name, kwargs, beta=beta, use_bias_correction_kl=use_bias_correction_kl)
    raise_all(problems)
    assert objective is not None
    return objective


def compose_objective(
    name: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    beta: float,
    advantage_per: str = "completion",
    use_bias_correction_kl: bool = True,
) -> tuple[Objective | None, list[Problem]]:
    """Return the objective of a config, or None and every problem of the composition.

    A function or piece that cannot be imported is a problem as its own error, with its traceback. ``advantage_per`` is
    the unit of the advantage estimator's values: completion, step or token. The rest is as for `build_objective`.
    """
    title = f"the objective {name if isinstance(name, str) else getattr(name, '__qualname__', name)!r}"
    if isinstance(name, str) and name in _NOT_HERE:
        return None, [f"{title} does not exist on purpose: {_NOT_HERE[name]}."]
    try:
        preset = objectives.resolve(name)
    except (VerifierError, TypeError) as error:
        return None, [error if isinstance(error, PluginError) else str(error)]
    keywords = {key: numbers(value) for key, value in (kwargs or {}).items()}
    choice = _Choice(title, preset, keywords)
    parts = choice.parts()
    pieces: dict[str, Piece] = {kind: part.piece for kind, part in parts.items()}
    draft = Draft(title, preset, keywords, beta, use_bias_correction_kl, advantage_per, pieces)
    term = choice.kl_term(draft)
    if term is not None:
        draft = replace(draft, pieces={**pieces, "kl": term.estimator.piece})
    problems = [*choice.problems, *broken_rules([RULES], draft), *([] if term is None else _pull_problems(draft, term))]
    if problems:
        return None, problems
    share = keywords.get("stop_fraction")
    stop = None if share is None else float(share)
    ratio, surrogate, reduce = parts["ratio"], parts["surrogate"], parts["reduce"]
    return Objective(preset.name, ratio, surrogate, reduce, term, beta, stop), []


class _Choice:
    """The pieces of a config, and the problems of single pieces."""

    def __init__(self, title: str, preset: Preset, keywords: Mapping[str, Any]) -> None:
        self.title = title
        self.preset = preset
        self.keywords = keywords
        self.problems: list[Problem] = []

    def parts(self) -> dict[Kind, BoundPiece]:
        """Return ratio, surrogate and reduction with their keywords; missing ones are omitted."""
        preset = self.preset
        parts: dict[Kind, BoundPiece | None] = {"surrogate": self._surrogate()}
        surrogate = parts["surrogate"].piece if parts["surrogate"] else None
        ratio, reduce = preset.ratio, preset.reduce
        if surrogate is not None and surrogate.ratios and ratio not in surrogate.ratios:
            ratio = surrogate.ratios[0]
        elif surrogate is not None and surrogate.kind != "loss" and not surrogate.ratios and ratio == "none":
            ratio = "token"
        if surrogate is not None and surrogate.reduce:
            reduce = surrogate.reduce
        parts["ratio"] = self._part("ratio", *self._written("ratio", ratio))
        parts["reduce"] = self._part("reduce", *self._written("reduce", reduce))
        return self._with_keywords({kind: part for kind, part in parts.items() if part is not None})

    def _surrogate(self) -> BoundPiece | None:
        preset = self.preset
        if isinstance(preset.surrogate, Piece):
            return BoundPiece(preset.surrogate)
        name, keywords = self._written("surrogate", preset.surrogate)
        return self._part("surrogate", name, {**preset.keywords, **keywords} if name == preset.surrogate else keywords)

    def _written(self, kind: str, default: str) -> tuple[Any, dict[str, Any]]:
        """The name of a piece and its keywords, from ``name`` or ``{name: …, keyword: …}``."""
        spec = self.keywords.get(kind, default)
        if isinstance(spec, Mapping):
            return spec.get("name", default), {key: value for key, value in spec.items() if key != "name"}
        return spec, {}

    def _part(self, kind: Kind, name: Any, keywords: dict[str, Any]) -> BoundPiece | None:
        try:
            return BoundPiece(piece_registries[kind].get(name), keywords)
        except (VerifierError, TypeError) as error:
            self.problems.append(error if isinstance(error, PluginError) else f"{self.title}: {error}")
            return None

    def _with_keywords(self, parts: dict[Kind, BoundPiece]) -> dict[Kind, BoundPiece]:
        """Assign the keywords next to the selectors to the surrogate, reduction or ratio that has them."""
        owners: dict[Kind, Mapping[str, Any]] = {kind: part.piece.keywords() for kind, part in parts.items()}
        for key, value in self.keywords.items():
            if key in SELECTORS:
                continue
            kinds: tuple[Kind, ...] = ("surrogate", "reduce", "ratio")
            owner = next((kind for kind in kinds if key in owners.get(kind, ())), None)
            if owner is not None:
                if isinstance(self.keywords.get(owner), Mapping) and key in self.keywords[owner]:
                    self.problems.append(f"{self.title}: {key} is set twice, inside {owner} and next to it.")
                parts[owner] = BoundPiece(parts[owner].piece, {**parts[owner].keywords, key: value})
            elif "surrogate" in parts:  # without one, the keyword may be the missing surrogate's
                names = [*SELECTORS, *(name for keywords in owners.values() for name in keywords)]
                self.problems.append(f"{self.title}: {unknown('keyword', key, names)}")
        stops = {key: self.keywords[key] for key in keywords_of(_stops) if key in self.keywords}
        self.problems += option_problems(self.title, _stops, stops, bare=True)
        for part in parts.values():
            self.problems += [f"{self.title}: {problem}" for problem in part.piece.problems(part.keywords)]
        return parts

    def kl_term(self, draft: Draft) -> KLTerm | None:
        """Return the KL term of a draft; None without one, or if it cannot be built."""
        if not draft.has_kl:
            return None
        options = draft.term
        self.problems += option_problems(f"{self.title}: kl", _kl, options)
        schedule, problems = parse_schedule(options.get("schedule", "constant"))
        self.problems += [f"{self.title}: {problem}" for problem in problems]
        default = "k1" if draft.in_reward else self.preset.kl or "k3"
        estimator = self._part("kl", options.get("estimator", default), {})
        if estimator is None or options.get("placement", "loss") not in ("loss", "reward"):
            return None
        unbiased = draft.corrected if options.get("unbiased") is None else draft.unbiased
        corrects = unbiased and draft.multiplies and estimator.piece.takes_ratio
        return KLTerm(estimator, corrects, options.get("placement", "loss"), schedule)


def _pull_problems(draft: Draft, term: KLTerm) -> list[Problem]:
    """Refuse a KL term whose expected update does not approach the reference."""
    piece = term.estimator.piece
    try:
        cosine = pull(term.estimator, in_reward=draft.in_reward, times_ratio=term.unbiased)
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything
        problem = PluginError(f"{draft.title}: the KL estimator {piece.name!r} raised {type(error).__name__}: {error}")
        problem.__cause__ = error
        return [problem]
    if cosine > 0:
        return []
    if cosine == 0:
        effect = "has expected gradient 0, so it would only add noise"
    else:
        effect = (
            "pushes away from the reference (its expected update has cosine "
            f"{cosine:.2f} with the one that lowers the divergence)"
        )
    if draft.in_reward:
        where, remedy = "with placement 'reward'", "use k1, the default there, or placement 'loss'"
    elif term.unbiased:
        where, remedy = "times the ratio", "use k1, k2 or k3"
    else:
        where, remedy = "in the loss without the ratio", "use k2 or k3"
        if piece.takes_ratio and draft.preset.unbiased:
            written = draft.term.get("unbiased") is False
            remedy += ", or remove kl.unbiased: false" if written else ", or set use_bias_correction_kl to true"
    return [f"{draft.title}: kl: the estimator {piece.name!r} {where} {effect}: {remedy}."]
