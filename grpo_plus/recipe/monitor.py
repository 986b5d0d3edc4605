"""The hacking monitor and ``stop_on``: their fields, and every problem of the choice."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from grpo_plus.diagnosis import RULES
from grpo_plus.recipe.entries import build_verifiers, read_entries
from grpo_plus.recipe.recipe import Monitor, MonitorOptions, VerifierPart
from grpo_verifiers.errors import Problem
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import option_problems

FIELD = "hacking_monitor"


def choose_monitor(config: Any, verifiers: Sequence[VerifierPart]) -> tuple[Monitor | None, list[Problem]]:
    """The monitor of a config, None without any; everything that is wrong with it."""
    given = getattr(config, FIELD, None)
    if given is None:
        return None, []
    problems: list[Problem] = [*option_problems(FIELD, MonitorOptions, given, where="option", bare=True)]
    if problems:
        return None, problems
    options = MonitorOptions(**given)
    if options.verifier is None:
        return _twin(options, verifiers)
    entries, form = read_entries([options.verifier], f"{FIELD} verifier")
    parts, wrong = build_verifiers(entries, config.plugins)
    if form or wrong or not parts:
        return None, [*form, *wrong]
    return Monitor(options.every, options.sample, parts[0], options.against), []


def _twin(options: MonitorOptions, verifiers: Sequence[VerifierPart]) -> tuple[Monitor | None, list[Problem]]:
    """The stricter twin of the verifier that is watched, or of the first one that has any."""
    watched = [part for part in verifiers if options.against in (None, part.label) and part.weight != 0]
    for part in watched:
        strict = part.verifier.stricter
        if strict:
            kwargs: Mapping[str, Any] = {**part.entry.kwargs, **strict}
            twin = VerifierPart(replace(part.entry, kwargs=kwargs, weight=None), part.verifier.made_strict())
            return Monitor(options.every, options.sample, twin, part.label), []
    names = ", ".join(part.label for part in watched) or "none that rewards"
    text = (
        f"{FIELD} has no verifier, and of the verifiers ({names}) none has a stricter twin: they are as strict as they "
        f"can be, or not ours. Name a judge: {FIELD}: {{verifier: exact}}, or remove it."
    )
    return None, [text]


def monitor_problems(config: Any, recipe: Any) -> list[str]:
    """A monitor that would watch nothing, and findings of ``stop_on`` that do not exist."""
    problems = [
        f"stop_on: {unknown('finding', name, list(RULES))}" for name in config.stop_on or () if name not in RULES
    ]
    monitor = recipe.hacking_monitor
    if monitor is None:
        return problems
    if 0 < config.max_steps < 6 * monitor.every:
        problems.append(
            f"{FIELD} every is {monitor.every}, but max_steps is {config.max_steps}, and an alarm needs 6 checks: set "
            f"every to {max(1, config.max_steps // 12)}, or remove {FIELD}."
        )
    return problems
