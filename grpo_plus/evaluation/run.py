"""Sample completions of a dataset's rows and have verifiers judge them, while the next ones are being drawn."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo_plus.evaluation.results import Evaluation, Sample, label_problems
from grpo_plus.evaluation.sample import Drawing, Sampler, Whole, seed_of
from grpo_plus.evaluation.tool_use import ToolUse
from grpo_plus.evaluation.turns import Completed, TurnSampler
from grpo_plus.training.hooks import Completions
from grpo_plus.training.scoring.live_verifier import LiveVerifier
from grpo_plus.training.scoring.verifiers import Verifiers
from grpo_verifiers.errors import raise_all
from grpo_verifiers.options import fits, value_problems
from grpo_verifiers.redaction import redact_text

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

Report = Callable[[Sequence[Sample]], None]
BATCH = 128
"""Default number of completions in a batch; fewer run side by side if memory is short."""


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    verifiers: "Verifier | Sequence[Verifier]",
    *,
    tools: ToolUse | None = None,
    n: int = 1,
    ks: Sequence[int] = (1,),
    drawing: Drawing | None = None,
    seed: int = 0,
    batch: int = BATCH,
    verifier_column: str | None = None,
    done: Sequence[Sample] = (),
    report: Report | None = None,
    template_keywords: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Draw ``n`` completions of every row, have them judged, and estimate how good the model is.

    Every completion has its own seed, made of ``seed``, its row and its number: batch size and other rows do not change
    the draw, up to rounding of the logits. (A model that must generate by itself, such as one with a sliding window,
    uses one seed for each batch; a note says so.)

    ``model`` is an unwrapped causal language model; its mode and the random state do not change. ``rows`` have
    ``prompt`` (text or conversation) and the columns of the verifiers; ``verifier_column`` names the verifier of each
    row. ``ks`` are the k of pass@k and majority@k, each at most ``n``. ``batch`` counts completions. ``done`` are
    samples of an earlier part of the same evaluation, which are not drawn again. ``report`` receives the judged samples
    of each batch. ``template_keywords`` are further arguments of the chat template; tools have their own.

    With ``tools`` completions are of several turns, drawn by TRL's loop; the reward of an environment that gives one is
    a result beside those of the verifiers, of which there may then be none.

    Raises:
        ValueError: numbers contradict each other, a prompt cannot be read, or the tools do not fit the rows.
        ColumnError: a column is missing.
    """
    verifiers = list(verifiers) if isinstance(verifiers, list | tuple) else [verifiers]  # type: ignore[list-item]
    check_numbers(n, ks, batch)
    if len(rows) == 0:
        raise ValueError("there are no rows to evaluate on.")
    drawing = drawing or Drawing()
    samples = list(done)
    with ExitStack() as around:
        turns = None
        if tools:
            sampler, turns = around.enter_context(tools.drawing(model, tokenizer, drawing, rows))
        else:
            sampler = Sampler(model, tokenizer, drawing, template_keywords)
        rewards = turns.rewards if turns is not None else []
        problems = label_problems(verifiers, rewards)
        if not (verifiers or rewards):
            problems.append("there is nothing to judge with: no verifier, and no environment that gives a reward.")
        raise_all(problems)
        fresh = draw(
            sampler,
            rows,
            verifiers,
            pairs=pairs_of(range(len(rows)), n, {(sample.row, sample.sample) for sample in done}),
            seed=seed,
            batch=batch,
            verifier_column=verifier_column,
            turns=turns,
        )
        for judged in fresh:
            samples += judged
            if report is not None:
                report(judged)
    return Evaluation.of(samples, [*verifiers, *rewards], ks, notes_on(sampler))


