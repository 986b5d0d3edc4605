"""Run a sweep as tasks of a Ray cluster: Ray decides when and on which machine each run takes place.

The machines share a file system. Every task looks for this release, the sweep's folder and the config before it starts
its run, which is the same process as on one machine.
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
from grpo_plus.sweep.check import Checked, check
from grpo_plus.sweep.manifest import LOCK, Manifest
from grpo_plus.sweep.plan import Plan, Run
from grpo_plus.sweep.runner import PAUSE, Stop, attend, changed, note, start, unwritten
from grpo_plus.sweep.show import Line
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import open_own, read_text

STARTS = 3
"""How often one command starts a run whose machine is lost."""
PATIENCE = 10.0
"""Seconds without any run until the sweep says what it waits for."""


@dataclass(frozen=True)
class Share:
    """What each task is told and gets. ``naming`` makes an environment for processes that end with this one."""

    plan: Plan
    naming: Callable[[Mapping[str, str]], dict[str, str]]
    processes: int = 1
    cpus: float = 1
    gpus: float = 0
    folder: str = field(default_factory=os.getcwd)
    version: str = __version__
    token: str = field(default_factory=lambda: secrets.token_hex(16))

    def tell(self, signals: int) -> None:
        """Write the token, by which machines know the sweep's folder, and the number of signals into the held lock.

        It keeps its length: a reader finds all of it at any time, and a full disk takes it.
        """
        with open_own(self.plan.out / LOCK, "r+", encoding="ascii") as file:
            file.write(f"{self.token} {min(signals, 2)}")

    def told(self) -> int | None:
        """The number of signals, as the lock says; None: the sweep's folder is not there, or is another one."""
        try:
            token, signals = read_text(self.plan.out / LOCK).split()
            return int(signals) if token == self.token else None
        except (OSError, ValueError):
            return None


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Connect to the cluster of RAY_ADDRESS, or of this machine, else start a Ray of this machine alone; yields it."""
    try:
        import ray
    except ImportError as error:
        raise SweepError(f"--on ray needs Ray ({error}): pip install 'ray>=2.40'.") from error
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        if address not in ("", "auto", "local"):  # Ray itself would try for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=30).close()
        ray.init(log_to_driver=False, logging_level="error")
    except Exception as error:  # whatever Ray raises
        where = f"at RAY_ADDRESS={address}" if address else "on this machine"
        raise SweepError(
            f"no Ray cluster answers {where} ({type(error).__name__}: {error}). RAY_ADDRESS is HOST:PORT of one that "
            "`ray start --head` has started; unset, it is the one of this machine, or one that the sweep starts here."
        ) from error
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise SweepError(f"the Ray cluster failed: {error}\nThe same command goes on.") from error
    finally:
        ray.shutdown()


@contextlib.contextmanager
def on_ray(plan: Plan, naming: Any, cpus: float | None, gpus: float | None) -> Iterator["RaySweep"]:
    """The cluster, connected, for one sweep."""
    with connected() as ray:
        yield RaySweep(ray, Share(plan, naming), cpus, gpus)


class RaySweep:
    """A sweep and its cluster."""

    def __init__(self, ray: Any, share: Share, cpus: float | None = None, gpus: float | None = None) -> None:
        self._ray, self._share, self._asked = ray, share, (cpus, gpus)

    def check(self, checker: Sequence[str]) -> None:
        """Check every variant on a machine of the cluster, which tells what each run is to get."""
        ray, share, (cpus, gpus) = self._ray, self._share, self._asked
        share.tell(0)
        has_gpus = bool(ray.cluster_resources().get("GPU"))
        first = replace(share, cpus=cpus or 1, gpus=min(1, has_gpus if gpus is None else gpus))
        said = _task(ray, checked, first).options(name="checking every variant").remote(first, checker)
        while not ray.wait([said], timeout=PATIENCE)[0]:
            print(waiting(ray, first), file=sys.stderr, flush=True)
        try:
            _, found = map(ray.get, said)
        except ray.exceptions.RayTaskError as error:
            raise _lacking(error) from None
        if found.machines > 1:
            raise SweepError(
                f"a run of this config is spread over {found.machines} machines, and with --on ray each takes place on "
                "one: set num_machines to 1."
            )
        if gpus is None:
            gpus = found.processes * (has_gpus and not found.cpu)
        elif found.processes > 1 and 0 < gpus < found.processes:
            raise SweepError(
                f"--gpus is {gpus:g}, but a run of this config starts {found.processes} processes: give one to each."
            )
        self._share = replace(share, processes=found.processes, cpus=cpus or found.processes, gpus=gpus)

    def run_all(self, manifest: Manifest, line: Line, stop: Stop) -> None:
        """Run all unfinished runs, as many at a time as the cluster holds; the manifest follows every start and end.

        Raises:
            SweepError: a machine lacks something, the config changed or the disk was full; runs that had started are in
                the manifest.
        """
        ray, share = self._ray, self._share
        plan, error, told = share.plan, None, 0
        share.tell(told)
        task = _task(ray, train, share)
        live: dict[Any, Run] = {}
        lost: Counter[str] = Counter()

        def submit(run: Run) -> None:
            live[task.options(name=run.name).remote(share, run, manifest.of(run).state == "stopped")] = run

        def begun(run: Run) -> bool:
            return manifest.of(run).state == "running"

        for run in manifest.unfinished():
            submit(run)
        busy = time.monotonic()
        try:
            while live:
                ready, _ = ray.wait(list(live), num_returns=len(live), timeout=PAUSE)
                if stop.asked > told:
                    told = stop.asked
                    share.tell(told)
                for each in ready:
                    run, again = live[each], False
                    try:
                        said = ray.get(next(each))
                        if isinstance(said, str):
                            manifest.begin(run)
                            line.began(run, said)
                            continue
                        note(manifest, run, said, stopped=bool(stop.asked))
                        line.ended(run)
                    except (StopIteration, ray.exceptions.TaskCancelledError):  # it was not to start any more
                        pass
                    except ray.exceptions.RayTaskError as failure:
                        full = isinstance(failure.cause, OSError)  # a full or closed disk
                        error = unwritten(plan, failure.cause) if full else _lacking(failure)
                        error = error if plan.still_holds() else changed(plan)
                    except ray.exceptions.RayError as why:  # the machine, or Ray's process on it
                        lost[run.name] += 1
                        again = lost[run.name] < STARTS and not stop.asked and not error
                        count = f"{type(why).__name__}, start {lost[run.name]} of {STARTS}"
                        line.say(f"{run.title}: its machine was lost ({count}){', starts again' * again}")
                    del live[each]
                    if begun(run):
                        manifest.of(run).state = "stopped"
                    manifest.save()
                    if again:
                        submit(run)
                running = [run for run in live.values() if begun(run)]
                line.tick(running, stop.asked)
                if stop.asked or error:
                    for each, run in live.items():
                        if not begun(run):
                            ray.cancel(each)
                if running:
                    busy = time.monotonic()
                elif live and time.monotonic() - busy >= PATIENCE:
                    line.say(waiting(ray, share))
                    busy = time.monotonic()
        finally:  # an exception must not leave runs behind
            ends = [each.completed() for each, run in live.items() if begun(run)]
            if ends:
                with contextlib.suppress(OSError):  # the sweep's folder is gone: runs end with this process
                    share.tell(2)
                    ray.wait(ends, num_returns=len(ends), timeout=60)
            for run in live.values():
                if begun(run):
                    manifest.of(run).state = "stopped"
            manifest.save()
        if error or manifest.unsaved:
            raise error or unwritten(plan, manifest.unsaved)


def waiting(ray: Any, share: Share) -> str:
    """What a run needs, and what the machines of the cluster have."""

    def text(has: Mapping[str, float]) -> str:
        return f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"

    there = Counter(text(node["Resources"]) for node in ray.nodes() if node["Alive"])
    each = ", ".join(f"{count} with {what}" for what, count in sorted(there.items()))
    return (
        f"still waiting for resources: a run needs {text({'CPU': share.cpus, 'GPU': share.gpus})} on one machine; "
        f"the cluster has {each or 'no machine'}, of which {text(ray.available_resources())} are free. "
        "--cpus and --gpus give each run less; Ctrl-C ends the sweep."
    )


def _lacking(why: Any) -> SweepError:
    """The error of a task; one that could not even be read tells of another release, or of none."""
    if isinstance(cause := getattr(why, "cause", None), SweepError):
        return cause
    return SweepError(
        f"a machine of the Ray cluster cannot take part in the sweep: {why}.\nEvery machine needs the same grpo_plus, "
        "and the sweep's folder, the config and what it names at the same paths, in a file system that they share. The "
        "same command goes on."
    )


def _task(ray: Any, function: Callable[..., Iterator[Any]], share: Share) -> Any:
    """A task that Ray never starts again by itself: nobody would learn of that, and a run would not be resumed."""
    options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_retries": 0, "num_returns": "streaming"}
    return ray.remote(**options)(function)


# -- on the machines of the cluster ------------------------------------------------------------------------------------


def lacks(share: Share) -> str:
    """What this machine lacks for a run, which goes on in the folder where the sweep was started; empty: nothing."""
    # Asked of a process, as a run is one: Ray's own finds modules where those of the sweep were, too.
    ask = [sys.executable, "-c", "import grpo_plus; print(grpo_plus.__version__)"]
    found = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - as it stands
    if found != share.version:
        return f"grpo_plus is {found or 'missing'} there and {share.version} here"
    try:
        os.chdir(share.folder)
    except OSError:
        return f"the folder {share.folder}, where the sweep was started, is not there"
    if share.told() is None:
        return f"the sweep's folder {share.plan.out.absolute()} is not there, or is another one"
    return (
        "" if share.plan.still_holds() else f"the config {share.plan.config.absolute()} is missing or reads otherwise"
    )


def machine(share: Share) -> str:
    """The name of this machine; `SweepError` if it lacks something."""
    here = socket.gethostname()
    if lacking := lacks(share):
        raise _lacking(f"{here}: {lacking}")
    return here


def checked(share: Share, checker: Sequence[str]) -> Iterator[str | Checked]:
    """Check every variant here: gives the machine when it begins, then what was found."""
    yield machine(share)
    yield check(share.plan, share.naming(os.environ), checker)


def train(share: Share, run: Run, resumed: bool) -> Iterator[str | int]:
    """A run from its start to its end: gives the machine when it begins, then the exit code; nothing after a signal."""
    here = machine(share)
    if share.told():
        return
    yield here
    environment, words = share.naming({**os.environ, "PYTHONUNBUFFERED": "1"}), []
    if share.processes > 1:  # other launchers may be on this machine
        environment["OMP_NUM_THREADS"] = str(max(1, int(share.cpus / share.processes)))
        words = ["--main_process_port=0"]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it, and a run would inherit that
    process = start(share.plan, run, environment, stopped=resumed, words=words)
    yield attend(process, lambda: share.told() or 0)
