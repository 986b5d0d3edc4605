"""The process that speaks Ray for one training process: ``python -m grpo_verifiers.ray.bridge``.

A separate process, for three reasons. Ray unpickles the results of actors, which the trainer must not do: it reads
JSON from here. Ray ends a process that loses its cluster, and that must not be the trainer. And Ray's threads and
signal handlers stay out of the trainer. This is the only file that imports ray.

It spreads actors over the nodes, supplies them with calls, and moves the calls of a lost actor to another.
"""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.wire import WireError, pack_reply, read_call
from grpo_verifiers.ray.station import JUDGES, Station, code_digest, pack_outcome, read_fields, unpack_outcome
from grpo_verifiers.sandbox import confine

BEAT_SECONDS = 1.0
"""Seconds between heartbeats to the trainer."""
RECOUNT_SECONDS = 15.0
"""Seconds between looks at the size of the cluster."""
PER_WORKER = 2
"""Calls that an actor holds for each of its workers: the next is there when one has ended."""
MOST_WORKERS = 8
"""Workers of one actor: small actors spread better, large ones share the cost of a process."""
MOST_LOSSES = 3
"""Lost actors from which a call itself is blamed."""
MOST_STARTS = 3
"""Starts in a row that may fail while no actor lives."""
SPARE = 900.0
"""Seconds beyond its deadlines after which an actor with an open call counts as lost."""
_SLIVER = 0.001


@dataclass(eq=False)
class _Call:
    number: int
    key: str
    payload: bytes
    timeout: float
    rows: int | None
    losses: int = 0
    deadline: float = 0.0


@dataclass(eq=False)
class _Actor:
    handle: Any
    ready: bool = False
    node: str = ""
    calls: dict[int, _Call] = field(default_factory=dict)


class ClusterError(Exception):
    """There is no cluster, or it runs no actor."""


