"""A folder in which the ranks of one machine tell their launcher, and each other, who lives and why one has failed.

Each rank has up to three files in it: ``N.alive`` from its start, ``N.done`` from its orderly end, ``N.fault`` where it
failed. The launcher prints the message of the rank that failed first, after everything that the others print.
"""

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from grpo_verifiers.files import write_whole

FOLDER = "GRPO_PLUS_RANKS"
"""Variable that names the folder; only ranks of ``grpo-plus train`` have it."""

_LOST = re.compile(
    r"gloo|nccl|process ?group|collective|connection (?:was |is )?(?:closed|reset|refused)|broken pipe|socket timeout"
    r"|Dist(?:Backend|Network|Store)?Error|OtherRankFailedError",
    re.IGNORECASE,
)
"""Errors of a rank that has lost another one."""
_WIDEST = 160


@dataclass(frozen=True)
class Fault:
    """Why a rank or a machine has ended.

    Attributes:
        who: the rank or machine, as users read it.
        follows: it has only lost another one.
        sudden: it could not say anything itself; the config need not be at fault.
    """

    who: str
    text: str
    code: int = 1
    follows: bool = False
    sudden: bool = False

    def message(self) -> str:
        """The text under its rank."""
        return f"{self.who}:{chr(10) if self.text.startswith('Traceback') else ' '}{self.text}"

    def line(self) -> str:
        """The last line of the text, which names the exception in a traceback."""
        last = (self.text.strip().splitlines() or [""])[-1].strip()
        return f"{self.who}: {last if len(last) <= _WIDEST else last[: _WIDEST - 1] + '…'}"


class Own:
    """This process as a rank of a launcher; of no launcher, where ``folder`` is None."""

    def __init__(self, folder: Path | None = None, rank: int = 0, ranks: int = 1) -> None:
        self.folder, self.rank, self.ranks = folder, rank, ranks

    @classmethod
    def announced(cls) -> "Own":
        """This rank, which tells from here on that it lives; what it starts in turn is no rank."""
        folder = os.environ.pop(FOLDER, "")
        if not folder or not os.environ.get("RANK", "").isdecimal() or not Path(folder).is_dir():
            return cls()
        own = cls(Path(folder), int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1")))
        own._write("alive", {"pid": os.getpid(), "born": _born(os.getpid()), "who": own.name()})
        return own

    def name(self) -> str:
        """As users read it."""
        return f"rank {self.rank} of {self.ranks} (on {socket.gethostname()})"

    def failed(self, text: str, code: int, error: BaseException | None = None) -> bool:
        """Tell the launcher, which prints it; False where there is none to do so."""
        if self.folder is None:
            return False
        lost = error is not None and isinstance(error, RuntimeError | OSError) and bool(_LOST.search(_named(error)))
        fault = Fault(self.name(), text.rstrip(), code, follows=lost or bool(self.dead()))
        _outlive()
        return self._write("fault", {**asdict(fault), "time": time.time()})

    def done(self) -> None:
        """Tell the launcher that what comes now is an orderly end, with an exit code of its own."""
        if self.folder is not None:
            _outlive()
            self._write("done", {})

    def dead(self) -> list[int]:
        """Other ranks of this machine that have ended otherwise than in order."""
        return [] if self.folder is None else [rank for rank in dead(self.folder) if rank != self.rank]

    def _write(self, kind: str, values: Mapping[str, Any]) -> bool:
        assert self.folder is not None
        path = self.folder / f"{self.rank}.{kind}"
        try:
            write_whole(path, json.dumps(values))
        except OSError:  # a full disk
            return False
        return True


def _outlive() -> None:
    """Torch sends SIGTERM once another rank has ended. This one is about to: its trackers send what they have."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: None)


@cache
def own() -> Own:
    """This process as a rank; the first call announces it."""
    return Own.announced()


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _born(pid: int) -> float:
    """Seconds from the start of the machine: the time of day may be set while a run goes on."""
    import psutil  # type: ignore[import-untyped]  # comes with accelerate

    return float(psutil.Process(pid).create_time() - psutil.boot_time())


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def started(folder: Path) -> dict[int, int]:
    """The ranks that have come to their start, each with its process."""
    found = {int(path.stem): _read(path).get("pid") for path in sorted(folder.glob("*.alive"))}
    return {rank: pid for rank, pid in found.items() if pid is not None}


def dead(folder: Path) -> list[int]:
    """The ranks that have ended without having said that they would."""
    return [rank for rank in started(folder) if not (folder / f"{rank}.done").exists() and not _lives(folder, rank)]


def _lives(folder: Path, rank: int) -> bool:
    import psutil

    told = _read(folder / f"{rank}.alive")
    try:
        process = psutil.Process(int(told["pid"]))
        return (
            process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            and abs(_born(process.pid) - told["born"]) < 1
        )
    except (psutil.NoSuchProcess, KeyError):
        return False


def faults(folder: Path) -> list[Fault]:
    """What ranks said when they failed, the first of them first."""
    told = [_read(path) for path in folder.glob("*.fault")]
    known = sorted((each for each in told if each), key=lambda each: each["time"])
    return [Fault(**{key: value for key, value in each.items() if key != "time"}) for each in known]


def silent(folder: Path, rank: int, code: int | None) -> Fault:
    """The fault of a rank that could not say anything."""
    who = str(_read(folder / f"{rank}.alive").get("who", f"rank {rank}"))
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        why = {
            "SIGKILL": " The kernel does this where memory runs out (see dmesg, or the limit of the job).",
            "SIGSEGV": " That is a fault in compiled code; PYTHONFAULTHANDLER=1 shows where.",
        }.get(name, "")
        return Fault(who, f"the process was killed ({name}).{why}", sudden=True)
    ending = "ended" if code is None else f"ended with exit code {code}"
    return Fault(who, f"the process {ending} in the middle of the run, without a word.", sudden=True)


def cause(told: Sequence[Fault], gone: Collection[Fault]) -> Fault | None:
    """The fault that came before the others: told by a rank itself, or of one that was killed, or the first of all."""
    first = next((fault for fault in told if not fault.follows), None)
    return first or next(iter(gone), None) or next(iter(told), None)


def report(first: Fault, others: Sequence[Fault], resume: str) -> str:
    """What the launcher prints in the end: what came of it in a line each, then the message itself."""
    alike = any(fault.text == first.text for fault in others)
    lines = [f"  {fault.line()}" for fault in dict.fromkeys(others) if fault.text != first.text]
    after = ["The others ended after it:", *lines] if lines else []
    return "\n".join([*after, first.text if alike else first.message(), *([resume] if first.sudden else [])])
