"""Wall time to the same held-out accuracy: stock TRL beside this project, same task, same hyper-parameters, same seeds.

    python -m benchmarks.time_to_accuracy [--tasks quickstart varied] [--seeds 0 1 2] [--target 0.75] [--short]

Task `quickstart` is the quickstart's: short chains of sums, prompts and solutions of about the same length. Task
`varied` has chains of one to six moves, so that both differ a lot. Both sides train the same warm-started model on the
same rows in the same order, with the maths verifier as the reward. TRL's side is `GRPOTrainer` with its defaults. Ours
is `GRPOPlusTrainer` with its defaults (`plus`), and with `rollout: auto`, which the quickstart sets (`plus auto`). The
sides take turns within every seed, in an order that changes from seed to seed.

Every `--every` steps the clock stops, and accuracy is measured on held-out rows with the same seeds on each side. The
time is that at which the accuracy first reaches the target, interpolated between two measurements.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

SIDES = ("trl", "plus", "plus auto")
MOVES = {"quickstart": (2, 4), "varied": (1, 6)}
"""Fewest and most moves of a chain."""


@dataclass
class Course:
    """Accuracy over training time.

    Attributes:
        seconds: of training alone, at each measurement.
        accuracy: then.
    """

    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    def reaches(self, target: float) -> float | None:
        """When the target is reached; None if it is not."""
        for at, value in enumerate(self.accuracy):
            if value >= target:
                if at == 0:
                    return self.seconds[0]
                before, rise = self.accuracy[at - 1], value - self.accuracy[at - 1]
                return self.seconds[at - 1] + (target - before) / rise * (self.seconds[at] - self.seconds[at - 1])
        return None


class Watch(TrainerCallback):
    """Stops the clock now and then to measure, and ends training once the target is reached."""

    def __init__(self, measure: Any, every: int, target: float) -> None:
        """Hold what is measured.

        Args:
            measure: from a model to its accuracy.
            every: steps between measurements.
            target: accuracy at which training ends.
        """
        self.course = Course()
        self._measure, self._every, self._target = measure, every, target
        self._spent, self._since = 0.0, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:  # noqa: ARG002
        """The start counts too."""
        self._note(keywords["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:  # noqa: ARG002
        """Measure where it is time to."""
        if state.global_step % self._every == 0:
            self._spent += time.perf_counter() - self._since
            self._note(keywords["model"])
            control.should_training_stop = self.course.accuracy[-1] >= self._target

    def _note(self, model: Any) -> None:
        self.course.seconds.append(self._spent)
        self.course.accuracy.append(self._measure(model))
        self._since = time.perf_counter()


def main() -> int:
    """Run every task, seed and side in turn."""
    options = _options()
    home = Path(options.home) if options.home else Path(tempfile.mkdtemp(prefix="time_to_accuracy-"))
    found: dict[tuple[str, str], list[Course]] = {}
    for task in options.tasks:
        for place, seed in enumerate(options.seeds):
            folder = _warm(home, task, seed, options)
            rows = _rows(task, seed, options)
            turned = [SIDES[(at + place) % len(SIDES)] for at in range(len(SIDES))]
            for side in [side for side in turned if side in options.sides]:
                course = _run(side, folder, rows, seed, options)
                found.setdefault((task, side), []).append(course)
                reached = course.reaches(options.target)
                said = "not reached" if reached is None else f"{reached:.1f} s"
                steps = options.every * (len(course.accuracy) - 1)
                print(f"{task} seed {seed} {side}: {said}; {_words(course)} after {steps} steps", flush=True)
    _table(found, options)
    if options.out:
        rows = [
            {"task": task, "side": side, "courses": [vars(course) for course in courses]}
            for (task, side), courses in found.items()
        ]
        Path(options.out).write_text(json.dumps({"options": vars(options), "found": rows}, indent=2), encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=("quickstart", "varied"), default=["quickstart", "varied"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--target", type=float, default=0.75, help="held-out accuracy")
    parser.add_argument("--steps", type=int, default=80, help="most optimizer steps, and the length of the schedule")
    parser.add_argument("--every", type=int, default=5, help="steps between measurements")
    parser.add_argument("--held-out", type=int, default=256, help="rows that are measured on, two samples each")
    parser.add_argument("--completions", type=int, default=128, help="a step")
    parser.add_argument("--warm-steps", type=int, default=550, help="of the warm start")
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--home", help="folder for the warm-started models, kept for the next time")
    parser.add_argument("--out", help="file for everything found (.json)")
    parser.add_argument(
        "--short", action="store_true", help="a few steps of everything, to see that it runs: nothing is learned"
    )
    options = parser.parse_args()
    if options.short:
        options.seeds, options.steps, options.every, options.held_out = options.seeds[:1], 4, 2, 16
        options.completions, options.warm_steps = 16, 20
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    return options


def _most(task: str) -> int:
    """Tokens of a completion, at most: the longest solution and a little."""
    return 48 if task == "quickstart" else 64


def _warm(home: Path, task: str, seed: int, options: argparse.Namespace) -> Path:
    """The warm-started model of a task and seed, which has seen none of the questions it is measured on."""
    from grpo_plus import quickstart

    folder = home / f"{task}-{seed}-{options.warm_steps}"
    if not (folder / "config.json").is_file():
        start = time.perf_counter()
        quickstart.warm_start(folder, steps=options.warm_steps, seed=seed, moves=MOVES[task])
        print(f"warm start of {task}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
    return folder


def _rows(task: str, seed: int, options: argparse.Namespace) -> tuple[Any, list[dict[str, Any]]]:
    """A training set, and rows that are held out from it and from the warm start."""
    from datasets import Dataset

    from grpo_plus import quickstart

    def drawn(count: int, *, held_out: bool) -> list[dict[str, Any]]:
        low, high = MOVES[task]
        source = quickstart.chains(seed + 1, low, high, held_out=held_out)
        return [quickstart.row(chain) for chain in quickstart.distinct(source, count)]

    return Dataset.from_list(drawn(2048, held_out=False)), drawn(options.held_out, held_out=True)


def _run(
    side: str, folder: Path, rows: tuple[Any, list[dict[str, Any]]], seed: int, options: argparse.Namespace
) -> Course:
    from transformers import AutoTokenizer, set_seed
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_plus.evaluation import Drawing, evaluate
    from grpo_verifiers import get_verifier

    train, test = rows
    most = _most("varied" if "varied" in folder.name else "quickstart")
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def measure(model: Any) -> float:
        drawing = Drawing(max_completion_length=most)
        found = evaluate(model, tokenizer, test, get_verifier("math"), n=2, drawing=drawing, seed=seed)
        accuracy = found.results["math"].accuracy
        return 0.0 if accuracy is None else accuracy.value

    set_seed(seed)
    watch = Watch(measure, options.every, options.target)
    ours = side.startswith("plus")
    with tempfile.TemporaryDirectory() as out:
        settings: dict[str, Any] = {
            "output_dir": out, "seed": seed, "max_steps": options.steps, "learning_rate": 2e-4,
            "lr_scheduler_type": "linear", "num_generations": 8, "loss_type": "dapo", "beta": 0.0, "temperature": 1.0,
            "per_device_train_batch_size": options.completions // 2, "gradient_accumulation_steps": 2,
            "max_completion_length": most, "gradient_checkpointing": False, "bf16": False, "use_cpu": True,
            "report_to": "none", "save_strategy": "no", "logging_steps": options.steps, "disable_tqdm": True,
        }  # fmt: skip
        if ours:
            settings |= {"verifiers": ["math"], "rollout": "auto" if side == "plus auto" else "stock"}
            trainer = GRPOPlusTrainer(str(folder), None, GRPOPlusConfig(**settings), train, callbacks=[watch])
        else:
            trainer = GRPOTrainer(str(folder), get_verifier("math"), GRPOConfig(**settings), train, callbacks=[watch])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.course


def _words(course: Course) -> str:
    shown = list(islice(course.accuracy, 0, None, max(1, len(course.accuracy) // 6)))
    return "accuracy " + " ".join(f"{value:.2f}" for value in shown)


def _table(found: dict[tuple[str, str], list[Course]], options: argparse.Namespace) -> None:
    print(f"\nseconds of training to {options.target:.0%} held-out accuracy, {len(options.seeds)} seeds")
    print(f"{'task':<11} {'side':<10} {'mean':>7} {'least':>7} {'most':>7}  {'against trl, a seed each':<30} s/step")
    for (task, side), courses in found.items():
        times = [course.reaches(options.target) for course in courses]
        known = [value for value in times if value is not None]
        base = [course.reaches(options.target) for course in found.get((task, "trl"), [])]
        pairs = zip(base, times, strict=False)
        ratios = [f"{a / b:.2f}x" if a and b else "-" for a, b in pairs]
        cells = [f"{function(known):7.1f}" if known else f"{'-':>7}" for function in (statistics.fmean, min, max)]
        pace = statistics.fmean(
            course.seconds[-1] / max(1, options.every * (len(course.seconds) - 1)) for course in courses
        )
        missed = f"  (not reached: {len(times) - len(known)})" if len(known) < len(times) else ""
        print(f"{task:<11} {side:<10} {' '.join(cells)}  {' '.join(ratios):<30} {pace:.2f}{missed}")


if __name__ == "__main__":
    sys.exit(main())
