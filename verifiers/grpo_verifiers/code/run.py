"""One run of one program, from the trusted side: messages, bounds, output."""

import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

from grpo_verifiers.code.guest.values import dump
from grpo_verifiers.sandbox.box import Box, BoxError, Limits
from grpo_verifiers.sandbox.children import off_stdio, socket_pair
from grpo_verifiers.sandbox.inside import proc
from grpo_verifiers.sandbox.watch import UsageMonitor

GRACE = 10.0
"""Seconds past a program's wall limit after which its zygote must be broken."""
_TICK = 0.05
_ADD_SEALS, _ALL_SEALS = 1033, 15
_ENVELOPE = 64
"""Bytes around an answer: the number of its question, and brackets."""
_PER_QUESTION = 4096
"""Bytes that each question adds to the limit of ``sent``."""
_WHY = {
    "timeout": "out of time",
    "killed": "killed by its limits",
    "memory": "used too much memory",
    "processes": "started too many processes",
    "disk": "filled its folder",
    "output": "printed too much",
    "protocol": "sent a malformed answer",
    "moving": "did not stop after its answer",
    "number": "answered a different question",
    "exit": "ended before it answered",
    "stopped": "ended",
}


class ProgramRun:
    """A program that runs in a box; a context manager that ends it."""

    def __init__(
        self,
        box: Box,
        limits: Limits,
        messages: Sequence[Any],
        *,
        questions: Sequence[dict[str, Any]] = (),
        last: bool = False,
        stdin: bytes | None = None,
        capture: bool = False,
    ) -> None:
        """Start it in a box, which holds one program at a time.

        It gets the messages at its start, and the questions after that; ``answer`` returns their answers in order.
        With ``last`` nothing is sent after those. ``stdin`` None is empty; ``capture`` collects its standard output.
        """
        self.end = ""
        self.output = bytearray()
        self._box, self._limits = box, limits
        self._question_ids: deque[str] = deque()
        self._out = bytearray(b"".join(map(dump, [*messages, *map(self._add_number, questions)])))
        self._last = last
        self._may_send = limits.sent + _PER_QUESTION * len(self._question_ids)
        self._sent = 0
        self._in = bytearray()
        self._started = time.monotonic()
        self._looked = self._started
        self._monitor = UsageMonitor(box, limits)
        self._fault = ""
        self._until = float("inf")
        self._resting: set[int] = set()
        self._channel, channel = socket_pair()
        self._channel.setblocking(False)
        self._push()
        self._fds: list[int] = []
        theirs = [channel.fileno()]
        roles = {"channel": channel.fileno()}
        try:
            self._setup, roles["setup"] = self._pipe(theirs)
            self._stdout = -1
            if capture:
                self._stdout, roles["stdout"] = self._pipe(theirs)
            if stdin is not None:
                roles["stdin"] = _sealed_file(stdin)
                theirs.append(roles["stdin"])
            self._run = box.start(limits, roles)
        except BaseException:
            self._close()
            raise
        finally:
            channel.close()
            for fd in theirs[1:]:
                os.close(fd)

    def _pipe(self, theirs: list[int]) -> tuple[int, int]:
        read, write = (off_stdio(fd) for fd in os.pipe2(os.O_CLOEXEC))
        os.set_blocking(read, False)
        self._fds.append(read)
        theirs.append(write)
        return read, write

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.finish()
        finally:
            self._close()

    def send(self, message: Any) -> None:
        """Queue a message; it leaves during the next wait."""
        self._out += dump(message)

    def receive(self) -> Any:
        """The program's next message; None if it ends or breaks the protocol first; BoxError if the box fails."""
        while True:
            if len(self._in) >= 4:
                end = 4 + int.from_bytes(self._in[:4], "big")
                if end > self._limits.message + _ENVELOPE + 4:
                    return self._broken()
                if len(self._in) >= end and self._sent - len(self._in) + end <= self._may_send:  # up to its end
                    data = bytes(self._in[4:end])
                    del self._in[:end]
                    try:
                        message = json.loads(data)
                    except (ValueError, RecursionError):
                        return self._broken()
                    return self._broken() if message is None else message
            if self.end:
                there = len(self._in)
                self._move(select.POLLIN)  # bytes that did not fit next to earlier messages
                if len(self._in) == there:
                    return None
                continue
            self._pump()

    def _add_number(self, question: dict[str, Any]) -> dict[str, Any]:
        """A question with a random number, so that no program can write its answer in advance."""
        self._question_ids.append(secrets.token_hex(8))
        return {**question, "id": self._question_ids[-1]}

    def ask(self, question: dict[str, Any], seconds: float = float("inf")) -> Any:
        """Send one more question and return its answer, as ``answer`` does; end the program after ``seconds``."""
        proc.send(self._resting, signal.SIGCONT)
        self._until = time.monotonic() + seconds
        self.send(self._add_number(question))
        self._may_send += _PER_QUESTION
        self._push()
        return self.answer()

    def rest(self) -> None:
        """Stop all of it until the next question; end it if it cannot be stopped or exceeds a bound."""
        resting = proc.freeze(self._box.zygote)
        self._resting = resting or set()
        self._stop_for("moving" if resting is None else self._monitor.overuse(now=True))
        if self._fault:
            self.wait()

    def answer(self) -> Any:
        """The answer to the next question; None if the program ends or answers anything else; raises as ``receive``."""
        number, reply = self._question_ids.popleft(), self.receive()
        if reply is None:
            return None
        if not isinstance(reply, list) or len(reply) != 2 or reply[0] != number or reply[1] is None:
            return self._broken("number")
        return reply[1]

    def wait(self) -> None:
        """Wait for the end of the program, after which its output is complete."""
        while not self.end:
            self._pump()

    def finish(self) -> None:
        """End the program now, if it still runs."""
        if not self.end:
            self._box.stop(self._run)
            self.wait()

    @property
    def why(self) -> str:
        """The end of the program in words."""
        if self.end == "sent":
            return f"sent more than {self._may_send} bytes"
        return _WHY.get(self.end, self.end)

    def _broken(self, how: str = "protocol") -> None:
        self._fault = self._fault or how
        self.finish()
        self.end = how

    def _pump(self) -> None:
        """Wait for the next event, at most a tick, and move bytes."""
        poll = select.poll()
        poll.register(self._box.control, select.POLLIN)
        # Unread bytes stay in the channel and block the program.
        events = (0 if self._full else select.POLLIN) | (select.POLLOUT if self._out else 0)
        if events and self._channel.fileno() >= 0:
            poll.register(self._channel, events)
        if self._stdout >= 0:
            poll.register(self._stdout, select.POLLIN)
        ready = dict(poll.poll(int(_TICK * 1000)))
        if self._box.control.fileno() in ready:
            self._take_ending()
            return
        if self._stdout in ready:
            self._take_output()
        if self._channel.fileno() in ready:
            self._move(ready[self._channel.fileno()])
        now = time.monotonic()
        if now - self._looked >= _TICK:
            self._looked = now
            if now - self._started > self._limits.wall + GRACE:
                raise BoxError("the zygote did not end a program at its limit")
            self._stop_for("timeout" if now > self._until else self._monitor.overuse())

    def _stop_for(self, fault: str) -> None:
        if fault and not self._fault:
            self._fault = fault
            self._box.stop(self._run)

    def _take_ending(self) -> None:
        ending = self._box.hear(0)
        # The zygote does not report that the kernel ended a part of the program.
        cgroup = self._box.cgroup
        self._fault = self._fault or ("memory" if cgroup is not None and cgroup.has_overflowed() else "")
        if ending is None:
            if self._fault != "memory":
                raise BoxError("the zygote died")
            ending = {"run": self._run, "end": "memory"}
        if ending.get("run") != self._run:
            return
        self.end = self._fault or ending["end"]
        # The program has ended: all of its output is in the pipes now.
        with contextlib.suppress(BlockingIOError):
            failed = os.read(self._setup, 2000)
            if failed:
                raise BoxError(f"a program could not be boxed: {failed.decode('utf-8', 'replace')}")
        if ending["end"] == "failed":
            raise BoxError(f"a program could not be started: {ending['why']}")
        if self._stdout >= 0:
            self._take_output()
        if self._channel.fileno() >= 0:
            self._move(select.POLLIN)
        self.end = self._fault or self.end

    def _take_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._stdout, 1 << 18):
                self.output += data
                if len(self.output) > self._limits.output:
                    self._stop_for("output")
                    self._stdout = -1  # further output stays in the pipe and blocks the program
                    break
            else:
                self._stdout = -1

    def _move(self, events: int) -> None:
        try:
            if events & select.POLLOUT:
                self._push()
            while not self._full:
                data = self._channel.recv(1 << 18)
                if not data:
                    self._channel.close()
                    return
                self._in += data
                self._sent += len(data)
            if self._sent > self._may_send:
                self._stop_for("sent")
            if int.from_bytes(self._in[:4], "big") > self._limits.message + _ENVELOPE:
                self._stop_for("protocol")
        except BlockingIOError:
            pass
        except OSError:
            self._channel.close()

    @property
    def _full(self) -> bool:
        return len(self._in) > self._limits.message + _ENVELOPE + 4 or self._sent > self._may_send

    def _push(self) -> None:
        try:
            if self._out:
                del self._out[: self._channel.send(self._out)]
            if self._last and not self._out:
                self._channel.shutdown(socket.SHUT_WR)
                self._last = False
        except BlockingIOError:
            pass
        except OSError:  # closed: nothing of it will ever leave
            self._out.clear()
            self._last = False

    def _close(self) -> None:
        self._channel.close()
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def _sealed_file(data: bytes) -> int:
    """A file in memory that can be read and not changed."""
    fd = off_stdio(os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    fcntl.fcntl(fd, _ADD_SEALS, _ALL_SEALS)
    return fd
