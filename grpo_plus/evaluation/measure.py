"""``measure`` in a config: the accuracy on held-out rows before and after training, by the run's verifiers.

    measure: {split: test, n: 4}

Both times use the same seeds, so only training makes a difference. Every process measures its share of the rows. The
samples are stored in ``output_dir/measure``.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, TypedDict

from transformers import TrainerCallback

from grpo_plus.evaluation.results import (
    WIDTH,
    EvalSample,
    Evaluation,
    OwnReward,
    VerifierResults,
    gain,
    label_problems,
    percent,
    results_table,
)
from grpo_plus.evaluation.run import BATCH, judged_samples, notes_on, pairs_of
from grpo_plus.evaluation.sample import PositiveInt, Sampler, SampleSettings
from grpo_plus.evaluation.store import SampleStore, StoreError
from grpo_plus.evaluation.turns import TurnSampler
from grpo_plus.recipe.values import checked_mapping
from grpo_plus.sampling.in_step import in_step
from grpo_plus.training.observers import RunHost
from grpo_plus.trl.ranks import drawn_from, gather_objects, is_fsdp2, zero_stage
from grpo_plus.trl.tools import rewarding_environments
from grpo_verifiers.errors import raise_all
from grpo_verifiers.errors.messages import counted
from grpo_verifiers.options import Matches, Range
from grpo_verifiers.redaction import get_logger, redact_text
from grpo_verifiers.stats import MeanEstimate

logger = get_logger("grpo_plus.measure")

FOLDER = "measure"
TOOL_FIELDS = ("tools", "environment", "max_tool_calling_iterations")
"""Fields of the config that affect completions with tools."""


class MeasureSettings(TypedDict, total=False):
    """The keys of ``measure`` and their values."""

    split: Annotated[str, Matches(r"(?s).+", "the name of a split")]
    n: PositiveInt
    k: PositiveInt
    limit: PositiveInt
    seed: Annotated[int, Range(0, text="a whole number of at least 0")]
    batch: PositiveInt
    max_completion_length: PositiveInt
    temperature: Annotated[float, Range(0, finite=True, text="0 (greedy) or more")]


KEYS = tuple(MeasureSettings.__annotations__)


def measure_problems(mapping: Any) -> list[str]:
    """Return the problems of the mapping."""
    values, problems = checked_mapping("measure", mapping, MeasureSettings, "{split: test, n: 4}")
    n, k = values.get("n", 1), values.get("k", 1)
    if not problems and k > n:
        problems.append(f"measure has k: {k}, which must not be above n ({n}): pass@k needs k samples of a row.")
    return problems


class Measure:
    """The two measurements of a run; ``evaluations`` has them by name, ``before`` and ``after``."""

    def __init__(self, settings: Mapping[str, Any], trainer: RunHost, rows: Any) -> None:
        """Check that the run can be measured.

        ``settings`` is the valid mapping of the config, ``trainer`` complete. ``rows`` are not trained on and have
        prompts.
        """
        self._settings = dict(settings)
        self._trainer = trainer
        self._n = int(settings.get("n", 1))
        self._verifiers = [live.verifier for live in trainer.pipeline.verifiers.live]
        rewards = [OwnReward(name) for name in rewarding_environments(trainer)]
        self._judges: list[Any] = [*self._verifiers, *rewards]
        problems = [
            f"measure has one result for each name, and {text}" for text in label_problems(self._verifiers, rewards)
        ]
        if not self._judges:
            problems.append("measure needs verifiers to judge with, and the config has none: set verifiers.")
        if trainer.tools:
            problems += trainer.pipeline.tools.data_problems(f"measure, split {settings.get('split', 'test')}", rows)
        if trainer.is_fsdp_enabled and not is_fsdp2(trainer):
            problems.append(
                "measure cannot sample from a model that FSDP1 shards: use FSDP2, or remove measure and use "
                "grpo-plus eval on the trained model."
            )
        if zero_stage(trainer) == 3 and not trainer.args.ds3_gather_for_generation:
            problems.append(
                "measure samples from the full model in every process, which ds3_gather_for_generation: false forbids "
                "under DeepSpeed ZeRO-3: set it to true, or remove measure and use grpo-plus eval on the trained model."
            )
        if not hasattr(rows, "__len__") or len(rows) == 0:
            problems.append("measure needs rows that can be counted, and at least one: its split is a stream or empty.")
        raise_all(problems)
        limit = settings.get("limit")
        self._rows = rows if limit is None else rows.select(range(min(int(limit), len(rows))))
        self._in_pieces = is_fsdp2(trainer)
        self._late = self._in_pieces or trainer.is_deepspeed_enabled  # until training begins weights are on the CPU
        self.evaluations: dict[str, Evaluation] = {}

    def before(self, report: Callable[[str], None], *, resumes: bool) -> None:
        """Measure before training and ``report`` the result: now, or once the weights are on the devices of all ranks.

        If the run ``resumes`` from a checkpoint, an earlier measurement is still valid.
        """
        if not self._late:
            report(self.take("before", resumes=resumes))
            return
        self._trainer.add_callback(_AtStart(lambda: report(self.take("before", resumes=resumes))))

    def take(self, when: str, *, resumes: bool = False) -> str:
        """Measure now, and return a line with the result; ``resumes`` is as in `before`."""
        trainer, args = self._trainer, self._trainer.args
        drawing = SampleSettings(
            max_completion_length=self._settings.get("max_completion_length", args.max_completion_length),
            temperature=self._settings.get("temperature", args.temperature),
            top_p=args.top_p,
            top_k=args.top_k or 0,
            min_p=args.min_p,
            repetition_penalty=args.repetition_penalty,
        )
        rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
        device = trainer.accelerator.device
        store: SampleStore | None = None
        if rank == 0:
            with _ignore_write_errors():
                store = self._store(when, drawing, resumes=resumes)
        own = [(sample.row, sample.sample) for sample in store.done] if store else []
        done = {tuple(pair) for pair in gather_objects(own)}  # only the first process has a store
        pairs = pairs_of(range(rank, len(self._rows), world), self._n, done)
        if resumes and self._late and len(done) < len(self._rows) * self._n:
            return "Accuracy before training is unknown: the run ended before it was measured."
        judged: list[EvalSample] = []
        with (
            trainer.pipeline.quantised.sampling(),
            drawn_from(trainer) as model,
            in_step(model, device) if self._in_pieces else nullcontext(),
        ):
            sampler = Sampler(
                model,
                trainer.processing_class,
                drawing,
                template_keywords=args.chat_template_kwargs,
                device=device if self._in_pieces else None,
                alone=not self._in_pieces,
            )
            turns = TurnSampler(sampler, trainer, trainer.pipeline.tools) if trainer.tools else None
            with turns.borrowed() if turns else nullcontext():
                for samples in judged_samples(
                    sampler,
                    self._rows,
                    self._verifiers,
                    pairs=pairs,
                    seed=int(self._settings.get("seed", 0)),
                    batch=int(self._settings.get("batch", BATCH)),
                    verifier_column=trainer.pipeline.verifiers.column,
                    turns=turns,
                ):
                    judged += samples
        if when == "after":  # training has closed its sessions
            trainer.pipeline.tools.close()
        gathered = [EvalSample.from_json(values) for values in gather_objects([s.as_json() for s in judged])]
        with _ignore_write_errors():
            if store:
                store.add(gathered)
        k = int(self._settings.get("k", self._n))
        earlier = store.done if store else []
        evaluation = Evaluation.of([*earlier, *gathered], self._judges, (1, k), notes_on(sampler))
        with _ignore_write_errors():
            if store:
                store.finish(evaluation, self._gains(evaluation) if when == "after" else {})
        self.evaluations[when] = evaluation
        return f"Accuracy {when} training: {self._headline(evaluation)}."

    def summary(self) -> list[str]:
        """Return lines with both measurements side by side, and the gain."""
        from rich.console import Console

        if not self.evaluations:
            return []
        console = Console() if sys.stdout.isatty() else Console(width=WIDTH, force_terminal=False)
        with console.capture() as capture:
            console.print(results_table(self.evaluations))
        rows, each = counted(len(self._rows), "held-out row"), counted(self._n, "sample")
        text = f"{rows} of {self._settings.get('split', 'test')}, {each} each; in brackets, 95% confidence intervals:"
        lines = [text, *[*self.evaluations.values()][-1].notes, *capture.get().rstrip().splitlines()]
        if (after := self.evaluations.get("after")) is not None:
            rewarded = self._rewarded(after)
            lines += [
                f"{label}: {100 * risen.value:+.1f} points of accuracy "
                f"({100 * risen.low:+.1f} to {100 * risen.high:+.1f})"
                for label, risen in self._gains(after).items()
                if label in rewarded
            ]
        return lines

    def fact(self) -> str:
        """Return both measurements in a few words, for a model card."""
        return "; ".join(f"{when} training {self._headline(each)}" for when, each in self.evaluations.items())

    def _gains(self, after: Evaluation) -> dict[str, MeanEstimate]:
        before = self.evaluations.get("before")
        earlier = {} if before is None else before.results
        rises = {label: gain(earlier[label], now) for label, now in after.results.items() if label in earlier}
        return {label: each for label, each in rises.items() if each is not None}

    def _headline(self, evaluation: Evaluation) -> str:
        return ", ".join(
            f"{label} {percent(results.accuracy)}" for label, results in self._rewarded(evaluation).items()
        )

    def _rewarded(self, evaluation: Evaluation) -> dict[str, VerifierResults]:
        """The results of verifiers with a weight; those without are in the table only."""
        unpaid = {live.verifier.label for live in self._trainer.pipeline.verifiers.live if live.weight == 0}
        return {label: results for label, results in evaluation.results.items() if label not in unpaid}

    def _store(self, when: str, drawing: SampleSettings, *, resumes: bool) -> SampleStore:
        args, labels = self._trainer.args, [verifier.label for verifier in self._verifiers]
        settings = {"rows": len(self._rows), **self._settings, "drawing": asdict(drawing)}
        settings |= {name: value for name in TOOL_FIELDS if self._trainer.tools and (value := getattr(args, name))}
        path = Path(args.output_dir, FOLDER, f"{when}.jsonl")
        return SampleStore(path, settings | {"verifiers": labels}, overwrite=not (resumes and when == "before"))


class _AtStart(TrainerCallback):
    """Call a function once when training begins: the weights are on all ranks, and none has changed."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._calls = [call]

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        while self._calls:
            self._calls.pop()()


@contextmanager
def _ignore_write_errors() -> Iterator[None]:
    """Turn write errors of the store into a warning: the figures do not depend on its files."""
    try:
        yield
    except (StoreError, OSError) as error:
        if isinstance(error, StoreError) and not isinstance(error.__cause__, OSError):
            raise
        logger.warning("the samples of measure were not stored, the run continues: %s", redact_text(str(error)))
