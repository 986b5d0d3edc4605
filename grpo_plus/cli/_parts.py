"""Every part that a config can name, described from its own code: docstring, signature and declarations."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grpo_plus.cli._reference import (
    Column,
    Option,
    Reference,
    defaults,
    described,
    options_of,
    plain,
    written,
    yaml_word,
    yes,
)
from grpo_verifiers.docstrings import Docs, docs_of, file_docs_of, read_docs
from grpo_verifiers.errors import UnknownNameError
from grpo_verifiers.options import hints_of, keywords_of
from grpo_verifiers.registry import Registry, import_reference, is_reference, source_of

if TYPE_CHECKING:
    from grpo_plus.advantages import Estimator
    from grpo_plus.objectives.pieces import Piece
    from grpo_plus.objectives.presets import Preset
    from grpo_plus.selection import Selection
    from grpo_verifiers.verifying import FunctionVerifier


@dataclass(frozen=True)
class Kind:
    """A kind of parts; ``page`` is the page of docs/parts that shows it."""

    registry: Registry[Any]
    page: str
    describe: Callable[[str, Any], Reference]
    accepts: Callable[[Any], bool]

    @property
    def words(self) -> str:
        """The kind in words."""
        return self.registry.kind

    @property
    def plural(self) -> str:
        """Several of it in words."""
        first, of, rest = self.words.partition(" of ")
        return f"{first}s of {rest}" if of else self.words.replace("way with", "ways with") if (
            self.words.startswith("way ")
        ) else f"{self.words}s"  # fmt: skip

    def reference(self, name: str) -> Reference:
        """One entry by its name or reference."""
        way = self.registry.way(name)
        sources = {entry.name: entry.source for entry in self.registry.entries()}
        value = self.registry.get(name)
        found = self.describe(name, value)
        source = sources.get(name) or source_of(getattr(value, "fn", value))
        return replace(found, way=way, source=source, name=found.name.rpartition(":")[2])


def kinds() -> list[Kind]:
    """Every kind of parts, in the order in which they are listed."""
    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives, piece_registries
    from grpo_plus.selection import selections
    from grpo_verifiers.steps import SEGMENTERS
    from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS
    from grpo_verifiers.verifying import REGISTRY

    takes = _takes_first
    return [
        Kind(advantages, "advantages", _estimator, lambda value: _is_a(value, "Estimator") or takes(value, "table")),
        Kind(objectives, "objectives", _objective, lambda value: _is_a(value, "Preset") or takes(value, "batch")),
        *(
            Kind(registry, "objectives", _piece, functools.partial(_is_piece, kind))
            for kind, registry in piece_registries.items()
        ),
        Kind(_schedules(), "objectives", _schedule, _nothing),
        Kind(selections, "selection", _selection, lambda value: _is_a(value, "Selection") or takes(value, "history")),
        Kind(_dead_groups(), "selection", _way, _nothing),
        Kind(REGISTRY, "verifiers", _verifier, _is_verifier),
        Kind(_compositions(), "verifiers", _composition, _nothing),
        Kind(SEGMENTERS, "verifiers", _segmenter, lambda value: takes(value, "text")),
        Kind(TOOLS, "tools", _tool, lambda value: inspect.isroutine(value) or inspect.isclass(value)),
        Kind(ENVIRONMENTS, "tools", _tool, lambda value: inspect.isclass(value) and hasattr(value, "reset")),
    ]


def is_part(name: str) -> bool:
    """True for a name that some kind has, and for a reference."""
    return is_reference(name) or any(name in kind.registry for kind in kinds())


def references(name: str) -> list[Reference]:
    """The parts of that name, of every kind that has it; of a reference, the part that it leads to."""
    every = kinds()
    if is_reference(name):
        return [_kind_of(import_reference(name), every).reference(name)]
    found = [kind.reference(name) for kind in every if name in kind.registry]
    if not found:
        known = {each.lower(): each for kind in every for each in kind.registry.names()}
        near = [known[each] for each in difflib.get_close_matches(name.lower(), known, n=5)]
        meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnknownNameError(f"unknown part {name!r}.{meant} grpo-plus plugins lists all that there are, by kind.")
    return found


def _kind_of(value: Any, every: list[Kind]) -> Kind:
    """The kind of an object: the one that it is registered as, or the first that takes such an object."""
    fn = getattr(value, "fn", value)
    for kind in every:
        if any(getattr(each, "fn", each) is fn for each in kind.registry.registered()):
            return kind
    environments = every[-1]
    if environments.accepts(value):
        return environments
    return next((kind for kind in every if kind.accepts(value)), every[-2])


def _is_a(value: Any, name: str) -> bool:
    return type(value).__name__ == name and type(value).__module__.startswith("grpo_plus.")


def _is_piece(kind: str, value: Any) -> bool:
    return _is_a(value, "Piece") and value.kind == kind


def _nothing(value: Any) -> bool:  # noqa: ARG001 - every kind is asked alike
    return False


def _takes_first(value: Any, name: str) -> bool:
    """A function whose first parameter has that name."""
    if not inspect.isroutine(value):
        return False
    return next(iter(inspect.signature(value).parameters), None) == name


def _is_verifier(value: Any) -> bool:
    from grpo_verifiers.base import Verifier

    if isinstance(value, Verifier):
        return True
    if not inspect.isroutine(value):
        return False
    return bool({"completion", "completions"} & {*inspect.signature(value).parameters})


# -- kinds that are no registries of their own


_WAYS = ("keep", "replay", "resample", "roulette")


def _dead_groups() -> Registry[Any]:
    folder = "grpo_plus.selection.dead_groups"  # named rather than imported: these need torch
    return Registry("way with dead groups", builtins={name: f"{folder}.{name}:{name.capitalize()}" for name in _WAYS})


def _schedules() -> Registry[Any]:
    from grpo_plus.objectives.schedule import SCHEDULES

    places = {name: f"{made.__module__}:{made.__name__}" for name, made in SCHEDULES.items()}
    return Registry("KL schedule", builtins=places)


def _compositions() -> Registry[Any]:
    names = ("all_of", "any_of", "gated", "weighted")
    return Registry("composition of verifiers", builtins={name: f"grpo_verifiers.compose:{name}" for name in names})


# -- one description a kind


def _estimator(name: str, part: "Estimator") -> Reference:
    from grpo_plus.advantages import parameters_of
    from grpo_plus.advantages.spread import spread

    unit = {
        "completion": "one value a completion",
        "step": "one value a step, put onto its tokens",
        "token": "one value a token",
        "parts": "as its parts",
    }[part.per]
    facts = {
        "gives": unit,
        "compares": "completions of one prompt" if part.group_relative else "nothing within a prompt: works with one",
    }
    if part.per == "parts":
        facts.pop("compares")
    if part.scope == "batch":
        facts["scale"] = "of the whole generation batch"
    needs = [
        *(["a critic's values (critic)"] if part.reads_values else []),
        *(["scores of steps (a verifier that gives steps)"] if part.reads_steps and not part.reads_states else []),
        *(["states before turns (an environment with state_key)"] if part.reads_states else []),
    ]
    facts |= {"needs": ", ".join(needs)} if needs else {}
    parameters = {key: each for key, each in parameters_of(part).items() if each.kind is each.KEYWORD_ONLY}
    options = options_of(parameters, {**hints_of(spread), **hints_of(part.fn)}, (part.fn, spread))
    own = docs_of(part.fn)
    return described(
        Reference("advantage estimator", name, formula=part.formula, facts=facts, options=options),
        file_docs_of(part.fn, name),
        own if own.summary != part.formula else replace(own, summary=""),
        {"advantage": name, "advantage_kwargs": defaults(options)},
    )


def _objective(name: str, preset: "Preset") -> Reference:
    from grpo_plus.objectives import piece_registries
    from grpo_plus.objectives.compose import compose_objective
    from grpo_plus.objectives.pieces import Piece

    whole = isinstance(preset.surrogate, Piece)
    surrogate: Piece = preset.surrogate if isinstance(preset.surrogate, Piece) else (
        piece_registries["surrogate"].get(preset.surrogate)
    )  # fmt: skip
    made, problems = compose_objective(name if not is_reference(name) else surrogate.fn, beta=0.0)
    formula = "" if made is None else "\n".join(line.strip() for line in made.formula().splitlines()[1:])
    kl = "none: beta must be 0" if preset.kl is None and not preset.own_kl else preset.kl or "its own, by beta"
    facts = {"KL term": kl, "reduction": preset.reduce}
    if not whole:
        facts = {"ratio": preset.ratio, "surrogate": str(preset.surrogate), **facts}
    options = _piece_options(surrogate, preset.keywords)
    if not whole:
        reduce = piece_registries["reduce"].get(preset.reduce)
        options = (*options, *(each for each in _piece_options(reduce) if each not in options))
    docs, more = (read_docs(preset.about), Docs()) if preset.about else _piece_docs(surrogate)
    return described(
        Reference("objective", name, formula=formula, facts=facts, options=options, problems=tuple(map(str, problems))),
        docs,
        more,
        {"objective": name, "objective_kwargs": defaults(options)},
    )


def _piece(name: str, piece: "Piece") -> Reference:
    from grpo_plus.objectives import piece_registries

    options = _piece_options(piece)
    facts: dict[str, str] = {}
    if piece.kind == "surrogate":
        facts["ratio"] = ", ".join(piece.ratios) if piece.ratios else "any"
        facts |= {"reduction": piece.reduce} if piece.reduce else {}
    if piece.per_completion:
        facts["one value"] = "a completion, so no advantages per token"
    chosen = {piece.kind: name, **defaults(options)}
    config: dict[str, Any] = {"objective": "grpo", "objective_kwargs": chosen}
    if piece.kind == "kl":
        config = {"objective": "grpo", "beta": 0.04, "objective_kwargs": {"kl": {"estimator": name}}}
    kind = piece_registries[piece.kind].kind if piece.kind != "loss" else "objective"
    formula = piece.formula
    for keyword in piece.keywords():
        formula = formula.replace(f"{{{keyword}}}", keyword)
    return described(
        Reference(kind, name, formula=formula, facts=facts, options=options),
        *_piece_docs(piece),
        config,
    )


def _piece_docs(piece: "Piece") -> tuple[Docs, Docs]:
    """What its file says, where it is its own, and what its function says; the file's summary comes first."""
    own, file = docs_of(piece.fn), file_docs_of(piece.fn, piece.name)
    if not (own.summary and file.summary):
        return own, file
    return file, replace(own, prose=(f"{own.summary}.", *own.prose))


