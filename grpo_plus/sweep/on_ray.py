"""Run a sweep as tasks of a Ray cluster: Ray decides when and on which machine each run takes place.

The machines share a file system. Every task looks for this release, the sweep's folder and the config before it starts
its run, which is the same process as on one machine.
"""

import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_plus import __version__
from grpo_plus.sweep.check import Checked, check
from grpo_plus.sweep.manifest import LOCK, Manifest, State
from grpo_plus.sweep.plan import Plan, Run
from grpo_plus.sweep.runner import PAUSE, Stop, attend, changed, note, start, unwritten
from grpo_plus.sweep.show import Line
from grpo_plus.sweep.vary import SweepError
from grpo_verifiers.files import open_own, read_text

STARTS = 3
"""How often one command starts a run whose machine is lost."""


@dataclass(frozen=True)
class Share:
    """What each task is told and gets. ``naming`` makes an environment for processes that end with this one."""

    plan: Plan
    naming: Callable[[Mapping[str, str]], dict[str, str]]
    processes: int = 1
    cpus: float = 1
    gpus: float = 0
    folder: str = field(default_factory=os.getcwd)
    token: str = field(default_factory=lambda: secrets.token_hex(16))


class Desk:
    """The sweep's end of the line: tasks report their start here, and ask for the number of signals so far."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        self._signals, self._closed = 0, False

    def begin(self, name: str, host: str) -> bool:
        """Enter a start; False: nothing is to start any more."""
        if not self._closed:
            self._hosts[name] = host
        return not self._closed

    def signals(self) -> int:
        """The number of signals so far."""
        return self._signals

    def news(self, signals: int, *, closed: bool) -> dict[str, str]:
        """The machine of each task that has begun."""
        self._signals, self._closed = signals, closed
        return self._hosts


@contextlib.contextmanager
def connected() -> Iterator[Any]:
    """Connect to the cluster of RAY_ADDRESS, or of this machine, else start a Ray of this machine alone; yields it.

    Raises:
        SweepError: Ray is not installed, or the cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise SweepError(f"--on ray needs Ray ({error}): pip install 'grpo-plus[ray]'.") from error
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


def _leave(share: Share) -> None:
    """Write the token, by which a machine knows the sweep's folder, into the lock that is held."""
    with open_own(share.plan.out / LOCK, "w", encoding="utf-8") as file:
        file.write(share.token)


def prepare(ray: Any, share: Share, checker: Sequence[str], cpus: float | None, gpus: float | None) -> Share:
    """Check every variant on a machine of the cluster; gives what each run is to get."""
    _leave(share)
    has_gpus = bool(ray.cluster_resources().get("GPU"))
    first = replace(share, cpus=cpus or 1, gpus=min(1, has_gpus if gpus is None else gpus))
    holding(ray.nodes(), first)
    options = {"num_cpus": first.cpus, "num_gpus": first.gpus, "name": "checking every variant"}
    try:
        checked = ray.get(_task(ray).options(**options).remote(*_call(ray, "checked", first, checker)))
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, SweepError) else SweepError(str(error)) from None
    if isinstance(checked, str):
        raise SweepError(_lacking(checked))
    processes = checked.processes
    if checked.machines > 1:
        raise SweepError(
            f"a run of this config is spread over {checked.machines} machines, and with --on ray each takes place on "
            "one: set num_machines to 1."
        )
    if gpus is None:
        gpus = processes * (has_gpus and not checked.cpu)
    elif processes > 1 and 0 < gpus < processes:
        raise SweepError(
            f"--gpus is {gpus:g}, but a run of this config starts {processes} processes: give one to each."
        )
    share = replace(share, processes=processes, cpus=cpus or processes, gpus=gpus)
    holding(ray.nodes(), share)
    return share


