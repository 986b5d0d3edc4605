"""The ``tools`` and the ``environment`` of a config: names or mappings with closed keys, built into parts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_plus.recipe.entries import read_entry
from grpo_plus.recipe.recipe import Recipe
from grpo_verifiers.errors import PluginError, Problem, VerifierError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.tools.part import ToolPart
from grpo_verifiers.tools.registry import duplicate_names, get_environment, get_tool

KEYS = ("name", "label", "timeout")
COLUMN = "environment"
"""The dataset column that names the environment of each row, where there are several."""


def choose_tools(config: Any) -> tuple[Any, list[Problem]]:
    """The tools of a config, its environments by the column's value (None: one for all rows), and their problems."""
    problems: list[Problem] = []
    tools = [
        part
        for at, item in enumerate(config.tools or [])
        if (part := _build(get_tool, f"tools[{at}]", item, problems)) is not None
    ]
    environments: dict[str | None, ToolPart] = {}
    for value, item in _environments(config.environment):
        where = COLUMN if value is None else f"{COLUMN}[{value!r}]"
        part = _build(get_environment, where, item, problems)
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


def call_problems(recipe: Recipe, own: Sequence[str], iterations: int | None, *, open_ended: bool) -> list[str]:
    """Verifiers and a limit of calls without any tool, and names that no tool has.

    ``own`` names the trainer's own tools; with ``open_ended`` it may have more of them.
    """
    if open_ended:
        return []
    parts = [*recipe.tools, *recipe.environments.values()]
    names = [*own, *(method.name for part in parts for method in part.methods)]
    verifiers = [part for part in (*recipe.verifiers, *recipe.eval_verifiers) if part.entry.name in _OF_CALLS]
    if not names:
        nothing = "but nothing can be called: set tools or environment"
        problems = [f"the verifier {part.label!r} looks at calls, {nothing}, or remove it." for part in verifiers]
        if iterations is not None:
            problems.append(f"max_tool_calling_iterations is {iterations}, {nothing}, or remove it.")
        return problems
    return [
        f"the verifier {part.label!r}: {unknown('tool', name, names)}"
        for part in verifiers
        if part.entry.name == "tool_used"
        for name in part.entry.kwargs.get("names", ())
        if name not in names
    ]


_OF_CALLS = ("tool_used", "tool_valid", "turns_overlong")


def schemas_of(recipe: Recipe, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The schemas that the model sees in a row's prompt."""
    several = None not in recipe.environments
    environment = recipe.environments.get(row.get(COLUMN) if several else None)
    parts = [*recipe.tools, *([environment] if environment is not None else [])]
    return [method.schema for part in parts for method in part.methods]


def _environments(environment: Any) -> Iterable[tuple[str | None, Any]]:
    if environment is None:
        return []
    if isinstance(environment, Mapping) and "name" not in environment:
        return [(str(value), item) for value, item in environment.items()] or [(None, environment)]
    return [(None, environment)]


def _build(get: Any, where: str, item: Any, problems: list[Problem]) -> ToolPart | None:
    name, values, keywords, wrong = read_entry(where, item, KEYS, ("base",))
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
