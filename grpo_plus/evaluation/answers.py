"""Which samples of a question say the same: what majority voting counts.

Samples that the verifier calls right say what the gold answer says, so they vote together. Wrong ones are put together
by asking the verifier: one sample's stated answer is taken for the gold, and whoever it accepts says the same. Only
verifiers that compare a stated answer with a gold one can be asked; for others there is no vote.
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


def reader_of(verifier: "Verifier") -> Reader | None:
    """What reads the answer that a completion states, as a gold answer for that verifier; None where none can."""
    from grpo_verifiers.function import FunctionVerifier

    if not isinstance(verifier, FunctionVerifier) or not verifier.settings.builtin:
        return None
    make = _READERS.get(verifier.name)
    return None if make is None or "answer" not in verifier.required_columns else make(verifier)


def vote_classes(
    verifier: "Verifier", reader: Reader, texts: Sequence[str], verdicts: Sequence[Verdict | Mapping[str, Any]]
) -> list[int]:
    """Which answer each sample of one question votes for: `RIGHT`, `SILENT`, or the number of a wrong answer.

    Args:
        verifier: decides which answers are equal.
        reader: from `reader_of`.
        texts: the completions.
        verdicts: theirs, or mappings with the keys score and status.
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
    column = verifier.required_columns["answer"]
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


def _math(verifier: Any) -> Reader:
    from grpo_verifiers.math.extract import extract
    from grpo_verifiers.math.options import options_of

    options = options_of(**verifier.options)

    def read(text: str) -> str | None:
        answers = extract(text, options).answers
        return answers[0] if len(answers) == 1 else None

    return read


def _numeric(verifier: Any) -> Reader:
    from grpo_verifiers.text._numeric import parse_number, stated

    options = {name: verifier.options[name] for name in ("source", "think") if name in verifier.options}

    def read(text: str) -> str | None:
        found, _ = stated(text, **options)
        values = {parse_number(part) for part in found}
        return found[-1].strip() if len(values) == 1 and None not in values else None

    return read


def _exact(verifier: Any) -> Reader:
    from grpo_verifiers.text._exact import stated

    options = {name: verifier.options[name] for name in ("tag", "think") if name in verifier.options}

    def read(text: str) -> str | None:
        found = stated(text, **options)
        return found[0] if len(found) == 1 and found[0].strip() else None

    return read


def _choice(verifier: Any) -> Reader:
    letters = verifier.options.get("letters", "ABCDE")
    column = verifier.required_columns["answer"]

    def read(text: str) -> str | None:
        for letter in letters:
            if verifier.verify(text, **{column: letter}).status is Status.CORRECT:
                return str(letter)
        return None

    return read


_READERS: dict[str, Callable[[Any], Reader]] = {"math": _math, "numeric": _numeric, "exact": _exact, "choice": _choice}
