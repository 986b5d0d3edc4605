"""The trainer's side of calls that run on the nodes of a Ray cluster.

The trainer starts one child (`bridge.py`) that speaks Ray, sends it calls, and reads JSON. Every call gets an
outcome, in order: a dead child is started again, and an absent cluster fails all open calls.
"""

import contextlib
import os
import pickle
import selectors
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_verifiers.errors import KeywordError
from grpo_verifiers.errors.messages import readable
from grpo_verifiers.exec.batch import Item
from grpo_verifiers.exec.outcome import Outcome
from grpo_verifiers.exec.process import Child, WorkerKind, WorkerLost, python_path
from grpo_verifiers.exec.runner import Runner
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.exec.wire import WireError
from grpo_verifiers.lazy import installed
from grpo_verifiers.ray.scheduler import Scheduler
from grpo_verifiers.ray.station import unpack_outcome
from grpo_verifiers.redaction import get_logger, redact_text
from grpo_verifiers.sandbox.children import disown, end_process

ACTORS_VARIABLE = "GRPO_VERIFIERS_RAY_ACTORS"
CPUS_VARIABLE = "GRPO_VERIFIERS_RAY_CPUS"
RESOURCE_VARIABLE = "GRPO_VERIFIERS_RAY_RESOURCE"
PATIENCE_VARIABLE = "GRPO_VERIFIERS_RAY_PATIENCE"
DEFAULT_PATIENCE = 120.0
BOOT_SECONDS = 60.0
"""Seconds that the child may take to import Ray and to join the cluster, however short the patience."""
CLOSING_SECONDS = 5.0
KEPT_SPECS = 8
"""Checks that were warmed up and are loaded by a new child, too."""

_log = get_logger("grpo_verifiers")


@dataclass(frozen=True)
class RaySettings:
    """The share of the cluster that one training process takes.

    Attributes:
        actors: actors of this process; None: its share of the CPUs.
        cpus: CPUs of an actor, and its worker processes; None: up to 8.
        resource: a resource that its nodes must offer; empty: none.
        patience: seconds that calls wait for a cluster without a running actor.
    """

    actors: int | None = None
    cpus: int | None = None
    resource: str = ""
    patience: float = DEFAULT_PATIENCE


def ray_settings() -> RaySettings:
    """The settings in the environment."""
    patience = os.environ.get(PATIENCE_VARIABLE, str(DEFAULT_PATIENCE))
    actors, cpus, resource = _count(ACTORS_VARIABLE), _count(CPUS_VARIABLE), os.environ.get(RESOURCE_VARIABLE, "")
    with contextlib.suppress(ValueError):
        if 1 <= float(patience) <= 86_400:
            return RaySettings(actors, cpus, resource, float(patience))
    raise KeywordError(f"{PATIENCE_VARIABLE} is {patience!r}, expected seconds from 1 to 86400.")


def _count(name: str) -> int | None:
    wish = os.environ.get(name)
    if wish is None:
        return None
    if not wish.isdecimal() or not 1 <= int(wish) <= 100_000:
        raise KeywordError(f"{name} is {wish!r}, expected an integer of at least 1.")
    return int(wish)


class _Link(Child):
    """The child that speaks Ray."""

    def __init__(self, settings: RaySettings) -> None:
        self.ready = False
        self.last_reply_at = time.monotonic()
        self.specs: set[str] = set()
        # Ray puts its working folder on the search path of every actor.
        super().__init__("grpo_verifiers.ray.bridge", {**os.environ, "PYTHONPATH": python_path()}, cwd="/")
        ranks = os.environ.get("WORLD_SIZE", "1")
        boot = {**vars(settings), "ranks": int(ranks) if ranks.isdecimal() else 1}
        self.queue(("boot", 0, "", boot))

    def end(self, grace: float = 0.0) -> str:
        """End it and return its last output."""
        self.sock.close()
        end_process(self.process, grace)
        with self._log:
            return readable(self.printed(), 2000)

    def forget(self) -> None:
        """In a forked child: release it without any message."""
        self.sock.close()
        self._log.close()
        disown(self.process)


class RayRunner(Runner):
    """Runs calls as a `Runner` does, on the nodes of a Ray cluster. Its child is started when first needed."""

    def __init__(self) -> None:
        super().__init__(1)
        self.settings = ray_settings()

    @staticmethod
    def problem() -> str:
        """A problem of ``isolation: ray`` that is visible without a connection; empty if there is none."""
        if not installed("ray"):
            return "isolation is 'ray', which needs the package ray: pip install 'ray>=2.40'."
        if (os.environ.get("RAY_ADDRESS") or "").startswith("ray://"):
            return (
                f"isolation is 'ray', and RAY_ADDRESS is {os.environ['RAY_ADDRESS']!r}: Ray's client is not supported; "
                "join the cluster (ray start --address=HOST:6379 --num-cpus=0) and set RAY_ADDRESS to HOST:6379."
            )
        try:
            ray_settings()
        except KeywordError as error:
            return str(error)
        return ""

    def _new_scheduler(self) -> Scheduler:
        return _Cluster(self.settings)


