"""Every part that a config can name, described from its own code: docstring, signature and declarations."""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_plus.cli._docstrings import Docs, docs_of, file_docs_of, read_docs
from grpo_verifiers.errors import UnknownNameError
from grpo_verifiers.errors.messages import short
from grpo_verifiers.options import hints_of, keywords_of, spell
from grpo_verifiers.registry import Registry, import_reference, is_reference, source_of

Keywords = tuple[Mapping[str, inspect.Parameter], tuple[Any, ...]]
"""Keywords that a config sets, and the functions whose docstrings and hints describe them."""


@dataclass(frozen=True)
class Reference:
    """Everything that is shown of one part.

    Attributes:
        kind: the kind in words ("advantage estimator").
        way: ``built-in``, ``registered``, ``entry point`` or ``reference``.
        facts: what is declared beside it.
        keywords: of each column and keyword the values that it takes, and its meaning.
        calls: schemas of what the model may call.
        problems: why something of it cannot be shown.
    """

    kind: str
    name: str
    way: str
    source: str
    summary: str
    formula: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    prose: tuple[str, ...] = ()
    keywords: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    config: str = ""
    example: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    problems: tuple[str, ...] = ()


def _plain_keywords(part: Any) -> Keywords:
    return keywords_of(part), (part,)


@dataclass(frozen=True)
class Kind:
    """A kind of parts.

    Attributes:
        page: the page of docs/parts that shows it.
        config: a config with one, whose name is ``{}``.
        facts: attributes that are shown where they are set.
        first: names of a plain function's first parameter that make it one of these.
        keywords: of one part.
    """

    registry: Registry[Any]
    page: str
    config: str = ""
    facts: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    keywords: Callable[[Any], Keywords] = _plain_keywords

    @property
    def words(self) -> str:
        """The kind in words."""
        return self.registry.kind

    @property
    def plural(self) -> str:
        """Several of it in words."""
        head, space, rest = self.words.partition(" of ") if " of " in self.words else self.words.partition(" with ")
        return f"{head}s{space}{rest}"

    def reference(self, name: str) -> Reference:
        """One entry by its name or reference."""
        value = self.registry.get(name)
        made = _surrogate(value) if hasattr(value, "surrogate") else value
        fn = getattr(made, "fn", None) or made
        formula = _formula(name, value)
        about = getattr(value, "about", "")
        own, file = (read_docs(about), Docs()) if about else (docs_of(fn), file_docs_of(fn, name))
        main, other = (file, own) if file.says_use or not own.summary else (own, file)
        shown = main is file and inspect.isroutine(fn) and other.summary not in ("", formula)
        sources = {entry.name: entry.source for entry in self.registry.entries()}
        reference = Reference(
            kind=self.words,
            name=name.rpartition(":")[2],
            way=self.registry.way(name),
            source=sources.get(name) or source_of(fn),
            summary=main.summary or formula.partition("\n")[0],
            formula=formula,
            facts={key: _fact(getattr(value, key)) for key in self.facts if getattr(value, key, None)},
            prose=tuple(dict.fromkeys((*([f"{other.summary}."] if shown else []), *main.prose, *other.prose))),
            keywords=_keywords(value, *self.keywords(value), {**other.arguments, **main.arguments}),
            config=main.config or other.config or self.config.format(name),
            example="\n".join(filter(None, (main.example, other.example))),
        )
        return _with_calls(reference, name, fn, own.arguments) if self.page == "tools" else reference


def _fact(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple | list) else "yes" if value is True else str(value)


def _formula(name: str, value: Any) -> str:
    """The formula that a part declares, its keywords by name; of an objective that of the whole composition."""
    if hasattr(value, "surrogate"):
        from grpo_plus.objectives.compose import compose_objective

        made, _ = compose_objective(value.fn if is_reference(name) else name, beta=0.0)
        return "" if made is None else "\n".join(line.strip() for line in made.formula().splitlines()[1:])
    formula = getattr(value, "formula", "")
    if not isinstance(formula, str):  # a schedule's is a method, which needs its keywords
        return ""
    for keyword in value.keywords() if hasattr(value, "keywords") else ():
        formula = formula.replace(f"{{{keyword}}}", keyword)
    return formula


