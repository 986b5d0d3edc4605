"""The runs of a sweep: which there are, the command of each, and where each keeps what it makes."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.recipe.options import read_yaml
from grpo_plus.sweep.vary import OURS, SweepError, Variant


@dataclass(frozen=True, eq=False)
class Run:
    """One training run of a sweep.

    Attributes:
        variant: what is set.
        seed: of everything random.
        folder: its output directory.
        flags: its command line after the config file.
    """

    variant: Variant
    seed: int
    folder: Path
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """Unique in the sweep, and short."""
        return f"{self.variant.folder}/seed-{self.seed}"

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.variant.label}, seed {self.seed}"

    @property
    def log(self) -> Path:
        """What the run printed."""
        return self.folder.with_name(f"{self.folder.name}.log")


@dataclass(frozen=True)
class Plan:
    """A sweep before it runs.

    Attributes:
        config: the YAML file.
        values: what it holds.
        shared: flags that every run gets.
        out: the sweep's folder.
        runs: variants in the order given, each with all seeds.
    """

    config: Path
    values: Mapping[str, Any]
    shared: tuple[str, ...]
    out: Path
    runs: tuple[Run, ...]

    @property
    def variants(self) -> list[Variant]:
        """Each once, in order."""
        return list({run.variant.label: run.variant for run in self.runs}.values())

    def still_holds(self) -> bool:
        """Whether the config file says what it said: runs read it when they start, and must all read the same."""
        try:
            return read_yaml(self.config) == self.values
        except ValueError:
            return False

    def command(self, run: Run) -> list[str]:
        """The process of a run."""
        return [sys.executable, "-m", "grpo_plus.cli", "train", str(self.config), *run.flags]


def make_plan(
    config: Path, variants: Sequence[Variant], seeds: Sequence[int], shared: Sequence[str], out: Path | None
) -> Plan:
    """All runs of a sweep.

    Raises:
        SweepError: the config cannot be read, or sets what every run needs of its own.
    """
    try:
        values = read_yaml(config)
    except ValueError as error:
        raise SweepError(str(error)) from error
    for option, instead in OURS.items():
        if any(word.partition("=")[0] == f"--{option}" for word in shared):
            raise SweepError(f"--{option}: every run of a sweep has its own; {instead} sets it.")
    if values.get("resume_from_checkpoint"):
        raise SweepError(f"{config} sets resume_from_checkpoint: runs of a sweep start anew, so take it out.")
    if values.get("push_to_hub") or any(word.partition("=")[0] == "--push_to_hub" for word in shared):
        raise SweepError(
            "push_to_hub: runs of a sweep would replace each other's model there. Take it out, and push one."
        )
    given = {word.partition("=")[0].removeprefix("--") for word in shared if word.startswith("--")}
    for variant in variants:
        both = [key for key, _ in variant.values if key in given]
        if both:
            raise SweepError(f"{both[0]} is both varied and given as --{both[0]}: keep one.")
    folder = (out or _default_folder(config, values)).expanduser()
    runs = []
    for variant in variants:
        for seed in seeds:
            where = folder / variant.folder / f"seed-{seed}"
            flags = [*shared, *variant.flags(), f"--seed={seed}", f"--output_dir={where}"]
            if "run_name" not in given and "run_name" not in values:
                flags.append(f"--run_name={variant.label}, seed {seed}")
            if "record" not in given and "record" not in values:
                flags.append("--record=true")  # the comparison reads it
            runs.append(Run(variant, seed, where, tuple(flags)))
    return Plan(config, values, tuple(shared), folder, tuple(runs))


def _default_folder(config: Path, values: Mapping[str, Any]) -> Path:
    output = values.get("output_dir")
    return Path(f"{str(output).rstrip('/')}-sweep") if output else Path("runs") / f"{config.stem}-sweep"
