"""The runs of a sweep, with names, folders and commands, and the check of every variant before the first run."""

import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_plus.recipe.forms import read_form
from grpo_plus.recipe.values import read_yaml
from grpo_plus.sweep.vary import PER_RUN, SweepError, Variant
from grpo_verifiers.files import read_text, temporary_folder


@dataclass(frozen=True, eq=False)
class SweepRun:
    """One training run of a sweep; ``flags`` is the command line after the config file."""

    variant: Variant
    seed: int
    folder: Path
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """A short name, unique in the sweep."""
        return f"{self.variant.folder}/seed-{self.seed}"

    @property
    def title(self) -> str:
        """The name for people."""
        return f"{self.variant.label}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """The file with the run's output."""
        return self.folder.with_name(f"{self.folder.name}.log")


@dataclass(frozen=True)
class SweepPlan:
    """A sweep before it runs.

    ``values`` is the content of the YAML file ``config``. ``shared`` are flags of every run, ``out`` is the sweep's
    folder. ``runs`` has all seeds of the first variant, then of the second, and so on.
    """

    config: Path
    values: Mapping[str, Any]
    shared: tuple[str, ...]
    out: Path
    runs: tuple[SweepRun, ...]

    @property
    def variants(self) -> list[Variant]:
        """The variants in order, without repetition."""
        return list({run.variant.label: run.variant for run in self.runs}.values())

    def config_unchanged(self) -> bool:
        """Return True while the config file is unchanged: every run reads it at its own start."""
        try:
            return read_yaml(self.config) == self.values
        except ValueError:
            return False

    def command(self, run: SweepRun) -> list[str]:
        """Return the command line of a run."""
        return [sys.executable, "-m", "grpo_plus.cli", "train", str(self.config), *run.flags]


def make_plan(
    config: Path, variants: Sequence[Variant], seeds: Sequence[int], shared: Sequence[str], out: Path | None
) -> SweepPlan:
    """Plan all runs of a sweep."""
    try:
        values = read_yaml(config)
    except ValueError as error:
        raise SweepError(str(error)) from error
    flags = {word.partition("=")[0].removeprefix("--") for word in shared if word.startswith("--")}
    for option, instead in PER_RUN.items():
        if option in flags:
            raise SweepError(f"--{option}: every run of a sweep has its own; {instead} sets it.")
    if values.get("resume_from_checkpoint"):
        raise SweepError(f"{config} sets resume_from_checkpoint: runs of a sweep start from scratch, so remove it.")
    if values.get("push_to_hub") or "push_to_hub" in flags:
        raise SweepError(
            "push_to_hub: runs of a sweep would replace each other's model there. Remove it, and push one."
        )
    for key in (key for variant in variants for key, _ in variant.values if key in flags):
        raise SweepError(f"{key} is both varied and set by --{key}: keep one.")
    output = values.get("output_dir")
    default = Path(f"{str(output).rstrip('/')}-sweep") if output else Path("runs") / f"{config.stem}-sweep"
    folder = (out or default).expanduser()
    runs = []
    for variant, seed in itertools.product(variants, seeds):
        where = folder / variant.folder / f"seed-{seed}"
        own = [*shared, *variant.flags(), f"--seed={seed}", f"--output_dir={where}"]
        if "run_name" not in flags and "run_name" not in values:
            own.append(f"--run_name={variant.label}, seed {seed}")
        if "report" not in flags and "record" not in read_form("report", values.get("report")):
            own.append("--report.record=true")  # the comparison reads it
        runs.append(SweepRun(variant, seed, where, tuple(own)))
    return SweepPlan(config, values, tuple(shared), folder, tuple(runs))


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
    lines = []
    for problem, labels in checked.problems.items():
        where = "in every variant" if len(labels) == len(variants) > 1 else "; ".join(labels)
        lines.append(f"{where}:\n    {problem}".replace("\n", "\n  "))
    if lines:
        raise SweepError("\n  ".join(["no run was started, since the config has problems:", *lines]))
    return checked
