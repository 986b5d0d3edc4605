"""The verifier ``math_steps``: the equations that each step states, checked."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from grpo_verifiers._samples import content_text
from grpo_verifiers.steps._equations import Chain, chains
from grpo_verifiers.steps._links import Holds, links
from grpo_verifiers.steps.aggregate import Aggregate, step_verdict
from grpo_verifiers.steps.segments import segment, segmenter_problems, without_specials
from grpo_verifiers.text._options import require
from grpo_verifiers.verdict import Verdict

if TYPE_CHECKING:
    from grpo_verifiers.math.tree import Node

MAX_LINKS = 1000
"""Links of a completion that are checked; steps after those are not scored."""
_INLINE_LINKS = 64
_INLINE_CHARS = 20_000
_DETAIL = 120


def math_steps(
    completion: str,
    completion_text: str,
    prompt: Any = None,
    *,
    steps: str = "newline",
    aggregate: Aggregate = "min",
    rounding: bool = True,
) -> Verdict:
    """Check the equations that each step states: 1 if all hold, 0 if one does not, not scored where there is none.

    A step states nothing with an equation whose sides are alike (``1 = 1``, ``x + 0 = x``), with one that the prompt
    has, or that holds and has been stated before, with one that depends on letters and is no identity (``x = 5``
    may be a condition), and where words make a side unsure ("half of 10 = 5").

    Args:
        completion: the model's text; ``completion_text`` is looked at.
        completion_text: the completion as sampled.
        prompt: what was asked; equations quoted from it state nothing.
        steps: the segmenter: blank_line, newline, numbered, sentence, statements, tags, or a reference.
        aggregate: how the scores of steps become the completion's: min, mean, last or product.
        rounding: a decimal of two places or more may stand for what it is the rounding of: ``10/3 = 3.33``.
    """
    del completion
    require("math_steps", check_options(steps=steps, aggregate=aggregate, rounding=rounding))
    verdict = _judged(completion_text, prompt, steps, aggregate, rounding=rounding, full=True)
    assert verdict is not None
    return verdict


def quick_math_steps(
    completion: str,
    completion_text: str,
    prompt: Any = None,
    *,
    steps: str = "newline",
    aggregate: Aggregate = "min",
    rounding: bool = True,
) -> Verdict | None:
    """The verdict of `math_steps` where exact arithmetic gives it at once; None where a worker has to look."""
    del completion
    if len(completion_text) > _INLINE_CHARS or ":" in steps:
        return None
    return _judged(completion_text, prompt, steps, aggregate, rounding=rounding, full=False)


def _judged(text: str, prompt: Any, steps: str, aggregate: Aggregate, *, rounding: bool, full: bool) -> Verdict | None:
    spans = segment(text, steps)
    clean = without_specials(text)
    stated: list[list[Chain]] = [
        [chain if end == len(text) else replace(chain, cut=False) for chain in chains(clean[start:end])]
        for start, end in spans
    ]
    if not full and sum(len(chain.signs) for of_step in stated for chain in of_step) > _INLINE_LINKS:
        return None
    known: set[frozenset[Node]] = set()
    quoted = {
        link.key
        for chain in chains(_asked(prompt)[:_INLINE_CHARS])
        for link in links(chain, rounding=rounding, full=False)
    }
    scores: list[float | None] = []
    wrong = ""
    left = MAX_LINKS
    for at, of_step in enumerate(stated, 1):
        score: float | None = None
        for link in (link for chain in of_step for link in links(chain, rounding=rounding, full=full)):
            left -= 1
            if left < 0:
                break
            if link.holds is Holds.OPEN:
                return None
            if link.holds is Holds.NOTHING or link.key in quoted:
                continue
            if link.holds is Holds.NO:
                score = 0.0
                wrong = wrong or f"step {at}: {link.text[:_DETAIL]} does not hold"
            elif link.key not in known:
                known.add(link.key)
                score = 1.0 if score is None else score
        scores.append(score)
    scored = [score for score in scores if score is not None]
    counts = f"{int(sum(scored))} of {len(scored)} steps with an equation hold"
    detail = f"{counts}; {wrong}" if wrong else counts if scored else "no step states an equation that can be judged"
    return step_verdict(spans, scores, aggregate, detail)


def _asked(prompt: Any) -> str:
    """What was asked, as text: a prompt, or the messages of a chat."""
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    return "\n".join(content_text(message.get("content")) for message in prompt)


def check_options(*, steps: str, aggregate: Aggregate, rounding: bool) -> list[str]:  # noqa: ARG001 - all are passed
    """The problems with these values."""
    return segmenter_problems(steps)
