"""The tools and environments of ``grpo-plus eval``: those of the run, of a config file, or of flags."""

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._trained import NOTHING, info_of
from grpo_plus.report.escape import escape_controls

if TYPE_CHECKING:
    from grpo_plus.evaluation.tool_use import ToolUse

TURN_FIELDS = ("tools", "environment", "max_tool_calling_iterations")
_OF_ENTRIES = {"name", "label", "weight", "columns", "timeout", "on_error"}
HARMLESS: Mapping[str, Collection[str]] = {"calculator": (), "python": {"memory", "output"}}
"""Built-in tools that a record may ask for, with keywords that run nothing, read no file and reach no machine."""
_READ = (*TURN_FIELDS, "chat_template_kwargs", "plugins")


def add_tool_options(group: "argparse._ActionsContainer") -> None:
    """Declare the options that replace what a run was trained with."""
    group.add_argument(
        "--tools", nargs="+", help="names, references or mappings, as in a config: '{name: …, timeout: 5}'"
    )
    group.add_argument("--environment", help="in the same form, or a mapping of the values of the column environment")
    group.add_argument("--max-tool-calling-iterations", type=int, help="turns that may call; unset: until the length")
    group.add_argument(
        "--tools-from", help="take tools and environment from a config file or another run's folder, or none at all"
    )
    group.add_argument(
        "--trust-run", action="store_true", help="run the code that the run's record names: a record is data until then"
    )


def tool_use(options: argparse.Namespace, folders: Sequence[Path]) -> "ToolUse | None":
    """What the model may call; None for nothing. Flags come before ``--tools-from``, and that before the run.

    ``folders`` are those that the run of the model may be in.
    """
    from grpo_plus.evaluation.tool_use import ToolUse

    source = "the command line"
    found: dict[str, Any] = {}
    if options.tools_from is not None and options.tools_from != NOTHING:
        source, found = options.tools_from, _read_from(Path(options.tools_from).expanduser(), trust=options.trust_run)
    elif options.tools_from is None:
        for folder in folders:
            if trained := _of_run(folder):
                source, found = f"the run {folder}", _trusted(folder, trained, trust=options.trust_run)
                break
    found |= {name: value for name in TURN_FIELDS if (value := getattr(options, name)) is not None}
    found["plugins"] = [*(found.get("plugins") or []), *options.plugin]
    use = ToolUse(**{name: value for name, value in found.items() if value is not None})
    if not use:
        if options.max_tool_calling_iterations is not None:
            raise UserError("--max-tool-calling-iterations needs tools: give --tools or --environment.")
        return None
    _say(use, source)
    return use


def _trusted(folder: Path, trained: dict[str, Any], *, trust: bool) -> dict[str, Any]:
    """Settings of a record; an error if they name code and the user has not said ``--trust-run``."""
    code = [] if trust else code_in({name: trained.get(name) for name in ("tools", "environment", "plugins")})
    if code:
        raise UserError(
            f"the record of the run {folder} names code: {', '.join(code)}. The record's author chose it, so it "
            "needs your consent: look at it and give --trust-run, or --tools-from with your config file or none."
        )
    return trained


def code_in(record: Mapping[str, Any]) -> list[str]:
    """Code in a record's entries: all but built-in tools by their exact names, with keywords of `HARMLESS`.

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


def _say(use: "ToolUse", source: str) -> None:
    config = use.config()  # with the problems of all entries, before a model is loaded
    tools = [part.label for part in config.recipe.tools]
    environments = [part.label for part in config.recipe.environments.values()]
    lists = {"tools": tools, "environment": environments}
    told = "; ".join(f"{name}: {', '.join(labels)}" for name, labels in lists.items() if labels)
    print(f"The model may call what {source} has: {told}.", file=sys.stderr)


def _of_run(folder: Path) -> dict[str, Any]:
    """Of the run in a folder; nothing where there is none, or it had no tools."""
    from grpo_verifiers.redaction import HIDDEN

    config = (info_of(folder) or {}).get("config") or {}
    if not any(config.get(name) for name in ("tools", "environment")):
        return {}
    found = {name: config.get(name) for name in _READ}
    if HIDDEN in json.dumps(found, ensure_ascii=False):
        raise UserError(
            f"the tools of {folder} have secrets among their keywords, which its record does not keep: give "
            "--tools-from its config file or none, or --tools and --environment."
        )
    return found


def _read_from(path: Path, *, trust: bool) -> dict[str, Any]:
    """Of a config file or a run's folder, with paths that are absolute."""
    from grpo_plus.evaluation.tool_use import ToolUse
    from grpo_plus.recipe.launch import launching
    from grpo_plus.recipe.values import read_yaml

    if path.is_dir():
        found = _of_run(path) or _of_run(path.parent)
        if not found:
            raise UserError(f"--tools-from {path}: no run in it was trained with tools or an environment.")
        return _trusted(path, found, trust=trust)
    try:
        values: Mapping[str, Any] = read_yaml(path)
    except ValueError as error:
        raise UserError(f"--tools-from: {error}") from error
    found = {name: values[name] for name in _READ if values.get(name) is not None}
    if not any(found.get(name) for name in ("tools", "environment")):
        raise UserError(f"--tools-from {path} has neither tools nor environment.")
    # A single tool or plug-in may stand without a list.
    found |= {name: [found[name]] for name in ("tools", "plugins") if isinstance(found.get(name), str | Mapping)}
    with launching(path.resolve().parent):
        config = ToolUse(**found).config()
    return {name: getattr(config, name) for name in _READ}
