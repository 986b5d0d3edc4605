"""``grpo-plus plugins``: list all parts that a config can name, with their sources, or describe one part.

Pages of the built-in parts, from the same docstrings: docs/parts.
"""

import difflib
import importlib.util
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser
from grpo_plus.recipe.forms import PARTS_FILE
from grpo_verifiers.errors import UnknownNameError, VerifierError
from grpo_verifiers.errors.messages import short
from grpo_verifiers.files import read_text
from grpo_verifiers.options import hints_of, keywords_of, spell
from grpo_verifiers.registry import Registry, import_reference, is_reference, source_of
from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS, show_part

Keywords = tuple[Mapping[str, inspect.Parameter], tuple[Any, ...]]
"""Keywords that a config sets, and the functions whose docstrings and hints describe them."""


@dataclass(frozen=True)
class PartKind:
    """A kind of parts; ``page`` is its page in docs/parts.

    ``config`` is an example with ``{}`` for the name. ``facts`` are the attributes to show. A plain function is of this
    kind if its first parameter is one of ``first``. ``keywords`` returns those of a part.
    """

    registry: Registry[Any]
    page: str
    config: str = ""
    facts: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    keywords: Callable[[Any], Keywords] = lambda part: (keywords_of(part), (part,))

    @property
    def words(self) -> str:
        """The kind in words."""
        return self.registry.kind

    @property
    def plural(self) -> str:
        """The plural of the kind in words."""
        head, space, rest = self.words.partition(" of ") if " of " in self.words else self.words.partition(" with ")
        return f"{head}s{space}{rest}"

    def function(self, name: str) -> Any:
        """Return the function or class of a part."""
        value = self.registry.get(name)
        piece = _surrogate(value) if hasattr(value, "surrogate") else value
        return getattr(piece, "fn", None) or piece

    def source(self, name: str) -> str:
        """Return where a part is defined."""
        sources = {entry.name: entry.source for entry in self.registry.entries()}
        return sources.get(name) or source_of(self.function(name))

    def declared(self, name: str) -> dict[str, str]:
        """Return the declared attributes of a part in words."""
        value = self.registry.get(name)
        return {key: _fact(getattr(value, key)) for key in self.facts if getattr(value, key, None)}

    def values(self, name: str) -> dict[str, str]:
        """Return the source of each column, and the values of each keyword with its default."""
        value = self.registry.get(name)
        parameters, functions = self.keywords(value)
        if self.page == "tools":
            functions, names = (self.function(name),), show_part(name).keywords
            parameters = {key: inspect.signature(functions[0]).parameters[key] for key in names}
        hints: dict[str, Any] = {}
        for fn in reversed(functions if parameters else ()):
            hints |= hints_of(fn)
        shown = dict(_columns(value))
        for key, each in parameters.items():
            default = "required" if each.default is each.empty else _yaml_word(each.default)
            shown[key] = f"{spell(hints.get(key, Any)).removeprefix('typing.')} ({default})"
        return shown


def file_text(fn: Any, name: str) -> str:
    """Return the docstring of a part's file, if the file belongs to the part.

    Such a file has the name of the part or of its function, with or without an underscore in front, or the name in
    double backticks in its first line.
    """
    module = sys.modules.get(str(getattr(inspect.unwrap(fn) if callable(fn) else fn, "__module__", "")))
    text = getattr(module, "__doc__", None)
    if module is None or not isinstance(text, str):
        return ""
    own = {name, str(getattr(fn, "__name__", name)).lower()}
    first = text.strip().partition("\n")[0]
    file = module.__name__.rpartition(".")[2].lstrip("_")
    return text if file in own or any(f"``{each}``" in first for each in own) else ""


def own_text(fn: Any) -> str:
    """Return the docstring of a function or class; empty if a dataclass generated it."""
    own = getattr(fn, "__doc__", None)
    generated = inspect.isclass(fn) and isinstance(own, str) and own.startswith(f"{fn.__name__}(")
    return "" if generated or not isinstance(own, str) else own


def _fact(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple | list) else "yes" if value is True else str(value)


def formula_of(name: str, value: Any) -> str:
    """Return the declared formula of a part, with keywords by name; for an objective, that of the full composition."""
    if hasattr(value, "surrogate"):
        from grpo_plus.objectives.compose import compose_objective

        objective, _ = compose_objective(value.fn if is_reference(name) else name, beta=0.0)
        return "" if objective is None else "\n".join(line.strip() for line in objective.formula().splitlines()[1:])
    formula = getattr(value, "formula", "")
    if not isinstance(formula, str):  # the method of a schedule, which needs its keywords
        return ""
    for keyword in value.keywords() if hasattr(value, "keywords") else ():
        formula = formula.replace(f"{{{keyword}}}", keyword)
    return formula