def _keywords(
    value: Any, parameters: Mapping[str, inspect.Parameter], functions: tuple[Any, ...], meanings: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Columns of a verifier and keywords, each with the values that it takes and its meaning."""
    hints: dict[str, Any] = {}
    for fn in reversed(functions if parameters else ()):
        hints |= hints_of(fn)
        meanings = {**docs_of(fn).arguments, **meanings}
    shown = {name: (source, meanings.get(name, _GIVEN.get(name, ""))) for name, source in _columns(value)}
    for name, each in parameters.items():
        default = "required" if each.default is each.empty else _yaml_word(each.default)
        values = spell(hints.get(name, Any)).removeprefix("typing.")
        shown[name] = (f"{values} ({default})", meanings.get(name, ""))
    return shown


def _yaml_word(value: Any) -> str:
    """A default as a config writes it, shortened."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) and value.isidentifier() else short(value, 60)


def _columns(value: Any) -> Iterator[tuple[str, str]]:
    """Parameters of a verifier that are filled for each completion, and from where."""
    form = getattr(value, "form", None)
    if form is None:
        return
    for name, needed in form.columns.items():
        yield name, "required column" if needed else "optional column"
    for name in value.traits.gold_columns:
        yield name, "optional column"
    for name in (*form.reserved, *form.extras):
        yield name, "filled for it"


def _with_calls(reference: Reference, name: str, fn: Any, meanings: Mapping[str, str]) -> Reference:
    """The reference of a tool or environment with what the model may call."""
    from grpo_verifiers.tools.registry import show_part

    shown = show_part(name)
    parameters = inspect.signature(fn).parameters if shown.keywords else {}
    return replace(
        reference,
        name=shown.name,
        keywords=_keywords(fn, {key: parameters[key] for key in shown.keywords}, (fn,), meanings),
        calls=tuple(method.schema["function"] for method in shown.methods),
        problems=tuple(f"cannot be used: {problem}" for problem in shown.problems),
    )


_GIVEN = {
    "prompt": "the prompt, as the dataset has it.",
    "prompts": "the prompts, as the dataset has them.",
    "messages": "the conversation.",
    "completion_ids": "the sampled token ids.",
    "completion_text": "the sampled ids decoded, special tokens included.",
    "turns": "what the model did between calls of tools.",
    "turn_spans": "where the model's own turns are; None without tools.",
    "solution": "read by the check of the data, where there is such a column.",
}


# -- keywords of kinds whose parts have more than those of one function


def _of_estimator(part: Any) -> Keywords:
    from grpo_plus.advantages import parameters_of
    from grpo_plus.advantages.spread import spread

    return parameters_of(part), (part.fn, spread)


def _of_selection(part: Any) -> Keywords:
    from grpo_plus.selection.checking import parameters_of
    from grpo_plus.selection.part import common

    return parameters_of(part), (part.fn, common)


def _of_piece(piece: Any) -> Keywords:
    return piece.keywords(), (piece.fn,)


def _surrogate(preset: Any) -> Any:
    from grpo_plus.objectives import piece_registries

    whole = not isinstance(preset.surrogate, str)
    return preset.surrogate if whole else piece_registries["surrogate"].get(preset.surrogate)


def _of_preset(preset: Any) -> Keywords:
    """Those of its surrogate, with the values of the preset, and of its reduction."""
    from grpo_plus.objectives import piece_registries

    pieces = [_surrogate(preset)]
    if isinstance(preset.surrogate, str):
        pieces.append(piece_registries["reduce"].get(preset.reduce))
    keywords = {key: each for piece in reversed(pieces) for key, each in piece.keywords().items()}
    changed = {key: keywords[key].replace(default=value) for key, value in preset.keywords.items() if key in keywords}
    return {**keywords, **changed}, tuple(piece.fn for piece in pieces)


def _of_verifier(part: Any) -> Keywords:
    options = part.form.options if hasattr(part, "form") else ()
    return {key: inspect.signature(part.fn).parameters[key] for key in options}, (part.fn,) if options else ()


def _nothing(part: Any) -> Keywords:  # noqa: ARG001 - every kind is asked alike
    return {}, ()


# -- the kinds


def kinds() -> list[Kind]:
    """Every kind of parts, in the order in which they are listed."""
    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives, piece_registries
    from grpo_plus.objectives.schedule import SCHEDULES
    from grpo_plus.selection import selections
    from grpo_verifiers.steps import SEGMENTERS
    from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS
    from grpo_verifiers.verifying import REGISTRY

    unit = ("per", "group_relative", "scope", "reads_values", "reads_steps", "reads_states")
    schedules = {name: f"{made.__module__}:{made.__name__}" for name, made in SCHEDULES.items()}
    compositions = {name: f"grpo_verifiers.compose:{name}" for name in _COMPOSITIONS}
    dead_groups = {name: f"grpo_plus.selection.dead_groups.{name}:{name.capitalize()}" for name in _WAYS}
    kl = "objective: {{name: grpo, kl: {{estimator: {}}}}}\nbeta: 0.04"
    schedule = "objective: {{name: grpo, kl: {{schedule: {}}}}}\nbeta: 0.04"
    steps = "verifiers: [{{name: math_steps, steps: {}}}]"
    runs = ("isolation", "timeout", "gives_steps")
    return [
        Kind(advantages, "advantages", "advantage: {}", unit, ("table",), _of_estimator),
        Kind(objectives, "objectives", "objective: {}", _PIECES, ("batch",), _of_preset),
        *(
            Kind(
                registry,
                "objectives",
                kl if kind == "kl" else f"objective: {{{{name: grpo, {kind}: {{}}}}}}",
                ("ratios", "reduce", "per_completion"),
                keywords=_of_piece,
            )
            for kind, registry in piece_registries.items()
        ),
        Kind(Registry("KL schedule", builtins=schedules), "objectives", schedule),
        Kind(selections, "selection", "selection: {}", ("draws",), ("history",), _of_selection),
        Kind(Registry("way with dead groups", builtins=dead_groups), "selection", "dead_groups: {}"),
        Kind(REGISTRY, "verifiers", "verifiers: [{}]", runs, ("completion", "completions"), _of_verifier),
        Kind(Registry("composition of verifiers", builtins=compositions), "verifiers"),
        Kind(SEGMENTERS, "verifiers", steps, first=("text",), keywords=_nothing),
        Kind(TOOLS, "tools", "tools: [{}]", ("timeout",), keywords=_nothing),
        Kind(ENVIRONMENTS, "tools", "environment: {}", ("timeout",), keywords=_nothing),
    ]


_PIECES = ("ratio", "surrogate", "kl", "reduce")
_COMPOSITIONS = ("all_of", "any_of", "gated", "weighted")
_WAYS = ("keep", "replay", "resample", "roulette")
"""Named rather than imported: these need torch."""


def is_part(name: str) -> bool:
    """True for a name that some kind has, and for a reference."""
    return is_reference(name) or any(name in kind.registry for kind in kinds())


def references(name: str) -> list[Reference]:
    """The parts of that name, of every kind that has it; of a reference, the part that it leads to."""
    every = kinds()
    if is_reference(name):
        return [_kind_of(import_reference(name), every).reference(name)]
    same = [kind.reference(name) for kind in every if name in kind.registry]
    if not same:
        known = {each.lower(): each for kind in every for each in kind.registry.names()}
        near = [known[each] for each in difflib.get_close_matches(name.lower(), known, n=5)]
        meant = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnknownNameError(f"unknown part {name!r}.{meant} grpo-plus plugins lists all that there are, by kind.")
    return same


def _kind_of(value: Any, every: list[Kind]) -> Kind:
    """The kind of an object: the one that it is registered as, or the one of its class or first parameter."""
    fn = getattr(value, "fn", value)
    for kind in every:
        if any(getattr(each, "fn", each) is fn for each in kind.registry.registered()):
            return kind
    *_, tools, environments = every
    if inspect.isclass(value):
        return environments if hasattr(value, "reset") else tools
    if hasattr(value, "required_columns"):
        return next(kind for kind in every if kind.words == "verifier")
    names = [*inspect.signature(fn).parameters] if inspect.isroutine(fn) else []
    verifies = {"completion", "completions"} & {*names}
    return next((kind for kind in every if kind.first and ({*names[:1]} | verifies) & {*kind.first}), tools)
