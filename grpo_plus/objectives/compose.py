"""From a name and keywords of a config to an `Objective`, with every problem found before anything runs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

from grpo_plus.objectives.kl import pull
from grpo_plus.objectives.objective import KLTerm, Objective, Part
from grpo_plus.objectives.pieces import Kind, Piece, piece_of, piece_registries
from grpo_plus.objectives.presets import NAMES, Preset
from grpo_plus.objectives.schedule import parse_schedule
from grpo_verifiers.errors import PluginError, VerifierError
from grpo_verifiers.options import numbers
from grpo_verifiers.problems import Problem, raise_all
from grpo_verifiers.registry import Registry, source_of
from grpo_verifiers.suggest import unknown

F = TypeVar("F", bound=Callable[..., Any])

SELECTORS = ("ratio", "surrogate", "kl", "reduce", "stop_fraction")
"""Keywords that every objective has; the others are its surrogate's and its reduction's."""

_NOT_HERE = {
    "bnpo": "its divisor is the token count of the micro-batch, so its gradient depends on how a batch is split: use "
    "'dapo', which divides by the count of the whole batch, or leave objective unset and set loss_type to bnpo"
}


def _adopt(name: str, value: Any) -> Preset:
    if isinstance(value, Preset):
        return value
    return Preset(name, piece_of("loss", name, value), ratio="none", reduce="token_mean")


objectives: Registry[Preset] = Registry(
    "objective",
    builtins={name: f"grpo_plus.objectives.presets:{name.upper()}" for name in NAMES},
    group="grpo_plus.objectives",
    adopt=_adopt,
)
"""Every objective there is, by name."""


def _preset(part: str | Callable[..., Any], base: Path | None) -> Preset:
    """What a name or a function stands for."""
    if isinstance(part, str) or not callable(part):
        return objectives.get(part, base=base)
    for entry in objectives.entries():
        if entry.way == "registered" and (known := objectives.get(entry.name)).fn is part:
            return known
    return _adopt(getattr(part, "__qualname__", type(part).__name__), part)


@overload
def register_objective(name: F) -> F: ...
@overload
def register_objective(
    name: str,
    *,
    kind: Kind = "loss",
    reduce: str = "token_mean",
    kl: Literal["added", "own", "none"] = "added",
    zero_advantage_means_zero_gradient: bool = False,
    per_completion: bool = False,
    formula: str = "",
) -> Callable[[F], F]: ...
def register_objective(
    name: Any,
    *,
    kind: Kind = "loss",
    reduce: str = "token_mean",
    kl: Literal["added", "own", "none"] = "added",
    zero_advantage_means_zero_gradient: bool = False,
    per_completion: bool = False,
    formula: str = "",
) -> Any:
    """Register a function as an objective, or as a piece of one.

    A whole objective is called as ``fn(batch, *, keywords)`` with a `TokenBatch` and returns the loss of every token,
    (B, T), to be minimised; or a pair of that and a mapping of metric names to tensors of the same shape. A ratio is
    called as ``fn(batch)``, a surrogate as ``fn(batch, ratio)`` (what it returns is maximised), a KL estimator as
    ``fn(logps, ref_logps)``, a reduction as ``fn(values, batch)``; all may have keywords. Off-policy masks, top-entropy
    masks and the importance weights of another sampler are applied to whatever it returns.

    Args:
        name: what configs call it. Used without parentheses, the decorator takes the function's own name.
        kind: ``loss`` for a whole objective, or ``ratio``, ``surrogate``, ``kl``, ``reduce`` for a piece.
        reduce: the reduction of a whole objective; configs may choose another.
        kl: ``added``: the KL term of `beta` is added to what a whole objective returns; ``own``: the function reads
            ``batch.ref_logps`` and ``batch.beta`` itself; ``none``: there is no KL term, and `beta` must be 0.
        zero_advantage_means_zero_gradient: what a loss or surrogate promises about completions with zero advantages:
            they may then be left out of the update.
        per_completion: for ratios and surrogates, that there is one number a completion, so that advantages per token
            have no meaning.
        formula: for `explain`.

    A KL estimator of one's own in the loss is multiplied by the ratio unless ``unbiased`` is false: the gradient is
    then that of what it estimates, E_π[estimate]. One whose expected update does not approach the reference, where it
    is used and as it is used, is refused (`grpo_plus.objectives.kl.pull`), so it must work on any log-probabilities.
    """
    if callable(name) and not isinstance(name, str):
        return register_objective(name.__name__)(name)
    if kind != "loss" and kind not in piece_registries:
        raise ValueError(unknown("kind of objective piece", kind, ("loss", *piece_registries)))
    if kl not in ("added", "own", "none"):
        raise ValueError(unknown("way to treat the KL term", kl, ("added", "own", "none")))

    def register(fn: F) -> F:
        piece = piece_of(
            kind,
            name,
            fn,
            formula=formula,
            per_completion=per_completion,
            zero_advantage_means_zero_gradient=zero_advantage_means_zero_gradient,
        )
        if kind == "loss":
            why = "" if kl == "own" else "it was registered without a KL term: set beta to 0"
            term = "k3" if kl == "added" else None
            preset = Preset(name, piece, ratio="none", reduce=reduce, kl=term, why_no_kl=why, own_kl=kl == "own")
            objectives.register(name, preset, source=source_of(fn))
        else:
            piece_registries[kind].register(name, piece, source=source_of(fn))
        return fn

    return register


def build_objective(
    name: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    beta: float,
    base: Path | None = None,
    use_bias_correction_kl: bool = True,
) -> Objective:
    """The objective of a config.

    Args:
        name: a preset, a registered objective, a reference to a function, or the function.
        kwargs: its keywords: pieces (``ratio``, ``surrogate``, ``kl``, ``reduce``), ``stop_fraction``, and the
            keywords of its surrogate and reduction.
        beta: TRL's coefficient of the KL term.
        base: the folder that relative references start from.
        use_bias_correction_kl: TRL's field, which decides where ``kl: {unbiased: …}`` is not given.

    Raises:
        ConfigError: every problem of the composition.
    """
    composition = _Composition(name, kwargs or {}, beta, base, use_bias_correction_kl)
    raise_all(composition.problems)
    return composition.build()


def check_objective(
    name: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    beta: float,
    advantage_per: str = "completion",
    base: Path | None = None,
    use_bias_correction_kl: bool = True,
) -> list[str]:
    """Every problem of a composition; an empty list when there are none.

    Args:
        name: as for `build_objective`.
        kwargs: same.
        beta: same.
        advantage_per: what the advantage estimator gives one number for: completion, step or token.
        base: as for `build_objective`.
        use_bias_correction_kl: same.
    """
    problems = objective_problems(
        name,
        kwargs,
        beta=beta,
        advantage_per=advantage_per,
        base=base,
        use_bias_correction_kl=use_bias_correction_kl,
    )
    return [str(problem) for problem in problems]


def objective_problems(
    name: str | Callable[..., Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    beta: float,
    advantage_per: str = "completion",
    base: Path | None = None,
    use_bias_correction_kl: bool = True,
) -> list[Problem]:
    """The same, where a function or piece that cannot be imported stands as the error itself, with its traceback."""
    composition = _Composition(name, kwargs or {}, beta, base, use_bias_correction_kl)
    return composition.problems + composition.advantage_problems(advantage_per)


def compose_objective(
    name: str | Callable[..., Any],
    kwargs: Mapping[str, Any],
    *,
    beta: float,
    advantage_per: str,
    use_bias_correction_kl: bool,
) -> tuple[Objective | None, list[Problem]]:
    """The objective and every problem of it, composed once; None where there are any."""
    composition = _Composition(name, kwargs, beta, None, use_bias_correction_kl)
    problems = composition.problems + composition.advantage_problems(advantage_per)
    return (None, problems) if problems else (composition.build(), [])


class _Composition:
    """The parts of an objective while they are put together; collects problems instead of raising at the first."""

    def __init__(
        self,
        name: str | Callable[..., Any],
        kwargs: Mapping[str, Any],
        beta: float,
        base: Path | None,
        corrected: bool,
    ) -> None:
        self.problems: list[Problem] = []
        self.what = f"the objective {name if isinstance(name, str) else getattr(name, '__qualname__', name)!r}"
        self.beta = beta
        self.base = base
        self.parts: dict[str, Part] = {}
        self.kl: KLTerm | None = None
        self.stop_fraction: float | None = None
        if isinstance(name, str) and name in _NOT_HERE:
            self.problems.append(f"{self.what} does not exist on purpose: {_NOT_HERE[name]}.")
            return
        try:
            self.preset = _preset(name, base)
        except (VerifierError, TypeError) as error:
            self.problems.append(error if isinstance(error, PluginError) else str(error))
            return
        self.kwargs = {key: numbers(value) for key, value in kwargs.items()}
        self._choose()
        self._spread_keywords()
        self._check_fit()
        self._choose_kl(corrected)
        self._check_stop()

    def build(self) -> Objective:
        return Objective(
            name=self.preset.name,
            ratio=self.parts["ratio"],
            surrogate=self.parts["surrogate"],
            reduce=self.parts["reduce"],
            kl=self.kl,
            beta=self.beta,
            stop_fraction=self.stop_fraction,
        )

    def _choose(self) -> None:
        """The pieces, the preset's or those of the config, with the keywords written beside their names."""
        preset = self.preset
        whole = isinstance(preset.surrogate, Piece)
        given, keywords = (preset.surrogate, {}) if whole else self._named("surrogate", preset.surrogate)
        surrogate = self._piece("surrogate", given, keywords)
        if surrogate is not None and given == preset.surrogate:
            surrogate = Part(surrogate.piece, {**preset.keywords, **surrogate.keywords})
        if whole and "surrogate" in self.kwargs:
            self.problems.append(f"{self.what} is one whole function: it has no surrogate to choose.")
        default_ratio = preset.ratio
        if surrogate is not None and surrogate.piece.ratios and default_ratio not in surrogate.piece.ratios:
            default_ratio = surrogate.piece.ratios[0]
        if (
            surrogate is not None
            and not surrogate.piece.ratios
            and default_ratio == "none"
            and given != preset.surrogate
        ):
            default_ratio = "token"
        self.parts = {} if surrogate is None else {"surrogate": surrogate}
        default_reduce = "token_mean" if self._is("target") else preset.reduce
        defaults: dict[Kind, str] = {"ratio": default_ratio, "reduce": default_reduce}
        for kind, default in defaults.items():
            part = self._piece(kind, *self._named(kind, default))
            if part is not None:
                self.parts[kind] = part

    def _named(self, kind: str, default: Any) -> tuple[Any, dict[str, Any]]:
        """The name of a piece and the keywords beside it, from ``name`` or ``{name: …, keyword: …}``."""
        spec = self.kwargs.get(kind, default)
        if isinstance(spec, Mapping):
            return spec.get("name", default), {key: value for key, value in spec.items() if key != "name"}
        return spec, {}

    def _piece(self, kind: Kind, name: Any, keywords: dict[str, Any]) -> Part | None:
        if isinstance(name, Piece):
            return Part(name, keywords)
        try:
            return Part(piece_registries[kind].get(name, base=self.base), keywords)
        except (VerifierError, TypeError) as error:
            self.problems.append(error if isinstance(error, PluginError) else f"{self.what}: {error}")
            return None

    def _spread_keywords(self) -> None:
        """Give the keywords that stand beside the selectors to the surrogate or the reduction that knows them."""
        flat = {key: value for key, value in self.kwargs.items() if key not in SELECTORS}
        owners = {kind: part.piece.keywords() for kind, part in self.parts.items()}
        for key, value in flat.items():
            owner = next((kind for kind in ("surrogate", "reduce", "ratio") if key in owners.get(kind, {})), None)
            if owner is None:
                if "surrogate" in self.parts:
                    known = [*SELECTORS, *(name for keywords in owners.values() for name in keywords)]
                    self.problems.append(f"{self.what}: {unknown('keyword', key, known)}")
                continue
            part = self.parts[owner]
            if isinstance(self.kwargs.get(owner), Mapping) and key in self.kwargs[owner]:
                self.problems.append(f"{self.what}: {key} is given twice, inside {owner} and beside it.")
            self.parts[owner] = Part(part.piece, {**part.keywords, key: value})
        for part in self.parts.values():
            self.problems += [f"{self.what}: {problem}" for problem in part.piece.problems(part.keywords)]

    def _check_fit(self) -> None:
        """What the surrogate may stand on."""
        surrogate, ratio = self.parts.get("surrogate"), self.parts.get("ratio")
        if surrogate is None or ratio is None:
            return
        piece = surrogate.piece
        if "ratio" in self.kwargs:
            if piece.kind == "loss":
                self.problems.append(f"{self.what} is one whole function: it has no ratio to choose.")
            elif piece.ratios and ratio.piece.name not in piece.ratios:
                reads = "no ratio" if piece.ratios == ("none",) else f"the {piece.ratios[0]} ratio itself"
                self.problems.append(
                    f"{self.what}: the surrogate {piece.name!r} reads {reads}, so ratio {ratio.piece.name!r} would "
                    "change nothing: remove ratio."
                )
        if ratio.piece.name == "none" and not piece.ratios and piece.kind != "loss":
            self.problems.append(
                f"{self.what}: the surrogate {piece.name!r} needs a ratio, and ratio is 'none'. For plain policy "
                "gradients use the surrogate 'logp'."
            )
        if self._is("target") and "reduce" in self.parts and self.parts["reduce"].piece.name != "token_mean":
            self.problems.append(
                f"{self.what}: the surrogate 'target' is a mean over nodes, so its reduction is token_mean, not "
                f"{self.parts['reduce'].piece.name!r}: remove reduce."
            )

    def _is(self, surrogate: str) -> bool:
        part = self.parts.get("surrogate")
        return part is not None and part.piece.kind == "surrogate" and part.piece.name == surrogate

    def _choose_kl(self, corrected: bool) -> None:
        spec = self.kwargs.get("kl", None if self._is("target") else self.preset.kl)
        off = spec is None or (isinstance(spec, str) and spec.lower() == "none")
        if isinstance(self.beta, int | float) and self.beta < 0:
            self.problems.append(f"beta is {self.beta!r}, expected at least 0: it would reward divergence.")
        if self.preset.own_kl and "kl" not in self.kwargs:
            return
        why = self.preset.why_no_kl if self.preset.kl is None or self._is("target") else ""
        if self._is("target") and not why:
            why = "the surrogate 'target' says how far each probability should go: set beta to 0"
        if why:
            if self.beta:
                self.problems.append(f"{self.what} has no KL term, but beta is {self.beta!r}: {why}.")
            if not off:
                self.problems.append(f"{self.what} has no KL term, but kl is {spec!r}: {why}, and remove kl.")
            return
        if off:
            if self.beta:
                self.problems.append(
                    f"{self.what}: kl is {spec!r}, but beta is {self.beta!r}: set beta to 0, or choose an estimator "
                    f"({', '.join(piece_registries['kl'])})."
                )
            return
        if not self.beta:
            if "kl" in self.kwargs:
                self.problems.append(
                    f"{self.what}: kl is {spec!r}, but beta is 0, so nothing would read it: set beta, or remove kl."
                )
            return
        self._build_kl(spec if isinstance(spec, Mapping) else {"estimator": spec}, corrected)

    def _build_kl(self, spec: Mapping[str, Any], corrected: bool) -> None:
        known = ("estimator", "unbiased", "placement", "schedule")
        self.problems += [f"{self.what}: kl: {unknown('keyword', key, known)}" for key in spec if key not in known]
        placement, unbiased = spec.get("placement", "loss"), spec.get("unbiased")
        if placement not in ("loss", "reward"):
            self.problems.append(f"{self.what}: kl: {unknown('placement', placement, ('loss', 'reward'))}")
        if unbiased is not None and not isinstance(unbiased, bool):
            self.problems.append(f"{self.what}: kl: unbiased is {unbiased!r}, expected true or false.")
        elif unbiased is True and not corrected:
            self.problems.append(
                f"{self.what}: kl.unbiased is true, but use_bias_correction_kl is false: remove one of them."
            )
        elif unbiased is True and placement == "reward":
            self.problems.append(
                f"{self.what}: kl.unbiased has no meaning with placement 'reward', where the estimate is a number "
                "and the ratio is 1: remove it."
            )
        elif unbiased is True and not self.preset.unbiased:
            self.problems.append(f"{self.what} never multiplies its KL estimate by the ratio: remove kl.unbiased.")
        schedule, problems = parse_schedule(spec.get("schedule", "constant"))
        self.problems += [f"{self.what}: {problem}" for problem in problems]
        default = "k1" if placement == "reward" else self.preset.kl or "k3"
        estimator = self._piece("kl", spec.get("estimator", default), {})
        if estimator is None or placement not in ("loss", "reward"):
            return
        multiplies = self.preset.unbiased and placement == "loss"
        if unbiased is True and multiplies and not estimator.piece.takes_ratio:
            self.problems.append(
                f"{self.what}: kl.unbiased is true, but the ratio never multiplies {estimator.piece.name!r}: as it is "
                "its gradient is that of the reverse KL, and times the ratio it is not. Remove kl.unbiased."
            )
        wanted = corrected if unbiased is None else unbiased is True
        corrects = wanted and multiplies and estimator.piece.takes_ratio
        self.kl = KLTerm(estimator, unbiased=corrects, placement=placement, schedule=schedule)
        self._check_pull(self.kl, told=unbiased is False)

    def _check_pull(self, kl: KLTerm, *, told: bool) -> None:
        """Refuse a KL term whose expected update does not approach the reference."""
        in_reward, name = kl.placement == "reward", kl.estimator.piece.name
        try:
            cosine = pull(kl.estimator, in_reward=in_reward, times_ratio=kl.unbiased)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            problem = PluginError(f"{self.what}: the KL estimator {name!r} raised {type(error).__name__}: {error}")
            problem.__cause__ = error
            self.problems.append(problem)
            return
        if cosine > 0:
            return
        if cosine == 0:
            what = "has expected gradient 0, so it would add noise and hold nothing back"
        else:
            what = (
                "pushes away from the reference (its expected update has cosine "
                f"{cosine:.2f} with the one that lowers the divergence)"
            )
        if in_reward:
            where, remedy = "with placement 'reward'", "use k1, the default there, or placement 'loss'"
        elif kl.unbiased:
            where, remedy = "times the ratio", "use k1, k2 or k3"
        else:
            where, remedy = "in the loss without the ratio", "use k2 or k3"
            if kl.estimator.piece.takes_ratio and self.preset.unbiased:
                remedy += ", or remove kl.unbiased: false" if told else ", or set use_bias_correction_kl to true"
        self.problems.append(f"{self.what}: kl: the estimator {name!r} {where} {what}: {remedy}.")

    def _check_stop(self) -> None:
        share = self.kwargs.get("stop_fraction")
        if share is None:
            return
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
            self.problems.append(f"{self.what}: stop_fraction is {share!r}, expected more than 0 and at most 1.")
            return
        surrogate = self.parts.get("surrogate")
        if surrogate is not None and not surrogate.piece.settles:
            able = [name for name in piece_registries["surrogate"] if piece_registries["surrogate"].get(name).settles]
            self.problems.append(
                f"{self.what}: stop_fraction counts tokens that feel no pull any more, and {surrogate.piece.name!r} "
                f"pulls every token for ever: remove it, or use one of {', '.join(able)}."
            )
        self.stop_fraction = float(share)

    def advantage_problems(self, advantage_per: str) -> list[Problem]:
        """Why this composition does not go with advantages per step or token, which end up on tokens."""
        problems: list[Problem] = []
        if advantage_per in ("step", "token"):
            for kind in ("ratio", "surrogate"):
                part = self.parts.get(kind)
                if part is not None and part.piece.per_completion:
                    problems.append(
                        f"{self.what}: the {kind} {part.piece.name!r} is one number a completion, which has no meaning "
                        f"with advantages per {advantage_per}: use ratio token or sequence_token (objective "
                        "'gspo_token'), or an advantage estimator per completion."
                    )
        if advantage_per == "step" and self.kl is not None and self.kl.placement == "reward":
            problems.append(
                f"{self.what}: kl placement 'reward' takes the divergence from the completion's reward, which an "
                "advantage estimator of step scores does not look at: use placement 'loss'."
            )
        return problems
