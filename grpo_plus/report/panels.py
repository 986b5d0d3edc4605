"""The charts of a single run, and the section of its page on sampling."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_plus.record.reader import Run

STATUSES = ("correct", "partial", "wrong", "unparsable", "timeout", "error", "not_applicable")
POINTS = 4000
"""Most points of a line; a longer one is thinned evenly and keeps its last point."""
QUANTILES = ("lowest", "5%", "25%", "median", "75%", "95%", "highest")


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart, with a band if ``low`` and ``high`` are set.

    ``role`` selects the style: train, eval, or the name of a status.
    """

    label: str
    steps: list[int]
    values: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    role: str = "train"


@dataclass(frozen=True)
class Panel:
    """One chart: ``kind`` is lines, stack or fan; ``unit`` is share, seconds, tokens or empty."""

    title: str
    note: str
    lines: list[ChartLine]
    kind: str = "lines"
    unit: str = ""
    wide: bool = False


def single(run: Run) -> list[Panel]:
    """The charts of one run, without empty ones."""

    def chart(title: str, note: str, metrics: dict[str, str], unit: str = "") -> Panel:
        return Panel(title, note, metric_lines(run, metrics), unit=unit)

    keys = run.metrics()
    labels = judging(run)
    rewards = _named(keys, "rewards/", "/mean")
    tested = metric_lines(run, {"eval_reward": "evaluation", "eval_score": "score in evaluation"}, role="eval")
    panels = [
        Panel(
            "Reward",
            "Mean over the batch, with one standard deviation to either side"
            + ("; dots are evaluation" * bool(tested))
            + (", whose score is the weighted sum of the verifiers that only evaluate" * ("eval_score" in keys))
            + ".",
            [*_with_spread(run), *tested],
            wide=True,
        ),
        Panel(
            "Accuracy",
            "Share of completions that a verifier calls correct.",
            [
                *metric_lines(run, {f"verifiers/{label}/status/correct": label for label in labels}),
                *metric_lines(
                    run, {f"eval_verifiers/{label}/status/correct": f"{label}, evaluation" for label in labels}, "eval"
                ),
            ],
            unit="share",
        ),
        *([_rewards(run, rewards)] if len(rewards) > 1 or set(rewards) != set(labels) else []),
        *(_statuses(run, label) for label in labels),
        *(_statuses(run, label, "eval_") for label in labels if f"verifiers/{label}/status/correct" not in keys),
        _fan(run),
        chart(
            "Groups that teach nothing",
            "Dead: every advantage of the group is 0. Lower is better: dead groups cost rollouts.",
            {
                "advantages/dead_group_fraction": "dead groups",
                "frac_reward_zero_std": "equal rewards",
                "advantages/zero_fraction": "advantages of 0",
            },
            "share",
        ),
        chart(
            "Calls of tools",
            "Over a generation batch: how many, and how many ended badly.",
            {
                "tools/calls": "calls",
                "tools/errors": "errors",
                "tools/late": "late",
                "tools/died": "died",
                "tools/unknown": "unknown tools",
                "tools/bad_arguments": "bad arguments",
            },
        ),
        chart("Calls by tool", "Over a generation batch.", _of_tools(keys, "/calls")),
        chart("Time by tool", "Seconds in each tool over a generation batch.", _of_tools(keys, "/seconds"), "seconds"),
        chart(
            "Value against return",
            "Means over the trained tokens: the critic's expectation, and its target.",
            {"critic/value": "value", "critic/return": "return"},
        ),
        chart(
            "Explained variance of the critic",
            "Share of the returns' variance that its values explain, before it learns from them. 1: exact; 0: no "
            "better than a constant; below: worse.",
            {"critic/explained_variance": "explained"},
            "share",
        ),
        chart(
            "Ranking accuracy of the reward model",
            "Share of pairs in their right order: test pairs after each training, fresh before it. A half is chance.",
            {"reward_model/accuracy": "test", "reward_model/fresh_accuracy": "fresh"},
            "share",
        ),
        chart("KL to the reference", "Per token.", {"kl": "KL"}),
        chart("Entropy", "Of the policy, per token.", {"entropy": "entropy"}),
        chart(
            "Clipped tokens",
            "Share whose ratio left the trust region, by side.",
            {
                "clip_ratio/region_mean": "both",
                "clip_ratio/low_mean": "below",
                "clip_ratio/high_mean": "above",
                "cispo_clip_ratio": "capped",
            },
            "share",
        ),
        Panel(
            "Completion length",
            "Mean, between the shortest and the longest of the batch.",
            _between(run, "completions/mean_length", "completions/min_length", "completions/max_length"),
            unit="tokens",
        ),
        chart("Cut off", "Share that ran out of tokens.", {"completions/clipped_ratio": "cut off"}, "share"),
        chart(
            "Engine savings",
            "Share of an update's work that never ran, for the same gradient.",
            {"engine/tokens_saved": "tokens", "engine/rows_skipped": "rows"},
            "share",
        ),
        _times(run),
        chart("Loss", "Its size means little in itself; jumps do.", {"loss": "loss"}),
        chart("Gradient norm", "Before clipping.", {"grad_norm": "norm"}),
    ]
    return [panel for panel in panels if panel.lines]


def judging(run: Run) -> list[str]:
    """Labels of the verifiers with logged verdicts: those that reward, then those that only evaluate."""
    return _named(run.metrics(), "verifiers/", "/status/correct")


