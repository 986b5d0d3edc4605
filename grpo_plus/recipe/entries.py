"""Verifiers, ``tools`` and ``environment`` of a config: names or mappings with closed keys, built into parts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from grpo_plus.recipe.values import is_off
from grpo_verifiers import Verifier, get_verifier
from grpo_verifiers.base.traits import OnError
from grpo_verifiers.errors import PluginError, Problem, VerifierError
from grpo_verifiers.errors.messages import label_problem, nearest
from grpo_verifiers.options import Range, fits, value_problems
from grpo_verifiers.tools.part import ToolPart
from grpo_verifiers.tools.registry import duplicate_names, get_environment, get_tool
from grpo_verifiers.verdict import LARGEST
from grpo_verifiers.verifying import BUILTINS

KEYS = ("name", "label", "weight", "columns", "timeout", "on_error", "isolation")
"""Keys of the entry itself; all other keys are keywords of the verifier."""


@dataclass(frozen=True)
class VerifierEntry:
    """One item of the config's ``verifiers`` or ``eval_verifiers``."""

    name: str
    label: str
    weight: float | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    on_error: OnError | None = None
    isolation: str | None = None

    def build(self, plugins: Sequence[str] = ()) -> Verifier:
        """The verifier itself; its workers import the plug-ins first."""
        return get_verifier(
            self.name,
            label=self.label,
            columns=dict(self.columns),
            timeout=self.timeout,
            on_error=self.on_error,
            isolation=self.isolation,
            plugins=plugins,
            **self.kwargs,
        )


@dataclass(frozen=True)
class VerifierPart:
    """A verifier and the entry that it was built from."""

    entry: VerifierEntry
    verifier: Verifier

    @property
    def label(self) -> str:
        """Its name in columns and metrics."""
        return self.entry.label

    @property
    def weight(self) -> float | None:
        """Its weight in the sum of rewards; None leaves it to ``reward_weights``."""
        return self.entry.weight


def read_entries(items: Iterable[Any], where: str = "verifiers") -> tuple[list[VerifierEntry], list[str]]:
    """The entries of a list, and problems of their form."""
    entries: list[VerifierEntry] = []
    problems: list[str] = []
    for position, item in enumerate(items):
        name, values, keywords, wrong = read_entry(f"{where}[{position}]", item, KEYS, ("base", "plugins", "self"))
        wrong += [] if wrong else _form_problems(f"{where}[{position}] ({name})", values)
        problems += wrong
        if not wrong:
            options: dict[str, Any] = {key: value for key, value in values.items() if value is not None}
            if "on_error" in values and values["on_error"] is None:
                options["on_error"] = "null"  # as YAML reads the word without quotes
            entries.append(VerifierEntry(**{"label": name.rpartition(":")[2] or name, "kwargs": keywords, **options}))
    labels = [entry.label for entry in entries]
    problems += [
        f"the verifier label {label!r} is used {labels.count(label)} times: labels name columns and metrics, so give "
        "each entry its own 'label'."
        for label in dict.fromkeys(labels)
        if labels.count(label) > 1
    ]
    return entries, problems


def read_entry(
    where: str, item: Any, keys: Collection[str], reserved: Collection[str]
) -> tuple[str, dict[str, Any], dict[str, Any], list[str]]:
    """The name, the values of ``keys``, the other keywords, and problems of the form of an entry.

    Keywords in ``reserved`` cannot be set.
    """
    values = {"name": item} if isinstance(item, str) else item
    if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
        return "", {}, {}, [f"{where} is {item!r}, expected a name or a mapping with the keys {', '.join(keys)}."]
    name = values.get("name")
    if not isinstance(name, str) or not name:
        return "", {}, {}, [f"{where} has no name: give a name or a reference, got {item!r}."]
    keywords = {key: value for key, value in values.items() if key not in keys}
    problems = [f"{where} ({name}): the keyword {key!r} cannot be set here." for key in keywords if key in reserved]
    if isinstance(old := keywords.get("kwargs"), Mapping):
        flat = {key: value for key, value in values.items() if key != "kwargs"} | dict(old)
        problems.append(f"{where} ({name}): write its keywords next to the name, without kwargs: {flat!r}.")
    return name, {key: values[key] for key in keys if key in values}, keywords, problems


def build_verifiers(
    entries: Iterable[VerifierEntry], plugins: Sequence[str]
) -> tuple[tuple[VerifierPart, ...], list[Problem]]:
    """The verifiers of these entries, each built once, and their problems."""
    parts: list[VerifierPart] = []
    problems: list[Problem] = []
    for entry in entries:
        try:
            part = VerifierPart(entry, entry.build(plugins))
            parts.append(part)
            problems += part.verifier.check()
        except PluginError as error:
            problems.append(error)
        except VerifierError as error:
            about = f"verifier {entry.label!r}: "
            text = about + _with_own_keys(str(error).removeprefix(about), entry)
            problems += text.splitlines() if f"\n{about}" in text else [text]
    return tuple(parts), problems


