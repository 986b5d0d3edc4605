"""Run a sweep as tasks of a Ray cluster: Ray schedules the runs on its machines.

The machines share a file system. Every task checks the release, the sweep's folder and the config before it starts its
run, which is the same process as on one machine.
"""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_plus import __version__
from grpo_plus.sweep.manifest import LOCK, SweepManifest
from grpo_plus.sweep.plan import SweepPlan, SweepRun, VariantCheck, check
from grpo_plus.sweep.runner import PAUSE, StopSignals, changed, note, start, unwritten, wait_for_end
from grpo_plus.sweep.show import SweepProgress
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import open_own, read_text

STARTS = 3
"""Maximum number of starts of a run whose machine is lost."""
PATIENCE = 10.0
"""Seconds without any run until the sweep prints the missing resources."""


@dataclass(frozen=True)
class TaskContext:
    """Settings and resources of each task. ``naming`` makes an environment for processes that end with this one."""

    plan: SweepPlan
    naming: Callable[[Mapping[str, str]], dict[str, str]]
    processes: int = 1
    cpus: float = 1
    gpus: float = 0
    folder: str = field(default_factory=os.getcwd)
    version: str = __version__
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def write_signals(self, signals: int) -> None:
        """Write the token, which identifies the sweep's folder, and the number of signals into the lock file.

        The length stays constant, so a reader never gets a part, and a full disk is no problem.
        """
        with open_own(self.plan.out / LOCK, "r+", encoding="ascii") as file:
            file.write(f"{self.token} {min(signals, 2)}")

    def read_signals(self) -> int | None:
        """Read the number of signals from the lock; None if the sweep's folder is missing or another one."""
        try:
            token, signals = read_text(self.plan.out / LOCK).split()
            return int(signals) if token == self.token else None
        except (OSError, ValueError):
            return None


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Connect to the cluster of RAY_ADDRESS or of this machine, else start Ray on this machine only."""
    try:
        import ray
    except ImportError as error:
        raise SweepError(f"--on ray needs Ray ({error}): pip install 'ray>=2.40'.") from error
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        if address not in ("", "auto", "local"):  # Ray would retry for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=30).close()
        ray.init(log_to_driver=False, logging_level="error")
    except Exception as error:  # Ray raises many types
        where = f"at RAY_ADDRESS={address}" if address else "on this machine"
        raise SweepError(
            f"no Ray cluster answers {where} ({type(error).__name__}: {error}). RAY_ADDRESS is HOST:PORT of one that "
            "`ray start --head` has started; unset, it is the one of this machine, or one that the sweep starts here."
        ) from error
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise SweepError(f"the Ray cluster failed: {error}\nResume with the same command.") from error
    finally:
        ray.shutdown()


@contextlib.contextmanager
def on_ray(plan: SweepPlan, naming: Any, cpus: float | None, gpus: float | None) -> Iterator["RaySweep"]:
    """Connect to the cluster for one sweep."""
    with connected() as ray:
        yield RaySweep(ray, TaskContext(plan, naming), cpus, gpus)


class RaySweep:
    """A sweep and its cluster."""

    def __init__(self, ray: Any, share: TaskContext, cpus: float | None = None, gpus: float | None = None) -> None:
        self._ray, self._share, self._resources = ray, share, (cpus, gpus)

    def check(self, checker: Sequence[str]) -> None:
        """Check every variant on a machine of the cluster, and set the resources of each run."""
        ray, share, (cpus, gpus) = self._ray, self._share, self._resources
        share.write_signals(0)
        has_gpus = bool(ray.cluster_resources().get("GPU"))
        first = replace(share, cpus=cpus or 1, gpus=min(1, has_gpus if gpus is None else gpus))
        results = _task(ray, checked, first).options(name="checking every variant").remote(first, checker)
        while not ray.wait([results], timeout=PATIENCE)[0]:
            print(waiting(ray, first), file=sys.stderr, flush=True)
        try:
            _, result = map(ray.get, results)
        except ray.exceptions.RayTaskError as error:
            raise _lacking(error) from None
        if result.machines > 1:
            raise SweepError(
                f"a run of this config is spread over {result.machines} machines, but with --on ray each uses "
                "one: set num_machines to 1."
            )
        if gpus is None:
            gpus = result.processes * (has_gpus and not result.cpu)
        elif result.processes > 1 and 0 < gpus < result.processes:
            raise SweepError(
                f"--gpus is {gpus:g}, but a run of this config starts {result.processes} processes: give one to each."
            )
        self._share = replace(share, processes=result.processes, cpus=cpus or result.processes, gpus=gpus)

    def run_all(self, manifest: SweepManifest, progress: SweepProgress, stop: StopSignals) -> None:
        """Run all unfinished runs, as many at a time as the cluster holds; the manifest follows every start and end.

        Raises:
            SweepError: a machine lacks something, the config changed or the disk was full; started runs are in the
                manifest.
        """
        ray, share = self._ray, self._share
        plan, error, signals = share.plan, None, 0
        share.write_signals(signals)
        task = _task(ray, train, share)
        live: dict[Any, SweepRun] = {}
        lost: Counter[str] = Counter()

        def submit(run: SweepRun) -> None:
            live[task.options(name=run.name).remote(share, run, manifest.of(run).state == "stopped")] = run

        def is_running(run: SweepRun) -> bool:
            return manifest.of(run).state == "running"

        for run in manifest.unfinished():
            submit(run)
        busy = time.monotonic()
        try:
            while live:
                ready, _ = ray.wait(list(live), num_returns=len(live), timeout=PAUSE)
                if stop.count > signals:
                    signals = stop.count
                    share.write_signals(signals)
                for each in ready:
                    run, again = live[each], False
                    try:
                        result = ray.get(next(each))
                        if isinstance(result, str):
                            manifest.begin(run)
                            progress.began(run, result)
                            continue
                        note(manifest, run, result, stopped=bool(stop.count))
                        progress.ended(run)
                    except (StopIteration, ray.exceptions.TaskCancelledError):  # cancelled before its start
                        pass
                    except ray.exceptions.RayTaskError as failure:
                        full = isinstance(failure.cause, OSError)  # a full or closed disk
                        error = unwritten(plan, failure.cause) if full else _lacking(failure)
                        error = error if plan.config_unchanged() else changed(plan)
                    except ray.exceptions.RayError as why:  # the machine, or Ray's process on it
                        lost[run.name] += 1
                        again = lost[run.name] < STARTS and not stop.count and not error
                        count = f"{type(why).__name__}, start {lost[run.name]} of {STARTS}"
                        progress.say(f"{run.title}: its machine was lost ({count}){', starts again' * again}")
                    del live[each]
                    if is_running(run):
                        manifest.of(run).state = "stopped"
                    manifest.save()
                    if again:
                        submit(run)
                running = [run for run in live.values() if is_running(run)]
                progress.tick(running, stop.count)
                if stop.count or error:
                    for each, run in live.items():
                        if not is_running(run):
                            ray.cancel(each)
                if running:
                    busy = time.monotonic()
                elif live and time.monotonic() - busy >= PATIENCE:
                    progress.say(waiting(ray, share))
                    busy = time.monotonic()
        finally:  # no run may outlive an exception
            ends = [each.completed() for each, run in live.items() if is_running(run)]
            if ends:
                with contextlib.suppress(OSError):  # without the sweep's folder, runs end with this process
                    share.write_signals(2)
                    ray.wait(ends, num_returns=len(ends), timeout=60)
            for run in live.values():
                if is_running(run):
                    manifest.of(run).state = "stopped"
            manifest.save()
        if error or manifest.unsaved:
            raise error or unwritten(plan, manifest.unsaved)


def waiting(ray: Any, share: TaskContext) -> str:
    """Return the resources of a run, and those of the cluster's machines."""

    def text(has: Mapping[str, float]) -> str:
        return f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"

    there = Counter(text(node["Resources"]) for node in ray.nodes() if node["Alive"])
    each = ", ".join(f"{count} with {size}" for size, count in sorted(there.items()))
    return (
        f"still waiting for resources: a run needs {text({'CPU': share.cpus, 'GPU': share.gpus})} on one machine; "
        f"the cluster has {each or 'no machine'}, of which {text(ray.available_resources())} are free. "
        "Lower --cpus and --gpus for each run, or end the sweep with Ctrl-C."
    )


