"""The diagnosis of a config: its judge and ``stop_on``, and every problem of the choice."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from grpo_plus.diagnosis import RULES
from grpo_plus.diagnosis.hacking import least_checks
from grpo_plus.recipe.entries import VerifierPart, build_verifiers, read_entries
from grpo_plus.recipe.forms import read_form
from grpo_plus.recipe.recipe import Monitor
from grpo_plus.recipe.settings import DiagnosisOptions
from grpo_verifiers.errors import Problem
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.function import FunctionVerifier

FIELD = "diagnosis"
STRICT = "strict"
"""The judge that is the stricter twin of a verifier that rewards."""


def choose_monitor(
    options: DiagnosisOptions, verifiers: Sequence[VerifierPart], plugins: Sequence[str]
) -> tuple[Monitor | None, list[Problem]]:
    """The judge at work, None without any; everything that is wrong with it."""
    if options.judge is None:
        return None, []
    if options.judge == STRICT:
        return _twin(options, verifiers)
    entries, form = read_entries([options.judge], f"{FIELD} judge")
    parts, wrong = build_verifiers(entries, plugins)
    if form or wrong or not parts:
        return None, [*form, *wrong]
    return Monitor(options.every, options.sample, parts[0], options.against), []


def _twin(options: DiagnosisOptions, verifiers: Sequence[VerifierPart]) -> tuple[Monitor | None, list[Problem]]:
    """The stricter twin of the verifier that is watched, or of the first one that has any."""
    watched = [part for part in verifiers if options.against in (None, part.entry.label) and part.entry.weight != 0]
    for part in watched:
        if isinstance(part.verifier, FunctionVerifier) and (strict := part.verifier.stricter):
            entry = replace(part.entry, kwargs={**part.entry.kwargs, **strict}, weight=None)
            twin = part.verifier.derive(label=f"{part.entry.label} (strict)", options=strict, on_error="null")
            return Monitor(options.every, options.sample, VerifierPart(entry, twin), part.entry.label), []
    names = ", ".join(part.entry.label for part in watched) or "none that rewards"
    text = (
        f"{FIELD} judge is 'strict', but of the verifiers ({names}) none has a stricter twin: they are as strict as "
        f"they can be, or not built in. Name a judge, such as {FIELD}: {{judge: exact}}, or remove it."
    )
    return None, [text]


def monitor_problems(config: Any, recipe: Any) -> list[str]:
    """A monitor that would watch nothing, and findings of ``stop_on`` that do not exist or cannot begin."""
    problems = [f"stop_on: {unknown('finding', name, list(RULES))}" for name in recipe.stop_on if name not in RULES]
    problems += unreachable_findings(config, recipe.stop_on)
    if recipe.monitor is None or config.max_steps <= 0:
        return problems
    least = least_checks(2)
    if config.max_steps <= (least - 1) * recipe.monitor.every:
        text = f"{FIELD} every is {recipe.monitor.every}, and max_steps {config.max_steps}: an alarm needs {least}"
        problems.append(f"{text} checks. Lower every, raise max_steps, or remove {FIELD}.")
    return problems


def unreachable_findings(config: Any, names: Sequence[str]) -> list[str]:
    """Findings of ``stop_on`` that nothing in the config, which may be TRL's own, can bring about."""
    judged = read_form(FIELD, getattr(config, FIELD, None)).get("judge") is not None
    text = "stop_on has 'hacking', but there is no judge, so it cannot begin: set diagnosis: {judge: strict}, or remove"
    return [f"{text} it from stop_on."] if "hacking" in names and not judged else []
