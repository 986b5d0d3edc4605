"""The final figures of a run, read from its record as the report reads it, and the progress of a live run."""

import json
from pathlib import Path

from grpo_plus.checkpoints.folder import read_json
from grpo_plus.record.files import FOLDER, METRICS, RUN
from grpo_plus.record.reader import open_run
from grpo_plus.report.compare import at_the_end

TITLES = {"reward": "final reward", "eval_reward": "held-out reward"}
"""Compared metrics by their names in the log; the held-out accuracy by every verifier is added."""
ACCURACY = "held-out accuracy"
SECONDS = "seconds"
_ACCURACY = ("eval_verifiers/", "/status/correct")
_TAIL_BYTES = 64 * 1024


def final(folder: Path) -> dict[str, float]:
    """The compared figures by title, as in reports: means over the last tenth of the log; `RunError` without a run."""
    run = open_run(folder)
    titles = dict(TITLES)
    for key in run.metrics():
        if key.startswith(_ACCURACY[0]) and key.endswith(_ACCURACY[1]):
            titles[key] = f"{ACCURACY}, {key[len(_ACCURACY[0]) : -len(_ACCURACY[1])]}"
    found = {title: value for key, title in titles.items() if (value := at_the_end(run, key)) is not None}
    found |= _measured_after(folder)
    _, seconds = run.series("train_runtime")
    return found | ({SECONDS: sum(seconds)} if seconds else {})


def _measured_after(folder: Path) -> dict[str, float]:
    """The accuracy from a config's ``measure`` after training; it has many samples, so it replaces an evaluation's."""
    try:
        verifiers = read_json(folder / "measure" / "after.json")["results"]["verifiers"]
        return {f"{ACCURACY}, {label}": float(each["pass_at"]["1"]["value"]) for label, each in verifiers.items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def progress(folder: Path) -> str:
    """The progress of a run in a few words, from the end of its record: this is asked every second."""
    total = read_json(folder / FOLDER / RUN).get("max_steps")
    try:
        lines = read_tail(folder / FOLDER / METRICS).splitlines()
    except OSError:
        lines = []
    for line in reversed(lines):
        try:
            row = json.loads(line)
            step, reward = row["step"], row["values"]["reward"]
        except (ValueError, KeyError, TypeError):
            continue
        of = f" of {total}" if isinstance(total, int) else ""
        return f"step {step}{of}" + (f", reward {reward:.3f}" if isinstance(reward, int | float) else "")
    return "starting"


def read_tail(path: Path) -> str:
    """The end of a text file; `OSError` if it cannot be read."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
