"""The top of a page: figures, parts, settings and problems of a run."""

from collections.abc import Mapping
from typing import Any

from grpo_plus.diagnosis import RULES, Finding
from grpo_plus.diagnosis.curves import MetricWindow
from grpo_plus.diagnosis.finding import RANK
from grpo_plus.record.reader import Run
from grpo_plus.report.compare import at_the_end, overall
from grpo_plus.report.panels import judging
from grpo_verifiers.redaction import redact

_FIELDS = tuple(Finding.__dataclass_fields__)


def tiles(run: Run) -> list[dict[str, Any]]:
    """Title, value, unit and, for some figures, the value at the start; empty figures are left out."""
    keys = run.metrics()
    labels = judging(run)
    figures = [*_measured(run), _moved(run, "reward", "Reward", "")]
    for label in sorted(labels, key=lambda label: f"eval_verifiers/{label}/status/correct" not in keys)[:2]:
        key = f"verifiers/{label}/status/correct"
        tested = f"eval_{key}"
        figures.append(
            _moved(run, tested, f"Accuracy, {label}, evaluation", "share")
            if tested in keys
            else _moved(run, key, f"Accuracy, {label}", "share")
        )
    if not labels and "eval_reward" in keys:
        figures.append(_moved(run, "eval_reward", "Reward, evaluation", ""))
    dead = "advantages/dead_group_fraction"
    for key, title, unit in (
        (dead if dead in keys else "frac_reward_zero_std", "Dead groups", "share"),
        ("engine/tokens_saved", "Update tokens saved", "share"),
        ("step_time", "Time of a step", "seconds"),
    ):
        figures.append({"title": title, "value": overall(run, key), "start": None, "unit": unit})
    return [tile for tile in figures if tile["value"] is not None]


def _measured(run: Run) -> list[dict[str, Any]]:
    figures = []
    for label, each in list(run.measured.items())[:2]:
        now = each.after or each.before
        if now is None:
            continue
        note = f"{now.low:.1%} to {now.high:.1%}"
        if each.after is None:
            note += ", before training"
        elif each.before is not None:
            note += f", before {each.before.value:.1%}"
        if each.gain is not None:
            gain = [100 * end for end in each.gain]
            note += f"; {gain[0]:+.1f} points ({gain[1]:+.1f} to {gain[2]:+.1f})"
        tile = {"title": f"Held-out accuracy, {label}", "value": now.value, "unit": "share", "note": note}
        figures.append(tile | {"start": None if each.after is None or each.before is None else each.before.value})
    return figures


def _moved(run: Run, key: str, title: str, unit: str) -> dict[str, Any]:
    points = MetricWindow(*run.series(key))
    start = points.beginning if len(points.values) > 1 else None
    return {"title": title, "value": at_the_end(run, key), "start": start, "unit": unit}


def facts(run: Run) -> dict[str, Any]:
    """Status, parts and settings of the run, for the head and the foot of the page."""
    info: dict[str, Any] = redact(run.info)
    steps = [entry["step"] for entry in run.entries]
    times = [entry["time"] for entry in run.entries if isinstance(entry.get("time"), int | float)]
    began, ended = info.get("started"), info.get("ended") or (max(times) if times else None)
    model, base = info.get("model"), (info.get("command") or {}).get("model_name_or_path")
    if model and base:  # the trained one may be a warm start, in a folder named by a hash
        model = {**model, "name": str(base).rstrip("/")}
    problems = findings(run)
    timed = isinstance(began, int | float) and isinstance(ended, int | float)
    return {
        "name": run.name,
        "path": str(run.path),
        "status": run.status,
        "error": info.get("error") if run.status in ("failed", "interrupted") else None,
        "step": max(steps, default=0),
        "of": info.get("max_steps"),
        "started": began,
        "seconds": max(0.0, ended - began) if timed and began is not None and ended is not None else None,
        "resumed_from": info.get("resumed_from"),
        "model": model,
        "parts": info.get("parts"),
        "findings": problems,
        "outcome": outcome(run, problems),
        "versions": info.get("versions"),
        "device": info.get("device"),
        "processes": info.get("processes"),
        "config": info.get("config"),
    }


def findings(run: Run) -> list[dict[str, Any]]:
    """Each recorded finding once, most severe first: `Finding`'s fields, ``since``, and ``until``, None if open."""
    recorded: dict[str, dict[str, Any]] = {}
    for line in run.findings():
        name = line["name"]
        if line.get("ends"):
            if name in recorded:
                recorded[name]["until"] = line["step"]
            continue
        since = recorded[name]["since"] if name in recorded else line["step"]
        empty = Finding(name, "warning", "", "", "").as_data()
        values = {key: line[key] for key in _FIELDS if line.get(key) is not None}
        recorded[name] = {**empty, **values, "since": since, "until": None}
    places = {name: place for place, name in enumerate(RULES)}

    def grave(one: Mapping[str, Any]) -> tuple[bool, int, int]:
        return one["until"] is not None, RANK.get(one["severity"], 1), places.get(one["name"], len(places))

    order = sorted(recorded.values(), key=grave)
    return [one for one in order if one["until"] is None or one["severity"] != "note"]


def outcome(run: Run, problems: list[dict[str, Any]]) -> str:
    """The text of the badge next to the status, by the most severe open finding; empty for a sound run."""
    if run.status == "running":
        return ""
    return next((str(one["outcome"]) for one in problems if one["until"] is None and one["outcome"]), "")
