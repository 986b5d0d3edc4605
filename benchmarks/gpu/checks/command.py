"""``grpo-plus train`` in a process of its own, on the device of a check."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.check import Context
from benchmarks.gpu.checks.setup import python

ROOT = Path(__file__).parents[3]
_COMMAND = "import sys; from grpo_plus.cli import main; sys.exit(main(sys.argv[1:]))"


def started(folder: Path, config: Path, *arguments: str) -> "subprocess.Popen[str]":
    """A run that begins in ``folder``, its output in files there, the leader of a process group."""
    folder.mkdir(exist_ok=True, parents=True)
    paths = [str(ROOT), str(ROOT / "verifiers"), os.environ.get("PYTHONPATH", "")]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "GRPO_PLUS_QUICKSTART": str(folder / "quickstart")}
    with (folder / "log").open("a") as log:
        return subprocess.Popen(
            [*python(_COMMAND), "train", str(config), *arguments], cwd=folder, env={**os.environ, **variables},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True, start_new_session=True,
        )  # fmt: skip


def train(context: Context, folder: Path, config: Path, arguments: Sequence[str]) -> None:
    """Train to the end.

    Raises:
        RuntimeError: it ended with another exit code than 0.
    """
    process = started(folder, config, *arguments)
    try:
        code = process.wait(timeout=max(1.0, context.left))
    finally:
        process.kill()
        print((folder / "log").read_text(encoding="utf-8"))
    if code:
        lines = [line for line in (folder / "log").read_text(encoding="utf-8").splitlines() if line.strip()]
        raise RuntimeError(f"train ended with {code}: {lines[-1] if lines else 'nothing printed'}")
