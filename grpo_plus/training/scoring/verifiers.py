"""The verifiers of a config inside the trainer: built once, started all together, collected as TRL asks."""

import contextlib
import difflib
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.recipe.entries import VerifierPart
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.rewards import idle_problems, weight_problems
from grpo_plus.sampling.token_spans import decoder, token_ends
from grpo_plus.training.hooks import Completions, Setup, TrainerStage
from grpo_plus.training.scoring.live_verifier import ROW_KEYS, LiveVerifier, RewardColumn
from grpo_plus.training.scoring.step_source import StepsSeen, steps_seen
from grpo_plus.training.scoring.turn_spans import step_tokens
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import metric_logger
from grpo_verifiers.base.golds import report_at
from grpo_verifiers.errors import ColumnError, Problem
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.verdict import LARGEST, Status, Verdict

if TYPE_CHECKING:
    import torch

logger = get_logger("grpo_plus.verifiers")

TURNS = "turns"
"""The column that verifiers know turns by."""
NEAR = 0.75
"""Likeness of two names, from 0 to 1, from which one may be a slip for the other."""
_FAILED = (Status.TIMEOUT, Status.ERROR)


class Verifiers(TrainerStage):
    """All verifiers of one run."""

    name = "verification"
    rank_local = True

    def __init__(
        self,
        live: Iterable[LiveVerifier] = (),
        column: str | None = None,
        *,
        evaluation: Iterable[LiveVerifier] = (),
        recipe: Recipe | None = None,
    ) -> None:
        """Hold the verifiers, in the order of the config; those for evaluation reward nothing.

        ``column`` is the dataset column that names the verifier of each row. Verifiers may be without a recipe.
        """
        self.live = tuple(live)
        self.evaluation = tuple(evaluation)
        self.column = column
        self._rows_may_grow = False
        self._recipe = recipe or Recipe()
        self._rows_checked: set[bool] = set()
        self.golds: dict[str, dict[str, Any]] = {}  # by label: what the check of the training data's golds found

    @classmethod
    def of(cls, recipe: Recipe) -> "Verifiers":
        """The verifiers of a recipe."""
        column, aggregates = recipe.verifier_column, recipe.step_aggregates
        sources = recipe.step_sources or ()

        def lively(part: VerifierPart) -> LiveVerifier:
            chosen = aggregates[0] if aggregates and (not any(sources) or part.label in sources) else None
            return LiveVerifier(part.verifier, weight=part.weight, only=column, aggregate=chosen)

        evaluation = (LiveVerifier(part.verifier, weight=part.weight) for part in recipe.eval_verifiers)
        return cls(map(lively, recipe.verifiers), column, evaluation=evaluation, recipe=recipe)

    # -- the stage --------------------------------------------------------------------------------------------------

    def problems(self, setup: Setup) -> list[Problem]:
        """Columns that are missing, and weights that do not fit or teach nothing."""
        self._rows_may_grow = setup.rows_may_grow
        names = self.function_names(setup.reward_funcs)
        return [
            *self._dataset_problems(setup),
            *weight_problems(self._recipe, names),
            *([] if setup.train_dataset is None else idle_problems(self._recipe, names)),
        ]

    def before_loading(self, setup: Setup) -> None:
        """Check the golds, start the workers, and join the reward functions."""
        self.report_golds(setup.train_dataset)
        self._warn_of_columns(setup)
        for live in self.at_work(training=False):
            live.verifier.warm()  # now, so that the first step does not wait for the workers
        if self.live:
            setup.add_rewards(self.live)

    def after_loading(self, host: Host) -> None:
        """Put the verifiers' own weights among TRL's."""
        super().after_loading(host)
        host.reward_weights = self.weigh(host.reward_weights, host.reward_funcs)

    @contextlib.contextmanager
    def scoring(self, completions: Completions) -> Iterator[None]:
        """Start all verifiers before TRL asks for their verdicts; leave none pending."""
        try:
            self.start(completions, self.host.processing_class, training=self.host.model.training)
            yield
            self.log_evaluation(metric_logger(self.host))
        finally:
            self.settle()

    def state_dict(self) -> dict[str, Any]:
        """The failures in a row of each verifier."""
        states = {live.verifier.label: live.state_dict() for live in self.at_work(training=False)}
        failing = {label: state for label, state in states.items() if state}
        return {"failing": failing} if failing else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Count on from there; a verifier that is new starts afresh."""
        for live in self.at_work(training=False):
            if own := state.get("failing", {}).get(live.verifier.label):
                live.load_state_dict(own)

    # -- its parts --------------------------------------------------------------------------------------------------

    @staticmethod
    def function_names(reward_funcs: Any) -> list[str]:
        """Of the reward functions and models that stand before the verifiers, as TRL names them."""
        own = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        return [_reward_name(func) for func in own if func is not None]

    def weigh(self, weights_K: "torch.Tensor", reward_funcs: Sequence[Any]) -> "torch.Tensor":
        """TRL's reward weights with those of verifiers and of a reward model put in; sets the verifiers' largest score.

        Where no reward is larger than float32's largest number over the sum of all weights, their sum is not either.
        """
        weights_K = weights_K.clone()
        live = {position: func for position, func in enumerate(reward_funcs) if isinstance(func, LiveVerifier)}
        for position, func in enumerate(reward_funcs):
            if isinstance(func, LiveVerifier | RewardColumn) and func.weight is not None:
                weights_K[position] = func.weight
        together = float(weights_K.double().abs().sum())
        for position, func in live.items():
            if together > 1 and weights_K[position]:
                func.largest = LARGEST / together * (1 - 1e-6)  # the rounding of the sum
        return weights_K

    def needed(self, *, training: bool = True) -> dict[str, list[str]]:
        """Dataset columns that must be there, each with the labels that need it.

        An evaluation set, not ``training``, also needs those of the verifiers that evaluate only.
        """
        needed: dict[str, list[str]] = {}
        for live in self.at_work(training=training):
            named = live.verifier.named_columns if training else {}
            for column in dict.fromkeys([*live.verifier.required_columns.values(), *named.values()]):
                needed.setdefault(column, []).append(live.verifier.label)
        if self.column is not None:
            needed.setdefault(self.column, []).append("verifier_column")
        return needed

    def at_work(self, *, training: bool) -> tuple[LiveVerifier, ...]:
        """The verifiers that look at a batch of training, or of evaluation."""
        return self.live if training else (*self.live, *self.evaluation)

    def _dataset_problems(self, setup: Setup) -> list[str]:
        """Columns that verifiers need and a dataset lacks, and rows that are routed to nobody."""
        if not (self.live or self.evaluation):
            return []
        problems: list[str] = []
        routed: dict[str, Sequence[Any]] = {}
        for name, data, columns in setup.datasets():
            if not self._rows_may_grow:
                problems += self._missing(name, columns, training=name.startswith("train_dataset"))
            if self.column is not None and self.column in columns and hasattr(data, "unique"):
                problems += [f"{name}: {problem}" for problem in self._strangers(data.unique(self.column))]
                routed[name] = data[self.column]
        if self.column is not None and "train_dataset" in routed and not problems:
            problems += unnamed_problems(self.column, self.labels, routed)
        return problems

    def _warn_of_columns(self, setup: Setup) -> None:
        """Log columns of the training data that look like a slip for one that a verifier would read."""
        columns = next((found for name, _, found in setup.datasets() if name == "train_dataset"), None)
        if columns is None or os.environ.get("RANK", "0") != "0":
            return
        verifiers = [live.verifier for live in self.at_work(training=False)]
        read = {self.column, *ROW_KEYS, *(name for each in verifiers for name in each.gold_columns.values())}
        absent: dict[str, list[str]] = {}
        for each in verifiers:
            wanted = {*each.required_columns.values(), *each.optional_columns.values(), *each.gold_columns.values()}
            read |= {*wanted, *each.named_columns.values()}
            for column in sorted(wanted - {*columns}):
                absent.setdefault(column, []).append(each.label)
        for sentence in nearly_read(columns, absent, {str(name) for name in read}):
            logger.warning("%s", sentence)

    def _strangers(self, values: Iterable[Any]) -> list[str]:
        """Values of the routing column that name no verifier."""
        return [
            f"the column {self.column!r} routes rows to {value!r}. {unknown('verifier label', value, self.labels)} "
            "Add a verifier with that label, or correct the rows."
            for value in dict.fromkeys(values)
            if value not in self.labels
        ]

    def check_row(self, row: Mapping[str, Any], *, training: bool = True) -> None:
        """The last check before the first generation, for datasets that do not say which columns they have."""
        if training in self._rows_checked or self._rows_may_grow:
            return
        self._rows_checked.add(training)
        missing = self._missing("the dataset's rows", list(row), training=training)
        if missing:
            raise ColumnError(" ".join(missing))

    def _missing(self, where: str, columns: Sequence[str], *, training: bool) -> list[str]:
        return [
            f"{where} has no column {column!r}, which {', '.join(labels)} needs. {unknown('column', column, columns)} "
            "If the value stands in another column, say so in the verifier's entry: columns: {parameter: column}."
            for column, labels in self.needed(training=training).items()
            if column not in columns
        ]

    def report_golds(self, train: Any) -> None:
        """Check the golds of the training data where a verifier knows how; print and keep what is no use.

        Golds are gold answers, or tests, which are tried on a sample of rows. Streams are not checked: they have no
        end. The main process checks, the others would say the same.
        """
        if not hasattr(train, "select_columns") or not hasattr(train, "__len__") or os.environ.get("RANK", "0") != "0":
            return
        for live in self.live:
            verifier, places = live.verifier, self._places(live, train)
            sample = evenly(places, verifier.gold_sample)
            chosen = train if len(sample) == len(train) else train.select(sample)
            names = dict.fromkeys(name for name in verifier.gold_columns.values() if name in train.column_names)
            report = verifier.check_golds({name: chosen[name] for name in names})
            if report is None:
                continue
            lines = [*report_at(report, sample).lines()]
            if len(sample) < len(places):
                lines.insert(0, f"{len(sample)} of {len(places)} rows were looked at.")
            self.golds[verifier.label] = {"ok": report.ok, "lines": lines}
            if not report.ok:
                print(f"verifier {verifier.label!r}:", *lines, sep="\n  ", flush=True)

    def _places(self, live: LiveVerifier, data: Any) -> Sequence[int]:
        """The rows of a dataset that a verifier checks: all, or those that are routed to it."""
        if self.column is None or self.column not in data.column_names:
            return range(len(data))
        return [row for row, value in enumerate(data[self.column]) if value == live.verifier.label]

    def start(self, completions: Completions, tokenizer: Any, *, training: bool = True) -> None:
        """Submit all rows of all verifiers, so that their work overlaps with each other and with TRL's."""
        if not self.at_work(training=training):
            return
        rows, turns = completions.rows, completions.turns
        columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ROW_KEYS}
        if turns is not None:
            if TURNS in columns:
                raise ColumnError(
                    f"the dataset has a column {TURNS!r}, which is what verifiers know the model's turns by where "
                    "there are tools or an environment: rename the column."
                )
            columns[TURNS] = list(turns)
        if self.column in columns and (strangers := self._strangers(columns[self.column])):
            raise ColumnError(" ".join(strangers))
        for live in self.at_work(training=training):
            live.start(completions.prompts, completions.texts, completions.ids, columns, decoder(tokenizer))

    def verdicts(self, rows: int, *, training: bool) -> list[tuple[Verdict, ...]]:
        """The verdicts on each row of the batch that was just scored, in the order of `at_work`."""
        return [tuple(live.verdicts[row] for live in self.at_work(training=training)) for row in range(rows)]

    def log_evaluation(self, log_metric: Callable[[str, float], None]) -> None:
        """Collect the verifiers that evaluate only, where they were started, and log them beside the rewards.

        Row by row, so that what is averaged over ranks are rows, however many of them each rank could score.
        """
        totals: dict[int, float] = {}
        for live in self.evaluation:
            weight = 1.0 if live.weight is None else live.weight
            for row, score in enumerate(live.collect(log_metric)):
                if score is not None:
                    log_metric(f"rewards/{live.verifier.label}/mean", score)
                    totals[row] = totals.get(row, 0.0) + weight * score
        for total in totals.values():
            log_metric("score", total)

    def settle(self) -> None:
        """Leave nothing pending, whatever happened."""
        for live in self.at_work(training=False):
            live.settle()

    @property
    def labels(self) -> list[str]:
        """Of the verifiers, in the order of the config."""
        return [live.verifier.label for live in self.live]

    @property
    def step_givers(self) -> dict[str, bool | None]:
        """Label of every verifier to whether its verdicts have steps; None where only running it can tell."""
        return {live.verifier.label: live.verifier.gives_steps for live in self.live}

    def steps_seen(self, completion_ids: Sequence[Sequence[int]], tokenizer: Any) -> dict[str, StepsSeen]:
        """Evidence, by label, that a verifier gives steps, from its verdicts on this rank's batch."""
        decode = decoder(tokenizer)

        def length(ids: Sequence[int]) -> int:
            return len(decode(ids))

        return {live.verifier.label: steps_seen(live.verdicts, completion_ids, length) for live in self.live}

    def steps(
        self, labels: Sequence[str], completions: Completions, tokenizer: Any
    ) -> list[list[tuple[int, int, float]]]:
        """Step scores on token spans, from the one verifier of those labels; no label while none has given any.

        A step that is a turn has exactly the turn's tokens.

        A completion that the verifier was too late on, or broke on, is one step with the verdict's score: otherwise
        stopping the verifier would be a way out of bad steps.
        """
        if not labels:
            return [[] for _ in completions.ids]
        giving = self.live[self.labels.index(labels[0])]
        decode = decoder(tokenizer)
        turns = completions.turns or [()] * len(completions)
        turn_tokens = completions.turn_tokens or [()] * len(completions)
        spans = []
        for verdict, ids, done, tokens in zip(giving.verdicts, completions.ids, turns, turn_tokens, strict=True):
            if verdict.score is not None and not verdict.steps and verdict.status in _FAILED:
                spans.append([(0, len(ids), verdict.score)])
                continue
            ends = token_ends(ids, decode) if verdict.steps else []
            places = step_tokens([(step.start, step.end) for step in verdict.steps], ends, done, tokens)
            scores = [float("nan") if step.score is None else step.score for step in verdict.steps]
            spans.append([(*place, score) for place, score in zip(places, scores, strict=True)])
        return spans