def run_all(ray: Any, share: Share, manifest: Manifest, line: Line, stop: Stop) -> None:
    """Run all unfinished runs, as many at a time as the cluster holds; the manifest follows every start and end.

    Raises:
        SweepError: a machine lacks something, none can hold a run, the config changed or the disk was full; runs that
            had started are in the manifest.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as At

    plan, error = share.plan, None
    _leave(share)
    task = _task(ray)
    here = At(ray.get_runtime_context().get_node_id(), soft=False)
    desk = ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()
    live: dict[Any, _Attempt] = {}

    def submit(run: Run, number: int) -> None:
        attempt = _Attempt(run, number, manifest.of(run).state)
        options = task.options(name=run.name, num_cpus=share.cpus, num_gpus=share.gpus)
        live[options.remote(*_call(ray, "train", share, attempt), desk)] = attempt

    for run in manifest.unfinished():
        submit(run, 1)
    try:
        while live:
            ended, _ = ray.wait(list(live), num_returns=len(live), timeout=PAUSE)
            closed = bool(stop.asked or error)
            hosts = ray.get(desk.news.remote(stop.asked, closed=closed))
            for reference, each in live.items():
                if each.name in hosts and not each.begun:
                    each.begun = True
                    manifest.begin(each.run)
                    line.began(each.run, hosts[each.name])
                elif closed and not each.begun:
                    ray.cancel(reference)
            line.tick([each.run for each in live.values() if each.begun], stop.asked)
            for reference in ended:
                each = live.pop(reference)
                manifest.of(each.run).state = "stopped" if each.begun else each.before
                try:
                    outcome = ray.get(reference)
                except ray.exceptions.TaskCancelledError:
                    continue
                except ray.exceptions.RayTaskError as failure:
                    full = isinstance(failure.cause, OSError)  # a full or closed disk
                    error = unwritten(plan, failure.cause) if full else SweepError(f"{each.run.title}: {failure}")
                except ray.exceptions.RayError as lost:  # the machine, or Ray's process on it
                    again = each.number < STARTS and not closed
                    why = f"{type(lost).__name__}, start {each.number} of {STARTS}"
                    line.say(f"{each.run.title}: its machine was lost ({why}){', starts again' * again}")
                    if again:
                        submit(each.run, each.number + 1)
                else:
                    if isinstance(outcome, int):
                        note(manifest, each.run, outcome, stopped=bool(stop.asked))
                        line.ended(each.run)
                    elif outcome:
                        error = SweepError(_lacking(outcome)) if plan.still_holds() else changed(plan)
                manifest.save()
            if not error and any(not each.begun for each in live.values()):
                try:
                    holding(ray.nodes(), share)
                except SweepError as none:
                    error = none
    finally:  # an exception must not leave runs behind
        if live:
            ray.get(desk.news.remote(2, closed=True))
            ray.wait(list(live), num_returns=len(live), timeout=60)
        for each in live.values():
            if each.begun:
                manifest.of(each.run).state = "stopped"
        manifest.save()
    if error or manifest.unsaved:
        raise error or unwritten(plan, manifest.unsaved)


def holding(nodes: list[dict[str, Any]], share: Share) -> list[dict[str, Any]]:
    """The machines that can hold a run.

    Raises:
        SweepError: there is none, so that no run would ever start.
    """
    there = [node for node in nodes if node["Alive"]]
    found = [
        node
        for node in there
        if node["Resources"].get("CPU", 0) >= share.cpus and node["Resources"].get("GPU", 0) >= share.gpus
    ]
    if not found:
        each = [f"  {node['NodeManagerHostname']}: {_resources(node['Resources'])}" for node in there]
        raise SweepError(
            f"each run needs {_resources({'CPU': share.cpus, 'GPU': share.gpus})} on one machine, and no machine of "
            "the Ray cluster has that:\n" + "\n".join(each) + "\nGive each run less with --cpus and --gpus, or add a "
            "machine that has it. The same command goes on."
        )
    return found


def _resources(has: Mapping[str, float]) -> str:
    return f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"


def _lacking(what: str) -> str:
    return (
        f"a machine of the Ray cluster cannot take part in the sweep: {what}.\nEvery machine needs the same grpo_plus, "
        "and the sweep's folder, the config and what it names at the same paths, in a file system that they share. The "
        "same command goes on."
    )


@dataclass
class _Attempt:
    """A start of a run; ``before`` is the run's state when it was handed to Ray."""

    run: Run
    number: int
    before: State
    begun: bool = False

    @property
    def name(self) -> str:
        return f"{self.run.name} {self.number}"


# -- on the machines of the cluster ------------------------------------------------------------------------------------


def _task(ray: Any) -> Any:
    def on_machine(version: str, name: str, given: bytes, *more: Any) -> Any:
        """Carried by value, so that it runs where another release or none is: there it says so."""
        import importlib
        import pickle
        import socket
        import subprocess
        import sys

        # Asked of a process, as a run is one: Ray's own finds modules where those of the sweep were, too.
        ask = [sys.executable, "-c", "import grpo_plus; print(grpo_plus.__version__)"]
        found = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603 - as it stands
        if found != version:
            return f"{socket.gethostname()}: grpo_plus is {found or 'missing'} there and {version} here"
        return getattr(importlib.import_module("grpo_plus.sweep.on_ray"), name)(*pickle.loads(given), *more)  # noqa: S301 - ours

    return ray.remote(max_retries=0)(on_machine)


def _call(ray: Any, name: str, *given: object) -> tuple[str, str, bytes]:
    return __version__, name, ray.cloudpickle.dumps(given)


def lacks(share: Share) -> str:
    """What this machine lacks for a run; empty: nothing."""
    plan, here = share.plan, socket.gethostname()
    try:
        os.chdir(share.folder)
    except OSError:
        return f"{here}: the folder {share.folder}, where the sweep was started, is not there"
    try:
        seen = read_text(plan.out / LOCK) == share.token
    except (OSError, UnicodeDecodeError):
        seen = False
    if not seen:
        return f"{here}: the sweep's folder {Path(plan.out).absolute()} is not there, or is another one"
    return "" if plan.still_holds() else f"{here}: the config {plan.config.absolute()} is missing or reads otherwise"


def checked(share: Share, checker: Sequence[str]) -> Checked | str:
    """Check every variant here, or say what this machine lacks."""
    return lacks(share) or check(share.plan, share.naming(os.environ), checker)


def train(share: Share, attempt: _Attempt, desk: Any) -> int | str | None:
    """A run from its start to its end: its exit code, what this machine lacks, or None for a run that did not start."""
    if lacking := lacks(share):
        return lacking
    # Futures: a task that waits in ray.get lends its CPUs to the next one meanwhile.
    if not desk.begin.remote(attempt.name, socket.gethostname()).future().result():
        return None
    environment, words = share.naming({**os.environ, "PYTHONUNBUFFERED": "1"}), []
    if share.processes > 1:  # other launchers may be on this machine
        environment["OMP_NUM_THREADS"] = str(max(1, int(share.cpus / share.processes)))
        words = ["--main_process_port=0"]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it, and a run would inherit that
    process = start(share.plan, attempt.run, environment, stopped=attempt.before == "stopped", words=words)
    return attend(process, lambda: int(desk.signals.remote().future().result()))
