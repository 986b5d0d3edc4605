"""The launcher's watch over its ranks: when one of them has died, or another machine's, the rest end within seconds."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from grpo_plus.cli import _ranks
from grpo_plus.cli._machines import Machines
from grpo_plus.cli._ranks import Fault

GRACE = 5.0
"""Seconds in which the other ranks may end by themselves; what they wait for will not come any more."""
FAREWELL = 15.0
"""The same for a rank that has told why it failed: trackers still send what they have, and workers end."""
TICK = 0.2
PATIENCE = 20.0
"""Seconds without the other machines before it is said what is waited for."""


class Watch:
    """Looks after the ranks of this machine, and after the other machines if there are any. A context.

    The ranks tell in ``folder`` that they live. ``fault`` is that of another machine.
    """

    def __init__(self, folder: Path, machines: Machines | None = None) -> None:
        self.folder = folder
        self.fault: Fault | None = None
        self._machines = machines
        self._dead: dict[int, int] = {}  # rank to the tick in which it was found dead
        self._told = sys.maxsize  # the tick in which a rank had told why it failed
        self._known: list[Fault] = []
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._look, name="grpo_plus watch", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        self._ended.set()
        self._thread.join()

    def awaited(self) -> str | None:
        """Which machines have not come yet, as long as no rank has started here; None from then on."""
        if self._ended.is_set() or _ranks.started(self.folder):
            return None
        return self._machines.awaited() if self._machines else ""

    def missing(self, error: BaseException) -> str:
        """What to do where the machines have not found each other; empty where the ranks have started."""
        if self._machines is None or _ranks.started(self.folder):
            return ""
        return self._machines.missing(time.monotonic() - self._began, error)

    def done(self) -> set[int]:
        """The ranks of this machine that have come to an orderly end."""
        return {int(path.stem) for path in self.folder.glob("*.done")}

    def verdict(self, codes: Mapping[int, int]) -> Fault | None:
        """What ended the run, once it is known whether another machine came first; None where nothing did.

        ``codes`` are the exit codes of this machine's ranks that were not 0.
        """
        told = _ranks.faults(self.folder)
        dead = dict.fromkeys(_ranks.dead(self.folder), sys.maxsize) | self._dead
        if not told and not dead and self.fault is None:
            return None
        # A rank that torch has stopped is none of the first, unless there is no other.
        order = sorted(dead, key=lambda rank: (codes.get(rank) == -signal.SIGTERM, dead[rank], rank))
        # What died after another rank had told of a failure was ended for it, by torch or by `_kill`.
        gone = [_ranks.silent(self.folder, rank, codes.get(rank, 0)) for rank in order if dead[rank] <= self._told]
        spoken = {each.who for each in told}
        gone = [each for each in gone if each.who not in spoken]
        mine = _ranks.cause(told, gone)
        self._known = [each for each in told if each != mine]
        return self._first_of_all(mine, stopped=self.fault is not None and (mine is None or mine in gone))

    def others(self, first: Fault) -> list[Fault]:
        """What other ranks and machines said."""
        machines = () if self._machines is None else self._machines.said.values()
        return [each for each in [*self._known, *machines] if each is not None and each != first]

    def _first_of_all(self, mine: Fault | None, *, stopped: bool) -> Fault | None:
        """The first fault of all machines; this one's own ranks may have been stopped for another's."""
        machines = self._machines
        if machines is None:
            return mine
        if mine is not None and stopped:
            mine = replace(mine, follows=True)
        machines.say(mine)
        if mine is not None and not mine.follows:
            return mine
        machines.wait(lambda: machines.other() or machines.gone() or machines.all_said(), machines.silence + GRACE)
        return self.fault or machines.other() or machines.gone() or mine

    def _look(self) -> None:
        ticks, since, said = 0, 0.0, False
        told: dict[int, float] = {}  # rank to when it had told why it failed
        while not self._ended.wait(TICK):
            ticks += 1
            for path in self.folder.glob("*.fault"):  # looked at first: who had died by then is found below
                self._told = min(self._told, ticks)
                told.setdefault(int(path.stem), time.monotonic())
            for rank in _ranks.dead(self.folder):
                self._dead.setdefault(rank, ticks)
            machines = self._machines
            if machines is not None:
                self.fault = self.fault or machines.other() or machines.gone()
                if not said and not _ranks.started(self.folder) and time.monotonic() - self._began > PATIENCE:
                    said = True
                    with contextlib.suppress(OSError):  # a log on a full disk, or a closed pipe: the watch goes on
                        print(machines.awaited(), file=sys.stderr, flush=True)
            now = time.monotonic()
            since = since or (now if self._dead or told or self.fault else 0.0)
            if since and (self.fault or now - since > GRACE):
                self._kill(spared={rank for rank, when in told.items() if now - when < FAREWELL})

    def _kill(self, spared: Collection[int]) -> None:
        """End the ranks that are left: they are in a collective, where no other signal is heard."""
        gone = {*_ranks.dead(self.folder), *spared}
        for rank, pid in _ranks.started(self.folder).items():
            if rank not in gone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
