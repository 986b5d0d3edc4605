"""What a checkpoint costs beside TRL's own: seconds, as shares of an optimizer step, and bytes.

    python -m benchmarks.checkpoint_cost [--steps 12] [--home FOLDER] [--folder FOLDER]

The quickstart's model and config train. After each optimizer step checkpoints are written to the same disk, TRL's own
and ours in turn, with the optimizer and without (`save_only_model`). With `steps_per_generation: 4` every other one
lies inside a generation batch and holds the rest of it. Medians; "more" is the median of ours less TRL's, pair by
pair, as a share of the median step.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from transformers import TrainerCallback

SIDES = ("trl", "ours")


class Costs(TrainerCallback):
    """Times steps, and after each of them checkpoints of both sides."""

    def __init__(self, trainer: Any, folder: Path, turns: int) -> None:
        from trl import GRPOTrainer

        self.steps: list[float] = []
        self.seconds: dict[tuple[str, bool, bool], list[float]] = {}
        self.bytes: dict[tuple[str, bool, bool], int] = {}
        self.parts: dict[str, list[float]] = {}
        self._trainer, self._folder, self._turns, self._begin = trainer, folder, turns, 0.0
        self._save = {"trl": GRPOTrainer._save_checkpoint, "ours": type(trainer)._save_checkpoint}  # noqa: SLF001 - what is measured

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """A step begins."""
        self._begin = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write checkpoints in turn."""
        del control
        self.steps.append(time.perf_counter() - self._begin)
        inside = state.global_step * args.gradient_accumulation_steps % args.steps_per_generation != 0
        for turn in range(self._turns):
            for only_model in (False, True):
                for side in SIDES if (turn + state.global_step) % 2 else SIDES[::-1]:
                    self._one(side, inside=inside, only_model=only_model)

    def _one(self, side: str, *, inside: bool, only_model: bool) -> None:
        trainer, key = self._trainer, (side, inside, only_model)
        out, kept = trainer.args.output_dir, trainer.args.save_only_model
        trainer.args.output_dir, trainer.args.save_only_model = str(self._folder), only_model
        try:
            with parts() if side == "ours" and not only_model else nothing() as found:
                begin = time.perf_counter()
                self._save[side](trainer, trainer.model_wrapped, None)
                self.seconds.setdefault(key, []).append(time.perf_counter() - begin)
        finally:
            trainer.args.output_dir, trainer.args.save_only_model = out, kept
        for name, spent in found.items():
            self.parts.setdefault(name, []).append(spent)
        self.bytes[key] = sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        shutil.rmtree(self._folder)


@contextmanager
def nothing() -> Iterator[dict[str, float]]:
    """No parts."""
    yield {}


@contextmanager
def parts() -> Iterator[dict[str, float]]:
    """Seconds inside fsync, the state of hooks, and the manifest, which has its part of fsync in it."""
    from grpo_plus.checkpoints import manifest
    from grpo_plus.training.resume import state

    found: dict[str, float] = {}

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **keywords: Any) -> Any:
            begin = time.perf_counter()
            try:
                return work(*given, **keywords)
            finally:
                found[name] = found.get(name, 0.0) + time.perf_counter() - begin

        return run

    kept = os.fsync, state.save, manifest.write
    os.fsync, state.save, manifest.write = map(timed, ("fsync", "hooks", "manifest"), kept)  # type: ignore[assignment]
    try:
        yield found
    finally:
        os.fsync, state.save, manifest.write = kept


def measure(model: Path, folder: Path, steps: int, turns: int, **settings: Any) -> Costs:
    """Train the quickstart's config for some steps."""
    from transformers.trainer_callback import PrinterCallback

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.cli.quickstart import dataset

    config = GRPOPlusConfig(
        output_dir=str(folder / "out"), advantage="zscore", objective="dapo", max_steps=steps, num_generations=8,
        verifiers=["math", {"name": "math_steps", "weight": 0}], per_device_train_batch_size=64,
        gradient_accumulation_steps=2, max_completion_length=48, learning_rate=2e-4, lr_scheduler_type="linear",
        rollout="auto", logging_steps=5, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, seed=1, disable_tqdm=True, **settings,
    )  # fmt: skip
    trainer = GRPOPlusTrainer(str(model), None, config, dataset()["train"])
    trainer.remove_callback(PrinterCallback)
    costs = Costs(trainer, folder / "checkpoints", turns)
    trainer.add_callback(costs)
    trainer.train()
    return costs


def show(costs: Costs, *, inside: bool) -> None:
    """Two lines of the table, and the parts."""
    step = statistics.median(costs.steps[1:])
    for only_model in (False, True):
        ours, theirs = (costs.seconds[side, inside, only_model] for side in reversed(SIDES))
        more = statistics.median(one - other for one, other in zip(ours, theirs, strict=True))
        mine, stock = (costs.bytes[side, inside, only_model] for side in reversed(SIDES))
        where = "inside a generation batch" if inside else "between generation batches"
        print(
            f"| {where}{', `save_only_model`' if only_model else ''} | {statistics.median(theirs) * 1e3:.0f} "
            f"| {statistics.median(ours) * 1e3:.0f} | {more / step:+.1%} | {stock / 1e3:,.0f} | {mine / 1e3:,.0f} |"
        )


def main() -> None:
    """Measure both configs and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps of each config")
    parser.add_argument("--turns", type=int, default=2, help="checkpoints of each kind after a step")
    parser.add_argument("--warm-steps", type=int, default=550, help="of the quickstart's warm start")
    parser.add_argument("--home", type=Path, help="folder for the warm-started model, kept for the next time")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written; default: the temporary folder")
    options = parser.parse_args()
    import torch

    from benchmarks.small_model import warm_start

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        model = (options.home or folder) / f"quickstart-{options.warm_steps}"
        if not (model / "config.json").is_file():
            warm_start(model, steps=options.warm_steps, seed=1)
        plain = measure(model, folder / "plain", options.steps, options.turns)
        inside = measure(model, folder / "inside", options.steps, options.turns, steps_per_generation=4)
    print("| checkpoint | TRL ms | ours ms | more, of a step | TRL kB | ours kB |\n|---|---|---|---|---|---|")
    show(plain, inside=False)
    show(inside, inside=True)
    print(f"\nmedian step {statistics.median(plain.steps[1:]):.2f} s and {statistics.median(inside.steps[1:]):.2f} s;")
    told = (f"{name} {statistics.median(spent) * 1e3:.1f} ms" for name, spent in sorted(inside.parts.items()))
    print("of ours, with the optimizer: " + ", ".join(told))


if __name__ == "__main__":
    main()
