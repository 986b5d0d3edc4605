"""The verifier ``prm``: a process reward model scores every step. PyTorch is imported when it first runs."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.exec.outcome import MARK
from grpo_verifiers.options import Range
from grpo_verifiers.reading.messages import question_text
from grpo_verifiers.steps.aggregate import Aggregate, step_verdict
from grpo_verifiers.steps.segments import Span, own_text, segment, segmenter_problems
from grpo_verifiers.verdict import Status, Verdict

Style = Literal["qwen", "shepherd", "concat"]
SEPARATORS: Mapping[str, str] = {"qwen": "<extra_0>", "shepherd": "ки", "concat": "\n"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_STEP_TAG = re.compile(r"</?step>", re.IGNORECASE)


def _option_problems(
    *, model: str, style: Style, steps: str, separator: str | None, positive: int, device: str,
    revision: str | None, trust_remote_code: bool, **_: Any,
) -> list[str]:  # fmt: skip
    problems = segmenter_problems(steps)
    folder = Path(model).expanduser()
    if not model:
        problems.append("model is empty, expected the name or folder of a checkpoint.")
    elif (model.startswith((".", "/", "~")) or model.count("/") > 1) and not folder.is_dir():
        problems.append(f"model is {model!r}, which is not a folder.")
    if separator == "":
        problems.append("separator is empty, expected the text after each step.")
    if device != "auto" and not re.fullmatch(r"cpu|(?:cuda|xpu|mps|npu)(?::\d+)?", device):
        problems.append(f"device is {device!r}, expected auto, cpu, or a device such as cuda:0.")
    if style == "shepherd" and positive != 1:
        problems.append("positive is read by the styles 'qwen' and 'concat'; 'shepherd' has the tokens + and -.")
    if trust_remote_code and not folder.is_dir() and not _COMMIT.fullmatch(revision or ""):
        problems.append(
            f"trust_remote_code runs all code of the repository {model!r}, so it needs revision as the commit hash "
            f"(40 hexadecimal digits) that you have read, and revision is {revision!r}."
        )
    return problems


# In the trainer it has the training device; a timeout moves it into a worker process, which has the CPU only.
@Traits(home="inline", steps=True, option_problems=_option_problems)
def prm(
    completions: Sequence[str],
    prompts: Sequence[Any],
    completion_text: Sequence[str],
    turn_spans: Sequence[Sequence[Span] | None] | None = None,
    *,
    model: str,
    style: Style = "qwen",
    steps: str = "blank_line",
    aggregate: Aggregate = "min",
    separator: str | None = None,
    positive: Annotated[int, Range(0)] = 1,
    batch_size: Annotated[int, Range(1)] = 8,
    max_length: Annotated[int, Range(8)] | None = None,
    device: str = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> list[Verdict]:
    """Score each step by the probability of a good one that a process reward model gives at its separator.

    Runs in the trainer, on its device, when rewards are collected; with a ``timeout`` in a worker process on the CPU.

    Separators, special tokens and step tags of the completion are removed from the model's input, so that a completion
    cannot add or hide steps; a step without other text is not scored, nor one beyond ``max_length``.

    Use it when there is a process reward model for the task, and rules (``math_steps``) see too little of a solution.

    Scores: that of the steps by ``aggregate``; each step is a probability from 0 to 1; 0 unparsable, where the text
    makes separators of its own; None, not applicable, without steps.

    Config:
        advantage: process
        verifiers:
          - math
          - name: prm
            weight: 0.0
            model: Qwen/Qwen2.5-Math-PRM-7B
            style: qwen

    Args:
        completions: the models' texts; unused, see ``completion_text``.
        prompts: the questions: texts, or chats, of which the last user message is the question.
        completion_text: the completions as sampled.
        turn_spans: the spans of the model's own turns; results of tools are no steps.
        model: a checkpoint: a name on the Hub or a folder. Only safetensors are loaded.
        style: ``"qwen"``: token classification at a separator token after each step, in the model's chat template
            (Qwen2.5-Math-PRM). ``"shepherd"``: a language model whose next-token probabilities of ``+`` and ``-`` at
            the separator are the score (Math-Shepherd). ``"concat"``: token classification of question and steps
            put together as tokens, each step followed by the separator.
        steps: the segmenter: blank_line, newline, numbered, tags, turn, or a reference.
        aggregate: the completion's score from those of its steps: min, mean, last or product.
        separator: the text after each step; by style ``<extra_0>``, ``ки``, a line end.
        positive: the class of a good step (styles qwen and concat).
        batch_size: completions at a time.
        max_length: tokens of question and steps; by default the model's own limit.
        device: ``"auto"``: the trainer's, or the CPU in a worker; or a name such as ``"cuda:0"``.
        dtype: of the weights; ``"auto"`` as stored.
        revision: of the checkpoint.
        trust_remote_code: run code that comes with the checkpoint; from the Hub it needs ``revision`` as a commit hash.
    """
    del completions
    from grpo_verifiers.steps._prm_model import Reader, load

    loaded = load(
        model, style, "cpu" if device == "auto" and MARK in os.environ else device, dtype, revision, trust_remote_code
    )
    reader = Reader(loaded, style, separator or SEPARATORS[style], positive, max_length)
    own = turn_spans or [None] * len(completion_text)
    completion_text = [own_text(text, turns) for text, turns in zip(completion_text, own, strict=True)]
    spans = [segment(text, steps, turns) for text, turns in zip(completion_text, own, strict=True)]
    cleaned = [
        [reader.clean(_STEP_TAG.sub(" ", text[start:end])) for start, end in of_text]
        for text, of_text in zip(completion_text, spans, strict=True)
    ]
    questions = []
    for question, texts in zip(map(question_text, prompts), cleaned, strict=True):
        questions.append(reader.read(reader.clean(question), [text for text in texts if text]))
    scored = iter(reader.score([question for question in questions if question is not None], batch_size))
    return [
        _verdict(of_text, texts, None if question is None else next(scored), aggregate)
        for of_text, texts, question in zip(spans, cleaned, questions, strict=True)
    ]


def _verdict(
    spans: Sequence[Span], texts: Sequence[str], probabilities: Sequence[float | None] | None, aggregate: Aggregate
) -> Verdict:
    read = sum(map(bool, texts))
    if probabilities is None:
        # The tokenizer made a separator of other text: the completion must have caused it.
        steps = step_verdict(spans, [0.0 if text else None for text in texts]).steps
        return Verdict(0.0, Status.UNPARSABLE, "another number of separators than of steps", steps)
    if len(probabilities) != read:
        raise VerifierFailedError(f"prm: {len(probabilities)} scores for {read} steps")
    scores = iter(probabilities)
    scored = [next(scores) if text else None for text in texts]
    late = sum(score is None for score in probabilities)
    return step_verdict(spans, scored, aggregate, f"{read} steps" + (f", {late} beyond max_length" if late else ""))
