"""The section of a page on what was drawn: kinds of prompts, what became of dead groups, pass rates of a sample."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from grpo_plus.record.reader import Run
from grpo_plus.report.panels import Line, Panel, metric_lines, thinned

VISITS = 100
"""Most pass rates of a prompt on a page."""
KINDS = {
    "died_out": ("always solved", "correct"),
    "between": ("sometimes solved", "partial"),
    "impossible": ("never solved", "wrong"),
    "unseen": ("not drawn yet", "not_applicable"),
}


def drawn(run: Run) -> dict[str, Any] | None:
    """Charts, counts and sampled prompts for the page's script; None for a run that chose nothing."""
    lines = run.prompts()
    panels = [panel for panel in (_kinds(lines), _completions(run), *_charts(run)) if panel.lines]
    if not panels:
        return None
    last = lines[-1] if lines else {}
    return {
        "panels": [asdict(panel) for panel in panels],
        "kinds": [[label, last.get(name)] for name, (label, _) in KINDS.items() if last],
        "graded": bool(last.get("graded")),
        "steps": [lines[0]["step"], last["step"]] if lines else [],
        "prompts": _sampled(lines),
    }


def _kinds(lines: Sequence[Mapping[str, Any]]) -> Panel:
    known = all(line.get("unseen") is not None for line in lines)
    names = [name for name in KINDS if name != "unseen" or known]
    kept = [lines[at] for at in thinned(len(lines))]
    wholes = [max(1, sum(line[name] for name in names)) for line in kept]
    note = "Share of the prompts." if known else "Share of those drawn."
    return Panel(
        "Prompts by how they are solved",
        f"{note} Only those that are sometimes solved teach anything.",
        [
            Line(
                KINDS[name][0],
                [line["step"] for line in kept],
                [line[name] / whole for line, whole in zip(kept, wholes, strict=True)],
                role=KINDS[name][1],
            )
            for name in names
            if any(line[name] for line in kept)
        ],
        kind="stack",
        unit="share",
        wide=True,
    )


def _completions(run: Run) -> Panel:
    """Those drawn for a batch, those in it, and those that have an advantage."""
    count = next((entry["values"].get("completions") for entry in run.entries if entry["kind"] == "batch"), None)
    found = metric_lines(run, {"dead_groups/drawn": "drawn"})
    if found and isinstance(count, int | float):
        stopped = dict(zip(*run.series("dead_groups/stopped"), strict=True))
        idle = dict(zip(*run.series("advantages/zero_fraction"), strict=True))
        steps = found[0].steps
        found.append(Line("trained on", steps, [count * (1 - stopped.get(step, 0.0)) for step in steps]))
        if idle:
            shared = [step for step in steps if step in idle]
            found.append(Line("with an advantage", shared, [count * (1 - idle[step]) for step in shared]))
    note = "Of a generation batch. Drawing is what costs; only completions with an advantage teach."
    return Panel("Completions drawn and trained on", note, found)


def _charts(run: Run) -> list[Panel]:
    became = {
        "dead_groups/dead": "dead at first",
        "dead_groups/replaced": "replaced",
        "dead_groups/stopped": "stopped early",
        "dead_groups/still_dead": "still dead",
    }
    return [
        Panel(
            "Dead groups and what became of them",
            "Share of the groups of a batch. Replaced: by fresh prompts or earlier groups. Still dead: they cost their "
            "place.",
            metric_lines(run, became),
            unit="share",
        ),
        Panel("Rounds of a batch", "Drawings that a batch took.", metric_lines(run, {"dead_groups/rounds": "rounds"})),
        Panel(
            "How the selection spreads",
            "Effective share of the prompts that draws go to, and the chance that a drawn group has contrast.",
            metric_lines(
                run, {"selection/effective": "prompts drawn from", "selection/contrast": "chance of contrast"}
            ),
            unit="share",
        ),
    ]


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
