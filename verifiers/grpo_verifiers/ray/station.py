"""A Ray actor on a node: a runner with its worker processes there, and boxes; and its replies. It needs no Ray itself.

It does the trainer's part on its machine: it passes calls to workers unread, and reads only their JSON. It returns
bytes and raises nothing, so that no pickled object is returned.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import pickle
import platform
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from grpo_verifiers.errors.messages import readable
from grpo_verifiers.exec.failure import MAX_TRACE, error_fields
from grpo_verifiers.exec.outcome import InvalidRow, Outcome
from grpo_verifiers.exec.runner import WORKERS_VARIABLE, Runner
from grpo_verifiers.exec.spec import CheckSpec
from grpo_verifiers.exec.wire import MAX_REPLY, WireError, duration_of, from_rows, row_of
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.verdict import MAX_DETAIL, FailureKind

JUDGES = ("mpmath", "jsonschema")
"""Packages with an influence on verdicts."""


@functools.cache
def code_digest() -> str:
    """A digest of this package's files and of the judging packages; it must be equal on stations and trainer."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    for name in JUDGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{name} {importlib.metadata.version(name)}\0".encode())
    return digest.hexdigest()[:16]


class Station:
    """Runs calls on its node, several at a time."""

    def __init__(self, workers: int) -> None:
        """Start nothing yet; ``workers`` limits the worker processes, and the programs in boxes."""
        os.environ[WORKERS_VARIABLE] = str(workers)  # the pool of boxes reads it
        self._runner = Runner(workers)
        self._lock = threading.Lock()
        self._specs: dict[str, CheckSpec] = {}
        self._places: dict[str, Any] = {}

    def hello(self) -> bytes:
        """Its node and the digest of its code."""
        about = {"node": platform.node(), "digest": code_digest(), "python": platform.python_version()}
        return json.dumps({**about, "pid": os.getpid()}).encode()

    def run(self, key: str, spec: bytes, payload: bytes, timeout: float, rows: int | None) -> bytes:
        """The outcome of one call, packed."""
        try:
            (outcome,) = self._outcomes(self._spec(key, spec), key, payload, timeout, rows)
            return pack_outcome(outcome)
        except BaseException as error:  # noqa: BLE001 - nothing pickled may go back
            fields = error_fields(error)
            message = f"the actor on {platform.node()} cannot run it: {fields['type']}: {fields['message']}"
            return pack_outcome(Outcome("broken", message=message, trace=fields["trace"]))

    def _spec(self, key: str, spec: bytes) -> CheckSpec:
        with self._lock:
            if key not in self._specs:
                self._specs[key] = pickle.loads(spec)  # noqa: S301 - from the trainer
            return self._specs[key]

    def _outcomes(self, spec: CheckSpec, key: str, payload: bytes, timeout: float, rows: int | None) -> list[Outcome]:
        if not spec.boxes:
            return self._runner.submit(spec, [payload], timeout, [rows]).wait()
        from grpo_verifiers.exec.aio import AsyncBatch, Gate

        if key not in self._places:  # trusted code that waits for referees: programs run in boxes below these
            self._places[key] = (spec.load(), Gate(spec.boxes))
        fn, gate = self._places[key]
        call = pickle.loads(payload)  # noqa: S301 - from the trainer
        return AsyncBatch(fn, [call], timeout, gate).wait()


def pack_outcome(outcome: Outcome) -> bytes:
    """An outcome as JSON of bounded size."""
    fields: dict[str, Any] = {"s": outcome.seconds}
    if outcome.kind == "value":
        fields["v"] = [row.reason if isinstance(row, InvalidRow) else row_of(row) for row in outcome.verdicts]
    else:
        fields |= {"k": outcome.kind, "w": outcome.message, "t": outcome.trace}
    body = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(body) <= MAX_REPLY - 100:
        return body
    return pack_outcome(Outcome("raised", message=f"the result is too large: {len(body) >> 20} MiB", seconds=0.0))


def read_fields(body: Any) -> dict[str, Any]:
    """The JSON object that an actor sent."""
    fields = None
    with contextlib.suppress(ValueError, RecursionError):
        fields = json.loads(body) if type(body) is bytes and len(body) <= MAX_REPLY else None
    if not isinstance(fields, dict):
        raise WireError("sent an invalid reply")
    return fields


def unpack_outcome(reply: Mapping[str, Any], rows: int | None) -> Outcome:
    """The outcome of a call with ``rows`` results, validated as untrusted data."""
    seconds, kind = duration_of(reply), reply.get("k")
    if kind is None:
        return Outcome("value", from_rows(reply.get("v"), rows or 1), seconds=seconds)
    valid: FailureKind | None = next((each for each in get_args(FailureKind) if each == kind), None)
    if valid is None:
        raise WireError(f"sent an outcome of the kind {str(kind)[:40]!r}")
    # Secrets of the trainer are hidden here: no other machine knows them.
    message = redact_text(str(reply.get("w", ""))[: 2 * MAX_DETAIL])
    trace = readable(redact_text(str(reply.get("t", ""))[-MAX_TRACE:]), MAX_TRACE)
    return Outcome(valid, message=message[:MAX_DETAIL], trace=trace, seconds=seconds)
