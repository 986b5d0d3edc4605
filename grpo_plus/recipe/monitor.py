"""The diagnosis of a config: its judge and ``stop_on``, and every problem of the choice."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from grpo_plus.diagnosis import RULES
from grpo_plus.diagnosis.hacking import least_checks
from grpo_plus.recipe.entries import VerifierPart, build_verifiers, read_entries
from grpo_plus.recipe.forms import read_form
from grpo_plus.recipe.launch import at_least_1, process_count, steps_per_generation
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
    if recipe.monitor is not None and config.max_steps > 0:
        problems += too_few_checks(config, recipe.monitor, config.max_steps, f"max_steps is {config.max_steps}")
    return problems


def unreachable_findings(config: Any, names: Sequence[str]) -> list[str]:
    """Findings of ``stop_on`` that nothing in the config, which may be TRL's own, can bring about."""
    judged = read_form(FIELD, getattr(config, FIELD, None)).get("judge") is not None
    needs = {
        "hacking": (judged, "judge", "set diagnosis: {judge: strict}"),
        "critic_useless": (getattr(config, "critic", None) is not None, "critic", "set critic"),
    }
    return [
        f"stop_on has {name!r}, but there is no {needs[name][1]}, so it cannot begin: {needs[name][2]}, or remove it "
        "from stop_on."
        for name in dict.fromkeys(names)
        if name in needs and not needs[name][0]
    ]


def too_few_checks(config: Any, monitor: Monitor, steps: int, why: str) -> list[str]:
    """A run of so many optimizer steps in which no alarm is possible."""
    micro, accumulation = _looks(config), at_least_1(config.gradient_accumulation_steps)
    prompts = _prompts(config)
    least = least_checks(prompts)
    count = checks_during(steps, monitor.every, micro, accumulation, most=least)
    if count >= least:
        return []
    often = (max(1, steps // (2 * least)), 1)
    fitting = [every for every in often if checks_during(steps, every, micro, accumulation, most=least) >= least]
    remedy = f"set every to {fitting[0]}" if fitting else "train longer, draw completions more often"
    period = f"{max(1.0, micro / accumulation):.3g} steps (generation_batch_size / num_generations, num_iterations"
    text = f"{FIELD} every is {monitor.every}, and completions of {prompts} prompt(s) are sampled every {period}, "
    text += f"steps_per_generation), but {why}: there are {count} checks, and an alarm needs {least}"
    return [f"{text}: {remedy}, or remove {FIELD}."]


def steps_of(config: Any, rows: int) -> int:
    """The optimizer steps of ``num_train_epochs`` over so many rows."""
    micro, accumulation = _looks(config), at_least_1(config.gradient_accumulation_steps)
    each = -(-(rows // _prompts(config) * micro) // accumulation)
    return ceil(float(config.num_train_epochs) * each)


def checks_during(steps: int, every: int, micro: int, accumulation: int, most: int) -> int:
    """Checks of a run: completions are sampled every so many micro-batches, and judged ``every`` steps or later.

    >>> checks_during(60, 10, 4, 1, most=99), checks_during(60, 10, 1, 4, most=99), checks_during(60, 10, 1, 1, most=3)
    (5, 6, 3)
    """
    checks, last, batches = 0, -every, 0
    while checks < most and (step := batches * micro // accumulation) < steps:
        if step - last >= every:
            checks, last = checks + 1, step
        batches = max(batches + 1, -(-(last + every) * accumulation // micro))
    return checks


def _looks(config: Any) -> int:
    return steps_per_generation(config) * at_least_1(config.num_iterations)


def _prompts(config: Any) -> int:
    rows: int | None = config.generation_batch_size
    if rows is None:
        rows = at_least_1(config.per_device_train_batch_size) * process_count() * steps_per_generation(config)
    return at_least_1(rows // at_least_1(config.num_generations))
