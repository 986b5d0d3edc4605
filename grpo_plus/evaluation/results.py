"""The results of an evaluation: samples with their verdicts, and the estimates from them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_verifiers.stats import MeanEstimate, mean, share
from grpo_verifiers.verdict import Status

if TYPE_CHECKING:
    from grpo_verifiers import Verifier


PASSES = 1.0
"""The least score of a right sample."""
SILENT = -1
"""The vote of samples without an answer."""
RIGHT = 0
"""The vote of right samples."""
_NO_ANSWER = (Status.UNPARSABLE, Status.TIMEOUT, Status.ERROR, Status.NOT_APPLICABLE)


@dataclass(frozen=True)
class EvalSample:
    """One completion of one row of a dataset.

    ``sample`` is its number among the completions of row number ``row``. ``prompt`` is the row's; ``completion`` has no
    special tokens. ``tokens`` counts the sampled tokens; ``cut_off`` is True if they reached the limit. ``verdicts``
    have score, status and detail, by the verifiers' labels.

    With tools, ``completion`` is the last answer, and a completion that ends with a call counts as cut off. ``turns``
    are as in a run's record, None without tools. ``calls`` counts executed calls, ``failed_calls`` those that raised.
    ``observation`` is the text that the environment appended to the prompt.
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
        """Return a mapping for `from_json`."""
        values = asdict(self)
        if self.turns is None:
            for name in ("turns", "calls", "failed_calls", "observation"):
                del values[name]
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "EvalSample":
        """Return the sample of an `as_json` mapping; raise `ValueError` for any other mapping."""
        try:
            parsed = cls(**values)
            if isinstance(parsed.row, int) and isinstance(parsed.sample, int) and isinstance(parsed.completion, str):
                for verdict in parsed.verdicts.values():
                    _ = verdict["score"], verdict["status"], verdict["detail"]
                return parsed
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no sample of an evaluation: {error}.") from error
        raise ValueError("no sample of an evaluation: row, sample or completion have another type.")


@dataclass(frozen=True)
class OwnReward:
    """The reward of an environment, as a judge like a verifier; it reads no answers that could vote."""

    label: str


def label_problems(verifiers: Sequence["Verifier"], rewards: Sequence[OwnReward]) -> list[str]:
    """Return a sentence for each label that a verifier shares with an environment's reward."""
    labels = {verifier.label for verifier in verifiers}
    return [
        f"{each.label!r} is both a verifier and an environment: give one of them another label."
        for each in rewards
        if each.label in labels
    ]


@dataclass(frozen=True)
class VerifierResults:
    """The estimates from one verifier's verdicts.

    ``score`` is the mean, None if the verifier applied to no sample. ``passes`` is pass@k by k: the probability that
    one of k samples is right. ``majorities`` is the share of rows whose vote of all samples elects the right answer, by
    the number of samples; empty for a verifier that cannot compare answers. ``statuses`` counts verdicts. ``by_row`` is
    the share of right samples of the rows with a score.
    """

    label: str
    score: MeanEstimate | None
    passes: Mapping[int, MeanEstimate]
    majorities: Mapping[int, MeanEstimate]
    statuses: Mapping[str, int]
    by_row: Mapping[int, float]

    @property
    def accuracy(self) -> MeanEstimate | None:
        """pass@1, the share of right samples; None if the verifier applied to no sample."""
        return self.passes.get(1)

    def as_json(self) -> dict[str, Any]:
        """Return the values for a results file."""

        def of(estimates: Mapping[int, MeanEstimate]) -> dict[str, Any]:
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

    samples: Sequence[EvalSample]
    results: Mapping[str, VerifierResults]
    notes: Sequence[str] = field(default=())

    @classmethod
    def of(
        cls,
        samples: Sequence[EvalSample],
        verifiers: Sequence["Verifier | OwnReward"],
        ks: Sequence[int],
        notes: Sequence[str] = (),
    ) -> "Evaluation":
        """Estimate everything from samples in any order with the verdicts of ``verifiers``.

        ``ks`` are the k of pass@k; 1 is added.
        """
        ordered = sorted(samples, key=lambda sample: (sample.row, sample.sample))
        results = {verifier.label: _results(verifier, ordered, sorted({1, *ks})) for verifier in verifiers}
        return cls(ordered, results, tuple(notes))

    @property
    def cut_off(self) -> float:
        """Share of cut-off samples."""
        return sum(sample.cut_off for sample in self.samples) / max(1, len(self.samples))

    @property
    def tokens(self) -> float:
        """Mean length of a completion."""
        return sum(sample.tokens for sample in self.samples) / max(1, len(self.samples))

    @property
    def calls(self) -> int | None:
        """Calls of tools in all samples; None without tools."""
        counts = [sample.calls for sample in self.samples if sample.turns is not None]
        return sum(counts) if counts else None

    @property
    def failed_calls(self) -> int:
        """Failed calls in all samples."""
        return sum(sample.failed_calls for sample in self.samples)