def _piece_options(piece: "Piece", changed: Mapping[str, Any] | None = None) -> tuple[Option, ...]:
    found = options_of(piece.keywords(), hints_of(piece.fn), (piece.fn,))
    return tuple(
        replace(each, default=yaml_word(changed[each.name])) if changed and each.name in changed else each
        for each in found
    )


def _schedule(name: str, made: type) -> Reference:
    options = options_of(keywords_of(made), hints_of(made), (made,)) if keywords_of(made) else ()
    term = {"schedule": {"name": name, **defaults(options)} if options else name}
    return described(
        Reference("KL schedule", name, options=options),
        docs_of(made),
        Docs(),
        {"objective": "grpo", "beta": 0.04, "objective_kwargs": {"kl": term}},
    )


def _selection(name: str, part: "Selection") -> Reference:
    from grpo_plus.selection.checking import parameters_of
    from grpo_plus.selection.part import common

    options = options_of(parameters_of(part), {**hints_of(common), **hints_of(part.fn)}, (part.fn, common))
    facts = {"draws": "by its weights" if part.draws else "in TRL's own order"}
    own = docs_of(part.fn)
    return described(
        Reference("selection", name, formula=part.formula, facts=facts, options=options),
        file_docs_of(part.fn, name),
        own if own.summary != part.formula else replace(own, summary=""),
        {"selection": name, "selection_kwargs": defaults(options)},
    )


