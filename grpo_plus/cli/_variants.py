"""``python -m grpo_plus.cli._variants [--dry] ASK ANSWER``: check every variant of a sweep, prepare what runs share."""

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_plus.cli import UserError
from grpo_plus.cli._parent import end_with_parent
from grpo_plus.sweep.check import Checked
from grpo_verifiers.errors.frames import exits_caught, plugin_traceback
from grpo_verifiers.files import read_text, write_whole

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed

PROG = "grpo-plus sweep"
DRY = "--dry"
"""Makes no model: that may take minutes, and a function that fails shows in the first run."""


def check_variants(variants: list[tuple[str, list[str]]], *, makes_models: bool = True) -> Checked:
    """Check all that ``train`` would refuse of each variant; if all are right, make the models that functions make.

    A model that is made and kept here is not made twice by two runs side by side. Data is loaded once for all.
    """
    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli._data import load_rows, model_path
    from grpo_plus.cli._gather import problems_before_loading

    problems: dict[str, list[str]] = {}
    parsed: dict[str, Parsed] = {}
    loaded = functools.cache(load_rows)
    for label, arguments in variants:
        try:
            parsed[label] = parse(PROG, arguments)
            found = problems_before_loading(parsed[label], loaded)
        except UserError as error:
            found = [_with_traceback(str(error), error)]
        for problem in found:
            problems.setdefault(problem, []).append(label)
    if not problems and makes_models:
        made: dict[tuple[str | None, Path], str] = {}
        for label, each in parsed.items():
            key = each.model.model_name_or_path, each.folder
            if key not in made:
                made[key] = _problem(lambda key=key: model_path(*key))  # type: ignore[misc]
            if made[key]:
                problems.setdefault(made[key], []).append(label)
    return Checked(
        processes=max([1, *(each.processes or 1 for each in parsed.values())]),
        machines=max([1, *(_machines(each) for each in parsed.values() if each.launch)]),
        cpu=all(each.training.use_cpu for each in parsed.values()),
        problems=problems,
    )


def _machines(parsed: "Parsed") -> int:
    """The machines that the ranks of one run are spread over."""
    from accelerate.commands.launch import launch_command_parser

    from grpo_plus.recipe.options import read_yaml

    launch, _ = launch_command_parser().parse_known_args([*parsed.launch, "script"])
    file = read_yaml(Path(launch.config_file)) if launch.config_file else {}
    return int(launch.num_machines or file.get("num_machines") or 1)


def _problem(make: Callable[[], object]) -> str:
    try:
        make()
    except UserError as error:
        return _with_traceback(str(error), error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function may raise anything
        return _with_traceback(f"model_name_or_path: {type(error).__name__}: {error}", error)
    return ""


def _with_traceback(problem: str, error: BaseException) -> str:
    return f"{problem}\n{plugin_traceback(error)}".rstrip()


if __name__ == "__main__":
    end_with_parent()
    with exits_caught():
        words = [word for word in sys.argv[1:] if word != DRY]
        ask, answer = map(Path, words)
        found = check_variants(json.loads(read_text(ask)), makes_models=DRY not in sys.argv)
        write_whole(answer, json.dumps(asdict(found)))
