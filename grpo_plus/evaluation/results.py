"""What an evaluation found: samples with their verdicts, and the estimates made of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_plus.evaluation.answers import RIGHT, SILENT, vote_classes
from grpo_plus.evaluation.estimators import maj_at_k, pass_at_k
from grpo_plus.evaluation.intervals import Estimate, mean, share
from grpo_verifiers.errors import raise_all

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

PASSES = 1.0
"""The score from which a sample counts as right."""


@dataclass(frozen=True)
class Sample:
    """One completion of one row of a dataset.

    ``sample`` is its number among the completions of row number ``row``. ``prompt`` is the row's; ``completion`` has no
    special tokens. ``tokens`` counts the drawn ones; ``cut_off`` says that they ran out. ``verdicts`` have
    score, status and detail, by the verifiers' labels.

    Where there are tools, ``completion`` is the last answer, and a completion that ended with a call counts as cut off.
    ``turns`` are as in a run's record, None without tools. ``calls`` counts those that were run, ``failed_calls`` those
    of them that came to an error. ``observation`` is what the environment put behind the prompt.
    """

    row: int
    sample: int
    prompt: Any
    completion: str
    tokens: int
    cut_off: bool
    verdicts: Mapping[str, Mapping[str, Any]]
    turns: Sequence[Mapping[str, Any]] | None = None
    calls: int = 0
    failed_calls: int = 0
    observation: str | None = None

    def as_json(self) -> dict[str, Any]:
        """A mapping that `from_json` reads back."""
        values = asdict(self)
        if self.turns is None:
            for name in ("turns", "calls", "failed_calls", "observation"):
                del values[name]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Sample":
        """The sample that `as_json` turned into a mapping; `ValueError` if the mapping is no sample."""
        try:
            made = cls(**values)
            if isinstance(made.row, int) and isinstance(made.sample, int) and isinstance(made.completion, str):
                for verdict in made.verdicts.values():
                    _ = verdict["score"], verdict["status"], verdict["detail"]
                return made
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no sample of an evaluation: {error}.") from error
        raise ValueError("no sample of an evaluation: row, sample or completion have another type.")


@dataclass(frozen=True)
class OwnReward:
    """The reward that an environment gives, as a judge beside the verifiers; it reads no answers that could vote."""

    label: str


def judges_of(verifiers: Sequence["Verifier"], rewards: Sequence[OwnReward]) -> list["Verifier | OwnReward"]:
    """The verifiers and the environments' own rewards; a `ConfigError` if two have one label, or there are none."""
    taken = {verifier.label for verifier in verifiers}
    problems = [
        f"a verifier and an environment are both called {each.label!r}: give one of them another label."
        for each in rewards
        if each.label in taken
    ]
    if not (verifiers or rewards):
        problems.append("there is nothing to judge with: no verifier, and no environment that gives a reward.")
    raise_all(problems)
    return [*verifiers, *rewards]


@dataclass(frozen=True)
class Results:
    """The estimates from one verifier's verdicts.

    ``score`` is the mean, None if the verifier applied to no sample. ``passes`` is pass@k by k: the probability that
    one of k samples is right. ``majorities`` is majority@k by k, empty for a verifier that cannot compare answers.
    ``statuses`` counts verdicts. ``by_row`` is the share of right samples, of the rows that the verifier applied to.
    """

    label: str
    score: Estimate | None
    passes: Mapping[int, Estimate]
    majorities: Mapping[int, Estimate]
    statuses: Mapping[str, int]
    by_row: Mapping[int, float]

    @property
    def accuracy(self) -> Estimate | None:
        """pass@1, the share of right samples; None if the verifier applied to no sample."""
        return self.passes.get(1)

    def as_json(self) -> dict[str, Any]:
        """For a results file."""

        def of(estimates: Mapping[int, Estimate]) -> dict[str, Any]:
            return {str(k): asdict(estimate) for k, estimate in estimates.items()}

        return {
            "score": None if self.score is None else asdict(self.score),
            "pass_at": of(self.passes),
            "maj_at": of(self.majorities),
            "statuses": dict(self.statuses),
        }


