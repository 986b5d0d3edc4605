"""Sample completions of a dataset's rows; verifiers judge a batch while the next one is sampled."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo_plus.evaluation.results import EvalSample, Evaluation, label_problems
from grpo_plus.evaluation.sample import PositiveInt, Sampler, SampleSettings, seed_of
from grpo_plus.evaluation.turns import Completed, ToolUse, TurnSampler
from grpo_plus.training.hooks import Completions
from grpo_plus.training.scoring import LiveVerifier, Verifiers
from grpo_verifiers.errors import raise_all
from grpo_verifiers.options import fits, value_problems
from grpo_verifiers.redaction import redact_text

if TYPE_CHECKING:
    from grpo_verifiers import Verifier

Report = Callable[[Sequence[EvalSample]], None]
BATCH = 128
"""Default number of completions in a batch; fewer are sampled at a time if memory is short."""


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    verifiers: "Verifier | Sequence[Verifier]",
    *,
    tools: ToolUse | None = None,
    n: int = 1,
    ks: Sequence[int] = (1,),
    drawing: SampleSettings | None = None,
    seed: int = 0,
    batch: int = BATCH,
    verifier_column: str | None = None,
    done: Sequence[EvalSample] = (),
    report: Report | None = None,
    template_keywords: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Sample ``n`` completions of every row, judge them, and estimate the model's accuracy.

    The seed of a completion depends on ``seed``, its row and its number only: batch size and other rows do not change
    it, up to rounding of the logits. (A model that needs its own ``generate``, such as one with a sliding window, uses
    one seed for each batch; the evaluation has a note on it.)

    ``model`` is an unwrapped causal language model; its mode and the random state do not change. ``rows`` have
    ``prompt`` (text or conversation) and the columns of the verifiers; ``verifier_column`` names the verifier of each
    row. ``ks`` are the k of pass@k, each at most ``n``. ``batch`` counts completions. ``done`` are
    samples of an earlier part of the same evaluation, which are not repeated. ``report`` receives the judged samples
    of each batch. ``template_keywords`` are further arguments of the chat template; tools have their own.

    With ``tools`` TRL's loop samples completions of several turns. An environment's reward is a result like those of
    the verifiers, and may be the only one.

    Raises:
        ValueError: numbers contradict each other, a prompt cannot be read, or the tools do not fit the rows.
        ColumnError: a column is missing.
    """
    verifiers = list(verifiers) if isinstance(verifiers, list | tuple) else [verifiers]  # type: ignore[list-item]
    check_numbers(n, ks, batch)
    if len(rows) == 0:
        raise ValueError("there are no rows to evaluate on.")
    drawing = drawing or SampleSettings()
    samples = list(done)
    with ExitStack() as around:
        turns = None
        if tools:
            sampler, turns = around.enter_context(tools.samplers(model, tokenizer, drawing, rows))
        else:
            sampler = Sampler(model, tokenizer, drawing, template_keywords)
        rewards = turns.rewards if turns is not None else []
        problems = label_problems(verifiers, rewards)
        if not (verifiers or rewards):
            problems.append("there is nothing to judge with: no verifier, and no environment with a reward.")
        raise_all(problems)
        batches = judged_samples(
            sampler,
            rows,
            verifiers,
            pairs=pairs_of(range(len(rows)), n, {(sample.row, sample.sample) for sample in done}),
            seed=seed,
            batch=batch,
            verifier_column=verifier_column,
            turns=turns,
        )
        for judged in batches:
            samples += judged
            if report is not None:
                report(judged)
    return Evaluation.of(samples, [*verifiers, *rewards], ks, notes_on(sampler))


def check_numbers(n: int, ks: Sequence[int], batch: int = BATCH) -> None:
    """Raise a `ValueError` with all problems if the numbers contradict each other."""
    problems = [*value_problems("n", n, PositiveInt), *value_problems("batch", batch, PositiveInt)]
    if not problems:
        problems = [
            f"k is {k!r}, but it must be a whole number from 1 to n ({n}): "
            "sample more completions of each row, or lower k."
            for k in ks
            if not fits(k, PositiveInt) or k > n
        ]
    if problems:
        raise ValueError(" ".join(problems))


def pairs_of(rows: Sequence[int], n: int, done: Collection[tuple[int, int]] = frozenset()) -> list[tuple[int, int]]:
    """Return the row and sample numbers of the missing samples."""
    return [(row, sample) for row in rows for sample in range(n) if (row, sample) not in done]


def notes_on(sampler: Sampler) -> list[str]:
    """Return remarks on the sampling."""
    if sampler.refusal is None:
        return []
    return [f"The model uses its own generate ({sampler.refusal}), so samples depend on the batch size."]


def judged_samples(
    sampler: Sampler,
    rows: Sequence[Mapping[str, Any]],
    verifiers: "Sequence[Verifier]",
    *,
    pairs: Sequence[tuple[int, int]],
    seed: int,
    batch: int,
    verifier_column: str | None = None,
    turns: TurnSampler | None = None,
) -> Iterator[list[EvalSample]]:
    """Yield judged samples of the pairs batch by batch; verifiers work on one batch while the next is sampled.

    Completions have several turns with ``turns``, otherwise one.
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
                completed = turns.complete(inputs, chosen, seed)
            else:
                completed = _completed(sampler, inputs, chosen, seed)
            if waiting is not None:
                yield _judged(verification, waiting)
            waiting = completed
            completions = Completions(inputs, completed.prompts, completed.texts, completed.ids, turns=completed.turns)
            verification.start(completions, sampler.tokenizer)
        if waiting is not None:
            yield _judged(verification, waiting)
    finally:
        verification.settle()


def _completed(
    sampler: Sampler, inputs: list[dict[str, Any]], chosen: Sequence[tuple[int, int]], seed: int
) -> Completed:
    if "prompt" not in inputs[0]:
        raise ValueError(f"the rows have no column 'prompt', only {', '.join(inputs[0])}.")
    prompts = [row["prompt"] for row in inputs]
    ids = []
    for prompt, (row, _) in zip(prompts, chosen, strict=True):
        try:
            ids.append(sampler.tokenize(prompt))
        except ValueError as error:
            raise ValueError(f"row {row}: {error}") from error
    token_ids = sampler.complete(ids, [seed_of(seed, *pair) for pair in chosen])
    texts = [sampler.text(own) for own in token_ids]
    completions: list[Any] = [  # as in training: the answer to a conversation is a turn of it
        text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, texts, strict=True)
    ]
    samples = [
        EvalSample(row, sample, prompt, text, len(own), sampler.is_cut_off(own), {})
        for (row, sample), prompt, text, own in zip(chosen, prompts, texts, token_ids, strict=True)
    ]
    return Completed(prompts, completions, token_ids, None, samples)


def _judged(verification: Verifiers, completed: Completed) -> list[EvalSample]:
    by_label: list[dict[str, Any]] = [dict(sample.verdicts) for sample in completed.samples]
    for live in verification.live:
        live(completed.prompts, completed.texts, completed.ids)
        for verdicts, verdict in zip(by_label, live.verdicts, strict=True):
            values = {"score": verdict.score, "status": verdict.status.value, "detail": redact_text(verdict.detail)}
            verdicts[live.verifier.label] = values
    return [replace(sample, verdicts=verdicts) for sample, verdicts in zip(completed.samples, by_label, strict=True)]