def _lacking(why: Any) -> SweepError:
    """Return the error of a task; an unreadable one means another release, or none."""
    if isinstance(cause := getattr(why, "cause", None), SweepError):
        return cause
    return SweepError(
        f"a machine of the Ray cluster cannot take part in the sweep: {why}.\nEvery machine needs the same grpo_plus, "
        "and the sweep's folder, the config and its files at the same paths, in a shared file system. Resume with the "
        "same command."
    )


def _task(ray: Any, function: Callable[..., Iterator[Any]], share: TaskContext) -> Any:
    """Create a task without automatic restarts by Ray, which would not resume the run."""
    options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_retries": 0, "num_returns": "streaming"}
    return ray.remote(**options)(function)


# -- on the machines of the cluster ------------------------------------------------------------------------------------


def lacks(share: TaskContext) -> str:
    """Return the missing prerequisite of a run on this machine, if any; change to the sweep's working folder."""
    # In a process of its own, as for a run: Ray's worker also imports from the sweep's paths.
    command = [sys.executable, "-c", "import grpo_plus; print(grpo_plus.__version__)"]
    installed = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - a constant command
    if installed != share.version:
        return f"grpo_plus is {installed or 'missing'} there and {share.version} here"
    try:
        os.chdir(share.folder)
    except OSError:
        return f"the folder {share.folder}, where the sweep was started, is not there"
    if share.read_signals() is None:
        return f"the sweep's folder {share.plan.out.absolute()} is not there, or is another one"
    return "" if share.plan.config_unchanged() else f"the config {share.plan.config.absolute()} is missing or differs"


def machine(share: TaskContext) -> str:
    """Return the name of this machine; raise `SweepError` if it lacks something."""
    here = socket.gethostname()
    if lacking := lacks(share):
        raise _lacking(f"{here}: {lacking}")
    return here


def checked(share: TaskContext, checker: Sequence[str]) -> Iterator[str | VariantCheck]:
    """Check every variant here: yield the machine at the start, then the result."""
    yield machine(share)
    yield check(share.plan, share.naming(os.environ), checker)


def train(share: TaskContext, run: SweepRun, resumed: bool) -> Iterator[str | int]:
    """Run training: yield the machine at the start, then the exit code; nothing after a signal."""
    here = machine(share)
    if share.read_signals():
        return
    yield here
    environment, words = share.naming({**os.environ, "PYTHONUNBUFFERED": "1"}), []
    if share.processes > 1:  # other launchers may be on this machine
        environment["OMP_NUM_THREADS"] = str(max(1, int(share.cpus / share.processes)))
        words = ["--main_process_port=0"]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by Ray, and inherited by the run
    process = start(share.plan, run, environment, stopped=resumed, words=words)
    yield wait_for_end(process, lambda: share.read_signals() or 0)
