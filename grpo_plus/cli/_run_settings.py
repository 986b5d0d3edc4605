"""Prompt and sampling settings of a run, read from its record."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_plus.cli import UserError
from grpo_verifiers.errors.messages import cut
from grpo_verifiers.redaction import HIDDEN

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}
"""Sampling fields of a config and their defaults."""
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
