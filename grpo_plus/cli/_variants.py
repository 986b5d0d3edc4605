"""``python -m grpo_plus.cli._variants ASK ANSWER``: parse every variant of a sweep, and prepare what its runs share."""

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


def check_variants(variants: list[tuple[str, list[str]]]) -> Checked:
    """Parse the arguments of each variant; if all are right, make the models that functions make.

    A model that is made and kept here is not made twice by two runs side by side.
    """
    from grpo_plus.cli._arguments import parse
    from grpo_plus.cli._data import model_path

    problems: dict[str, list[str]] = {}
    parsed: dict[str, Parsed] = {}
    for label, arguments in variants:
        try:
            parsed[label] = parse(PROG, arguments)
        except UserError as error:
            problems.setdefault(_with_traceback(str(error), error), []).append(label)
    if not problems:
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

    from grpo_plus.cli._launch import settings

    launch, _ = launch_command_parser().parse_known_args([*parsed.launch, "script"])
    return int(settings(launch)("num_machines") or 1)


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
        ask, answer = map(Path, sys.argv[1:])
        write_whole(answer, json.dumps(asdict(check_variants(json.loads(read_text(ask))))))
