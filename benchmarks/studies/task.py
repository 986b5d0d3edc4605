"""The task that studies share: the quickstart's sums, its warm start, and training that is watched."""

import contextlib
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

from transformers import TrainerCallback

from benchmarks.small_model import warm_start
from benchmarks.studies.numbers import crossing
from grpo_plus.cli.quickstart import RECIPE, chains, distinct, row
from grpo_plus.training.hooks import Hook

MOST = 48
"""Tokens of a completion, at most: the longest solution of up to four moves and a little."""
WARM = 550
"""Steps of the quickstart's warm start."""


@dataclass
class Course:
    """Accuracy over training.

    Attributes:
        steps: optimizer steps, at each measurement.
        seconds: of training alone, then.
        drawn: completions drawn by then.
        accuracy: then.
    """

    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    def reaches(self, target: float, cost: str) -> float | None:
        """The seconds, steps or completions that it took to the target; None if it is not reached."""
        return crossing(getattr(self, cost), self.accuracy, target)


class Drawn(Hook):
    """Counts the completions that are drawn, in every round of a batch."""

    name = "benchmark_drawn"

    def __init__(self) -> None:
        self.count = 0

    def prompts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A row is a completion."""
        self.count += len(rows)


class Watch(TrainerCallback):
    """Stops the clock now and then to measure, and ends training once a target is reached."""

    def __init__(self, measure: Any, every: int, target: float | None, drawn: Callable[[int], int]) -> None:
        """Hold what is measured.

        Args:
            measure: from a model to its accuracy.
            every: steps between measurements; 0: never.
            target: accuracy at which training ends; None: it goes on.
            drawn: from the steps done to the completions drawn.
        """
        self.course, self.spent = Course(), 0.0
        self._measure, self._every, self._target, self._drawn = measure, every, target, drawn
        self._since = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:  # noqa: ARG002
        """The start counts too."""
        self._note(0, keywords["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:  # noqa: ARG002
        """Measure where it is time to."""
        now = time.perf_counter()
        self.spent, self._since = self.spent + now - self._since, now
        if self._every and state.global_step % self._every == 0:
            self._note(state.global_step, keywords["model"])
            control.should_training_stop = self._target is not None and self.course.accuracy[-1] >= self._target

    def _note(self, step: int, model: Any) -> None:
        if self._every:
            course = self.course
            course.steps.append(step)
            course.seconds.append(self.spent)
            course.drawn.append(self._drawn(step))
            course.accuracy.append(self._measure(model))
        self._since = time.perf_counter()


@dataclass(frozen=True)
class Trained:
    """A run that has ended.

    ``logs`` are its log entries, ``seconds`` those of training without measurements, ``drawn`` its completions.
    """

    trainer: Any
    course: Course
    logs: Sequence[Mapping[str, Any]]
    seconds: float
    drawn: int


def settings(*, seed: int, steps: int, completions: int, group: int, rate: float, **further: Any) -> dict[str, Any]:
    """Fields of the config that all runs share: on the policy, no reference, two micro-batches a step."""
    return {
        "seed": seed, "max_steps": steps, "learning_rate": rate, "lr_scheduler_type": "constant",
        "num_generations": group, "beta": 0.0, "temperature": 1.0,
        "per_device_train_batch_size": completions // 2, "gradient_accumulation_steps": 2,
        "max_completion_length": MOST, "gradient_checkpointing": False, "bf16": False, "use_cpu": True,
        "report_to": "none", "save_strategy": "no", "logging_steps": steps, "disable_tqdm": True, **further,
    }  # fmt: skip


def train(
    model: str | Path,
    rows: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Any],
    *,
    measure: Callable[[Any], float] | None = None,
    every: int = 0,
    target: float | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    stock: bool = False,
) -> Trained:
    """Train on rows with fields of the config; ``stock`` is TRL's own trainer with the maths verifier."""
    from datasets import Dataset
    from transformers import set_seed
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from grpo_verifiers import get_verifier

    set_seed(fields["seed"])
    drawn, data = Drawn(), Dataset.from_list([dict(each) for each in rows])
    batch = fields["per_device_train_batch_size"] * fields["gradient_accumulation_steps"]
    watch = Watch(measure, every, target, (lambda step: step * batch) if stock else (lambda _: drawn.count))
    with tempfile.TemporaryDirectory(prefix="study-") as out:
        watching: list[TrainerCallback] = [watch, *callbacks]
        if stock:
            config = GRPOConfig(output_dir=out, **fields)
            trainer: Any = GRPOTrainer(str(model), get_verifier("math"), config, data, callbacks=watching)
        else:
            config = GRPOPlusConfig(output_dir=out, **fields)
            trainer = GRPOPlusTrainer(str(model), None, config, data, callbacks=watching, hooks=[drawn])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    count = trainer.state.global_step * batch if stock else drawn.count
    return Trained(trainer, watch.course, trainer.state.log_history, watch.spent, count)


