"""The verifier ``math_steps``: the equations that each step states, checked."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.options import Range
from grpo_verifiers.reading.messages import prompt_text
from grpo_verifiers.steps.aggregate import Aggregate, step_verdict
from grpo_verifiers.steps.equations import chains
from grpo_verifiers.steps.links import Holds, RoundingDrift, links, shape
from grpo_verifiers.steps.segments import Span, own_text, segment, segmenter_problems, without_specials
from grpo_verifiers.verdict import Verdict

if TYPE_CHECKING:
    from grpo_verifiers.math.tree import Node

MAX_LINKS = 20_000
"""Links of a completion that are checked; one that states more is padded, and its next step is wrong."""
_MAX_PROMPT = 20_000
_DETAIL = 120


@Traits(home="process", timeout=5.0, pure=True, steps=True, option_problems=segmenter_problems)
def math_steps(
    completion: str,
    completion_text: str,
    prompt: Any = None,
    turn_spans: Sequence[Span] | None = None,
    *,
    steps: str = "newline",
    aggregate: Aggregate = "min",
    rounding: bool = True,
    distinct: bool = False,
    max_steps: Annotated[int, Range(1)] | None = None,
) -> Verdict:
    """Check the equations that each step states: 1 if all hold, 0 if one does not, not scored where there is none.

    >>> math_steps("3 * 3 = 8", "3 * 3 = 8").score
    0.0

    A step states nothing with an equation whose sides are alike (``1 = 1``, ``x + 0 = x``), with one that the prompt
    has, or that holds and has been stated before, with one that depends on letters and is no identity (``x = 5``
    may be a condition), and where words make a side unsure ("half of 10 = 5"). Text outside of all steps belongs to
    the next step, or to the last.

    Easy equations around a wrong one earn nothing with ``aggregate="min"`` or ``"product"``. With ``"mean"`` they do:
    ``distinct`` and ``max_steps`` take right steps out of it, and never a wrong one.

    Use it when solutions calculate: with ``advantage: process`` the step with a wrong sum is blamed. Use a check of
    the answer as well, or the model learns easy sums only.

    Scores: that of the steps by ``aggregate``, from 0 (wrong) to 1 (correct), partial between; each step is 1 (all its
    equations hold) or 0; None, not applicable, where no step states an equation that can be judged.

    Config:
        advantage: process
        verifiers: [math, {name: math_steps, weight: 0.0, steps: newline}]

    Args:
        completion: the model's text; unused, see ``completion_text``.
        completion_text: the completion as sampled.
        prompt: the question; equations quoted from it state nothing.
        turn_spans: the spans of the model's own turns; results of tools state nothing.
        steps: the segmenter: blank_line, newline, numbered, tags, turn, or a reference.
        aggregate: the completion's score from those of its steps: min, mean, last or product.
        rounding: a decimal may be a correctly rounded value: ``10/3 = 3.33``.
        distinct: an equation that holds and differs from an earlier one by its numbers only (``2 + 3 = 5`` and
            ``10 + 11 = 21``) scores nothing.
        max_steps: right steps that are scored; later ones are left out. None: all.
    """
    del completion
    text = own_text(completion_text, turn_spans)
    spans = segment(text, steps, turn_spans)
    quoted = {
        link.key for chain in chains(prompt_text(prompt)[:_MAX_PROMPT]) for link in links(chain, rounding=rounding)
    }
    scores: list[float | None] = [None] * len(spans)
    earlier: set[frozenset[Node]] = set()
    shapes: set[frozenset[Node]] = set()
    drift = RoundingDrift()
    wrong = ""
    stated = (link for chain in chains(without_specials(text)) for link in links(chain, rounding=rounding))
    for count, link in enumerate(stated if spans else (), 1):
        # Text between two steps belongs to the second, the rest to the last.
        at = min(bisect_right(spans, link.at, key=lambda span: span[1]), len(spans) - 1)
        if link.holds is Holds.NOTHING or (link.key in quoted and count <= MAX_LINKS):
            continue
        far = link.rounding is not None and not drift.allows(link.rounding)
        if link.holds is Holds.NO or far or count > MAX_LINKS:
            scores[at] = 0.0
            why = "is too far from the value that was rounded before" if far else "does not hold"
            wrong = wrong or f"step {at + 1}: {link.text[:_DETAIL]} {why}"
            if count > MAX_LINKS:
                wrong = f"step {at + 1}: more than {MAX_LINKS} equations"
                break
            continue
        form = frozenset(map(shape, link.key))
        if link.key not in earlier and not (distinct and form in shapes) and scores[at] is None:
            scores[at] = 1.0
        earlier.add(link.key)
        shapes.add(form)
    if max_steps is not None:
        right = accumulate(int(score == 1.0) for score in scores)
        scores = [None if s and n > max_steps else s for s, n in zip(scores, right, strict=True)]
    scored = [score for score in scores if score is not None]
    counts = f"{int(sum(scored))} of {len(scored)} steps with an equation hold"
    detail = f"{counts}; {wrong}" if wrong else counts if scored else "no step states an equation that can be judged"
    return step_verdict(spans, scores, aggregate, detail)
