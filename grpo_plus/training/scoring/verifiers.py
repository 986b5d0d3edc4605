"""The verifiers of a config in the trainer: all start together, and TRL's reward calls collect their verdicts."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.recipe.entries import VerifierPart
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.rewards import idle_problems, weight_problems
from grpo_plus.sampling.token_spans import decoder, token_ends
from grpo_plus.training.hooks import Completions, Setup, TrainerStage
from grpo_plus.training.scoring.live_verifier import ROW_KEYS, LiveVerifier, RewardColumn
from grpo_plus.training.scoring.turn_spans import step_tokens
from grpo_plus.trl.fields import data_problem
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import metric_logger
from grpo_verifiers.errors import ColumnError, Problem
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.verdict import LARGEST, Status, Verdict

if TYPE_CHECKING:
    import torch

TURNS = "turns"
"""The column with the turns, for verifiers."""
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
        """Take the verifiers in the order of the config; those of ``evaluation`` do not reward.

        ``column`` is the dataset column that names the verifier of each row.
        """
        self.live = tuple(live)
        self.evaluation = tuple(evaluation)
        self.column = column
        self._rows_may_grow = False
        self._recipe = recipe or Recipe()
        self._rows_checked: set[bool] = set()

    @classmethod
    def of(cls, recipe: Recipe) -> "Verifiers":
        """The verifiers of a recipe."""
        column, aggregates = recipe.verifier_column, recipe.step_aggregates
        sources = recipe.step_sources or ()

        def live_verifier(part: VerifierPart) -> LiveVerifier:
            chosen = aggregates[0] if aggregates and (not any(sources) or part.label in sources) else None
            return LiveVerifier(part.verifier, weight=part.weight, only=column, aggregate=chosen)

        evaluation = (LiveVerifier(part.verifier, weight=part.weight) for part in recipe.eval_verifiers)
        return cls(map(live_verifier, recipe.verifiers), column, evaluation=evaluation, recipe=recipe)

    # -- the stage --------------------------------------------------------------------------------------------------

    def problems(self, setup: Setup) -> list[Problem]:
        """Missing columns, and weights that do not fit or have no effect."""
        self._rows_may_grow = setup.rows_may_grow
        names = self.function_names(setup.reward_funcs)
        return [
            *self._dataset_problems(setup),
            *weight_problems(self._recipe, names),
            *([] if setup.train_dataset is None else idle_problems(self._recipe, names)),
        ]

    def before_loading(self, setup: Setup) -> None:
        """Start the workers, and join the reward functions."""
        for live in self.at_work(training=False):
            live.verifier.warm()  # the first step must not wait for the workers
        if self.live:
            setup.add_rewards(self.live)

    def after_loading(self, host: Host) -> None:
        """Set the verifiers' weights among TRL's reward weights."""
        super().after_loading(host)
        host.reward_weights = self.weigh(host.reward_weights, host.reward_funcs)

    @contextlib.contextmanager
    def scoring(self, completions: Completions) -> Iterator[None]:
        """Around TRL's reward calls: start all verifiers first, and leave none pending."""
        try:
            self.start(completions, self.host.processing_class, training=self.host.model.training)
            yield
            self.log_evaluation(metric_logger(self.host))
        finally:
            self.settle()

    def state_dict(self) -> dict[str, Any]:
        states = {live.verifier.label: live.state_dict() for live in self.at_work(training=False)}
        failing = {label: state for label, state in states.items() if state}
        return {"failing": failing} if failing else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts; a new verifier starts from zero."""
        for live in self.at_work(training=False):
            if own := state.get("failing", {}).get(live.verifier.label):
                live.load_state_dict(own)

    # -- its parts --------------------------------------------------------------------------------------------------

    @staticmethod
    def function_names(reward_funcs: Any) -> list[str]:
        """Names of the caller's reward functions and models, as in TRL's logs: a model by the end of its path."""
        own = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
        names = []
        for func in own:
            path = func if isinstance(func, str) else getattr(getattr(func, "config", None), "_name_or_path", None)
            if path is not None:
                names.append(str(path).split("/")[-1])
            elif func is not None:
                names.append(getattr(func, "__name__", type(func).__name__))
        return names

    def weigh(self, weights_K: "torch.Tensor", reward_funcs: Sequence[Any]) -> "torch.Tensor":
        """TRL's reward weights with those of verifiers and of a reward model; sets the verifiers' largest score.

        With scores of at most float32's maximum over the sum of all weights, the weighted sum cannot overflow.
        """
        weights_K = weights_K.clone()
        live = {position: func for position, func in enumerate(reward_funcs) if isinstance(func, LiveVerifier)}
        for position, func in enumerate(reward_funcs):
            if isinstance(func, LiveVerifier | RewardColumn) and func.weight is not None:
                weights_K[position] = func.weight
        weight_sum = float(weights_K.double().abs().sum())
        for position, func in live.items():
            if weight_sum > 1 and weights_K[position]:
                func.largest = LARGEST / weight_sum * (1 - 1e-6)  # the rounding of the sum
        return weights_K

    def needed(self, *, training: bool = True) -> dict[str, list[str]]:
        """Required dataset columns, each with the labels of its verifiers.

        An evaluation set (not ``training``) also needs the columns of the verifiers for evaluation.
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
        """The verifiers of a batch of training, or of evaluation."""
        return self.live if training else (*self.live, *self.evaluation)

    def _dataset_problems(self, setup: Setup) -> list[str]:
        """Missing columns, rows routed to an unknown verifier, and verifiers without rows."""
        if not (self.live or self.evaluation):
            return []
        problems: list[str] = []
        named: set[Any] = set()
        for name, data, columns in setup.datasets():
            problems += self._missing(name, columns, training=name.startswith("train_dataset"))
            if self.column is not None and self.column in columns and hasattr(data, "unique"):
                problems += [f"{name}: {problem}" for problem in self._routing_problems(data.unique(self.column))]
                named.update(data.unique(self.column))
        idle = [label for label in self.labels if named and label not in named]
        if idle and not problems:
            text = f"verifier_column is {self.column!r}, and no row names {', '.join(map(repr, idle))}"
            problems.append(f"{text}: remove it from verifiers, or correct the rows.")
        return problems

    def _routing_problems(self, values: Iterable[Any]) -> list[str]:
        """Values of the routing column that do not name a verifier."""
        return [
            f"the column {self.column!r} routes rows to {value!r}. {unknown('verifier label', value, self.labels)} "
            "Add a verifier with that label, or correct the rows."
            for value in dict.fromkeys(values)
            if value not in self.labels
        ]

    def check_row(self, row: Mapping[str, Any], *, training: bool = True) -> None:
        """Check the columns of a first row, for datasets without column names."""
        if training in self._rows_checked:
            return
        self._rows_checked.add(training)
        name, columns, owned = "the dataset", list(row), self._rows_may_grow or bool(self._recipe.environments)
        problems = [data_problem(name, [row], columns, owned=owned), *self._missing(name, columns, training=training)]
        if text := " ".join(filter(None, problems)):
            raise ColumnError(text)

    def _missing(self, data: str, columns: Sequence[str], *, training: bool) -> list[str]:
        return [
            f"{data} has no column {column!r}, which {', '.join(labels)} needs. {unknown('column', column, columns)} "
            "If another column has the value, map it in the verifier's entry: columns: {parameter: column}."
            for column, labels in self.needed(training=training).items()
            if column not in columns and not self._rows_may_grow
        ]

    def start(self, completions: Completions, tokenizer: Any, *, training: bool = True) -> None:
        """Submit all rows to all verifiers, which work in parallel with each other and with TRL."""
        if not self.at_work(training=training):
            return
        rows, turns = completions.rows, completions.turns
        columns = {key: [row[key] for row in rows] for key in rows[0] if key not in ROW_KEYS}
        if turns is not None:
            if TURNS in columns:
                raise ColumnError(
                    f"the dataset has a column {TURNS!r}, but with tools or an environment verifiers get the model's "
                    "turns by that name: rename the column."
                )
            columns[TURNS] = list(turns)
        if self.column in columns and (problems := self._routing_problems(columns[self.column])):
            raise ColumnError(" ".join(problems))
        for live in self.at_work(training=training):
            live.start(completions.prompts, completions.texts, completions.ids, columns, decoder(tokenizer))

    def verdicts(self, rows: int, *, training: bool) -> list[tuple[Verdict, ...]]:
        """The verdicts on each row of the latest batch, in the order of `at_work`."""
        return [tuple(live.verdicts[row] for live in self.at_work(training=training)) for row in range(rows)]

    def log_evaluation(self, log_metric: Callable[[str, float], None]) -> None:
        """Collect and log the verdicts of the verifiers for evaluation, if they were started.

        Each row is logged by itself: the mean is then over rows, although ranks may score different numbers of them.
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
        """Wait for uncollected verdicts, also after errors."""
        for live in self.at_work(training=False):
            live.settle()

    @property
    def labels(self) -> list[str]:
        """The labels of the verifiers, in the order of the config."""
        return [live.verifier.label for live in self.live]

    def steps(self, label: str, completions: Completions, tokenizer: Any) -> list[list[tuple[int, int, float]]]:
        """Scored steps of each completion as spans of tokens, by the verifier of the label.

        A step that equals a turn has exactly the turn's tokens. After a timeout or an error of the verifier, the whole
        completion is one step with the verdict's score: a model must not avoid bad steps by breaking the verifier.
        """
        giving = self.live[self.labels.index(label)]
        decode = decoder(tokenizer)
        turns = completions.turns or [()] * len(completions)
        turn_tokens = completions.turn_tokens or [()] * len(completions)
        spans = []
        for verdict, ids, own, tokens in zip(giving.verdicts, completions.ids, turns, turn_tokens, strict=True):
            if verdict.score is not None and not verdict.steps and verdict.status in _FAILED:
                spans.append([(0, len(ids), verdict.score)])
                continue
            ends = token_ends(ids, decode) if verdict.steps else []
            places = step_tokens([(step.start, step.end) for step in verdict.steps], ends, own, tokens)
            scores = [float("nan") if step.score is None else step.score for step in verdict.steps]
            spans.append([(*place, score) for place, score in zip(places, scores, strict=True)])
        return spans
