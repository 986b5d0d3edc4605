"""Which charts a page has, and what is in them."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_plus.record.reader import Run

STATUSES = ("correct", "partial", "wrong", "unparsable", "timeout", "error", "not_applicable")
POINTS = 4000
"""Of one line; a longer one is thinned evenly, keeping its last point."""


@dataclass(frozen=True)
class Line:
    """One line of a chart: values at steps, with a band when ``low`` and ``high`` are there.

    ``role`` picks how it is drawn: train, eval, or the name of a status.
    """

    label: str
    steps: list[int]
    values: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    role: str = "train"


@dataclass(frozen=True)
class Panel:
    """One chart: ``kind`` is lines, stack or fan; ``unit`` is share, seconds, tokens or none."""

    title: str
    note: str
    lines: list[Line]
    kind: str = "lines"
    unit: str = ""
    wide: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """As the page's script reads it."""
        return asdict(self)


def single(run: Run) -> list[Panel]:
    """The charts of one run; those without a point are left out."""
    keys = run.metrics()
    labels = judging(run)
    rewards = _named(keys, "rewards/", "/mean")
    accuracy = [f"verifiers/{label}/status/correct" for label in labels]
    panels = [
        Panel(
            "Reward",
            "Mean over the batch, with one standard deviation to either side; dots are evaluation, whose score is the "
            "weighted sum of the verifiers that only evaluate.",
            [
                *_with_spread(run, "reward", "reward_std", "train"),
                *_lines(run, {"eval_reward": "evaluation", "eval_score": "score in evaluation"}, role="eval"),
            ],
            wide=True,
        ),
        Panel(
            "Accuracy",
            "Share of completions that a verifier calls correct.",
            [
                *_lines(run, dict(zip(accuracy, labels, strict=True))),
                *_lines(
                    run,
                    {f"eval_{key}": f"{label}, evaluation" for key, label in zip(accuracy, labels, strict=True)},
                    "eval",
                ),
            ],
            unit="share",
        ),
        *([_rewards(run, rewards)] if len(rewards) > 1 or set(rewards) != set(labels) else []),
        *(_statuses(run, label) for label in labels),
        *(_statuses(run, label, "eval_") for label in labels if f"verifiers/{label}/status/correct" not in keys),
        _fan(run),
        Panel(
            "Groups that teach nothing",
            "Dead: every advantage of the group is 0. Lower is better: dead groups cost rollouts.",
            _lines(
                run,
                {
                    "advantages/dead_group_fraction": "dead groups",
                    "frac_reward_zero_std": "equal rewards",
                    "advantages/zero_fraction": "advantages of 0",
                },
            ),
            unit="share",
        ),
        Panel("KL to the reference", "Per token.", _lines(run, {"kl": "KL"})),
        Panel("Entropy", "Of the policy, per token.", _lines(run, {"entropy": "entropy"})),
        Panel(
            "Clipped tokens",
            "Share whose ratio left the trust region, by side.",
            _lines(
                run,
                {
                    "clip_ratio/region_mean": "both",
                    "clip_ratio/low_mean": "below",
                    "clip_ratio/high_mean": "above",
                    "cispo_clip_ratio": "capped",
                },
            ),
            unit="share",
        ),
        Panel(
            "Completion length",
            "Mean, between the shortest and the longest of the batch.",
            _between(run, "completions/mean_length", "completions/min_length", "completions/max_length"),
            unit="tokens",
        ),
        Panel(
            "Cut off",
            "Share that ran out of tokens.",
            _lines(run, {"completions/clipped_ratio": "cut off"}),
            unit="share",
        ),
        Panel(
            "Engine savings",
            "Share of an update's work that never ran, for the same gradient.",
            _lines(run, {"engine/tokens_saved": "tokens", "engine/rows_skipped": "rows"}),
            unit="share",
        ),
        _times(run),
        Panel("Steps of a completion", "Mean score of the scored ones.", _lines(run, {"steps/score_mean": "score"})),
        Panel(
            "Advantage by position of the step",
            "Mean over completions that have that many steps.",
            _lines(run, {f"advantages/step_{place}": f"step {place}" for place in range(1, 5)}),
        ),
        Panel("Loss", "Its size says little in itself; jumps do.", _lines(run, {"loss": "loss"})),
        Panel("Gradient norm", "Before clipping.", _lines(run, {"grad_norm": "norm"})),
    ]
    return [panel for panel in panels if panel.lines]


