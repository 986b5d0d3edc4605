"""The tests that train, on this device: as far as time goes, the quickest folders first."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from benchmarks.gpu.check import Context, Skipped

ROOT = Path(__file__).parents[3]
FOLDERS = ("heads", "advantages", "selection", "engine", "objectives", "memory", "critic", "qlora", "trainer")
"""By the time that a test takes."""


def run(context: Context, *, workers: int = 8) -> None:
    """Every test of these folders that is not slow; each outcome is kept as it comes."""
    import importlib.util

    import torch

    if missing := [name for name in ("pytest", "xdist", "hypothesis") if importlib.util.find_spec(name) is None]:
        raise Skipped(f"not installed: {', '.join(missing)}")
    outcomes = context.folder / "outcomes.jsonl"
    device = "stand-in" if hasattr(torch, "_stand_in") else context.device.type
    folders = FOLDERS[:1] if context.tiny else FOLDERS
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-n", str(1 if context.tiny else workers)]
    command += [
        "-p",
        "no:cacheprovider",
        "-p",
        "benchmarks.gpu.checks.outcomes",
        *(f"tests/{name}" for name in folders),
    ]
    variables = {**os.environ, "GRPO_PLUS_DEVICE": device, "GRPO_PLUS_OUTCOMES": str(outcomes), "PYTHONUNBUFFERED": "1"}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "verifiers"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(command, cwd=ROOT, env=variables, stdin=subprocess.DEVNULL)
    cut = False
    try:
        process.wait(timeout=max(1.0, context.left - 5))
    except subprocess.TimeoutExpired:
        cut = True
        process.terminate()
        process.wait()
    found = (
        [json.loads(line) for line in outcomes.read_text(encoding="utf-8").splitlines()] if outcomes.exists() else []
    )
    counts = Counter(one["outcome"] for one in found)
    failed = [one for one in found if one["outcome"] == "failed"]
    by_folder = {
        name: dict(Counter(one["outcome"] for one in found if one["test"].startswith(f"tests/{name}/")))
        for name in folders
    }
    context.report(by_folder=by_folder, failed={one["test"]: one["why"] for one in failed[:60]}, cut_off=cut)
    context.expect(not failed, f"{len(failed)} failed: " + ", ".join(one["test"].split("::")[-1] for one in failed[:8]))
    context.expect(counts["passed"] > 0, f"no test passed; pytest ended with {process.returncode}")
    context.headline(
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped on {device}"
        + (", then the time was over" if cut else "")
    )