def _named(keys: Sequence[str], start: str, end: str) -> list[str]:
    """The names between ``start`` and ``end``, of training's metrics first, then of evaluation's."""
    names = [
        key[len(before) : -len(end)]
        for before in (start, f"eval_{start}")
        for key in keys
        if key.startswith(before) and key.endswith(end)
    ]
    return list(dict.fromkeys(names))


def every_metric(run: Run) -> dict[str, ChartLine]:
    """A line for every logged metric, by the metric's name."""
    return {
        key: line
        for key in run.metrics()
        for line in metric_lines(run, {key: key}, "eval" if key.startswith("eval_") else "train")
    }


def metric_lines(run: Run, keys: dict[str, str], role: str = "train") -> list[ChartLine]:
    """A line for each logged metric; of equal ones, the first."""
    lines: list[ChartLine] = []
    distinct: list[tuple[list[int], list[float]]] = []
    for key, label in keys.items():
        series = steps, values = run.series(key)
        if steps and series not in distinct:
            distinct.append(series)
            places = thinned(len(steps))
            lines.append(ChartLine(label, [steps[at] for at in places], [values[at] for at in places], role=role))
    return lines


def _with_spread(run: Run) -> list[ChartLine]:
    """The reward, and a band of one standard deviation to either side."""
    around = dict(zip(*run.series("reward_std"), strict=True))
    lines = metric_lines(run, {"reward": "train"})
    if not lines or not around:
        return lines
    steps, values = lines[0].steps, lines[0].values
    low, high = (
        [value + side * around.get(step, 0.0) for step, value in zip(steps, values, strict=True)] for side in (-1, 1)
    )
    return [ChartLine("train", steps, values, low, high)]


def _between(run: Run, key: str, low: str, high: str) -> list[ChartLine]:
    lows, highs = (dict(zip(*run.series(name), strict=True)) for name in (low, high))
    lines = metric_lines(run, {key: "mean"})
    if not lines or not lows or not highs:
        return lines
    steps, values = lines[0].steps, lines[0].values
    return [ChartLine("mean", steps, values, list(map(lows.get, steps, values)), list(map(highs.get, steps, values)))]


def _rewards(run: Run, names: Sequence[str]) -> Panel:
    trained = {f"rewards/{name}/mean": name for name in names}
    tested = {f"eval_rewards/{name}/mean": f"{name}, evaluation" for name in names}
    lines = [*metric_lines(run, trained), *metric_lines(run, tested, "eval")]
    return Panel("Rewards, one by one", "Mean of each reward, before its weight.", lines)


def _statuses(run: Run, label: str, mode: str = "") -> Panel:
    lines = [
        line
        for status in STATUSES
        for line in metric_lines(run, {f"{mode}verifiers/{label}/status/{status}": status.replace("_", " ")}, status)
        if any(line.values)
    ]
    title = f"Verdicts of {label}" + (", evaluation" if mode else "")
    return Panel(title, "Share of completions by status.", lines, kind="stack", unit="share")


def _fan(run: Run) -> Panel:
    steps, rows = run.quantiles()
    places = [at for at in thinned(len(steps)) if len(rows[at]) == len(QUANTILES)]
    lines = [
        ChartLine(name, [steps[at] for at in places], [rows[at][place] for at in places])
        for place, name in enumerate(QUANTILES)
        if places
    ]
    note = "Of all completions of a batch: median, the middle half, 5% to 95%, and the extremes."
    return Panel("Advantages", note, lines, kind="fan")


def _times(run: Run) -> Panel:
    parts = metric_lines(run, {f"time/{part}": part for part in ("rollout", "scoring", "update")})
    if parts:
        return Panel("Time of a step by phase", "Seconds of an optimizer step.", parts, kind="stack", unit="seconds")
    return Panel(
        "Time of a step", "Seconds of an optimizer step.", metric_lines(run, {"step_time": "step"}), unit="seconds"
    )


def thinned(count: int, most: int = POINTS) -> Iterable[int]:
    """Positions of the points to keep: all, or evenly spread ones and the last."""
    if count <= most:
        return range(count)
    return sorted({*(position * count // most for position in range(most)), count - 1})


def _of_tools(keys: Iterable[str], end: str) -> dict[str, str]:
    start = "tools/"
    return {
        key: key[len(start) : -len(end)]
        for key in keys
        if key.startswith(start) and key.count("/") > 1 and key.endswith(end)
    }


KINDS = {
    "selection/died_out": ("always solved", "correct"),
    "selection/impossible": ("never solved", "wrong"),
    "selection/unseen": ("not sampled yet", "not_applicable"),
}


def prompt_section(run: Run) -> dict[str, Any] | None:
    """Charts for the page's script; None for a run that chose nothing."""
    panels = [panel for panel in (_kinds(run), _completions(run), _dead(run)) if panel.lines]
    return {"panels": [asdict(panel) for panel in panels]} if panels else None


def _kinds(run: Run) -> Panel:
    lines = [line for key, (label, role) in KINDS.items() for line in metric_lines(run, {key: label}, role)]
    if lines:
        rest = [1 - sum(values) for values in zip(*(line.values for line in lines), strict=False)]
        lines.insert(1, ChartLine("sometimes solved", lines[0].steps, rest, role="partial"))
    note = "Share of the prompts. Only those that are sometimes solved teach anything."
    return Panel("Prompts by how they are solved", note, lines, kind="stack", unit="share", wide=True)


def _completions(run: Run) -> Panel:
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