def judging(run: Run) -> list[str]:
    """Labels of the verifiers whose verdicts were logged: those that reward, then those that only evaluate."""
    return _named(run.metrics(), "verifiers/", "/status/correct")


def _named(keys: Sequence[str], start: str, end: str) -> list[str]:
    """What stands between start and end, in training's metrics first, then in evaluation's alone."""
    found = [
        key[len(before) : -len(end)]
        for before in (start, f"eval_{start}")
        for key in keys
        if key.startswith(before) and key.endswith(end)
    ]
    return list(dict.fromkeys(found))


def every_metric(run: Run) -> dict[str, Line]:
    """All that was logged, by its own name, for the picker."""
    return {
        key: line
        for key in run.metrics()
        for line in _lines(run, {key: key}, "eval" if key.startswith("eval_") else "train")
    }


def _lines(run: Run, keys: dict[str, str], role: str = "train") -> list[Line]:
    """A line for each metric that was logged; of two that are the same everywhere, the first."""
    found = []
    known: list[tuple[list[int], list[float]]] = []
    for key, label in keys.items():
        steps, values = run.series(key)
        if steps and not any((steps, values) == before for before in known):
            known.append((steps, values))
            kept = thinned(len(steps))
            found.append(Line(label, [steps[at] for at in kept], [values[at] for at in kept], role=role))
    return found


def _with_spread(run: Run, key: str, spread: str, label: str) -> list[Line]:
    found = _lines(run, {key: label})
    around = dict(zip(*run.series(spread), strict=True))
    if not found or not around:
        return found
    line = found[0]
    low = [value - around.get(step, 0.0) for step, value in zip(line.steps, line.values, strict=True)]
    high = [value + around.get(step, 0.0) for step, value in zip(line.steps, line.values, strict=True)]
    return [Line(label, line.steps, line.values, low, high)]


def _between(run: Run, key: str, low: str, high: str) -> list[Line]:
    found = _lines(run, {key: "mean"})
    lows, highs = (dict(zip(*run.series(name), strict=True)) for name in (low, high))
    if not found or not lows or not highs:
        return found
    line = found[0]
    pairs = list(zip(line.steps, line.values, strict=True))
    return [
        Line("mean", line.steps, line.values, [lows.get(*pair) for pair in pairs], [highs.get(*pair) for pair in pairs])
    ]


def _rewards(run: Run, names: Sequence[str]) -> Panel:
    trained = {f"rewards/{name}/mean": name for name in names}
    tested = {f"eval_rewards/{name}/mean": f"{name}, evaluation" for name in names}
    lines = [*_lines(run, trained), *_lines(run, tested, "eval")]
    return Panel("Rewards, one by one", "Mean of each reward, before its weight.", lines)


def _statuses(run: Run, label: str, mode: str = "") -> Panel:
    lines = [
        line
        for status in STATUSES
        for line in _lines(run, {f"{mode}verifiers/{label}/status/{status}": status.replace("_", " ")}, status)
        if any(line.values)
    ]
    title = f"Verdicts of {label}" + (", evaluation" if mode else "")
    return Panel(title, "Share of completions by status.", lines, kind="stack", unit="share")


def _fan(run: Run) -> Panel:
    steps, rows = run.quantiles()
    kept = [at for at in thinned(len(steps)) if len(rows[at]) == 7]
    names = ("lowest", "5%", "25%", "median", "75%", "95%", "highest")
    lines = [
        Line(name, [steps[at] for at in kept], [rows[at][place] for at in kept])
        for place, name in enumerate(names)
        if kept
    ]
    note = "Of all completions of a batch: median, the middle half, 5% to 95%, and the extremes."
    return Panel("Advantages", note, lines, kind="fan")


def _times(run: Run) -> Panel:
    parts = _lines(run, {f"time/{part}": part for part in ("rollout", "scoring", "update")})
    if parts:
        return Panel("Where a step's time goes", "Seconds of an optimizer step.", parts, kind="stack", unit="seconds")
    return Panel("Time of a step", "Seconds of an optimizer step.", _lines(run, {"step_time": "step"}), unit="seconds")


def thinned(count: int, most: int = POINTS) -> Iterable[int]:
    """Positions to keep of so many points: all, or evenly spread ones with the last."""
    if count <= most:
        return range(count)
    return sorted({*(position * count // most for position in range(most)), count - 1})