def _way(name: str, made: type) -> Reference:
    options = options_of(keywords_of(made), hints_of(made), (made,))
    own = docs_of(made)
    return described(
        Reference("way with dead groups", name, options=options),
        file_docs_of(made, name),
        replace(own, summary=""),
        {"dead_groups": name, "dead_groups_kwargs": defaults(options)},
    )


def _verifier(name: str, part: Any) -> Reference:
    from grpo_verifiers.function import FunctionVerifier

    if not isinstance(part, FunctionVerifier):
        facts = {"gives steps": yes(part.gives_steps), "columns": ", ".join(part.required_columns.values()) or "none"}
        return Reference("verifier", name, summary=str(part.describe()), facts=facts, config=written(verifiers=[name]))
    own, file = docs_of(part.fn), file_docs_of(part.fn, part.fn.__name__)
    said = {**file.arguments, **own.arguments}
    parameters = inspect.signature(part.fn).parameters
    options = options_of({key: parameters[key] for key in part.form.options}, hints_of(part.fn), (part.fn,))
    asked = {"name": name, "kwargs": {each.name: "…" for each in options if each.default is None}}
    return described(
        Reference("verifier", name, facts=_verifier_facts(part), columns=tuple(_columns(part, said)), options=options),
        own,
        replace(file, summary="") if own.summary else file,
        {"verifiers": [asked if asked["kwargs"] else name]},
    )


