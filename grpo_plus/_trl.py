"""The only file, beside the trainer, that knows TRL: which versions were tested, and which seams are used.

Everything private that the project touches is named here once, so that a new TRL release breaks in one place and says
so. ``python -m grpo_plus._trl`` compares the installed TRL with what is written down.
"""

import ast
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.version import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

TESTED = ("1.14.2", "1.16.0")
"""TRL releases that the whole test suite was run against, oldest and newest."""

_OLDEST, _BELOW, _EXCLUDED = Version("1.14.2"), Version("1.17"), Version("1.15")
OVERRIDE = "GRPO_PLUS_ANY_TRL"
"""Environment variable that turns the version error into nothing, for people who know what they do."""

SEAMS: "Mapping[str, Sequence[str]]" = {
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("self", "model", "inputs"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ),
    "_prepare_inputs": ("self", "generation_batch"),
}
"""Methods of ``GRPOTrainer`` that are overridden or called, and the parameters they must start with."""

STATE = (
    "_buffered_inputs",
    "_logs",
    "_metrics",
    "_step",
    "num_generations",
    "num_generations_eval",
    "num_iterations",
    "reward_func_names",
    "reward_funcs",
    "reward_weights",
)
"""Attributes that ``GRPOTrainer`` sets on itself and that are read or written."""


class UnsupportedTRLError(ImportError):
    """The installed TRL is outside the range that this release was tested with."""


def is_supported(version: str) -> bool:
    """Whether a TRL release is inside the tested range."""
    release = Version(version)
    return _OLDEST <= release < _BELOW and release.release[:2] != _EXCLUDED.release[:2]


def check_version() -> None:
    """Refuse a TRL that nobody ran this code with.

    Raises:
        UnsupportedTRLError: names the installed and the tested versions, and the override.
    """
    try:
        installed = importlib.metadata.version("trl")
    except importlib.metadata.PackageNotFoundError as error:
        raise UnsupportedTRLError(f"TRL is not installed: pip install 'trl=={TESTED[-1]}'.") from error
    if is_supported(installed) or os.environ.get(OVERRIDE) == "1":
        return
    raise UnsupportedTRLError(
        f"TRL {installed} is installed; this release of grpo_plus is tested with {TESTED[0]} to {TESTED[-1]} (without "
        f"1.15, whose fused head needs Triton even on a CPU). Install one of those: pip install 'trl=={TESTED[-1]}'. "
        f"To try {installed} all the same, set {OVERRIDE}=1."
    )


def seam_problems(source: str | None = None) -> list[str]:
    """What the installed (or given) source of TRL's trainer lacks of what is relied on; empty when nothing.

    Reads the file's syntax tree, so it neither imports TRL nor needs its dependencies.
    """
    source = _trainer_source() if source is None else source
    trainer = next(
        (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "GRPOTrainer"),
        None,
    )
    if trainer is None:
        return ["the class GRPOTrainer is gone"]
    methods = {node.name: node for node in trainer.body if isinstance(node, ast.FunctionDef)}
    problems = []
    for name, expected in SEAMS.items():
        if name not in methods:
            problems.append(f"the method {name} is gone")
            continue
        found = tuple(argument.arg for argument in methods[name].args.args)
        if found[: len(expected)] != tuple(expected):
            problems.append(f"{name} takes ({', '.join(found)}), expected it to start with ({', '.join(expected)})")
    written = {
        node.attr
        for node in ast.walk(trainer)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }
    problems += [f"the attribute self.{name} is gone" for name in STATE if name not in written]
    return problems


def _trainer_source() -> str:
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        raise UnsupportedTRLError(f"TRL is not installed: pip install 'trl=={TESTED[-1]}'.")
    return (Path(spec.origin).parent / "trainer" / "grpo_trainer.py").read_text(encoding="utf-8")


def metrics_of(trainer: Any) -> "dict[str, list[float]]":
    """TRL's metric lists of the present mode; what is appended is averaged and logged."""
    metrics: dict[str, list[float]] = trainer._metrics["train" if trainer.model.training else "eval"]
    return metrics


def replace_logged_advantages(trainer: Any, advantages_N: "torch.Tensor") -> None:
    """Put the advantages that are trained with into TRL's completion table, over the ones TRL computed."""
    logged = trainer._logs["advantages"]
    fresh = advantages_N.tolist()
    for _ in range(min(len(fresh), len(logged))):
        logged.pop()
    logged.extend(fresh)


def log_extra(trainer: Any, column: str, values: "Iterable[Any]") -> None:
    """Add a column to TRL's completion table, one value for every completion of all ranks, in its order."""
    trainer._logs["extra"][column].extend(values)


def stop_ids(trainer: Any) -> list[int]:
    """Tokens that end a completion, or pad it: a completion whose last token is none of these was cut off."""
    tokenizer = getattr(trainer, "_tokenizer", None) or trainer.processing_class
    ends = getattr(trainer, "eos_token_ids", None)
    if ends is None:
        ends = [trainer.eos_token_id]
    return [*ends, tokenizer.pad_token_id]


def gather_objects(rows: list[Any]) -> list[Any]:
    """The rows of all ranks, in their order."""
    from accelerate.utils import gather_object

    everywhere: list[Any] = gather_object(rows)
    return everywhere


def main() -> int:
    """Print what changed in the installed TRL; the exit code says whether anything did."""
    version = importlib.metadata.version("trl")
    problems = seam_problems()
    print(f"TRL {version}: " + ("all seams as expected" if not problems else ""))
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