def made_once(folder: Path, make: Callable[[Path], Any]) -> Path:
    """A folder that ``make`` fills at the first call, whole or not at all.

    It does so in a process of its own, or the first run to come would be measured with its memory.
    """
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = folder.with_name(f"{folder.name}-draft")
        shutil.rmtree(draft, ignore_errors=True)
        maker = get_context("spawn").Process(target=make, args=(draft,))
        maker.start()
        maker.join()
        if maker.exitcode:
            raise RuntimeError(f"{folder} was not made: its process ended with status {maker.exitcode}")
        draft.rename(folder)
    return folder


def warm(home: Path, seed: int, steps: int = WARM, *, singles: int = 0) -> Path:
    """The warm-started model of a seed, made at the first call and kept; it has seen no question held out."""
    folder = home / f"warm-{seed}-{steps}-{singles}-{RECIPE}"
    return made_once(folder, partial(warm_start, steps=steps, seed=seed, singles=singles))


def questions(count: int, seed: int, *, low: int = 2, high: int = 4, held_out: bool = False) -> list[dict[str, Any]]:
    """Rows with different questions, of so many moves; trained on, or held out from training and warm start."""
    return [row(chain) for chain in distinct(chains(seed, low, high, held_out=held_out), count)]


def accuracy(
    model: Any, tokenizer: Any, rows: Sequence[Mapping[str, Any]], *, n: int = 2, seed: int = 0, **drawing: Any
) -> float:
    """The share of right answers, by the maths verifier."""
    from grpo_plus.evaluation.run import evaluate
    from grpo_plus.evaluation.sample import SampleSettings
    from grpo_verifiers import get_verifier

    chosen = SampleSettings(**{"max_completion_length": MOST, **drawing})
    found = evaluate(model, tokenizer, rows, get_verifier("math"), n=n, drawing=chosen, seed=seed)
    right = found.results["math"].accuracy
    return 0.0 if right is None else right.value


def measuring(folder: str | Path, rows: Sequence[Mapping[str, Any]], seed: int) -> Callable[[Any], float]:
    """From a model to its `accuracy` on these rows, with the same seeds every time."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return lambda model: accuracy(model, tokenizer, rows, seed=seed)


def mixture(seed: int, *, worked: int = 36, guessed: int = 44) -> Iterator[list[tuple[Any, str]]]:
    """Batches of conversations with solutions as in the warm start: so many worked out, so many guessed."""
    source, rng = chains(seed), random.Random(seed)
    while True:
        long = [(row(chain)["prompt"], chain.worked_out) for chain in islice(source, worked)]
        yield [*long, *((row(chain)["prompt"], chain.guessed(rng)) for chain in islice(source, guessed))]


@dataclass(frozen=True)
class Supervised:
    """How much supervised training there was."""

    steps: int
    samples: int
    seconds: float


def supervise(
    model: Any,
    tokenizer: Any,
    batches: Iterator[list[tuple[Any, str]]],
    *,
    rate: float,
    steps: int | None = None,
    seconds: float | None = None,
) -> Supervised:
    """Train on prompts with solutions for so many steps or seconds: AdamW, one cycle of the rate, mean over tokens."""
    import torch

    whole = steps if steps is not None else 10_000
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=whole + 1, pct_start=0.1)
    model.train()
    done = samples = 0
    start = time.perf_counter()
    while True:
        spent = time.perf_counter() - start
        if done == steps or (seconds is not None and spent >= seconds):
            break
        pairs = next(batches)
        loss = model(**_batch(tokenizer, pairs)).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done, samples = done + 1, samples + len(pairs)
        if seconds is not None:  # the place in the cycle is the share of the time
            schedule.last_epoch = int(min(1.0, (time.perf_counter() - start) / seconds) * whole) - 1
        schedule.step()
    model.eval()
    return Supervised(done, samples, time.perf_counter() - start)


def _batch(tokenizer: Any, pairs: Sequence[tuple[Any, str]]) -> dict[str, Any]:
    """A model's inputs, padded on the right; only the solutions have labels. A prompt is a text or a conversation."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    rows, labels = [], []
    for prompt, solution in pairs:
        asked = prompt
        if not isinstance(prompt, str):
            asked = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
        before, learned = tokenizer(asked)["input_ids"], [*tokenizer(solution)["input_ids"], tokenizer.eos_token_id]
        rows.append(torch.tensor([*before, *learned]))
        labels.append(torch.tensor([*[-100] * len(before), *learned]))
    return {
        "input_ids": pad_sequence(rows, batch_first=True, padding_value=tokenizer.pad_token_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in rows], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }


class PeakMemory:
    """The resident memory of this process, in MiB: at the start of the context, and the most since.

    Linux counts the peak anew where it lets us; elsewhere ``peak`` is that of the whole life of the process.
    """

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.start = self._status("VmRSS")
        self.peak = self.start
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = self._status("VmHWM")

    @staticmethod
    def _status(name: str) -> float:
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith(f"{name}:"):
                    return int(line.split()[1]) / 1024
        unit = 1024**2 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def right_solutions(seed: int, count: int = 80) -> Iterator[list[tuple[Any, str]]]:
    """Batches of conversations with solutions that are all worked out."""
    return mixture(seed, worked=count, guessed=0)