def gain(before: VerifierResults, after: VerifierResults) -> MeanEstimate | None:
    """Return the rise of the share of right samples, paired over the rows of both; None if they share no row."""
    shared = before.by_row.keys() & after.by_row.keys()
    return mean([after.by_row[row] - before.by_row[row] for row in shared]) if shared else None


def pass_at_k(n: int, c: int, k: int) -> float:
    """Probability that one of ``k`` samples is right, taken without replacement from ``n``, of which ``c`` are right.

    >>> pass_at_k(4, 2, 1), pass_at_k(4, 1, 4)
    (0.5, 1.0)

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374), equation 1. ``1 - C(n-c, k)
    / C(n, k)`` is unbiased for the probability under k fresh samples. It is computed as a product of factors between 0
    and 1, since binomial coefficients overflow.
    """
    missed = 1.0
    for i in range(k):
        missed *= max(0, n - c - i) / (n - i)
    return 1.0 - missed


def majority(right: int, wrong: Sequence[int]) -> float:
    """Probability that a vote elects the right answer, from the votes for it and for each wrong one.

    >>> majority(3, [1]), majority(2, [2]), majority(0, [])
    (1.0, 0.5, 0.0)

    Wang et al. 2022, "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (arXiv 2203.11171). In a
    tie every leader wins with the same probability; a vote without voters elects no answer.
    """
    votes = [right, *wrong]
    most = max(votes)
    return (right == most) / votes.count(most) if most else 0.0


def _results(judge: "Verifier | OwnReward", samples: Sequence[EvalSample], ks: Sequence[int]) -> VerifierResults:
    label = judge.label
    rows: dict[int, list[EvalSample]] = {}
    statuses: Counter[str] = Counter()
    for sample in samples:
        verdict = sample.verdicts[label]
        statuses[verdict["status"]] += 1
        if verdict["score"] is not None:  # a sample that cannot be judged does not count against the model
            rows.setdefault(sample.row, []).append(sample)
    if not rows:
        return VerifierResults(label, None, {}, {}, statuses, {})
    scores = {row: [float(s.verdicts[label]["score"]) for s in each] for row, each in rows.items()}
    right = {row: sum(score >= PASSES for score in values) for row, values in scores.items()}
    counts = {row: len(values) for row, values in scores.items()}
    average = sum(counts.values()) / len(counts)
    passes, majorities, most = {}, {}, max(counts.values())
    for k in ks:
        able = [row for row in rows if counts[row] >= k]
        if able:
            passes[k] = share([pass_at_k(counts[row], right[row], k) for row in able], average)
    if most > 1 and not isinstance(judge, OwnReward) and judge.reader is not None:
        elected = []
        for each in (each for row, each in rows.items() if counts[row] == most):
            votes = Counter(vote_classes(judge, [s.completion for s in each], [s.verdicts[label] for s in each]))
            elected.append(majority(votes[RIGHT], [count for vote, count in votes.items() if vote > RIGHT]))
        majorities[most] = share(elected, average)
    means = [sum(values) / len(values) for values in scores.values()]
    by_row = {row: right[row] / counts[row] for row in rows}
    return VerifierResults(label, mean(means), passes, majorities, statuses, by_row)


