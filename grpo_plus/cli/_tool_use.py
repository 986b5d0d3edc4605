"""Tools and environments of ``grpo-plus eval``: from the run, from a config file, or from flags."""

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._run_settings import NOTHING, info_of
from grpo_plus.report.escape import escape_controls

if TYPE_CHECKING:
    from grpo_plus.evaluation.tool_use import ToolUse

TURN_FIELDS = ("tools", "environment", "max_tool_calling_iterations")
_OF_ENTRIES = {"name", "label", "weight", "columns", "timeout", "on_error"}
HARMLESS: Mapping[str, Collection[str]] = {"calculator": (), "python": {"memory", "output"}}
"""Safe built-in tools of a record; their keywords run nothing, read no file and reach no machine."""
_READ = (*TURN_FIELDS, "chat_template_kwargs", "plugins")


def add_tool_options(group: "argparse._ActionsContainer") -> None:
    """Declare the options that replace the tools of the run."""
    group.add_argument(
        "--tools", nargs="+", help="names, references or mappings, as in a config: '{name: …, timeout: 5}'"
    )
    group.add_argument("--environment", help="in the same form, or a mapping of the values of the column environment")
    group.add_argument("--max-tool-calling-iterations", type=int, help="turns that may call; unset: until the length")
    group.add_argument("--tools-from", help="tools and environment from a config file or another run's folder, or none")
    group.add_argument(
        "--trust-run", action="store_true", help="run the code named in the run's record, which is not run otherwise"
    )


def tool_use(options: argparse.Namespace, folders: Sequence[Path]) -> "ToolUse | None":
    """Return the tools for the model, or None. Flags come before ``--tools-from``, and that before the run.

    ``folders`` are the candidates for the folder of the run.
    """
    from grpo_plus.evaluation.tool_use import ToolUse

    source = "the command line"
    values: dict[str, Any] = {}
    if options.tools_from is not None and options.tools_from != NOTHING:
        source = options.tools_from
        values = _read_from(Path(source).expanduser(), trust=options.trust_run)
    elif options.tools_from is None:
        for folder in folders:
            if run_settings := _of_run(folder):
                source, values = f"the run {folder}", _trusted(folder, run_settings, trust=options.trust_run)
                break
    values |= {name: value for name in TURN_FIELDS if (value := getattr(options, name)) is not None}
    values["plugins"] = [*(values.get("plugins") or []), *options.plugin]
    use = ToolUse(**{name: value for name, value in values.items() if value is not None})
    if not use:
        if options.max_tool_calling_iterations is not None:
            raise UserError("--max-tool-calling-iterations needs tools: give --tools or --environment.")
        return None
    _print_tools(use, source)
    return use


def _trusted(folder: Path, settings: dict[str, Any], *, trust: bool) -> dict[str, Any]:
    """Return the settings of a record; raise an error if they name code without ``--trust-run``."""
    code = [] if trust else code_in({name: settings.get(name) for name in ("tools", "environment", "plugins")})
    if code:
        raise UserError(
            f"the record of the run {folder} names code: {', '.join(code)}. The record's author chose it, so it "
            "needs your consent: read it and give --trust-run, or --tools-from with your config file or none."
        )
    return settings


def code_in(record: Mapping[str, Any]) -> list[str]:
    """List the code in a record's entries: all but built-in tools by exact name with keywords of `HARMLESS`.

    >>> code_in({"tools": ["calculator", {"name": "./mine.py:look"}], "plugins": ["theirs"]})
    ['./mine.py:look', 'theirs']
    >>> code_in({"tools": [{"name": "python", "memory": 0.5, "level": "none"}]})
    ['python with level']
    """
    return [named for field, value in record.items() for entry in _entries(value) for named in _named(field, entry)]


def _entries(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _named(field: str, entry: Any) -> Iterator[str]:
    values = {"name": entry} if isinstance(entry, str) else entry
    name = values.get("name") if isinstance(values, Mapping) else None
    if field != "tools" or not isinstance(name, str) or name not in HARMLESS:
        yield escape_controls(str(entry if not isinstance(name, str) else name)[:200])
        return
    if more := [str(key) for key in values if key not in _OF_ENTRIES and key not in HARMLESS[name]]:
        yield escape_controls(f"{name} with {', '.join(more)}"[:200])


def _print_tools(use: "ToolUse", source: str) -> None:
    config = use.config()  # with the problems of all entries, before a model is loaded
    tools = [part.label for part in config.recipe.tools]
    environments = [part.label for part in config.recipe.environments.values()]
    lists = {"tools": tools, "environment": environments}
    names = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in lists.items() if labels)
    print(f"Callable by the model, from {source}: {names}.", file=sys.stderr)


def _of_run(folder: Path) -> dict[str, Any]:
    """Return the tool settings of the run in a folder; empty without a run or without tools."""
    from grpo_verifiers.redaction import HIDDEN

    config = (info_of(folder) or {}).get("config") or {}
    if not any(config.get(name) for name in ("tools", "environment")):
        return {}
    settings = {name: config.get(name) for name in _READ}
    if HIDDEN in json.dumps(settings, ensure_ascii=False):
        raise UserError(
            f"the tools of {folder} have secrets among their keywords, which its record omits: give "
            "--tools-from its config file or none, or --tools and --environment."
        )
    return settings


def _read_from(path: Path, *, trust: bool) -> dict[str, Any]:
    """Return the tool settings of a config file or a run's folder, with absolute paths."""
    from grpo_plus.evaluation.tool_use import ToolUse
    from grpo_plus.recipe.launch import launching
    from grpo_plus.recipe.values import read_yaml

    if path.is_dir():
        fields = _of_run(path) or _of_run(path.parent)
        if not fields:
            raise UserError(f"--tools-from {path}: no run in it was trained with tools or an environment.")
        return _trusted(path, fields, trust=trust)
    try:
        values: Mapping[str, Any] = read_yaml(path)
    except ValueError as error:
        raise UserError(f"--tools-from: {error}") from error
    fields = {name: values[name] for name in _READ if values.get(name) is not None}
    if not any(fields.get(name) for name in ("tools", "environment")):
        raise UserError(f"--tools-from {path} has neither tools nor environment.")
    # A single tool or plug-in needs no list.
    fields |= {name: [fields[name]] for name in ("tools", "plugins") if isinstance(fields.get(name), str | Mapping)}
    with launching(path.resolve().parent):
        config = ToolUse(**fields).config()
    return {name: getattr(config, name) for name in _READ}
