"""Run tools and environments outside the trainer, which keeps the deadlines and kills.

Functions share workers, which any completion may use. Tools that are classes, and the environment, live in a process of
their completion. All of them are forks of one process that has imported the tools (`tools.nursery`). The tool `python`
runs in boxes (`tools.python`). Their replies are JSON and are validated: they have processed text of a model.
"""

import atexit
import contextlib
import json
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from grpo_verifiers.exec.runner import default_memory, worker_count
from grpo_verifiers.tools.forks import Fork, Nursery, ProcessLostError
from grpo_verifiers.tools.guest import MAX_TEXT, cut
from grpo_verifiers.tools.part import ToolPart
from grpo_verifiers.tools.python import REFERENCE as PYTHON
from grpo_verifiers.tools.python import PythonBox
from grpo_verifiers.turns import CallStatus

_OWN: dict[str, tuple[str, str]] = {
    "reset": ("reset", ""),
    "state": ("state_key", "states"),
    "turn_reward": ("get_turn_reward", "turn_rewards"),
    "reward": ("get_reward", "rewards"),
}
"""Requests of the trainer to an environment: its method, and the field of the part that declares it."""
_PAUSE = 0.1


@dataclass(frozen=True)
class Reply:
    """The result of a call.

    Attributes:
        status: how the call ended.
        text: ``str`` of the tool's result, cut at its limit; of an error, its message.
        seconds: how long it took.
        number: the reward of ``reward``; None without one, and for other calls.
        ended: the environment had ended before the call.
    """

    status: CallStatus
    text: str
    seconds: float = 0.0
    number: float | None = None
    ended: bool = False


class Sessions:
    """The processes of a run's tools, from `open_sessions`."""

    def __init__(self, parts: Sequence[ToolPart], memory: int | None, workers: int) -> None:
        self.parts = tuple(parts)
        forked = [part for part in self.parts if part.reference != PYTHON]
        self._nursery = Nursery(forked, memory) if forked else None
        self.places = {id(part): at for at, part in enumerate(forked)}
        """The numbers of parts in their processes."""
        self._room = threading.Semaphore(workers)
        self._free: list[Fork] = []
        self._open: set[Session] = set()
        self._lock = threading.Lock()
        self._closed = False
        if self._nursery is not None:
            self._nursery.start()
        for part in self.parts:
            if part.reference == PYTHON:
                PythonBox(part.kwargs).close()  # raises where this machine has no box of that level
        _all.add(self)

    def open(self, environment: str | None = None) -> "Session":
        """The session of one completion; ``environment`` is a label, needed if there are several."""
        environments = [part for part in self.parts if part.kind == "environment"]
        if environment is not None:
            environments = [part for part in environments if part.label == environment]
            if not environments:
                raise ValueError(f"there is no environment {environment!r}")
        elif len(environments) > 1:
            names = ", ".join(repr(part.label) for part in environments)
            raise ValueError(f"there are several environments ({names}): say which")
        with self._lock:
            if self._closed:
                raise ValueError("the sessions are closed")
            session = Session(self, environments[0] if environments else None)
            self._open.add(session)
        return session

    def close(self) -> None:
        """End every process, with the sessions that are open. Safe to repeat."""
        with self._lock:
            self._closed = True
            still = list(self._open)
        for session in still:
            session.close()
        if self._nursery is not None:
            self._nursery.close()
        for session in still:
            session.join(30)
        for child in self._free:
            child.forget()
        self._free.clear()
        _all.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self) -> Fork:
        """A process for a completion."""
        assert self._nursery is not None
        return self._nursery.fork()

    def borrow(self, needed: Callable[[], bool]) -> Fork | None:
        """Wait for a worker for functions; None once it is not ``needed`` any more."""
        while not self._room.acquire(timeout=_PAUSE):
            if not needed():
                return None
        try:
            with self._lock:
                if self._free:
                    return self._free.pop()
            return self.fork()
        except BaseException:
            self._room.release()
            raise

    def give_back(self, child: Fork, *, fit: bool) -> None:
        """Return a worker; one that is not ``fit`` for reuse is ended."""
        try:
            if fit:
                with self._lock:
                    self._free.append(child)
            else:
                child.end()
        finally:
            self._room.release()

    def left(self, session: "Session") -> None:
        """Remove an ended session."""
        with self._lock:
            self._open.discard(session)

    def forget(self) -> None:
        """In a forked child of the trainer: drop the parent's processes."""
        self._lock, self._closed = threading.Lock(), True
        for child in self._free:
            child.forget()
        for session in self._open:
            session.forget()
        self._open = set()
        if self._nursery is not None:
            self._nursery.forget()