def vote_classes(verifier: "Verifier", texts: Sequence[str], verdicts: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the vote of each sample of one question: `RIGHT`, `SILENT`, or the number of a wrong answer.

    ``verdicts`` are those of ``verifier`` on ``texts``, with the keys score and status. Right samples agree with the
    gold answer, so they vote together. The verifier groups the wrong ones: with one sample's answer as the gold, every
    sample that it accepts has the same answer. Without a column ``answer``, equal texts are the same answer. Without a
    ``reader`` of answers, all wrong samples are silent.
    """
    reader = verifier.reader
    classes: list[int] = []
    stated: dict[str, int] = {}  # wrong answers as written
    for text, verdict in zip(texts, verdicts, strict=True):
        score = verdict["score"]
        judged = score is not None and Status(verdict["status"]) not in _NO_ANSWER
        if score is not None and score >= PASSES:
            classes.append(RIGHT)
        elif reader is None or not judged or (answer := reader(text)) is None:
            classes.append(SILENT)
        else:
            classes.append(stated.setdefault(answer, len(stated) + 1))
    if len(stated) > 1:
        merged = _merge(verifier, list(stated), texts, classes)
        classes = [merged.get(vote, vote) for vote in classes]
    number = {vote: place for place, vote in enumerate(dict.fromkeys(vote for vote in classes if vote > RIGHT), 1)}
    return [number.get(vote, vote) for vote in classes]


def _merge(
    verifier: "Verifier", answers: Sequence[str], texts: Sequence[str], classes: Sequence[int]
) -> dict[int, int]:
    """The first class with the same answer, by class; classes without one are left out."""
    column = verifier.required_columns.get("answer")
    if column is None:
        return {}
    example = {vote: text for text, vote in zip(texts, classes, strict=True)}
    pairs = [(one, other) for other in range(1, len(answers)) for one in range(other)]
    verdicts = verifier.verify_batch(
        None, [example[other + 1] for _, other in pairs], **{column: [answers[one] for one, _ in pairs]}
    )
    merged: dict[int, int] = {}
    for (one, other), verdict in zip(pairs, verdicts, strict=True):
        if verdict.status is Status.CORRECT and other + 1 not in merged:
            merged[other + 1] = merged.get(one + 1, one + 1)
    return merged


WIDTH = 100
"""Width of a table outside a terminal."""


def percent(estimate: MeanEstimate | None) -> str:
    """``46.1% (43.0 to 49.2)``."""
    if estimate is None:
        return "none"
    return f"{estimate.value:.1%} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def number(estimate: MeanEstimate | None) -> str:
    """``0.461 (0.430 to 0.492)``; an infinite interval is omitted."""
    if estimate is None:
        return "none"
    ends = f" ({estimate.low:.3f} to {estimate.high:.3f})" if abs(estimate.low) != float("inf") else ""
    return f"{estimate.value:.3f}{ends}"


def results_table(evaluations: Mapping[str, Evaluation]) -> Any:
    """Return a table with a column for each evaluation, and a row for every estimate of every verifier."""
    from rich.table import Table

    table = Table("", *evaluations, title_justify="left")
    columns = list(evaluations.values())
    for label in dict.fromkeys(label for evaluation in columns for label in evaluation.results):
        for name, cells in _rows([evaluation.results[label] for evaluation in columns]):
            table.add_row(f"{label}: {name}", *cells)
    table.add_row("tokens a completion", *(f"{each.tokens:.1f}" for each in columns))
    table.add_row("cut off", *(f"{each.cut_off:.1%}" for each in columns))
    if any(each.calls is not None for each in columns):
        rows = [(each.calls or 0, each.failed_calls, max(1, len(each.samples))) for each in columns]
        table.add_row("calls a completion", *(f"{calls / samples:.2f}" for calls, _, samples in rows))
        table.add_row("failed calls", *(f"{failed} ({failed / max(1, calls):.1%})" for calls, failed, _ in rows))
    return table


def _rows(columns: Sequence[VerifierResults]) -> list[tuple[str, list[str]]]:
    rows: list[tuple[str, list[str]]] = []
    for name in ("passes", "majorities"):
        kinds = [getattr(each, name) for each in columns]
        title = "pass" if name == "passes" else "majority"
        ks = sorted({k for kind in kinds for k in kind})
        rows += [(f"{title}@{k}", [percent(kind.get(k)) for kind in kinds]) for k in ks]
    gaps = [abs(each.score.value - each.accuracy.value) for each in columns if each.score and each.accuracy]
    if any(gap > 1e-9 for gap in gaps) or not rows:  # a gap: scores between right and wrong
        rows.append(("mean score", [number(results.score) for results in columns]))
    for status in dict.fromkeys(status for results in columns for status in results.statuses):
        cells = []
        for results in columns:
            count, total = results.statuses.get(status, 0), sum(results.statuses.values())
            cells.append(f"{count} ({count / max(1, total):.1%})")
        rows.append((status, cells))
    return rows
