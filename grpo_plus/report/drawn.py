"""The section of a page on sampling: kinds of prompts, fates of dead groups, pass rates of prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_plus.record.reader import Run
from grpo_plus.report.panels import ChartLine, Panel, metric_lines, thinned

VISITS = 100
"""Most pass rates of a prompt on a page."""
KINDS = {
    "died_out": ("always solved", "correct"),
    "between": ("sometimes solved", "partial"),
    "impossible": ("never solved", "wrong"),
    "unseen": ("not sampled yet", "not_applicable"),
}


def prompt_section(run: Run) -> dict[str, Any] | None:
    """Charts, counts and sampled prompts for the page's script; None for a run that chose nothing."""
    lines = run.prompts()
    panels = [panel for panel in (_kinds(lines), _completions(run), _dead(run)) if panel.lines]
    if not panels:
        return None
    last = lines[-1] if lines else {}
    return {
        "panels": [asdict(panel) for panel in panels],
        "kinds": [[label, last[name]] for name, (label, _) in KINDS.items() if last],
        "graded": bool(last.get("graded")),
        "steps": [lines[0]["step"], last["step"]] if lines else [],
        "prompts": _sampled(lines),
    }


def _kinds(lines: Sequence[Mapping[str, Any]]) -> Panel:
    chosen = [lines[at] for at in thinned(len(lines))]
    totals = [max(1, sum(line[name] for name in KINDS)) for line in chosen]
    return Panel(
        "Prompts by how they are solved",
        "Share of the prompts. Only those that are sometimes solved teach anything.",
        [
            ChartLine(
                label,
                [line["step"] for line in chosen],
                [line[name] / total for line, total in zip(chosen, totals, strict=True)],
                role=role,
            )
            for name, (label, role) in KINDS.items()
            if any(line[name] for line in chosen)
        ],
        kind="stack",
        unit="share",
        wide=True,
    )


def _completions(run: Run) -> Panel:
    """Completions sampled for a batch, trained on, and with an advantage."""
    count = next((entry["values"].get("completions") for entry in run.entries if entry["kind"] == "batch"), None)
    lines = metric_lines(run, {"dead_groups/drawn": "sampled"})
    if lines and isinstance(count, int | float):
        stopped = dict(zip(*run.series("dead_groups/stopped"), strict=True))
        idle = dict(zip(*run.series("advantages/zero_fraction"), strict=True))
        steps = lines[0].steps
        lines.append(ChartLine("trained on", steps, [count * (1 - stopped.get(step, 0.0)) for step in steps]))
        if idle:
            shared = [step for step in steps if step in idle]
            lines.append(ChartLine("with an advantage", shared, [count * (1 - idle[step]) for step in shared]))
    note = "Of a generation batch. Sampling is the cost; only completions with an advantage teach."
    return Panel("Completions sampled and trained on", note, lines)


def _dead(run: Run) -> Panel:
    became = {
        "dead_groups/dead": "dead at first",
        "dead_groups/replaced": "replaced",
        "dead_groups/stopped": "stopped early",
        "dead_groups/still_dead": "still dead",
    }
    return Panel(
        "Dead groups and their fates",
        "Share of the groups of a batch. Replaced: by fresh prompts or earlier groups. Still dead: they cost a place.",
        metric_lines(run, became),
        unit="share",
    )


def _sampled(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The sampled prompts with their pass rates over the steps."""
    texts: dict[str, str] = {}
    visits: dict[str, list[tuple[int, float]]] = {}
    draws: dict[str, float] = {}
    for line in lines:
        texts |= line.get("texts") or {}
        for each in line.get("changed") or []:
            visits.setdefault(each["prompt"], []).append((line["step"], each["rate"]))
            draws[each["prompt"]] = each["drawn"]
    return [
        {
            "text": texts.get(key, f"prompt {key[:8]}"),
            "drawn": draws[key],
            "visits": [rates[at] for at in thinned(len(rates), VISITS)],
        }
        for key, rates in visits.items()
    ]
