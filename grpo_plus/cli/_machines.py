"""The launchers of several machines tell each other, through the store that torch's launcher opens, that they live.

A machine whose rank has failed says why, and the others end their ranks at once instead of waiting in a collective. One
that says nothing for 40 seconds counts as gone; ``GRPO_PLUS_SILENCE`` sets another time.
"""

import contextlib
import json
import math
import os
import socket
import threading
import time
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Self

from grpo_plus.cli import UserError
from grpo_plus.cli._ranks import Fault

SILENCE = "GRPO_PLUS_SILENCE"
"""Variable with the seconds without a sign of life after which a machine counts as gone."""
_DEFAULT = 40.0
_SHORTEST = 10.0
"""A store that is busy may take as long for an answer."""
BEAT = 1.0
_TIMEOUT = timedelta(seconds=10)


def _silence() -> float:
    given = os.environ.get(SILENCE, "").strip()
    with contextlib.suppress(ValueError):
        if not given or _SHORTEST <= float(given) < math.inf:
            return float(given or _DEFAULT)
    raise UserError(
        f"{SILENCE} is {given!r}, expected a number of seconds, at least {_SHORTEST:g}: how long another machine may "
        f"give no sign of life before the run ends. Unset, it is {_DEFAULT:g}."
    )


class Machines:
    """The machines of a run, as this one's launcher sees them. A context: the talk ends with it.

    Attributes:
        silence: seconds without a sign of life after which one counts as gone.
        said: by its number, why a machine has ended; None where it has come to an orderly end.
    """

    def __init__(self, host: str, port: int, own: int, count: int) -> None:
        self._address, self._own, self._count = (host, port), own, count
        self.silence = _silence()
        self.said: dict[int, Fault | None] = {}
        self._seen: dict[int, tuple[bytes, float]] = {}  # the last sign of life of each, and when it changed
        self._names: dict[int, str] = {}
        self._reached = 0.0
        self._saying: bytes | None = None
        self._told = self._ended = False
        self._thread = threading.Thread(target=self._talk, name="grpo_plus machines", daemon=True)

    def __enter__(self) -> Self:
        """Begin to talk as soon as the store is there."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Say that the end is an orderly one, if nothing else was said."""
        self.say(None)
        self.wait(lambda: self._told or self.gone() is not None or not self._reached, 5)
        if self._own == 0 and self._told:  # the store ends with this process
            self.wait(lambda: len(self.said) == self._count or self.gone() is not None, 10)
        self._ended = True

    def say(self, fault: Fault | None) -> None:
        """Tell the others why this machine ends; only the first time counts."""
        if self._saying is None:
            self._saying = json.dumps(fault and asdict(fault)).encode()

    def other(self) -> Fault | None:
        """The fault of another machine that came first there, or None as long as there is none."""
        told = [fault for number, fault in sorted(self.said.items()) if fault is not None and number != self._own]
        return next((fault for fault in told if not fault.follows), None)

    def gone(self) -> Fault | None:
        """A machine that has given no sign of life for too long."""
        now = time.monotonic()
        if not self._reached:
            return None
        if self._own != 0 and now - self._reached > self.silence and self.said.get(0, 0) == 0:
            return self._silent(0)
        for number, (_, when) in self._seen.items():
            if number != self._own and number not in self.said and self._reached - when > self.silence:
                return self._silent(number)
        return None

    def all_said(self) -> bool:
        """Whether every machine has said how it ended."""
        return len(self.said.keys() - {self._own}) == self._count - 1

    def wait(self, condition: Any, seconds: float) -> None:
        """Until something holds, or so many seconds are over."""
        until = time.monotonic() + seconds
        while not condition() and time.monotonic() < until:
            time.sleep(0.1)

    def awaited(self) -> str:
        """What a machine says that has started and sees no other."""
        host, port = self._address
        whom = f"machine 0, at {host}:{port}" if self._own else f"{self._count - 1} more to come to {host}:{port}"
        return f"This is machine {self._own} of {self._count}, waiting for {whom}."

    def missing(self, seconds: float, error: BaseException) -> str:
        """What is to be done where they have not found each other."""
        host, port = self._address
        told = (str(error).strip().splitlines() or [""])[0]
        return (
            f"the {self._count} machines of this run have not found each other in {seconds:.0f} seconds; this one is "
            f"machine {self._own}. Start the same command on each, with --num_machines {self._count} and its own "
            f"--machine_rank (0 to {self._count - 1}), and see that each reaches {host}:{port} of machine 0 "
            "(--main_process_ip, --main_process_port). --rdzv_conf timeout=SECONDS sets how long they wait. "
            f"Torch says: {told}"
        )

    def _silent(self, number: int) -> Fault:
        name = f" ({self._names[number]})" if number in self._names else ""
        text = (
            f"no sign of life for {self.silence:g} seconds: it is down, its launcher was killed, or the network is cut."
        )
        return Fault(f"machine {number} of {self._count}{name}", text, sudden=True)

    def _talk(self) -> None:
        store = None
        beats = 0
        while not self._ended:
            try:
                store = store or self._open()
                beats += 1
                self._exchange(store, beats)
            except Exception:  # noqa: BLE001 - torch has many; a store that stays away is noticed by its silence
                store = None
            time.sleep(BEAT)

    def _open(self) -> Any:
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        host, port = self._address
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
            leads = self._own == 0  # it shares torch's store, which then outlives the ranks
            store = TCPStore(host, port, None, leads, _TIMEOUT, wait_for_workers=False, multi_tenant=leads)
            return PrefixStore("grpo_plus/machines", store)
        return None

    def _exchange(self, store: Any, beats: int) -> None:
        if store is None:
            return
        store.set(f"name/{self._own}", socket.gethostname())
        store.set(f"beat/{self._own}", str(beats))
        if self._saying is not None:
            store.set(f"said/{self._own}", self._saying)
            self._told = True
        now = time.monotonic()
        for number in range(self._count):
            if store.check([f"said/{number}"]) and number not in self.said:
                told = json.loads(store.get(f"said/{number}"))
                self.said[number] = None if told is None else Fault(**told)
            if store.check([f"beat/{number}"]):
                self._names[number] = store.get(f"name/{number}").decode()
                beat = store.get(f"beat/{number}")
                if self._seen.get(number, (b"", 0.0))[0] != beat:
                    self._seen[number] = (beat, now)
        self._reached = now