def _verifier_facts(part: "FunctionVerifier") -> dict[str, str]:
    facts = {
        "gives steps": yes(part.gives_steps),
        "states an answer": yes(part.reader is not None) + (": samples vote (maj@k)" if part.reader else ""),
        "runs": {"process": "in a worker process", "inline": "in the trainer"}.get(part.isolation, part.isolation),
        "seconds for a call": "no limit" if part.timeout is None else f"{part.timeout:g}",
    }
    if part.traits.boxes:
        facts["runs"] = "programs in boxes of their own"
    if part.traits.golds or part.traits.trials:
        facts["checks the data"] = "golds and tests before training, and with grpo-plus verify --check-golds"
    return facts


def _columns(part: "FunctionVerifier", said: Mapping[str, str]) -> Iterator[Column]:
    for name, needed in part.form.columns.items():
        yield Column(name, "required" if needed else "optional", plain(said.get(name, "")))
    for name in part.traits.gold_columns:
        meaning = said.get(name, "read by the check of the data, where there is such a column.")
        yield Column(name, "optional", plain(meaning))
    for name in (*part.form.reserved, *part.form.extras):
        yield Column(name, "given", plain(said.get(name, _GIVEN.get(name, ""))))


_GIVEN = {
    "prompt": "the prompt, as the dataset has it.",
    "prompts": "the prompts, as the dataset has them.",
    "messages": "the conversation.",
    "completion_ids": "the sampled token ids.",
    "completion_text": "the sampled ids decoded, special tokens included.",
    "turns": "what the model did between calls of tools.",
    "turn_spans": "where the model's own turns are; None without tools.",
}


def _composition(name: str, made: Any) -> Reference:
    parameters = {
        key: each
        for key, each in inspect.signature(made).parameters.items()
        if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)
    }
    return described(
        Reference("composition of verifiers", name, options=options_of(parameters, hints_of(made), (made,))),
        docs_of(made),
        Docs(),
        None,
    )


def _segmenter(name: str, fn: Any) -> Reference:
    own, file = docs_of(fn), file_docs_of(fn, name)
    asked = {"name": "math_steps", "kwargs": {"steps": name}}
    return described(
        Reference("segmenter", name), own, replace(file, summary="") if own.summary else file, {"verifiers": [asked]}
    )


def _tool(name: str, part: Any) -> Reference:
    from grpo_verifiers.tools.registry import show_part

    shown = show_part(name)
    fn = part.fn
    own, file = docs_of(fn), file_docs_of(fn, name)
    asked = (inspect.isclass(fn) and fn.__init__ is object.__init__) or fn
    hints, parameters = ({}, {}) if asked is True else (hints_of(fn), inspect.signature(fn).parameters)
    options = options_of({key: parameters[key] for key in shown.keywords}, hints, (fn,))
    required = {each.name: "…" for each in options if each.default is None}
    entry: Any = {"name": name, "kwargs": required} if required else name
    is_tool = shown.kind == "tool"
    called = {each.name for each in options}
    arguments = {key: text for key, text in own.arguments.items() if key in called}
    return described(
        Reference(
            shown.kind,
            shown.name,
            facts={"seconds for a call": f"{shown.timeout:g}"},
            options=options,
            calls=tuple(method.schema["function"] for method in shown.methods),
            problems=tuple(f"cannot be used: {problem}" for problem in shown.problems),
        ),
        replace(own, arguments=arguments),
        replace(file, summary=""),
        {"tools": [entry]} if is_tool else {"environment": entry},
    )