class _Cluster(Scheduler):
    """The thread that owns the child, and has no workers here."""

    def __init__(self, settings: RaySettings) -> None:
        self.settings = settings
        self._link: _Link | None = None
        self._specs: dict[str, CheckSpec] = {}
        self._open: dict[int, Item] = {}
        self._number = 0
        self._needed = self._was_ready = False
        self._lost_at = self._retry_at = 0.0
        self._losses = 0
        super().__init__(0)

    def pids(self) -> list[int]:
        """The process id of the child, while it lives."""
        link = self._link
        return [link.process.pid] if link is not None else []

    def abandon(self) -> None:
        """In a forked child: close the parent's connection."""
        if self._link is not None:
            self._link.forget()

    def _accept(self, kind: WorkerKind, spec: CheckSpec, items: list[Item], workers: int) -> None:  # noqa: ARG002 - one here
        self._needed = True
        if workers:
            self._specs[spec.identity] = spec
            while len(self._specs) > KEPT_SPECS:
                del self._specs[next(iter(self._specs))]
            self._send_spec(spec)
        new = dict(enumerate(items, self._number + 1))
        self._number += len(items)
        self._open |= new  # all of them before one fails to be sent
        for number in new:
            self._send(number)

    def _send_spec(self, spec: CheckSpec) -> None:
        link = self._link
        if link is not None and link.ready and not self.closing and spec.identity not in link.specs:
            link.specs.add(spec.identity)
            link.queue(("spec", 0, spec.identity, None), pickle.dumps(spec))

    def _send(self, number: int) -> None:
        if self._link is not None and self._link.ready and not self.closing:
            batch, index = self._open[number].batch, self._open[number].index
            self._send_spec(batch.spec)
            about = "run", number, batch.spec.identity, (batch.timeout, batch.rows[index])
            self._link.queue(about, batch.payloads[index])

    def _go_on(self) -> None:
        now = time.monotonic()
        if self._link is None:
            if self._needed and now >= self._retry_at:
                try:
                    self._link = _Link(self.settings)
                except Exception as error:  # noqa: BLE001 - no memory, no descriptors: all mean no child
                    self._lose_link(f"the process that speaks Ray cannot be started: {type(error).__name__}: {error}")
                    return
                self._selector.register(self._link.sock, selectors.EVENT_READ, self._link)
            return
        try:
            sent = self._link.flush()
        except WorkerLost:
            self._lose_link("the process that speaks Ray ended")
            return
        events = selectors.EVENT_READ | (0 if sent else selectors.EVENT_WRITE)
        self._selector.modify(self._link.sock, events, self._link)

    def _pause(self) -> float | None:
        return 0.5 if self._link or self._needed else None

    def _expire(self) -> None:
        """Replace a silent child: it hangs inside Ray."""
        link, patience = self._link, self.settings.patience
        if link is not None and not link.ready:
            patience = max(patience, BOOT_SECONDS)
        if link is not None and time.monotonic() - link.last_reply_at > patience:
            self._lose_link(f"the process that speaks Ray was silent for {patience:g} s")

    def _event(self, key: selectors.SelectorKey, events: int) -> None:
        link: _Link | None = key.data
        if link is None or not events & selectors.EVENT_READ:
            return
        link.last_reply_at = time.monotonic()
        try:
            data = link.sock.recv(1 << 18)
            replies = link.replies.feed(data)
            for reply in replies:
                self._reply(link, reply)
                if self._link is not link:
                    return
        except BlockingIOError:
            return
        except (OSError, WireError) as error:
            self._lose_link(f"the process that speaks Ray {error}")
            return
        if not data:
            self._lose_link("the process that speaks Ray ended")

    def _reply(self, link: _Link, reply: Mapping[str, Any]) -> None:
        if "id" in reply:
            number = reply["id"] if type(reply["id"]) is int else 0
            if (item := self._open.get(number)) is not None:
                outcome = unpack_outcome(reply, item.batch.rows[item.index])
                del self._open[number]
                item.batch.put(item.index, outcome)
                self._losses = 0
        elif "ready" in reply:
            link.ready = self._was_ready = True
            for spec in self._specs.values():
                self._send_spec(spec)
            for number in self._open:
                self._send(number)
        elif "note" in reply:
            _log.warning("verifiers on Ray: %s", readable(redact_text(str(reply["note"])), 2000))
        elif "gone" in reply:
            self._lose_link(redact_text(str(reply["gone"])), final=link.ready or not self._was_ready)

    def _lose_link(self, why: str, *, final: bool = False) -> None:
        """Restart the child after a pause, or fail all open calls if the cluster stays away."""
        now = time.monotonic()
        printed = self._drop_link()
        if not self._losses:
            self._lost_at = now
        self._losses += 1
        self._retry_at = now + min(10.0, 0.5 * 2 ** min(self._losses, 5))
        if final or not self._open or now - self._lost_at >= self.settings.patience:
            self._needed, self._losses = False, 0
            reason = (
                f"the Ray cluster does not run its calls: {why.rstrip('. ')}. Look after the cluster (ray start "
                "--head starts one) and RAY_ADDRESS, or leave isolation out."
            ) + (f" It printed: {printed}" if printed and not final else "")
            if not self._open:
                _log.warning("verifiers on Ray: %s", readable(reason, 3000))
            self._fail_all(reason)
        else:
            _log.warning("verifiers on Ray: the cluster was lost, trying again: %s", readable(why, 500))

    def _drop_link(self, grace: float = 0.0) -> str:
        link, self._link = self._link, None
        if link is None:
            return ""
        self._selector.unregister(link.sock)
        return link.end(grace)

    def _fail_all(self, reason: str) -> None:
        waiting, self._open = self._open, {}
        for item in waiting.values():
            item.batch.put(item.index, Outcome("broken", message=reason))

    def _end(self, reason: str) -> None:
        with contextlib.suppress(Exception):
            self._drop_link(CLOSING_SECONDS)
        self._fail_all(reason)