def _yaml_word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) and value.isidentifier() else short(value, 60)


def _columns(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a verifier filled for each completion, with their source."""
    form = getattr(value, "form", None)
    if form is None:
        return
    for name, needed in form.columns.items():
        yield name, "required column" if needed else "optional column"
    for name in value.traits.gold_columns:
        yield name, "optional column"
    for name in (*form.reserved, *form.extras):
        yield name, "filled for it"


def _of_estimator(part: Any) -> Keywords:
    from grpo_plus.advantages import parameters_of
    from grpo_plus.advantages.spread import spread

    return parameters_of(part), (part.fn, spread)


def _of_selection(part: Any) -> Keywords:
    from grpo_plus.selection.checking import parameters_of
    from grpo_plus.selection.part import common

    return parameters_of(part), (part.fn, common)


def _surrogate(preset: Any) -> Any:
    from grpo_plus.objectives import piece_registries

    is_piece = not isinstance(preset.surrogate, str)
    return preset.surrogate if is_piece else piece_registries["surrogate"].get(preset.surrogate)


def _of_preset(preset: Any) -> Keywords:
    """Return the keywords of a preset's surrogate, with the preset's values, and of its reduction."""
    from grpo_plus.objectives import piece_registries

    pieces = [_surrogate(preset)]
    if isinstance(preset.surrogate, str):
        pieces.append(piece_registries["reduce"].get(preset.reduce))
    keywords = {key: each for piece in reversed(pieces) for key, each in piece.keywords().items()}
    changed = {key: keywords[key].replace(default=value) for key, value in preset.keywords.items() if key in keywords}
    return {**keywords, **changed}, tuple(piece.fn for piece in pieces)


def _of_form(part: Any) -> Keywords:
    options = part.form.options if hasattr(part, "form") else ()
    return {key: inspect.signature(part.fn).parameters[key] for key in options}, (part.fn,) if options else ()


def kinds() -> list[PartKind]:
    """Return every kind of parts, in the order of the list."""
    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives, piece_registries
    from grpo_plus.objectives.schedule import SCHEDULES
    from grpo_plus.selection import selections
    from grpo_verifiers.steps import SEGMENTERS
    from grpo_verifiers.verifying import REGISTRY

    unit = ("per", "group_relative", "scope", "reads_values", "reads_steps", "reads_states")
    schedules = {name: f"{cls.__module__}:{cls.__name__}" for name, cls in SCHEDULES.items()}
    compositions = {name: f"grpo_verifiers.compose:{name}" for name in _COMPOSITIONS}
    dead_groups = {name: f"grpo_plus.selection.dead_groups.{name}:{name.capitalize()}" for name in _WAYS}
    kl = "objective: {{name: grpo, kl: {{estimator: {}}}}}\nbeta: 0.04"
    schedule = "objective: {{name: grpo, kl: {{schedule: {}}}}}\nbeta: 0.04"
    steps = "verifiers: [{{name: math_steps, steps: {}}}]"
    runs = ("isolation", "timeout", "gives_steps")
    return [
        PartKind(advantages, "advantages", "advantage: {}", unit, ("table",), _of_estimator),
        PartKind(objectives, "objectives", "objective: {}", _PIECES, ("batch",), _of_preset),
        *(
            PartKind(
                registry,
                "objectives",
                kl if kind == "kl" else f"objective: {{{{name: grpo, {kind}: {{}}}}}}",
                ("ratios", "reduce", "per_completion"),
                keywords=lambda piece: (piece.keywords(), (piece.fn,)),
            )
            for kind, registry in piece_registries.items()
        ),
        PartKind(Registry("KL schedule", builtins=schedules), "objectives", schedule),
        PartKind(selections, "selection", "selection: {}", ("draws",), ("history",), _of_selection),
        PartKind(Registry("way with dead groups", builtins=dead_groups), "selection", "dead_groups: {}"),
        PartKind(REGISTRY, "verifiers", "verifiers: [{}]", runs, ("completion", "completions"), _of_form),
        PartKind(Registry("composition of verifiers", builtins=compositions), "verifiers"),
        PartKind(SEGMENTERS, "verifiers", steps, first=("text",), keywords=_of_form),
        PartKind(TOOLS, "tools", "tools: [{}]", ("timeout",), keywords=_of_form),
        PartKind(ENVIRONMENTS, "tools", "environment: {}", ("timeout",), keywords=_of_form),
    ]


_PIECES = ("ratio", "surrogate", "kl", "reduce")
_COMPOSITIONS = ("all_of", "any_of", "gated", "weighted")
_WAYS = ("keep", "replay", "resample", "roulette")
"""Named rather than imported: these need torch."""


def is_part(name: str) -> bool:
    """Return True for the name of a part of any kind, and for a reference."""
    return is_reference(name) or any(name in kind.registry for kind in kinds())


def find(word: str) -> list[tuple[PartKind, str]]:
    """Return the kinds of a name, each with the name; for a reference, the kind of its part."""
    every = kinds()
    if is_reference(word):
        return [(_kind_of(import_reference(word), every), word)]
    same = [(kind, word) for kind in every if word in kind.registry]
    if not same:
        names = {each.lower(): each for kind in every for each in kind.registry.names()}
        near = [names[each] for each in difflib.get_close_matches(word.lower(), names, n=5)]
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnknownNameError(f"unknown part {word!r}.{hint} grpo-plus plugins lists all parts by kind.")
    return same


def _kind_of(value: Any, every: list[PartKind]) -> PartKind:
    """Return the kind of an object: its registered kind, or the kind of its class or first parameter."""
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


def run(arguments: Sequence[str]) -> int:
    """Print a line for each part, or some of them in full."""
    parser = CommandParser(prog="grpo-plus plugins", description=__doc__)
    parser.add_argument(
        "plugins",
        nargs="*",
        metavar="NAME",
        help="a part to show, by name or reference (./file.py:attr); a module or ./file.py is imported first",
    )
    options = parser.parse_args(arguments)
    try:
        names = _load_modules(options.plugins)
        parts = [part for name in names for part in find(name)]
        print("\n\n\n".join("\n\n".join(describe(*part)) for part in parts) if names else _list())
    except (VerifierError, TypeError) as error:
        raise UserError(str(error)) from error
    return 0


def _load_modules(words: Sequence[str]) -> list[str]:
    """Import the modules among the arguments, and return the rest: names and references of parts.

    A word without a dot is a part if one has that name, else a module if there is one.
    """
    from grpo_verifiers.verifying import load_plugins

    files = [each for each in words if "." in each and not is_part(each)]
    load_plugins(files)
    rest = [each for each in words if each not in files]
    modules = [each for each in rest if not is_part(each) and each.isidentifier() and importlib.util.find_spec(each)]
    load_plugins(modules)
    return [each for each in rest if each not in modules]


def describe(kind: PartKind, name: str) -> Iterator[str]:
    """Describe a part: its docstrings, formula, declared attributes, keywords, and an entry of a config."""
    value, fn = kind.registry.get(name), kind.function(name)
    yield f"{kind.words} {name.rpartition(':')[2]} ({kind.registry.way(name)}), from {kind.source(name)}"
    about = getattr(value, "about", "")
    texts = [inspect.cleandoc(text) for text in ([about] if about else [file_text(fn, name), own_text(fn)]) if text]
    yield from dict.fromkeys(texts) or ["It has no docstring; the rest is from its code."]
    yield from filter(None, [formula_of(name, value)])
    if facts := kind.declared(name):
        yield " · ".join(f"{key}: {text}" for key, text in facts.items())
    if values := kind.values(name):
        yield "\n".join(f"- `{key}`: {text}." for key, text in values.items())
    if kind.config and "Config:" not in "".join(texts):
        yield kind.config.format(name)
    if kind.page == "tools":
        tool = show_part(name)
        yield from (json.dumps(method.schema["function"], indent=2, ensure_ascii=False) for method in tool.methods)
        yield from (f"cannot be used: {problem}" for problem in tool.problems)


def _list() -> str:
    lines, summaries = [], json.loads(read_text(PARTS_FILE))
    for kind in kinds():
        if entries := kind.registry.entries():
            width, of_kind = max(len(entry.name) for entry in entries), summaries.get(kind.words, {})
            lines.append(kind.plural)
            for entry in entries:
                built_in = entry.way == "built-in" and entry.name in of_kind
                line = of_kind[entry.name] if built_in else f"{summary(kind, entry.name)} ({entry.way}, {entry.source})"
                lines.append(f"  {entry.name:<{width}}  {line}")
            lines.append("")
    return "\n".join([*lines, "grpo-plus plugins NAME shows a part: formula, paper, keywords, an example."])


def summary(kind: PartKind, name: str) -> str:
    """Describe a part in one line; `PARTS_FILE` has those of built-in parts, which are not imported for it."""
    try:
        text = own_text(kind.function(name)) or formula_of(name, kind.registry.get(name))
    except VerifierError as error:
        return f"cannot be loaded: {error}"
    first = inspect.cleandoc(text).partition("\n\n")[0].replace("`", "").rstrip(".")
    return textwrap.shorten(first, 100, placeholder=" …")