def _reward_name(func: Any) -> str:
    """As TRL names it in its logs: a function by its name, a model by the end of its path."""
    path = func if isinstance(func, str) else getattr(getattr(func, "config", None), "_name_or_path", None)
    return str(path).split("/")[-1] if path is not None else getattr(func, "__name__", type(func).__name__)


def evenly(places: Sequence[int], count: int | None) -> Sequence[int]:
    """At most ``count`` of these places, at even distances and with the first; None: all."""
    if count is None or len(places) <= count:
        return places
    return [places[number * len(places) // count] for number in range(count)]


def unnamed_problems(column: str, labels: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[str]:
    """Verifiers that no row of any dataset names; ``values`` has the routing column of each dataset that tells it."""
    named = {value for rows in values.values() for value in rows}
    idle = [label for label in labels if label not in named]
    if not idle or not any(values.values()):
        return []
    counted = "; ".join(
        f"{where} has {len(rows):,} rows: {', '.join(f'{value!r} {count:,}' for value, count in Counter(rows).items())}"
        for where, rows in values.items()
    )
    text = f"verifier_column is {column!r}, and no row names {', '.join(map(repr, idle))}"
    return [f"{text} ({counted}): remove it from verifiers, or correct the rows."]


def nearly_read(columns: Sequence[str], absent: Mapping[str, Sequence[str]], read: Collection[str]) -> list[str]:
    """A sentence for each column that nobody reads and that is nearly one of the ``absent`` ones (column to labels)."""
    found = []
    for column in columns:
        near = difflib.get_close_matches(column, absent, n=1, cutoff=NEAR) if column not in read else []
        found += [
            f"nothing reads the column {column!r}, but {', '.join(absent[name])} would read {name!r}, which is not "
            "there: rename the column if that is meant."
            for name in near
        ]
    return found
