"""Messages between trainer and worker: pickle to the worker, JSON of bounded size back.

A worker runs checks on model text, so nothing it sends is trusted: the trainer never unpickles it. The process
pools of the standard library, pebble and loky are unsuitable: all of them unpickle results in the parent (pebble's
``channel.recv``, loky's result queue), and none starts an item's deadline when the item starts.
"""

import json
import pickle
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.errors.messages import counted, exact, short, type_name
from grpo_verifiers.exec.outcome import InvalidRow
from grpo_verifiers.verdict import Step, Verdict, checked_copy, is_scalar, score_of

MAX_REPLY = 8 << 20
LONGEST = 1e9
"""Largest duration of a call that a reply may report, in seconds."""
_CALL = struct.Struct("!IQ")
_REPLY = struct.Struct("!I")
_STATUSES = "a number, True or False, None (does not apply) or a Verdict"


class WireError(Exception):
    """A reply that no honest worker sends."""


def pack_call(head: tuple[Any, ...], payload: bytes = b"") -> bytes:
    """One message to a worker: a small pickled head, and a payload that is already pickled."""
    first = pickle.dumps(head, protocol=pickle.HIGHEST_PROTOCOL)
    return b"".join((_CALL.pack(len(first), len(payload)), first, payload))


def read_call(sock: socket.socket) -> tuple[tuple[Any, ...], bytes] | None:
    """The next message of the trainer; None once the connection is closed."""
    header = read_exactly(sock, _CALL.size)
    if header is None:
        return None
    sizes = _CALL.unpack(header)
    head, payload = read_exactly(sock, sizes[0]), read_exactly(sock, sizes[1])
    if head is None or payload is None:
        return None
    return pickle.loads(head), payload  # noqa: S301 - from the trainer, which started this process


def read_exactly(sock: socket.socket, size: int) -> bytes | None:
    """Read exactly ``size`` bytes; None if the connection ends early."""
    parts = []
    while size:
        try:
            part = sock.recv(min(size, 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def pack_reply(reply: dict[str, Any]) -> bytes:
    """One message to the trainer."""
    body = json.dumps(reply, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_REPLY:
        size, limit = len(body) >> 20, MAX_REPLY >> 20
        raised = {"type": "ValueError", "message": f"the result is too large: {size} MiB, at most {limit}", "trace": ""}
        body = json.dumps({"id": reply["id"], "s": reply["s"], "e": raised}).encode("ascii")
    return _REPLY.pack(len(body)) + body


class ReplyBuffer:
    """Split the bytes of a worker into complete replies; buffer at most one reply."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The replies that are complete now."""
        self._data += data
        while len(self._data) >= _REPLY.size:
            (size,) = _REPLY.unpack_from(self._data)
            if size > MAX_REPLY:
                raise WireError(f"announced a reply of {size} bytes, at most {MAX_REPLY} are read")
            end = _REPLY.size + size
            if len(self._data) < end:
                return
            body = bytes(self._data[_REPLY.size : end])
            del self._data[:end]
            try:
                reply = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise WireError(f"sent {body[:80]!r}, which is not JSON") from error
            if not isinstance(reply, dict):
                raise WireError(f"sent {body[:80]!r}, which is not a reply")
            yield reply


def receive_replies(sock: socket.socket, buffer: ReplyBuffer, until: float) -> list[dict[str, Any]]:
    """The next replies, at least one; TimeoutError, ConnectionError or WireError where none comes before ``until``."""
    while True:
        sock.settimeout(max(0.001, until - time.monotonic()))
        data = sock.recv(1 << 18)
        if not data:
            raise ConnectionError("it ended")
        if replies := list(buffer.feed(data)):
            return replies


def duration_of(reply: Mapping[str, Any]) -> float:
    """The seconds that a call took, from an untrusted reply."""
    seconds = reply.get("s")
    if isinstance(seconds, float | int) and not isinstance(seconds, bool) and 0 <= seconds <= LONGEST:
        return float(seconds)
    raise WireError("sent an outcome without a duration")


def to_rows(value: Any, rows: int | None) -> list[list[Any] | str]:
    """The return value of a check as rows for the wire.

    ``rows`` is the number of completions of a batch function; None: a function of a single completion. An invalid
    result in a batch becomes a row with the text of its problem, and the remaining rows are valid. TypeError or
    ValueError if every row is invalid; VerifierFailedError if their number is wrong.
    """
    if rows is None:
        return [_row(value)]
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise _wrong_count(_description(value), rows)
    if len(value) != rows:
        raise _wrong_count(counted(len(value), "result"), rows)
    sent: list[list[Any] | str] = []
    for item in islice(value, rows):
        try:
            sent.append(_row(item))
        except Exception as error:
            if len(sent) == rows - 1 and all(isinstance(row, str) for row in sent):
                raise
            sent.append(_reason(error))
    if len(sent) != rows:
        raise _wrong_count(counted(len(sent), "result"), rows)
    return sent


def _wrong_count(returned: str, rows: int) -> VerifierFailedError:
    return VerifierFailedError(
        f"returned {returned} for {counted(rows, 'completion')}, expected a list with one for each"
    )


def _row(value: Any) -> list[Any]:
    if isinstance(value, Verdict):
        try:
            verdict = checked_copy(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"returned an invalid verdict: {error}") from error
    elif value is None or isinstance(value, bool | int | float) or is_scalar(value):
        try:
            verdict = Verdict(None if value is None else score_of("the score", value))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"returned {_description(value)}, expected a finite number, or None where it cannot say: {error}"
            ) from error
    else:
        raise TypeError(f"returned {_description(value)}, expected {_STATUSES}")
    return row_of(verdict)


def row_of(verdict: Verdict) -> list[Any]:
    """A verdict as a row for the wire."""
    steps = [[step.start, step.end, step.score] for step in verdict.steps]
    return [verdict.score, verdict.status.value, verdict.detail, steps]


def _reason(error: Exception) -> str:
    """The reason why a row is refused. Messages of this module are safe to show, those of a hostile object are not."""
    try:
        message = exact(str(error), 1000)
    except Exception:  # noqa: BLE001 - as above
        message = "(its message cannot be shown)"
    return f"{type_name(type(error))}: {message}"


def _description(value: Any) -> str:
    return f"{short(value, 200)} ({type_name(type(value))})"


def from_rows(rows: Any, expected: int) -> list[Verdict | InvalidRow]:
    """Verdicts from a worker's rows, validated as untrusted data."""
    if not isinstance(rows, list) or len(rows) != expected:
        raise WireError(
            f"sent {len(rows) if isinstance(rows, list) else type(rows).__name__} rows, expected {expected}"
        )
    return [InvalidRow(row) if isinstance(row, str) else _verdict(row) for row in rows]


def _verdict(row: Sequence[Any]) -> Verdict:
    try:
        score, status, detail, steps = row
        return Verdict(score, status, detail, tuple(Step(*step) for step in steps))
    except (TypeError, ValueError) as error:
        raise WireError(f"sent {str(row)[:120]}, which is not a verdict") from error
