"""``grpo-plus plugins``: list all parts that a config can name, with their sources, or describe one part."""

import difflib
import importlib.util
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import CommandParser
from grpo_verifiers.errors import UnknownNameError, VerifierError
from grpo_verifiers.errors.messages import short
from grpo_verifiers.files import read_text
from grpo_verifiers.options import hints_of, keywords_of, spell
from grpo_verifiers.registry import Registry, import_reference, is_reference, source_of

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Attributes|Config|Returns|Raises|Yields):\n((?:[ ].*(?:\n|$)|\n)*)", re.MULTILINE
)
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)(?: \([^)]*\))?:(.*\n?(?: .*\n?|\n)*)", re.MULTILINE)
_TABLE = ("===", "+--", "| ", "- ", "* ", "1. ")
USE = "Use it when "


@dataclass(frozen=True)
class Docs:
    """The parts of a docstring. A paragraph is on one line, a table keeps its lines; ``config`` is YAML."""

    summary: str = ""
    prose: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    example: str = ""

    @property
    def has_use(self) -> bool:
        """True if a paragraph begins with "Use it when"."""
        return any(text.startswith(USE) for text in self.prose)


def read_docs(text: str | None) -> Docs:
    """Split one docstring.

    >>> docs = read_docs('''Distance to the middle.
    ...
    ...     Use it when rewards are bounded.
    ...
    ...     Args:
    ...         gain: the factor.
    ...     ''')
    >>> docs.summary, docs.prose, docs.arguments
    ('Distance to the middle', ('Use it when rewards are bounded.',), {'gain': 'the factor.'})
    """
    clean = inspect.cleandoc(text or "")
    arguments: dict[str, str] = {}
    config = ""
    for heading, body in _SECTION.findall(clean):
        if heading == "Config":
            config = textwrap.dedent(body).strip()
        elif heading not in ("Returns", "Raises", "Yields"):
            pairs = _ARGUMENT.findall(textwrap.dedent(body))
            arguments |= {name: _one_line(meaning) for name, meaning in pairs}
    blocks = [block.strip("\n") for block in re.split(r"\n\s*\n", _SECTION.sub("\n", clean)) if block.strip()]
    examples = [block for block in blocks if block.startswith(">>> ")]
    prose = [block if block.startswith(_TABLE) else _one_line(block) for block in blocks if block not in examples]
    return Docs(_one_line("".join(prose[:1])).rstrip("."), tuple(prose[1:]), arguments, config, "\n".join(examples))


def docs_of(value: Any) -> Docs:
    """Return the docstring of a function or class; empty if a dataclass generated it."""
    own = getattr(value, "__doc__", None)
    generated = inspect.isclass(value) and isinstance(own, str) and own.startswith(f"{value.__name__}(")
    return Docs() if generated or not isinstance(own, str) else read_docs(own)


def file_docs_of(value: Any, name: str) -> Docs:
    """Return the docstring of a part's file, if the file belongs to the part.

    Such a file has the name of the part or of its function, with or without an underscore in front, or the name in
    double backticks in its first line.
    """
    module = sys.modules.get(str(getattr(inspect.unwrap(value) if callable(value) else value, "__module__", "")))
    text = getattr(module, "__doc__", None)
    if module is None or not isinstance(text, str):
        return Docs()
    own = {name, str(getattr(value, "__name__", name)).lower()}
    first = text.strip().partition("\n")[0]
    file = module.__name__.rpartition(".")[2].lstrip("_")
    return read_docs(text) if file in own or any(f"``{each}``" in first for each in own) else Docs()


def _one_line(block: str) -> str:
    return " ".join(block.split())


Keywords = tuple[Mapping[str, inspect.Parameter], tuple[Any, ...]]
"""Keywords that a config sets, and the functions whose docstrings and hints describe them."""


