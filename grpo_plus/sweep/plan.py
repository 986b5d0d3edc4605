"""The runs of a sweep: their names, folders and commands."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.recipe.forms import read_form
from grpo_plus.recipe.values import read_yaml
from grpo_plus.sweep.vary import PER_RUN, SweepError, Variant


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