class Bridge:
    """The actors of one training process."""

    def __init__(self, sock: socket.socket, settings: Mapping[str, Any]) -> None:
        self._sock = sock
        self._settings = settings
        self._ray = _connect(settings)
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._actors: list[_Actor] = []
        self._queue: collections.deque[_Call] = collections.deque()
        self._specs: dict[str, Any] = {}
        self._cpus, self._target = 1.0, 1
        self._recounted = -RECOUNT_SECONDS
        self._failures, self._retry_at = 0, 0.0
        self._last_failure = ""
        self._alive_at = time.monotonic()

    @property
    def workers(self) -> int:
        """Worker processes of one actor."""
        return max(1, int(self._cpus))

    def run(self) -> None:
        """Serve until the connection is closed.

        Raises:
            ClusterError: no actor runs, and none can be started.
        """
        threading.Thread(target=self._read, name="trainer", daemon=True).start()
        ticked = -BEAT_SECONDS
        while True:
            with contextlib.suppress(queue.Empty):
                kind, *about = self._events.get(timeout=BEAT_SECONDS / 2)
                if kind == "end":
                    return
                getattr(self, f"_on_{kind}")(*about)
            if time.monotonic() - ticked >= BEAT_SECONDS / 2:
                ticked = time.monotonic()
                self._tick(ticked)
            self._dispatch()

    # -- the trainer's side

    def _read(self) -> None:
        while (message := read_call(self._sock)) is not None:
            (kind, number, key, extra), payload = message
            self._events.put((kind, number, key, extra, payload))
        self._events.put(("end",))

    def _say(self, fields: dict[str, Any]) -> None:
        self._sock.sendall(pack_reply({"s": 0.0, **fields}))

    def _on_spec(self, _: int, key: str, extra: Any, payload: bytes) -> None:
        del extra
        self._specs.setdefault(key, self._ray.put(payload))

    def _on_run(self, number: int, key: str, extra: tuple[float, int | None], payload: bytes) -> None:
        self._queue.append(_Call(number, key, payload, *extra))

    def _answer(self, call: _Call, outcome: Outcome) -> None:
        self._sock.sendall(pack_reply({**json.loads(pack_outcome(outcome)), "id": call.number}))

    # -- the cluster's side

    def _tick(self, now: float) -> None:
        self._say({"beat": len(self._actors)})
        if now - self._recounted >= RECOUNT_SECONDS:
            self._recounted = now
            self._recount()
        for actor in list(self._actors):
            if any(now >= call.deadline for call in actor.calls.values()):
                self._lose(actor, "it did not answer in time")
        while len(self._actors) < self._target and now >= self._retry_at:
            self._start()
        if any(actor.ready for actor in self._actors) or not (self._queue or self._specs):
            self._alive_at = now
        elif now - self._alive_at > self._settings["patience"]:
            raise ClusterError(self._shortage())

    def _recount(self) -> None:
        """Compute the number and the CPUs of this process's actors: its share of the cluster."""
        resource, ranks = self._settings["resource"], max(1, self._settings["ranks"])
        offers = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        sizes = [each.get("CPU", 0.0) for each in offers if not resource or each.get(resource, 0)]
        sizes = [size for size in sizes if size > 0] or [1.0] * ranks  # none yet: ask for some
        if not self._actors:  # all actors have one size, chosen at the start
            self._cpus = actor_size(sizes, ranks)
        self._target = max(1, room(sizes, self._cpus) // ranks)

    @functools.cached_property
    def _station(self) -> Any:
        resource = self._settings["resource"]
        return self._ray.remote(
            resources={resource: _SLIVER} if resource else None,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )(Station)

    def _start(self) -> None:
        sized = self._station.options(num_cpus=self._cpus, max_concurrency=PER_WORKER * self.workers + 4)
        actor = _Actor(sized.remote(self.workers))
        self._actors.append(actor)
        self._ask(actor, "greeted", actor.handle.hello.remote())

    def _ask(self, actor: _Actor, event: str, reference: Any, *about: Any) -> None:
        """Turn a reply into an event on arrival."""

        def put(reply: concurrent.futures.Future[Any]) -> None:
            error = reply.exception()
            self._events.put((event, actor, *about, error, None if error else reply.result()))

        reference.future().add_done_callback(put)

    def _on_greeted(self, actor: _Actor, error: BaseException | None, reply: Any) -> None:
        if actor not in self._actors:
            return
        try:
            about = {} if error else read_fields(reply)
        except WireError as wrong:
            error = wrong
        if error is not None:
            self._lose(actor, _error_text(error))
            return
        if about.get("digest") != code_digest():
            raise ClusterError(
                f"node {about.get('node')!r} has another grpo_verifiers than the trainer or another "
                f"of {', '.join(JUDGES)} (Python {about.get('python')}): install the same versions on every node."
            )
        actor.ready, actor.node = True, str(about.get("node"))
        self._failures = 0

    def _dispatch(self) -> None:
        now = time.monotonic()
        while self._queue and (actor := self._free(self._queue[0])) is not None:
            call = self._queue.popleft()
            actor.calls[call.number] = call
            call.deadline = now + 4 * call.timeout + SPARE
            reply = actor.handle.run.remote(call.key, self._specs[call.key], call.payload, call.timeout, call.rows)
            self._ask(actor, "ran", reply, call)

    def _free(self, call: _Call) -> _Actor | None:
        """The free actor with the fewest calls; one without calls for a call that has lost an actor."""
        most = 1 if call.losses else PER_WORKER * self.workers
        able = [
            actor
            for actor in self._actors
            if actor.ready and len(actor.calls) < most and not any(each.losses for each in actor.calls.values())
        ]
        return min(able, key=lambda actor: len(actor.calls), default=None)

    def _on_ran(self, actor: _Actor, call: _Call, error: BaseException | None, reply: Any) -> None:
        if actor not in self._actors:  # lost: its calls are elsewhere
            return
        if error is None:
            try:
                outcome = unpack_outcome(read_fields(reply), call.rows)
            except WireError as wrong:  # checked here: the trainer would end this process with all its actors
                self._lose(actor, f"it {wrong}")
                return
            del actor.calls[call.number]
            self._answer(call, outcome)
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            del actor.calls[call.number]
            self._answer(call, Outcome("broken", message=f"the call of an actor failed: {_error_text(error)}"))
        else:
            self._lose(actor, _error_text(error))

    def _lose(self, actor: _Actor, why: str) -> None:
        """Remove an actor: its calls move to other actors, a new one starts after a pause."""
        self._actors.remove(actor)
        with contextlib.suppress(Exception):
            self._ray.kill(actor.handle)
        self._last_failure = why
        self._failures = 1 if actor.ready else self._failures + 1
        self._retry_at = time.monotonic() + min(30.0, 0.5 * 2 ** min(self._failures, 8))
        for call in reversed(actor.calls.values()):
            call.losses += 1
            if call.losses >= MOST_LOSSES:
                self._answer(call, Outcome("died", message=f"{call.losses} actors were lost: {why}"))
            else:
                self._queue.appendleft(call)
        if actor.ready:
            self._say({"note": f"an actor on node {actor.node!r} was lost, {len(actor.calls)} calls with it: {why}"})
        elif self._failures >= MOST_STARTS and not any(each.ready for each in self._actors):
            raise ClusterError(f"no actor could be started: {why}")

    def _shortage(self) -> str:
        resource = self._settings["resource"]
        size = f"{self._cpus:g} CPUs" + (f" and the resource {resource!r}" if resource else "")
        reason = f"no actor has run for {self._settings['patience']:g} s (each asks for {size} of one node)"
        return reason + (f": {self._last_failure}" if self._last_failure else ".")


def room(sizes: Sequence[float], cpus: float) -> int:
    """The number of actors of ``cpus`` CPUs that fit on nodes of these sizes, each on one node."""
    return sum(int(size / cpus + 1e-6) for size in sizes)


def actor_size(sizes: Sequence[float], ranks: int) -> float:
    """The CPUs of an actor: as many as each node has, while there is room for an actor of each rank."""
    integers = range(int(min([MOST_WORKERS, *sizes])), 0, -1)
    parts = (int(100 / each) / 100 for each in range(2, 101))
    return next((float(each) for each in itertools.chain(integers, parts) if room(sizes, each) >= ranks), 0.01)


def _error_text(error: BaseException | None) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return f"{type(error).__name__}: {' '.join(filter(None, lines))}"[-1500:]


def _connect(settings: Mapping[str, Any]) -> Any:
    try:
        import ray
    except ImportError as error:
        raise ClusterError(f"the package ray cannot be imported ({error}): pip install 'ray>=2.40'") from error
    address = os.environ.get("RAY_ADDRESS") or "auto"
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():  # Ray itself would try for minutes
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise ClusterError(f"no Ray cluster answers at {address} (RAY_ADDRESS): {error}") from error
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(max(1, int(settings["patience"]))))
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}; RAY_ADDRESS is {os.environ.get('RAY_ADDRESS')!r}"
        raise ClusterError(f"no Ray cluster answers ({problem})") from error
    return ray


def main(fd: int, parent: int) -> None:
    """Serve the trainer at the other end of a socket."""
    confine.die_with(parent)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)
    boot = read_call(sock)
    if boot is None:
        return
    try:
        Bridge(sock, boot[0][3]).run()
    except ClusterError as error:
        with contextlib.suppress(OSError):
            sock.sendall(pack_reply({"s": 0.0, "gone": str(error)[:3000]}))
    with contextlib.suppress(Exception):
        sys.modules["ray"].shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
