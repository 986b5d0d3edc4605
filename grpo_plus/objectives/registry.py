"""The registry of objectives: presets and functions of users."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from grpo_plus.objectives.pieces import Kind, piece_of, piece_registries
from grpo_plus.objectives.presets import NAMES, Preset
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.registry import Registry, source_of
from grpo_verifiers.rules import PartRule

F = TypeVar("F", bound=Callable[..., Any])


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
"""All objectives, by name."""


def register_objective(
    name: str,
    *,
    kind: Kind = "loss",
    reduce: str = "token_mean",
    kl: Literal["added", "own", "none"] = "added",
    zero_advantage_means_zero_gradient: bool = False,
    per_completion: bool = False,
    formula: str = "",
    rules: Sequence[PartRule] = (),
) -> Callable[[F], F]:
    """Register a function as an objective, or as a piece of one.

    >>> from grpo_plus.objectives import build_objective
    >>> @register_objective("doc_plain", formula="−A·log p")
    ... def plain(batch):
    ...     return -batch.advantages * batch.logps
    >>> print(build_objective("doc_plain", beta=0.0).formula())
    objective doc_plain
      L = −A·log p
      loss = reduce(L), reduce = Σ_t / tokens
    >>> objectives.unregister("doc_plain")

    A full objective is called as ``fn(batch, *, keywords)`` with a `TokenBatch` and returns the loss of every token,
    (B, T), to be minimised; or a pair of that and a mapping of metric names to tensors of the same shape. A ratio is
    called as ``fn(batch)``, a surrogate as ``fn(batch, ratio)`` (to be maximised), a KL estimator as
    ``fn(logps, ref_logps)``, a reduction as ``fn(values, batch)``; all may have keywords. Off-policy masks, top-entropy
    masks and the importance weights of another sampler are applied to its output.

    Args:
        name: its name in configs.
        kind: ``loss`` for a full objective, or ``ratio``, ``surrogate``, ``kl``, ``reduce`` for a piece.
        reduce: the reduction of a full objective; configs may choose another.
        kl: ``added``: the KL term of `beta` is added to the output of a full objective; ``own``: the function reads
            ``batch.ref_logps`` and ``batch.beta`` itself; ``none``: there is no KL term, and `beta` must be 0.
        zero_advantage_means_zero_gradient: a promise of a loss or surrogate about completions with zero advantages:
            the update may then skip them.
        per_completion: for ratios and surrogates, there is one number a completion, so that advantages per token
            have no meaning.
        formula: for `check`.
        rules: its requirements and exclusions, such as ``[excludes("fp16", "why")]`` (`grpo_verifiers.rules`).

    A custom KL estimator in the loss is multiplied by the ratio unless ``unbiased`` is false: the gradient is then that
    of E_π[estimate]. An estimator whose expected update, in its placement, does not approach the reference is refused
    (`grpo_plus.objectives.kl.pull`), so it must work on any log-probabilities.
    """
    if not isinstance(name, str):
        raise TypeError(
            f'register_objective takes the name first: @register_objective("mine"), not {type(name).__name__}.'
        )
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
            rules=tuple(rules),
        )
        if kind == "loss":
            why = "it was registered without a KL term" if kl == "none" else ""
            term = "k3" if kl == "added" else None
            preset = Preset(name, piece, ratio="none", reduce=reduce, kl=term, why_no_kl=why, own_kl=kl == "own")
            objectives.register(name, preset, source=source_of(fn))
        else:
            piece_registries[kind].register(name, piece, source=source_of(fn))
        return fn

    return register