class Session:
    """The tools and the environment of one completion. Calls run in order."""

    def __init__(self, sessions: Sessions, environment: ToolPart | None) -> None:
        self._sessions, self._environment = sessions, environment
        parts = [part for part in sessions.parts if part.kind != "environment" or part is environment]
        self._methods = {method.name: part for part in parts for method in part.methods}
        self._jobs: queue.SimpleQueue[tuple[Future[Reply], Callable[[], Reply]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._child: Fork | None = None
        self._busy: Fork | None = None
        self._boxes: dict[str, PythonBox] = {}
        self._lost = ""

    # -- called from any thread

    def reset(self, row: Mapping[str, Any]) -> "Future[Reply]":
        """Make the environment ready for a row; its text is the result of ``reset``, empty for None."""
        if problem := row_problem(row):
            return _finished(Reply("error", problem))
        return self._ask_environment("reset", dict(row))

    def call(self, method: str, arguments: Mapping[str, Any]) -> "Future[Reply]":
        """Call a method; its arguments must fit the schema. The future never raises."""
        part = self._methods.get(method)
        if part is None:
            return _finished(Reply("unknown", f"Tool {method} not found."))
        if part.reference == PYTHON:
            return self._queue(lambda: self._python(part, method, arguments))
        question = {"kind": "call", "method": method, "arguments": dict(arguments)}
        if part.kind == "function":
            return self._queue(lambda: self._function(part, question))
        return self._queue(lambda: self._stateful(part, question))

    def state(self) -> "Future[Reply]":
        """The environment's ``state_key`` as text; empty where it has none."""
        return self._ask_environment("state", {})

    def turn_reward(self) -> "Future[Reply]":
        """The environment's ``get_turn_reward`` for the turn with the latest calls."""
        return self._ask_environment("turn_reward", {})

    def reward(self) -> "Future[Reply]":
        """The environment's ``get_reward``."""
        return self._ask_environment("reward", {})

    def close(self) -> None:
        """End all that belongs to the completion; calls under way end as ``died``."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            under_way, boxes, started = [self._child, self._busy], list(self._boxes.values()), self._thread is not None
        for child in filter(None, under_way):
            child.interrupt()
        for box in boxes:
            box.interrupt()
        if started:
            self._jobs.put(None)
        else:
            self._sessions.left(self)

    def join(self, seconds: float) -> None:
        """Wait for the end of a closed session."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def forget(self) -> None:
        """In a forked child of the trainer."""
        self._closed, self._lock = True, threading.Lock()
        for child in filter(None, (self._child, self._busy)):
            child.forget()
        for box in self._boxes.values():
            box.forget()

    # -- the thread

    def _queue(self, job: Callable[[], Reply]) -> "Future[Reply]":
        future: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                return _finished(_ENDED)
            self._jobs.put((future, job))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="grpo-tools", daemon=True)
                self._thread.start()
        return future

    def _work(self) -> None:
        try:
            while (entry := self._jobs.get()) is not None:
                future, job = entry
                if future.set_running_or_notify_cancel():
                    future.set_result(_ENDED if self._closed else _safely(job))
        finally:
            for box in self._boxes.values():
                box.close()
            self._end_child()
            with contextlib.suppress(queue.Empty):
                while (left := self._jobs.get_nowait()) is not None:
                    left[0].set_result(_ENDED)
            self._sessions.left(self)

    def _ask_environment(self, action: str, arguments: dict[str, Any]) -> "Future[Reply]":
        part, (method, has) = self._environment, _OWN[action]
        if part is None or (has and not getattr(part, has)):
            return _finished(Reply("ok", ""))
        return self._queue(lambda: self._stateful(part, {"kind": method, "arguments": arguments}))

    def _stateful(self, part: ToolPart, question: dict[str, Any]) -> Reply:
        environment = part.kind == "environment"
        if environment and self._lost:
            return Reply("error", f"The environment has ended: {self._lost}.", ended=True)
        if self._child is None:
            child = self._sessions.fork()
            with self._lock:
                self._child = child
        started = time.monotonic()
        if self._closed:
            return _ENDED
        try:
            return self._ask(self._child, part, question)
        except ProcessLostError as lost:
            self._end_child()
            self._lost = str(lost)
            more = "The environment has ended." if environment else "Its state is lost; the next call starts anew."
            return Reply(lost.status, f"{lost}. {more}", time.monotonic() - started)

    def _end_child(self) -> None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def _function(self, part: ToolPart, question: dict[str, Any]) -> Reply:
        child = self._sessions.borrow(lambda: not self._closed)
        if child is None:
            return _ENDED
        with self._lock:
            self._busy = child
        fit, started = False, time.monotonic()
        try:
            if self._closed:
                return _ENDED
            reply = self._ask(child, part, question)
            fit = self._fit and not self._closed
        except ProcessLostError as lost:
            return Reply(lost.status, f"{lost}.", time.monotonic() - started)
        else:
            return reply
        finally:
            with self._lock:
                self._busy = None
            self._sessions.give_back(child, fit=fit)

    def _ask(self, child: Fork, part: ToolPart, question: dict[str, Any]) -> Reply:
        started = time.monotonic()
        answer = child.ask({**question, "part": self._sessions.places[id(part)]}, part.timeout)
        seconds = time.monotonic() - started
        self._fit = answer.get("again") is True
        failure, text, number = answer.get("e"), answer.get("text"), answer.get("number")
        if isinstance(failure, str):
            return Reply("error", cut(failure, 2 * MAX_TEXT), seconds)
        fits = not isinstance(number, bool) and isinstance(number, float | int | None)
        if not isinstance(text, str) or not fits or not abs(number or 0) <= sys.float_info.max:
            raise ProcessLostError("died", "its process broke the protocol and was ended")
        return Reply("ok", cut(text, 2 * MAX_TEXT), seconds, None if number is None else float(number))

    def _python(self, part: ToolPart, method: str, arguments: Mapping[str, Any]) -> Reply:
        code = arguments.get("code")
        if not isinstance(code, str):
            return Reply("error", f"{method} takes code, a text")
        if method not in self._boxes:
            box = PythonBox(part.kwargs)
            with self._lock:
                self._boxes[method] = box
        if self._closed:
            return _ENDED
        started = time.monotonic()
        status, text = self._boxes[method].run(code, part.timeout)
        return Reply("died" if self._closed else status, text, time.monotonic() - started)  # type: ignore[arg-type]


def open_sessions(parts: Sequence[ToolPart], *, memory: int | None = -1, workers: int | None = None) -> Sessions:
    """Start the processes of these tools; close them in the end. ``workers`` calls of functions run at a time.

    A process may take ``memory`` bytes of address space in addition to its imports; None: no cap; -1: the cap of
    workers of checks.
    """
    return Sessions(parts, default_memory() if memory == -1 else memory, workers or worker_count())


def row_problem(row: Mapping[str, Any]) -> str:
    """The problem with a row that JSON cannot represent, with its column; empty if there is none.

    >>> row_problem({"goal": 3, "board": [[0, 1], [1, 0]]})
    ''
    """
    for column, value in row.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            return (
                f"the column {column!r} is not JSON ({error}): reset takes None, numbers, texts, lists and mappings of "
                "these; turn it into one of them in the data, or leave the column out"
            )
    return ""


_ENDED = Reply("died", "the completion was ended")
_all: "weakref.WeakSet[Sessions]" = weakref.WeakSet()


def _safely(job: Callable[[], Reply]) -> Reply:
    try:
        return job()
    except ProcessLostError as lost:
        return Reply(lost.status, str(lost))
    except Exception as error:  # noqa: BLE001 - a future of these never raises
        return Reply("died", f"it cannot run: {error}"[:2000])


def _finished(reply: Reply) -> "Future[Reply]":
    future: Future[Reply] = Future()
    future.set_result(reply)
    return future


def _close_all() -> None:
    for sessions in list(_all):
        sessions.close()


def _after_fork() -> None:
    for sessions in list(_all):
        sessions.forget()
    _all.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)
