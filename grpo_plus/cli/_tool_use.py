"""Prompt, sampling, tools and environments of ``grpo-plus eval``: from a run or a config file."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
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
    return "{" + cut(", ".join(f"{name}: {value!r}" for name, value in values.items()), 200) + "}"


TURN_FIELDS = ("tools", "environment", "max_tool_calling_iterations")
HARMLESS = ("calculator", "python")
"""Safe built-in tools of a record; with `_KEYS` they run nothing else, read no file and reach no machine."""
_KEYS = {"name", "label", "timeout", "memory", "output"}
_READ = (*TURN_FIELDS, "chat_template_kwargs", "plugins")


def add_tool_options(group: "argparse._ActionsContainer") -> None:
    """Declare the options for the tools of the model."""
    group.add_argument("--tools-from", help="tools and environment from a config file or another run's folder, or none")
    group.add_argument(
        "--trust-run", action="store_true", help="run the code named in the run's record, which is not run otherwise"
    )


def tool_use(options: argparse.Namespace, folders: Sequence[Path]) -> "ToolUse | None":
    """Return the tools for the model, or None: those of ``--tools-from``, else of the run.

    ``folders`` are the candidates for the folder of the run.
    """
    from grpo_plus.evaluation.turns import ToolUse

    source = options.tools_from
    if source == NOTHING:
        values: dict[str, Any] = {}
    elif source is not None:
        values = _read_from(Path(source).expanduser(), trust=options.trust_run)
    else:
        source, values = next(((f"the run {each}", fields) for each in folders if (fields := _of_run(each))), ("", {}))
        values = _trusted(source, values, trust=options.trust_run)
    plugins = [*(values.get("plugins") or []), *options.plugin]
    use = ToolUse(**{name: value for name, value in {**values, "plugins": plugins}.items() if value is not None})
    if not use:
        return None
    recipe = use.config().recipe  # with the problems of all entries, before a model is loaded
    parts = {"tools": recipe.tools, "environment": recipe.environments.values()}
    names = [f"{name}: {', '.join(part.label for part in of_kind)}" for name, of_kind in parts.items() if of_kind]
    print(f"Callable by the model, from {source}: {'; '.join(names)}.", file=sys.stderr)
    return use


def _trusted(source: str, settings: dict[str, Any], *, trust: bool) -> dict[str, Any]:
    """Return the settings of a record; raise an error if they name code without ``--trust-run``."""
    if code := [] if trust else code_in({name: settings.get(name) for name in ("tools", "environment", "plugins")}):
        raise UserError(
            f"the record of {source} names code: {', '.join(code)}. The record's author chose it, so it "
            "needs your consent: read it and give --trust-run, or --tools-from with your config file or none."
        )
    return settings


def code_in(record: Mapping[str, Any]) -> list[str]:
    """List the code in a record: all entries but `HARMLESS` tools by exact name with keys of `_KEYS`.

    >>> code_in({"tools": ["calculator", {"name": "./mine.py:look"}], "plugins": ["theirs"]})
    ["{'name': './mine.py:look'}", 'theirs']
    """
    lists = {field: value if isinstance(value, list | tuple) else [value] for field, value in record.items() if value}
    return [
        escape_controls(str(entry)[:200])
        for field, entries in lists.items()
        for entry in entries
        if field != "tools" or not _is_harmless(entry)
    ]


def _is_harmless(entry: Any) -> bool:
    values = {"name": entry} if isinstance(entry, str) else entry
    return isinstance(values, Mapping) and values.get("name") in HARMLESS and values.keys() <= _KEYS


def _of_run(folder: Path) -> dict[str, Any]:
    config = (info_of(folder) or {}).get("config") or {}
    if not any(config.get(name) for name in ("tools", "environment")):
        return {}
    settings = {name: config.get(name) for name in _READ}
    if HIDDEN in json.dumps(settings, ensure_ascii=False):
        raise UserError(
            f"the tools of {folder} have secrets among their keywords, which its record omits: give "
            "--tools-from its config file or none."
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
        return _trusted(f"the run {path}", fields, trust=trust)
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
