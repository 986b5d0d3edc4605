"""Run a sweep on this machine, one run after the other; after a signal a run may save, and none outlives the sweep."""

import contextlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.checkpoints.disk import UNSAVED
from grpo_plus.checkpoints.folder import last_checkpoint, read_json
from grpo_plus.record.files import FOLDER, RUN, RunError, mark_sweep
from grpo_plus.record.reader import open_run
from grpo_plus.report.compare import MEASURED, at_the_end
from grpo_plus.sweep.manifest import SweepManifest
from grpo_plus.sweep.plan import SweepPlan, SweepRun
from grpo_plus.sweep.show import SECONDS, SweepProgress
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import open_own
from grpo_verifiers.sandbox.inside.proc import end_tree

GRACE = 600.0
"""Seconds for a run to finish its step, save and exit after Ctrl-C; a second Ctrl-C kills it at once."""
PAUSE = 0.2
TITLES = {"reward": "final reward", "eval_reward": "held-out reward"}
"""Compared metrics by their names in the log; the held-out accuracy by every verifier is added."""


@dataclass
class StopSignals:
    """Number of signals so far: after the first, runs may save; after the second, they are killed."""

    count: int = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Count signals instead of raising: an exception between a start and its entry would lose the run."""

        def increment(_number: int, _frame: Any) -> None:
            self.count += 1

        handled = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the terminal may close
            handled.append(signal.SIGHUP)
        before = {number: signal.signal(number, increment) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_all(
    manifest: SweepManifest, progress: SweepProgress, stop: StopSignals, *, environment: Mapping[str, str], hold: int
) -> None:
    """Run all unfinished runs in turn; the manifest is updated at every start and end.

    ``hold`` is the descriptor of the folder's lock, which runs inherit.

    Raises:
        SweepError: the config file changed or the disk was full; runs that had started are in the manifest.
    """
    plan = manifest.plan
    for run in manifest.unfinished():
        if stop.count:
            break
        if not plan.config_unchanged():
            raise changed(plan)
        before = manifest.of(run).state
        manifest.begin(run)  # before the run starts: nothing may fail once it has
        try:
            process = start(plan, run, environment, stopped=before == "stopped", hold=(hold,))
        except OSError as error:  # a full or closed disk
            manifest.of(run).state = before
            raise unwritten(plan, error) from error
        progress.began(run)
        try:
            wait_for_end(process, lambda run=run: progress.tick([run], stop.count))  # type: ignore[misc]
        except BaseException:
            with contextlib.suppress(OSError):  # the cause may be a full disk
                note(manifest, run, process.returncode, stopped=True)
            raise
        note(manifest, run, process.returncode, stopped=bool(stop.count))
        progress.ended(run)
    if manifest.unsaved:
        raise unwritten(plan, manifest.unsaved)


def start(
    plan: SweepPlan,
    run: SweepRun,
    environment: Mapping[str, str],
    *,
    stopped: bool,
    words: Sequence[str] = (),
    hold: Sequence[int] = (),
) -> "subprocess.Popen[bytes]":
    """Start the process of a run, from its last checkpoint if it was ``stopped`` and has one.

    ``words`` are further arguments, ``hold`` descriptors that it inherits.
    """
    command = [*plan.command(run), *words]
    resumes = stopped and last_checkpoint(run.folder, hashes=False) is not None
    if resumes:
        command.append("--resume_from_checkpoint=auto")
    else:
        shutil.rmtree(run.folder, ignore_errors=True)
    mark_sweep(run.folder, run.variant.label, run.seed)
    with open_own(run.log, "ab" if resumes else "wb") as log:
        return subprocess.Popen(  # noqa: S603 - this interpreter and the user's own options
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            pass_fds=hold,
            start_new_session=True,  # Ctrl-C reaches the sweep only, which forwards it
        )


def wait_for_end(process: "subprocess.Popen[bytes]", signal_count: Callable[[], int]) -> int:
    """Wait for the end of a run, and return its exit code; even after an error, no process remains.

    ``signal_count`` is called several times a second for the number of signals so far.
    """
    until = 0.0
    try:
        while process.poll() is None:
            signals = signal_count()
            if signals and not until:
                until = time.monotonic() + GRACE
                process.send_signal(signal.SIGINT)  # a launcher forwards it to its ranks
            elif signals > 1 or (until and time.monotonic() > until):
                end_tree(process.pid)
            time.sleep(PAUSE)
    finally:
        if process.poll() is None:
            end_tree(process.pid)
            process.wait()
    return process.returncode


def note(manifest: SweepManifest, run: SweepRun, code: int | None, *, stopped: bool) -> None:
    """Record the end of a run."""
    entry = manifest.of(run)
    status = read_json(run.folder / FOLDER / RUN).get("status")
    entry.code = code
    if code == 0 and status != "interrupted" and not (stopped and status != "done"):
        entry.state = "finished"
        with contextlib.suppress(RunError):  # record: false, and nothing logged
            entry.results = final(run.folder)
        entry.results.setdefault(SECONDS, time.monotonic() - manifest.started[run.name])
    else:  # a run that could not write its final model resumes from its last checkpoint
        entry.state = "stopped" if stopped or status == "interrupted" or code == UNSAVED else "failed"
    manifest.save()


def final(folder: Path) -> dict[str, float]:
    """Return the compared figures by title, as in reports: means over the last tenth of the log."""
    run = open_run(folder)
    titles, start, end = dict(TITLES), "eval_verifiers/", "/status/correct"
    for key in run.metrics():
        if key.startswith(start) and key.endswith(end):
            titles[key] = f"{MEASURED}, {key[len(start) : -len(end)]}"
    figures = {title: value for key, title in titles.items() if (value := at_the_end(run, key)) is not None}
    for label, measured in run.measured.items():
        if measured.after is not None:  # based on more samples than an evaluation
            figures[f"{MEASURED}, {label}"] = measured.after.value
    _, seconds = run.series("train_runtime")
    return figures | ({SECONDS: sum(seconds)} if seconds else {})


def unwritten(plan: SweepPlan, why: object) -> SweepError:
    """Return the error for a folder that cannot be written any more."""
    return SweepError(
        f"{plan.out} cannot be written ({why}): the remaining runs have not started, and the state of the "
        "sweep may be missing. Free some space or make it writable, and resume with the same command."
    )


def changed(plan: SweepPlan) -> SweepError:
    """Return the error for a config that changed during the sweep."""
    return SweepError(
        f"{plan.config} was changed while the sweep was running, so the remaining runs have not started. "
        "Change it back and resume with the same command, or start another sweep with --out."
    )


def log_tail(path: Path, lines: int = 12) -> list[str]:
    """Return the last lines of a log."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return [f"(the log cannot be read: {error})"]
    return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