@dataclass(frozen=True)
class Evaluation:
    """All samples in the order of rows, the results by the verifiers' labels, and remarks on the numbers."""

    samples: Sequence[Sample]
    results: Mapping[str, Results]
    notes: Sequence[str] = field(default=())

    @classmethod
    def of(
        cls,
        samples: Sequence[Sample],
        verifiers: Sequence["Verifier | OwnReward"],
        ks: Sequence[int],
        notes: Sequence[str] = (),
    ) -> "Evaluation":
        """Estimate everything from samples in any order, which hold the verdicts of ``verifiers``.

        ``ks`` are the k of pass@k and majority@k; 1 is added.
        """
        ordered = sorted(samples, key=lambda sample: (sample.row, sample.sample))
        results = {verifier.label: _results(verifier, ordered, sorted({1, *ks})) for verifier in verifiers}
        return cls(ordered, results, tuple(notes))

    @property
    def cut_off(self) -> float:
        """Share of samples that ran out of tokens."""
        return sum(sample.cut_off for sample in self.samples) / max(1, len(self.samples))

    @property
    def tokens(self) -> float:
        """Mean length of a completion."""
        return sum(sample.tokens for sample in self.samples) / max(1, len(self.samples))

    @property
    def calls(self) -> int | None:
        """Calls of tools in all samples; None where there were no tools."""
        found = [sample.calls for sample in self.samples if sample.turns is not None]
        return sum(found) if found else None

    @property
    def failed_calls(self) -> int:
        """Calls that came to an error, in all samples."""
        return sum(sample.failed_calls for sample in self.samples)


def gain(before: Results, after: Results) -> Estimate | None:
    """The rise of the share of right samples, paired over the rows of both; None if they share no row."""
    shared = before.by_row.keys() & after.by_row.keys()
    return mean([after.by_row[row] - before.by_row[row] for row in shared]) if shared else None


def _results(verifier: "Verifier | OwnReward", samples: Sequence[Sample], ks: Sequence[int]) -> Results:
    rows: dict[int, list[Sample]] = {}
    statuses: Counter[str] = Counter()
    for sample in samples:
        verdict = sample.verdicts[verifier.label]
        statuses[verdict["status"]] += 1
        if verdict["score"] is not None:  # a sample that cannot be judged does not count against the model
            rows.setdefault(sample.row, []).append(sample)
    if not rows:
        return Results(verifier.label, None, {}, {}, statuses, {})
    scores = {row: [float(s.verdicts[verifier.label]["score"]) for s in held] for row, held in rows.items()}
    right = {row: sum(score >= PASSES for score in values) for row, values in scores.items()}
    counts = {row: len(values) for row, values in scores.items()}
    average = sum(counts.values()) / len(counts)
    passes, majorities = {}, {}
    votes = _votes(verifier, rows)
    for k in ks:
        able = [row for row in rows if counts[row] >= k]
        if able:
            passes[k] = share([pass_at_k(counts[row], right[row], k) for row in able], average)
            if votes is not None and k > 1:
                majorities[k] = share([_maj(votes[row], k) for row in able], average)
    means = [sum(values) / len(values) for values in scores.values()]
    by_row = {row: right[row] / counts[row] for row in rows}
    return Results(verifier.label, mean(means), passes, majorities, statuses, by_row)


def _votes(verifier: "Verifier | OwnReward", rows: Mapping[int, Sequence[Sample]]) -> dict[int, list[int]] | None:
    if isinstance(verifier, OwnReward) or (reader := verifier.reader) is None:
        return None
    return {
        row: vote_classes(verifier, reader, [s.completion for s in held], [s.verdicts[verifier.label] for s in held])
        for row, held in rows.items()
    }


def _maj(classes: Sequence[int], k: int) -> float:
    counted = Counter(classes)
    right, silent = counted.pop(RIGHT, 0), counted.pop(SILENT, 0)
    return maj_at_k([right], list(counted.values()), k, silent)
