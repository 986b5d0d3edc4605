"""Which samples of a question say the same: what majority voting counts.

Samples that the verifier calls right say what the gold answer says, so they vote together. Wrong ones are put together
by asking the verifier: one sample's stated answer is taken for the gold, and whoever it accepts says the same. A
verifier without a column ``answer`` cannot be asked: there, equal texts say the same. Without a `reader` of stated
answers there is no vote.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_verifiers.verdict import Status, Verdict

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

Reader = Callable[[str], str | None]
SILENT = -1
"""The class of samples that state no answer."""
RIGHT = 0
"""The class of the samples that are right."""
_NO_ANSWER = (Status.UNPARSABLE, Status.TIMEOUT, Status.ERROR, Status.NOT_APPLICABLE)


def vote_classes(
    verifier: "Verifier", reader: Reader, texts: Sequence[str], verdicts: Sequence[Verdict | Mapping[str, Any]]
) -> list[int]:
    """Which answer each sample of one question votes for: `RIGHT`, `SILENT`, or the number of a wrong answer.

    ``verifier`` decides which answers are equal; ``reader`` is its own. ``verdicts`` are those on ``texts``, or
    mappings with the keys score and status.
    """
    classes: list[int] = []
    stated: dict[str, int] = {}  # wrong answers as written
    for text, verdict in zip(texts, verdicts, strict=True):
        score, status = _of(verdict)
        answer = reader(text) if score is not None and score < 1 and status not in _NO_ANSWER else None
        if score is not None and score >= 1:
            classes.append(RIGHT)
        else:
            classes.append(SILENT if answer is None else stated.setdefault(answer, len(stated) + 1))
    if len(stated) > 1:
        merged = _merge(verifier, list(stated), texts, classes)
        classes = [merged.get(vote, vote) for vote in classes]
    number = {vote: place for place, vote in enumerate(dict.fromkeys(vote for vote in classes if vote > RIGHT), 1)}
    return [number.get(vote, vote) for vote in classes]


def _merge(
    verifier: "Verifier", answers: Sequence[str], texts: Sequence[str], classes: Sequence[int]
) -> dict[int, int]:
    """Classes of equal answers, each under the number of its first."""
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


def _of(verdict: Verdict | Mapping[str, Any]) -> tuple[float | None, Status]:
    if isinstance(verdict, Verdict):
        return verdict.score, verdict.status
    return verdict["score"], Status(verdict["status"])