def builtin_problems(value: Any, where: str) -> list[Problem]:
    """The problems of forms in the field ``where``, and of built-in verifiers; plug-ins may have the other names."""
    entries, problems = read_entries(value if isinstance(value, list) else [] if is_off(value) else [value], where)
    return [*problems, *build_verifiers([entry for entry in entries if entry.name in BUILTINS], ())[1]]


def _with_own_keys(text: str, entry: VerifierEntry) -> str:
    """An unknown option may be a key of the entry itself, misspelled."""
    for key in entry.kwargs:
        if (near := nearest(key, KEYS)) is not None:
            start = f"unknown option {key!r}."
            text = text.replace(f"{start} There is", f"{start} Did you mean the key {near!r} of the entry? There is")
    return text


def verifier_problems(
    config: Any, entries: Sequence[VerifierEntry], eval_entries: Sequence[VerifierEntry]
) -> list[str]:
    """Labels, weights and columns that exclude each other, whether or not the verifiers can be built."""
    problems = []
    rewarding = {entry.label for entry in entries}
    problems += [
        f"eval_verifiers has {entry.label!r}, which verifiers has too: they are evaluated anyway. Remove it from "
        "eval_verifiers, or give it a 'label' of its own."
        for entry in eval_entries
        if entry.label in rewarding
    ]
    weighted = [entry.label for entry in entries if entry.weight is not None]
    if config.reward_weights is not None and weighted:
        problems.append(
            f"weights are set in both reward_weights ({config.reward_weights}) and in the verifiers "
            f"{', '.join(weighted)}: keep one of the two."
        )
    return problems


_FORMS: Mapping[str, Any] = {
    "weight": Annotated[float, Range(-LARGEST, LARGEST, text=f"a finite number, of size {LARGEST:.2g} at most")] | None,
    "timeout": Annotated[float, Range(0, open_low=True, text="a positive number of seconds")] | None,
}
"""The values of keys; names and words are checked where a verifier is built."""


def _form_problems(where: str, values: Mapping[str, Any]) -> list[str]:
    forms = _FORMS.items()
    problems = [f"{where}: {text}" for key, form in forms for text in value_problems(key, values.get(key), form)]
    if not fits(values.get("columns"), Mapping[str, str] | None):
        problems.append(f"{where}: columns is {values['columns']!r}, expected parameter names mapped to column names.")
    label = values.get("label")
    if label is not None and (problem := label_problem(label)):
        problems.append(f"{where}: {problem}")
    return problems


TOOL_KEYS = ("name", "label", "timeout")
COLUMN = "environment"
"""The dataset column that names the environment of each row, where there are several."""


def choose_tools(config: Any) -> tuple[Any, list[Problem]]:
    """The tools of a config, its environments by the column's value (None: one for all rows), and their problems."""
    problems: list[Problem] = []
    tools = [
        part
        for at, item in enumerate(config.tools or [])
        if (part := _build_tool(get_tool, f"tools[{at}]", item, problems)) is not None
    ]
    environments: dict[str | None, ToolPart] = {}
    for value, item in _environments(config.environment):
        where = COLUMN if value is None else f"{COLUMN}[{value!r}]"
        part = _build_tool(get_environment, where, item, problems)
        if part is not None:
            environments[value] = part
    if not problems:
        problems += duplicate_names(tools, list(environments.values()))
        problems += _silent(tools, list(environments.values()))
    return (tuple(tools), environments), problems


def _silent(tools: Sequence[ToolPart], environments: Sequence[ToolPart]) -> list[str]:
    """Environments that are never called: turns and states follow calls only."""
    if not environments or any(part.methods for part in (*tools, *environments)):
        return []
    names = ", ".join(dict.fromkeys(part.label for part in environments))
    text = f"environment: {names} has no public method that the model could call, and there are no tools"
    return [f"{text}: add one (class methods, static methods and names with _ are none), or reward with a verifier."]


def _environments(environment: Any) -> Iterable[tuple[str | None, Any]]:
    if isinstance(environment, Mapping) and environment and "name" not in environment:
        return [(str(value), item) for value, item in environment.items()]
    return [] if environment is None else [(None, environment)]


def _build_tool(get: Any, where: str, item: Any, problems: list[Problem]) -> ToolPart | None:
    name, values, keywords, wrong = read_entry(where, item, TOOL_KEYS, ("base",))
    problems += wrong
    if wrong:
        return None
    try:
        part: ToolPart = get(name, label=values.get("label"), timeout=values.get("timeout"), **keywords)
    except PluginError as error:
        problems.append(error)
    except VerifierError as error:
        problems += [f"{where}: {line}" for line in str(error).splitlines()]
    else:
        return part
    return None
