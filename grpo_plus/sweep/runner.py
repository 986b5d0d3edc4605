"""Run the processes of a sweep, a few at a time; a signal lets them save, and none outlives the sweep."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from grpo_plus.checkpoints.disk import UNSAVED
from grpo_plus.checkpoints.folder import last_checkpoint, read_json
from grpo_plus.record.files import FOLDER, RUN, RunError, mark_sweep
from grpo_plus.sweep.manifest import Manifest
from grpo_plus.sweep.plan import Plan, Run
from grpo_plus.sweep.results import SECONDS, final, read_tail
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import open_own
from grpo_verifiers.sandbox.inside.proc import end_tree

GRACE = 600.0
"""Seconds for a run to finish its step, save and exit after Ctrl-C; a second Ctrl-C kills it at once."""
PAUSE = 0.2


@dataclass(frozen=True)
class Place:
    """The environment of the runs.

    ``slots`` has the environment variables of each slot for one run, such as its device; ``environment`` those of all
    runs. ``hold`` is the descriptor of the folder's lock, which runs inherit. ``ports`` gives each run its own
    rendezvous port.
    """

    slots: Sequence[Mapping[str, str]]
    environment: Mapping[str, str]
    hold: int
    ports: bool = False


@dataclass
class Live:
    """A running run; ``slot`` has its slot's environment variables, ``started`` is on the monotonic clock."""

    run: Run
    slot: Mapping[str, str]
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]
    started: float


@dataclass
class Watch:
    """Callbacks for a display, of each run's start and end, and of the live runs.

    ``tick`` is called several times a second, ``stopping`` once, at the first signal.
    """

    began: Callable[[Run], None] = lambda _: None
    ended: Callable[[Run], None] = lambda _: None
    tick: Callable[[Sequence[Live]], None] = lambda _: None
    stopping: Callable[[Sequence[Live]], None] = lambda _: None


@dataclass
class Stop:
    """The number of signals so far: after the first, runs may save; after the second, they are killed."""

    asked: int = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Count signals instead of raising: an exception between a start and its entry would lose the run."""

        def hear(_number: int, _frame: Any) -> None:
            self.asked += 1

        heard = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the terminal may go
            heard.append(signal.SIGHUP)
        before = {number: signal.signal(number, hear) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run_all(plan: Plan, manifest: Manifest, place: Place, stop: Stop, watch: Watch) -> None:
    """Run all unfinished runs, one for each slot at a time; the manifest is updated at every start and end.

    Raises:
        SweepError: the config file changed during the sweep; runs that had started are in the manifest.
    """
    changed, unwritten = False, ""
    waiting = [run for run in plan.runs if manifest.of(run).state != "finished"]
    free = list(place.slots)
    live: list[Live] = []
    until = 0.0
    try:
        while live or (waiting and not stop.asked):
            while waiting and free and not stop.asked:
                if not plan.still_holds():
                    changed, waiting = True, []
                    break
                run, slot = waiting.pop(0), free.pop(0)
                try:
                    live.append(_start(plan, manifest, run, slot, place))
                except OSError as error:  # a full or closed disk: those that run may still end well
                    unwritten, waiting = str(error), []
                    manifest.of(run).state = "waiting"
                    break
                watch.began(run)
            if stop.asked and not until:
                until = time.monotonic() + GRACE
                watch.stopping(live)
                for each in live:
                    each.process.send_signal(signal.SIGINT)  # a launcher passes it on to its ranks
            elif stop.asked > 1 or (until and time.monotonic() > until):
                for each in live:
                    end_tree(each.process.pid)
            watch.tick(live)
            time.sleep(PAUSE)
            for each in [each for each in live if each.process.poll() is not None]:
                live.remove(each)
                free.append(each.slot)
                _note(manifest, each, stopped=bool(stop.asked))
                watch.ended(each.run)
    finally:  # an exception must not leave runs behind
        for each in live:
            end_tree(each.process.pid)
            each.process.wait()
        for each in live:
            with contextlib.suppress(OSError):  # a full disk is one way to get here
                _note(manifest, each, stopped=True)

    if unwritten := unwritten or manifest.unsaved or "":
        raise SweepError(
            f"{plan.out} cannot be written ({unwritten}): runs that were left have not started, and the state of the "
            "sweep may not be in it. Free some space or make it writable, and give the same command to go on."
        )
    if changed:
        raise SweepError(
            f"{plan.config} was changed while the sweep was running, so the runs that were left have not started. "
            "Change it back and give the same command to go on, or start another sweep with --out."
        )


def _start(plan: Plan, manifest: Manifest, run: Run, slot: Mapping[str, str], place: Place) -> Live:
    entry = manifest.of(run)
    found = entry.state == "stopped" and last_checkpoint(run.folder, hashes=False) is not None
    command = plan.command(run)
    if place.ports:
        command.append(f"--main_process_port={_free_port()}")
    if found:
        command.append("--resume_from_checkpoint=auto")
    else:
        shutil.rmtree(run.folder, ignore_errors=True)
    mark_sweep(run.folder, run.variant.label, run.seed)
    entry.state, entry.code, entry.results = "running", None, {}
    entry.flags = list(run.flags)
    entry.attempts += 1
    manifest.save()  # before the run starts: nothing may fail once it has
    log = open_own(run.log, "ab" if found else "wb")
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and the user's own options
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**place.environment, **slot},
            pass_fds=(place.hold,),
            start_new_session=True,  # Ctrl-C comes to the sweep alone, which passes it on
        )
    except BaseException:
        log.close()
        raise
    return Live(run, slot, process, log, time.monotonic())


def _note(manifest: Manifest, live: Live, *, stopped: bool) -> None:
    """Enter how a run ended."""
    live.log.close()
    entry = manifest.of(live.run)
    entry.code = live.process.returncode
    status = read_json(live.run.folder / FOLDER / RUN).get("status")
    if entry.code == 0 and status != "interrupted" and not (stopped and status != "done"):
        entry.state = "finished"
        with contextlib.suppress(RunError):  # record: false, and nothing logged
            entry.results = final(live.run.folder)
        entry.results.setdefault(SECONDS, time.monotonic() - live.started)
    else:  # one that trained and could not write its end goes on from its last checkpoint
        goes_on = stopped or status == "interrupted" or entry.code == UNSAVED
        entry.state = "stopped" if goes_on else "failed"
    manifest.save()


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def log_tail(path: Path, lines: int = 12) -> list[str]:
    """The last lines of a log, without the repainting of progress bars."""
    try:
        text = read_tail(path)
    except OSError as error:
        return [f"(the log cannot be read: {error})"]
    shown = [line.rsplit("\r", 1)[-1].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return [line for line in shown if line][-lines:]


def threads(jobs: int) -> dict[str, str]:
    """Share the cores between runs side by side, unless ``OMP_NUM_THREADS`` is set."""
    if jobs < 2 or "OMP_NUM_THREADS" in os.environ:
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // jobs))}
