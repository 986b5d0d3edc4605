"""The output of a check in a worker: its beginning follows the reason of the verdict."""

import contextlib
import io
import sys
from typing import Any

MOST = 500
"""Size limit of the recorded output of one call, in bytes."""
LABEL = "printed: "
_REASON = 1400


def has_reason(detail: str) -> bool:
    """True if a reason is more than the check's own output."""
    return bool(detail) and not detail.startswith(LABEL)


class OutputCapture(io.RawIOBase):
    """Replace ``sys.stdout`` and ``sys.stderr`` during one call; output of child processes is discarded."""

    def __init__(self) -> None:
        self._first, self._cut = b"", False
        self._stream = io.TextIOWrapper(io.BufferedWriter(self), "utf-8", "backslashreplace", line_buffering=True)
        sys.stdout = sys.stderr = self._stream

    def writable(self) -> bool:
        """Always True."""
        return True

    def fileno(self) -> int:
        """The descriptor of the standard output."""
        return 1

    def write(self, data: Any) -> int:
        """Record data up to the size limit."""
        room = MOST - len(self._first)
        self._first += bytes(data[:room])
        self._cut = self._cut or len(data) > room
        return len(data)

    def after(self, reason: str) -> str:
        """A reason, with the output if there is any."""
        with contextlib.suppress(ValueError):  # the check has closed it
            self._stream.flush()
        text = self._first.decode("utf-8", "replace").strip()
        return f"{reason[:_REASON]}{reason and '; '}{LABEL}{text!r}{'…' * self._cut}" if text else reason

    def after_first(self, rows: list[Any]) -> list[Any]:
        """The rows of a call, with the output after the reason of the first."""
        if rows and isinstance(rows[0], list):
            rows[0][2] = self.after(rows[0][2])
        elif rows:
            rows[0] = self.after(rows[0])
        return rows
