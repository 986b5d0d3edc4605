"""The final figures of a run, read from its record as the report reads it."""

from pathlib import Path

from grpo_plus.record.reader import open_run
from grpo_plus.report.compare import at_the_end

TITLES = {"reward": "final reward", "eval_reward": "held-out reward"}
"""Compared metrics by their names in the log; the held-out accuracy by every verifier is added."""
ACCURACY = "held-out accuracy"
SECONDS = "seconds"
_ACCURACY = ("eval_verifiers/", "/status/correct")


def final(folder: Path) -> dict[str, float]:
    """The compared figures by title, as in reports: means over the last tenth of the log; `RunError` without a run."""
    run = open_run(folder)
    titles = dict(TITLES)
    for key in run.metrics():
        if key.startswith(_ACCURACY[0]) and key.endswith(_ACCURACY[1]):
            titles[key] = f"{ACCURACY}, {key[len(_ACCURACY[0]) : -len(_ACCURACY[1])]}"
    found = {title: value for key, title in titles.items() if (value := at_the_end(run, key)) is not None}
    for label, measured in run.measured.items():
        if measured.after is not None:  # of many samples: it replaces an evaluation's
            found[f"{ACCURACY}, {label}"] = measured.after.value
    _, seconds = run.series("train_runtime")
    return found | ({SECONDS: sum(seconds)} if seconds else {})
