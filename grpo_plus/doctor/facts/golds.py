r"""Golds tried on their own verifiers: by the verifier's own check where it has one, else as completions.

A gold is written as a completion in the usual forms: bare, in ``\boxed{}``, in ``<answer>``, in a sentence, and behind
a thinking section. It is accepted where one of them scores above an empty completion.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_plus.doctor.checks.golds import GoldFault, GoldTrial
from grpo_verifiers.base import Verifier
from grpo_verifiers.base.golds import BrokenReport, ColumnReport, GoldProblem, GoldReports
from grpo_verifiers.base.trials import IDLE_SCORES, RIGHT_FAILS
from grpo_verifiers.errors.messages import show
from grpo_verifiers.verdict import Status

GOLD = "answer"
ITSELF = "does not accept itself"
"""In the reason of a gold that was read, and is not equal to itself."""
_PLAIN = ("{}", "\\boxed{{{}}}", "<answer>{}</answer>", "The answer is {}.", "The answer is \\boxed{{{}}}.", "#### {}")
_THINKING = "<think>\nLet me see.\n</think>\n"
FORMS = (*_PLAIN, *(_THINKING + form for form in _PLAIN))
REMOTE = ("judge", "prm", "piston")
"""Verifiers, and options, that ask a server or load a model: nothing is sent for a look."""


def reaches_out(described: Mapping[str, Any]) -> bool:
    """A verifier, or a part of it, asks something outside."""
    parts = described.get("parts", ())
    inner = [*parts, *described.get("routes", {}).values()]
    options = described.get("options", {})
    return described.get("name") in REMOTE or bool(options.get("piston")) or any(map(reaches_out, inner))


def gold_trial(
    verifier: Verifier, columns: Mapping[str, Sequence[Any]], places: Sequence[int], prompts: Sequence[Any]
) -> GoldTrial | None:
    """Try the golds of rows, given as columns; None for a verifier without any."""
    label, count = verifier.label, len(places)
    try:
        names = [name for name in dict.fromkeys(verifier.gold_columns.values()) if name in columns]
        report = verifier.check_golds({name: columns[name] for name in names})
        if report is not None:
            return GoldTrial(label, count, _reported(report, places))
        column = {**verifier.optional_columns, **verifier.required_columns}.get(GOLD)
        if column is None or column not in columns:
            return None
        return _tried(verifier, columns, places, prompts, column)
    except Exception as error:  # noqa: BLE001 - a verifier may raise anything, and the rest is still worth a look
        return GoldTrial(label, count, error=f"{type(error).__name__}: {error}")


def _reported(report: Any, places: Sequence[int]) -> list[GoldFault]:
    """The faults in a report of a verifier's own check."""
    if isinstance(report, GoldReports):
        return [fault for _, part in report.parts for fault in _reported(part, places)]
    if isinstance(report, ColumnReport):
        return [fault for each in report.problems for fault in _of_problem(each, places)]
    if isinstance(report, BrokenReport):
        raise RuntimeError(report.reason)  # noqa: TRY004 - of the verifier, not of a type
    return [] if report.ok else [GoldFault("rejected", places[0], "; ".join(report.lines(limit=3)))]


def _of_problem(problem: GoldProblem, places: Sequence[int]) -> list[GoldFault]:
    kinds = [kind for words, kind in ((RIGHT_FAILS, "reference"), (IDLE_SCORES, "idle")) if words in problem.treatment]
    if not kinds:
        empty = problem.answer is None or not str(problem.answer).strip()
        kinds = ["empty" if empty else "rejected" if ITSELF in problem.reason else "unusable"]
    return [GoldFault(kind, places[problem.row], f"{show(problem.answer)}: {problem.reason}") for kind in kinds]


def _tried(
    verifier: Verifier, columns: Mapping[str, Sequence[Any]], places: Sequence[int], prompts: Sequence[Any], column: str
) -> GoldTrial:
    faults = []
    golds = columns[column]
    usable = []
    for row, gold in enumerate(golds):
        if gold is None or (isinstance(gold, str) and not gold.strip()):
            faults.append(GoldFault("empty", places[row], show(gold)))
        else:
            usable.append(row)
    best = dict.fromkeys(usable, float("-inf"))
    scored = set()
    nothing = dict(zip(usable, _scores(verifier, columns, prompts, usable, [""] * len(usable)), strict=True))
    for form in FORMS:
        left = [row for row in usable if not best[row] >= 1]
        written = [_form(form, golds[row]) for row in left]
        for row, score in zip(left, _scores(verifier, columns, prompts, left, written), strict=True):
            if score is not None:
                best[row] = max(best[row], score)
                scored.add(row)
    accepted = 0
    for row in usable:
        empty = nothing[row]
        if row not in scored:
            faults.append(GoldFault("rejected", places[row], f"{show(golds[row])} gets no score in any form"))
        elif empty is not None and empty >= max(best[row], 1):
            faults.append(
                GoldFault("nothing", places[row], f"{show(golds[row])}: an empty completion scores {empty:g}")
            )
        elif best[row] <= (empty or 0):
            faults.append(GoldFault("rejected", places[row], f"{show(golds[row])} scores {best[row]:g}"))
        else:
            accepted += 1
    return GoldTrial(verifier.label, len(places), faults, accepted)


def _form(form: str, gold: Any) -> str:
    one = gold[0] if isinstance(gold, list | tuple) and gold else gold
    return form.format(one)


def _scores(
    verifier: Verifier,
    columns: Mapping[str, Sequence[Any]],
    prompts: Sequence[Any],
    rows: Sequence[int],
    completions: Sequence[str],
) -> list[float | None]:
    if not rows:
        return []
    given = {name: [values[row] for row in rows] for name, values in columns.items()}
    verdicts = verifier.verify_batch([prompts[row] for row in rows], completions, None, **given)
    if late := [one for one in verdicts if one.status is Status.TIMEOUT]:
        raise TimeoutError(late[0].detail or "it took longer than its timeout")
    if broken := [one for one in verdicts if one.status is Status.ERROR and one.score is not None]:
        raise RuntimeError(broken[0].detail)
    return [verdict.score for verdict in verdicts]
