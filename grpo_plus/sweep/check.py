"""Every variant through the command line's own parser, in a process of its own, before the first run starts.

The process ends before training begins, so that what the parser wakes up (a card, plug-ins) is free again.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.sweep.plan import Plan
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import read_text
from grpo_verifiers.folders import temporary_folder


@dataclass(frozen=True)
class Checked:
    """What the parser says about a sweep.

    Attributes:
        processes: most processes that one run starts.
        devices: accelerators that the check could see.
    """

    processes: int
    devices: int


def check(plan: Plan, environment: Mapping[str, str]) -> Checked:
    """Parse every variant, then make what runs would otherwise make side by side.

    Raises:
        SweepError: all problems of all variants, each with the variants that have it.
    """
    firsts = {run.variant.label: run for run in reversed(plan.runs)}
    task = [[label, [str(plan.config), *firsts[label].flags]] for label in reversed(firsts)]
    with temporary_folder() as folder:
        ask, answer = Path(folder, "ask.json"), Path(folder, "answer.json")
        ask.write_text(json.dumps(task), encoding="utf-8")
        command = [sys.executable, "-m", "grpo_plus.sweep.check", str(ask), str(answer)]
        # Its warnings are in the log of every run.
        done = subprocess.run(command, env=dict(environment), stderr=subprocess.PIPE, check=False)  # noqa: S603
        if not answer.is_file():
            told = done.stderr.decode("utf-8", "replace").strip()
            raise SweepError(f"the variants could not be checked (code {done.returncode}):\n{told}")
        found: dict[str, Any] = json.loads(read_text(answer))
    if found["problems"]:
        raise SweepError("\n".join([_told(found["problems"], len(task)), *_hints(plan)]))
    return Checked(int(found["processes"]), int(found["devices"]))


def _told(problems: Mapping[str, Sequence[str]], variants: int) -> str:
    lines = []
    for problem, labels in problems.items():
        where = "in every variant" if len(labels) == variants > 1 else "; ".join(labels)
        lines.append(f"{where}:\n    {problem}".replace("\n", "\n  "))
    return "\n  ".join(["nothing was started, since the config does not work:", *lines])


def _hints(plan: Plan) -> list[str]:
    """Keywords of one part are none of another's: the commonest reason why a variant cannot be."""
    varied = {key.partition(".")[0] for variant in plan.variants for key, _ in variant.values}
    return [
        f"{key}_kwargs of the config reach every variant. To give each its own, let both vary together: "
        f"--vary '{key}=a,b; {key}_kwargs={{}},{{keyword: 1}}'"
        for key in ("advantage", "objective")
        if key in varied and plan.values.get(f"{key}_kwargs") and f"{key}_kwargs" not in varied
    ]


def main(ask: Path, answer: Path) -> None:
    """Parse each list of arguments; then call the functions that make models, once for all runs."""
    import torch

    from grpo_plus.cli import UserError
    from grpo_plus.cli._arguments import parse
    from grpo_verifiers.plugin_frames import plugin_traceback

    task: list[tuple[str, list[str]]] = json.loads(read_text(ask))
    problems: dict[str, list[str]] = {}
    processes = 1
    parsed = []
    for label, arguments in task:
        try:
            each = parse("grpo-plus sweep", arguments)
        except UserError as error:
            problems.setdefault(f"{error}\n{plugin_traceback(error)}".rstrip(), []).append(label)
            continue
        parsed.append(each)
        processes = max(processes, each.processes or 1)
    if not problems:
        problems = _prepare(parsed, [label for label, _ in task])
    found = {"problems": problems, "processes": processes, "devices": torch.cuda.device_count()}
    answer.write_text(json.dumps(found), encoding="utf-8")


def _prepare(parsed: Sequence[Any], labels: Sequence[str]) -> dict[str, list[str]]:
    """Models that functions make and keep: made now, no run waits for them or makes them beside another."""
    from grpo_plus.cli import UserError
    from grpo_plus.cli.train import _model_path
    from grpo_verifiers.plugin_frames import plugin_traceback

    problems: dict[str, list[str]] = {}
    made: dict[tuple[str, Path], str | None] = {}
    for label, each in zip(labels, parsed, strict=True):
        name = each.model.model_name_or_path
        if not name:
            problems.setdefault("model_name_or_path is missing: name a model on the hub or a folder.", []).append(label)
            continue
        key = (name, each.folder)
        if key not in made:
            try:
                _model_path(name, each.folder)
                made[key] = None
            except UserError as error:
                made[key] = f"{error}\n{plugin_traceback(error)}".rstrip()
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's function raises
                made[key] = f"model_name_or_path: {type(error).__name__}: {error}\n{plugin_traceback(error)}".rstrip()
        problem = made[key]
        if problem is not None:
            problems.setdefault(problem, []).append(label)
    return problems


if __name__ == "__main__":
    from grpo_verifiers.plugin_frames import exits_caught

    with exits_caught():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
