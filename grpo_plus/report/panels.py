"""The charts of a single run."""

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_plus.record.reader import Run
from grpo_verifiers.stats import evenly

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


CHARTS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    (
        "Groups that teach nothing",
        "Dead: every advantage of the group is 0. Lower is better: dead groups cost rollouts.",
        ("advantages/dead_group_fraction", "frac_reward_zero_std", "advantages/zero_fraction"),
        "share",
    ),
    (
        "Prompts by how they are solved",
        "Share that is always solved (died out), never, or not sampled yet. The rest alone teaches anything.",
        ("selection/died_out", "selection/impossible", "selection/unseen"),
        "share",
    ),
    (
        "Calls of tools",
        "Over a generation batch: how many, and how many ended badly.",
        ("tools/calls", "tools/errors", "tools/late", "tools/died", "tools/unknown", "tools/bad_arguments"),
        "",
    ),
    (
        "Explained variance of the critic",
        "Share of the returns' variance that its values explain. 1: exact; 0 and below: no better than a constant.",
        ("critic/explained_variance",),
        "share",
    ),
    (
        "Ranking accuracy of the reward model",
        "Share of test pairs in their right order, after each training. A half is chance.",
        ("reward_model/accuracy",),
        "share",
    ),
    ("KL to the reference", "Per token.", ("kl",), ""),
    ("Entropy", "Of the policy, per token.", ("entropy",), ""),
    (
        "Clipped tokens",
        "Share whose ratio left the trust region, by side.",
        ("clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean", "cispo_clip_ratio"),
        "share",
    ),
    (
        "Completion length",
        "Mean, shortest and longest of the batch.",
        ("completions/mean_length", "completions/min_length", "completions/max_length"),
        "tokens",
    ),
    ("Cut off", "Share that ran out of tokens.", ("completions/clipped_ratio",), "share"),
    ("Gradient norm", "Before clipping.", ("grad_norm",), ""),
)
"""Title, note, metrics and unit; a comparison of runs shows the first metric of each."""


def label_of(key: str) -> str:
    """The label of a metric's line.

    >>> label_of("selection/died_out")
    'died out'
    """
    return key.rpartition("/")[2].replace("_", " ")


def single(run: Run) -> list[Panel]:
    """The charts of one run, without empty ones."""
    logged = run.metrics()
    labels = judging(run)
    rewards = _named(logged, "rewards/", "/mean")
    tested = metric_lines(run, {"eval_reward": "evaluation", "eval_score": "score in evaluation"}, role="eval")
    panels = [
        Panel(
            "Reward",
            "Mean over the batch, with one standard deviation to either side"
            + ("; dots are evaluation" * bool(tested))
            + (", whose score is the weighted sum of the verifiers that only evaluate" * ("eval_score" in logged))
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
        *(_statuses(run, label, "eval_") for label in labels if f"verifiers/{label}/status/correct" not in logged),
        _fan(run),
        *(
            Panel(title, note, metric_lines(run, {key: label_of(key) for key in keys}), unit=unit)
            for title, note, keys, unit in CHARTS
        ),
        _times(run),
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
    around = dict(zip(*run.series("reward_std"), strict=True))
    lines = metric_lines(run, {"reward": "train"})
    if not lines or not around:
        return lines
    steps, values = lines[0].steps, lines[0].values
    low, high = (
        [value + side * around.get(step, 0.0) for step, value in zip(steps, values, strict=True)] for side in (-1, 1)
    )
    return [ChartLine("train", steps, values, low, high)]


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


def thinned(count: int, most: int = POINTS) -> Sequence[int]:
    """Positions of the points to keep: all, or evenly spread ones and the last."""
    return sorted({*evenly(range(count), most), *range(count)[-1:]})