def check_numbers(n: int, ks: Sequence[int], batch: int = BATCH) -> None:
    """Raise a `ValueError` that has all problems if the numbers contradict each other."""
    problems = [*value_problems("n", n, Whole), *value_problems("batch", batch, Whole)]
    if not problems:
        problems = [
            f"k is {k!r}, but it must be a whole number from 1 to n ({n}): "
            "draw more completions of each row, or ask for less."
            for k in ks
            if not fits(k, Whole) or k > n
        ]
    if problems:
        raise ValueError(" ".join(problems))


def pairs_of(rows: Sequence[int], n: int, done: Collection[tuple[int, int]] = frozenset()) -> list[tuple[int, int]]:
    """Row and sample numbers of the missing samples."""
    return [(row, sample) for row in rows for sample in range(n) if (row, sample) not in done]


def notes_on(sampler: Sampler) -> list[str]:
    """Remarks on how the samples were drawn."""
    if sampler.refusal is None:
        return []
    return [f"The model generates by itself ({sampler.refusal}), so that draws depend on the batch size."]


def draw(
    sampler: Sampler,
    rows: Sequence[Mapping[str, Any]],
    verifiers: "Sequence[Verifier]",
    *,
    pairs: Sequence[tuple[int, int]],
    seed: int,
    batch: int,
    verifier_column: str | None = None,
    turns: TurnSampler | None = None,
) -> Iterator[list[Sample]]:
    """Judged samples of the given pairs, batch by batch; verifiers work on one batch while the next is drawn.

    Completions are of several turns where ``turns`` draws them, and else of one.
    """
    live = [LiveVerifier(verifier, only=verifier_column) for verifier in verifiers]
    verification = Verifiers(live, verifier_column)
    waiting: Completed | None = None
    try:
        for start in range(0, len(pairs), batch):
            chosen = pairs[start : start + batch]
            inputs = [dict(rows[row]) for row, _ in chosen]
            verification.check_row(inputs[0])
            if turns is not None:
                drawn = turns.complete(inputs, chosen, seed)
            else:
                drawn = _completed(sampler, inputs, chosen, seed)
            if waiting is not None:
                yield _judged(verification, waiting)
            waiting = drawn
            completions = Completions(inputs, drawn.prompts, drawn.texts, drawn.ids, turns=drawn.turns)
            verification.start(completions, sampler.tokenizer)
        if waiting is not None:
            yield _judged(verification, waiting)
    finally:
        verification.settle()


def _completed(
    sampler: Sampler, inputs: list[dict[str, Any]], chosen: Sequence[tuple[int, int]], seed: int
) -> Completed:
    """A completion of one turn for each of the inputs."""
    if "prompt" not in inputs[0]:
        raise ValueError(f"the rows have no column 'prompt', only {', '.join(inputs[0])}.")
    prompts = [given["prompt"] for given in inputs]
    ids = []
    for prompt, (row, _) in zip(prompts, chosen, strict=True):
        try:
            ids.append(sampler.tokenize(prompt))
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from error
    drawn = sampler.complete(ids, [seed_of(seed, *pair) for pair in chosen])
    texts = [sampler.text(own) for own in drawn]
    completions: list[Any] = [  # as in training: the answer to a conversation is a turn of it
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    samples = [
        Sample(row, sample, prompt, text, len(own), sampler.is_cut_off(own), {})
        for (row, sample), prompt, text, own in zip(chosen, prompts, texts, drawn, strict=True)
    ]
    return Completed(prompts, completions, drawn, None, samples)


def _judged(verification: Verifiers, drawn: Completed) -> list[Sample]:
    found: list[dict[str, Any]] = [dict(sample.verdicts) for sample in drawn.samples]
    for live in verification.live:
        live(drawn.prompts, drawn.texts, drawn.ids)
        for verdicts, verdict in zip(found, live.verdicts, strict=True):
            held = {"score": verdict.score, "status": verdict.status.value, "detail": redact_text(verdict.detail)}
            verdicts[live.verifier.label] = held
    return [replace(sample, verdicts=verdicts) for sample, verdicts in zip(drawn.samples, found, strict=True)]
