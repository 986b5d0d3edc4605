"""Check every variant in a process of its own before the first run starts.

The process ends before training begins, which frees a GPU and plug-ins loaded by the parser.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from grpo_plus.sweep.plan import SweepPlan
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import read_text, temporary_folder


@dataclass(frozen=True)
class VariantCheck:
    """Result of the check of all variants.

    ``processes`` and ``machines`` are the largest numbers of a run; ``cpu`` is true if no run uses an accelerator.
    ``problems`` has each problem with the labels of its variants.
    """

    processes: int = 1
    machines: int = 1
    cpu: bool = False
    problems: Mapping[str, Sequence[str]] = field(default_factory=dict)


def check(plan: SweepPlan, environment: Mapping[str, str], checker: Sequence[str]) -> VariantCheck:
    """Check the arguments of every variant with a command.

    ``checker`` are the words after ``python``. The command gets two more arguments: a file with ``[label, arguments]``
    for each variant, and the file to write the fields of `VariantCheck` to.

    Raises:
        SweepError: all problems of all variants, each with the variants that have it.
    """
    firsts = {run.variant.label: run for run in reversed(plan.runs)}
    variants = [[label, [str(plan.config), *firsts[label].flags]] for label in reversed(firsts)]
    with temporary_folder() as folder:
        ask, answer = Path(folder, "ask.json"), Path(folder, "answer.json")
        ask.write_text(json.dumps(variants), encoding="utf-8")
        # Warnings on stderr are dropped: the log of every run repeats them.
        done = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, *checker, str(ask), str(answer)],
            env=dict(environment),
            stderr=subprocess.PIPE,
            check=False,
        )
        if not answer.is_file():
            errors = done.stderr.decode("utf-8", "replace").strip()
            raise SweepError(f"the variants could not be checked (code {done.returncode}):\n{errors}")
        checked = VariantCheck(**json.loads(read_text(answer)))
    if checked.problems:
        raise SweepError(_listed(checked.problems, len(variants)))
    return checked


def _listed(problems: Mapping[str, Sequence[str]], variants: int) -> str:
    lines = []
    for problem, labels in problems.items():
        where = "in every variant" if len(labels) == variants > 1 else "; ".join(labels)
        lines.append(f"{where}:\n    {problem}".replace("\n", "\n  "))
    return "\n  ".join(["no run was started, since the config has problems:", *lines])
