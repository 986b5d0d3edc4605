"""Prompt, sampling, tools and environments of ``grpo-plus eval``: from a run, a config file, or flags."""

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.report.escape import escape_controls
from grpo_verifiers.errors.messages import cut
from grpo_verifiers.redaction import HIDDEN

if TYPE_CHECKING:
    from grpo_plus.evaluation.turns import ToolUse


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
NOTHING = "none"
"""Value in place of a run: use none."""
DEFAULT_LENGTH = 1024
"""Default limit of tokens in a completion: enough for most answers with reasoning."""


@dataclass(frozen=True)
class RunSettings:
    """Settings of a run; ``most`` is its max_completion_length."""

    folder: Path
    prompt: Mapping[str, Any] = field(default_factory=dict)
    most: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    template_keywords: Mapping[str, Any] = field(default_factory=dict)

    def summary(self) -> str:
        """Return the adopted settings in a line."""
        parts = [f"prompt {_shown(self.prompt)}"] if self.prompt else []
        parts += [f"completions of at most {self.most} tokens"] if self.most else []
        parts += [f"{name} {value:g}" for name, value in self.sampling.items() if value != SAMPLING[name]]
        parts += [f"chat_template_kwargs {_shown(self.template_keywords)}"] if self.template_keywords else []
        return f"As in the run {self.folder}: {', '.join(parts)}. Flags override." if parts else ""


def run_folders(*models: str | None) -> list[Path]:
    """Return the possible folders of the run that trained a model; a checkpoint lies in its run's folder."""
    paths = [Path(each).expanduser() for each in models if each]
    return [folder for path in paths for folder in (path, path.parent)]


def info_of(folder: Path) -> Mapping[str, Any] | None:
    """Return the info in the record of a run; None without a readable record."""
    from grpo_plus.record import RunError, open_run
    from grpo_plus.record.files import FOLDER, RUN

    with suppress(RunError):
        if (folder / FOLDER / RUN).is_file():
            return open_run(folder).info
    return None


def read_run_settings(folders: Sequence[Path]) -> RunSettings | None:
    """Return the settings of the first folder with the record of a run; None if there is none."""
    recorded = next(((folder, info) for folder in folders if (info := info_of(folder)) is not None), None)
    if recorded is None:
        return None
    folder, info = recorded
    config = info.get("config") or {}
    prompt = (info.get("command") or {}).get("prompt")
    most = config.get("max_completion_length")
    keywords = config.get("chat_template_kwargs")
    run = RunSettings(
        folder,
        dict(prompt) if isinstance(prompt, Mapping) else {},
        most if isinstance(most, int) and most > 0 else None,
        {name: config[name] for name in SAMPLING if isinstance(config.get(name), int | float)},
        dict(keywords) if isinstance(keywords, Mapping) else {},
    )
    if HIDDEN in json.dumps([run.prompt, run.template_keywords], ensure_ascii=False):
        raise UserError(
            f"the prompt of the run {folder} contains a secret, which its record omits: give the prompt by flags, "
            "with --settings-from none."
        )
    return run


def _shown(values: Mapping[str, Any]) -> str:
    text = ", ".join(
        f"{name}: {value!r}" if isinstance(value, str) else f"{name}: {value}" for name, value in values.items()
    )
    return "{" + cut(text, 200) + "}"


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
    from grpo_plus.evaluation.turns import ToolUse

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
    from grpo_plus.evaluation.turns import ToolUse
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