@dataclass(frozen=True)
class Reference:
    """Description of one part; ``way`` is ``built-in``, ``registered``, ``entry point`` or ``reference``.

    ``facts`` are declared attributes. ``keywords`` has values and meaning of each column and keyword, ``calls`` the
    schemas of the functions that the model may call. ``problems`` are reasons why something cannot be shown.
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

    def reference(self, name: str) -> Reference:
        """Describe one part by its name or reference."""
        value = self.registry.get(name)
        piece = _surrogate(value) if hasattr(value, "surrogate") else value
        fn = getattr(piece, "fn", None) or piece
        formula = _formula(name, value)
        about = getattr(value, "about", "")
        own, file = (read_docs(about), Docs()) if about else (docs_of(fn), file_docs_of(fn, name))
        main, other = (file, own) if file.has_use or not own.summary else (own, file)
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


def _keywords(
    value: Any, parameters: Mapping[str, inspect.Parameter], functions: tuple[Any, ...], meanings: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    hints: dict[str, Any] = {}
    for fn in reversed(functions if parameters else ()):
        hints |= hints_of(fn)
        meanings = {**docs_of(fn).arguments, **meanings}
    shown = {name: (source, meanings.get(name, _FILLED.get(name, ""))) for name, source in _columns(value)}
    for name, each in parameters.items():
        default = "required" if each.default is each.empty else _yaml_word(each.default)
        values = spell(hints.get(name, Any)).removeprefix("typing.")
        shown[name] = (f"{values} ({default})", meanings.get(name, ""))
    return shown


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


def _with_calls(reference: Reference, name: str, fn: Any, meanings: Mapping[str, str]) -> Reference:
    """Add the callable functions to the reference of a tool or environment."""
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


_FILLED = {
    "prompt": "the prompt from the dataset.",
    "prompts": "the prompts from the dataset.",
    "messages": "the conversation.",
    "completion_ids": "the sampled token ids.",
    "completion_text": "the sampled ids decoded, special tokens included.",
    "turns": "the model's turns between tool calls.",
    "turn_spans": "spans of the model's own turns; None without tools.",
    "solution": "read by the check of the data, if the column exists.",
}


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
    from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS
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


def references(name: str) -> list[Reference]:
    """Return the parts of a name, of every kind with that name; for a reference, its part."""
    every = kinds()
    if is_reference(name):
        return [_kind_of(import_reference(name), every).reference(name)]
    same = [kind.reference(name) for kind in every if name in kind.registry]
    if not same:
        names = {each.lower(): each for kind in every for each in kind.registry.names()}
        near = [names[each] for each in difflib.get_close_matches(name.lower(), names, n=5)]
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UnknownNameError(f"unknown part {name!r}.{hint} grpo-plus plugins lists all parts by kind.")
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
        print(_in_full(names) if names else _list())
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


def _in_full(names: Sequence[str]) -> str:
    def wrapped(text: str) -> str:
        return textwrap.fill(text.replace("``", "`"), 100, subsequent_indent="  " * text.startswith("- "))

    parts = [
        [f"{part.kind} {part.name} ({part.way}), from {part.source}", *blocks(part, wrapped), *part.problems]
        for name in names
        for part in references(name)
    ]
    return "\n\n\n".join("\n\n".join(lines) for lines in parts)


def blocks(part: "Reference", text: Callable[[str], str]) -> Iterator[str]:
    """Describe a part in Markdown; ``text`` prepares prose of docstrings."""
    yield text(f"{part.summary}." if part.summary else "It has no docstring; the rest is from its code.")
    if part.formula and part.formula != part.summary:
        yield _fenced("text", part.formula)
    if part.facts:
        yield text(" · ".join(f"{key}: {value}" for key, value in part.facts.items()))
    for paragraph in part.prose:
        yield _fenced("text", paragraph) if "\n" in paragraph else text(paragraph)
    if part.keywords:
        entries = ((f"- `{name}`: {values}.", meaning) for name, (values, meaning) in part.keywords.items())
        yield "\n".join(text(" ".join(filter(None, entry))) for entry in entries)
    if part.config:
        yield _fenced("yaml", part.config)
    if part.example:
        yield _fenced("pycon", part.example)
    for schema in part.calls:
        yield "Schema for the model:"
        yield _fenced("json", json.dumps(schema, indent=2, ensure_ascii=False))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _list() -> str:
    lines, summaries = [], json.loads(read_text(SUMMARIES))
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
    """Describe a part in one line; `SUMMARIES` has those of built-in parts, which need not be imported for the list."""
    try:
        return textwrap.shorten(kind.reference(name).summary.replace("`", ""), 100, placeholder=" …")
    except VerifierError as error:
        return f"cannot be loaded: {error}"


SUMMARIES = Path(__file__).with_name("parts.json")
"""Lines of built-in parts by kind and name; docs/parts/write.py writes them from the docstrings."""
