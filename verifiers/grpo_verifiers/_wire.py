"""What travels between the trainer and a worker: pickle towards the worker, length-capped JSON back.

A worker runs checks on model text, so nothing it sends is trusted: the trainer never unpickles it. That is why the
process pools of the standard library, pebble and loky do not serve here: all of them unpickle results in the parent
(pebble's ``channel.recv``, loky's result queue), and none starts an item's clock when the item starts.
"""

import json
import pickle
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from grpo_verifiers.verdict import Step, Verdict

MAX_REPLY = 8 << 20
MAX_DETAIL = 2000
MAX_STEPS = 10_000
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
    """The next message of the trainer; None once the trainer has gone."""
    header = _read(sock, _CALL.size)
    if header is None:
        return None
    sizes = _CALL.unpack(header)
    head, payload = _read(sock, sizes[0]), _read(sock, sizes[1])
    if head is None or payload is None:
        return None
    return pickle.loads(head), payload  # noqa: S301 - from the trainer, which started this process


def _read(sock: socket.socket, size: int) -> bytes | None:
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
    """Collects what a worker sends and hands out whole replies; never holds more than one reply's worth."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The replies that are complete now.

        Raises:
            WireError: not a reply.
        """
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
                raise WireError(f"sent {body[:80]!r}, which is no JSON") from error
            if not isinstance(reply, dict):
                raise WireError(f"sent {body[:80]!r}, which is no reply")
            yield reply


def to_rows(value: Any, rows: int | None) -> list[list[Any]]:
    """What a check returned, as rows for the wire; raises ``TypeError`` or ``ValueError`` for what it may not return.

    Args:
        value: the return value.
        rows: how many completions a batch function was given; None for one that judges a single completion.
    """
    if rows is None:
        return [_row(value)]
    if isinstance(value, str | bytes | dict) or not hasattr(value, "__len__") or not hasattr(value, "__iter__"):
        raise TypeError(f"returned {_short(value)}, expected a list with one result for each of {rows} completions")
    if len(value) != rows:
        raise ValueError(f"returned {len(value)} results for {rows} completions, expected one for each")
    return [_row(item) for item in value]


def _row(value: Any) -> list[Any]:
    if isinstance(value, Verdict):
        if len(value.steps) > MAX_STEPS:
            raise ValueError(
                f"returned a Verdict with {len(value.steps)} steps, which is too many: at most {MAX_STEPS}"
            )
        steps = [[step.start, step.end, step.score] for step in value.steps]
        # Made anew: what a subclass or object.__setattr__ put into a frozen Verdict was never looked at.
        made = Verdict(value.score, value.status, value.detail[:MAX_DETAIL])
        return [made.score, made.status.value, made.detail, steps]
    if value is None or isinstance(value, bool | int | float) or _is_scalar(value):
        try:
            made = Verdict(None if value is None else float(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"returned {_short(value)}, expected a finite number, or None where it cannot say"
            ) from error
        return [made.score, made.status.value, "", []]
    raise TypeError(f"returned {_short(value)}, expected {_STATUSES}")


def _is_scalar(value: Any) -> bool:
    """Numbers of numpy and torch: one element, nothing around it."""
    return hasattr(value, "item") and getattr(value, "shape", None) == () and hasattr(value, "__float__")


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except BaseException:  # noqa: BLE001 - a broken __repr__ must not hide the message it was for
        text = "..."
    return f"{text[:200]} ({type(value).__name__})"


def from_rows(rows: Any, expected: int) -> list[Verdict]:
    """Verdicts from a worker's rows, checked as what they are: a stranger's data.

    Raises:
        WireError: not rows of verdicts.
    """
    if not isinstance(rows, list) or len(rows) != expected:
        raise WireError(
            f"sent {len(rows) if isinstance(rows, list) else type(rows).__name__} rows, expected {expected}"
        )
    return [_verdict(row) for row in rows]


def _verdict(row: Sequence[Any]) -> Verdict:
    try:
        score, status, detail, steps = row
        return Verdict(score, status, detail[: MAX_DETAIL + 20], tuple(Step(*step) for step in steps))
    except (TypeError, ValueError) as error:
        raise WireError(f"sent {str(row)[:120]}, which is no verdict") from error
