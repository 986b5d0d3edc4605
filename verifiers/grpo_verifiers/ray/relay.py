"""Outcomes of calls that ran on another machine, as JSON on their way to the trainer."""

import json
from collections.abc import Mapping
from typing import Any, get_args

from grpo_verifiers.errors.messages import readable
from grpo_verifiers.exec.failure import MAX_TRACE
from grpo_verifiers.exec.outcome import Outcome, Refused
from grpo_verifiers.exec.wire import MAX_REPLY, WireError, duration_of, from_rows, row_of
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.verdict import MAX_DETAIL, Kind


def pack_outcome(outcome: Outcome) -> bytes:
    """An outcome as JSON of bounded size."""
    fields: dict[str, Any] = {"s": outcome.seconds}
    if outcome.kind == "value":
        fields["v"] = [row.reason if isinstance(row, Refused) else row_of(row) for row in outcome.verdicts]
    else:
        fields |= {"k": outcome.kind, "w": outcome.message, "t": outcome.trace}
    body = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(body) <= MAX_REPLY - 100:
        return body
    return pack_outcome(Outcome("raised", message=f"the result is too large: {len(body) >> 20} MiB", seconds=0.0))


def read_fields(body: Any) -> dict[str, Any]:
    """The JSON object that an actor sent."""
    try:
        fields = json.loads(body) if type(body) is bytes and len(body) <= MAX_REPLY else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise WireError("sent what is no reply")
    return fields


def unpack_outcome(reply: Mapping[str, Any], rows: int | None) -> Outcome:
    """The outcome of a call that owes so many rows, checked as a stranger's data."""
    seconds, kind = duration_of(reply), reply.get("k")
    if kind is None:
        return Outcome("value", from_rows(reply.get("v"), rows or 1), seconds=seconds)
    known: Kind | None = next((each for each in get_args(Kind) if each == kind), None)
    if known is None:
        raise WireError(f"sent an outcome of the kind {str(kind)[:40]!r}")
    # Secrets of the trainer are hidden here: no other machine knows them.
    message = redact_text(str(reply.get("w", ""))[: 2 * MAX_DETAIL])
    trace = readable(redact_text(str(reply.get("t", ""))[-MAX_TRACE:]), MAX_TRACE)
    return Outcome(known, message=message[:MAX_DETAIL], trace=trace, seconds=seconds)
