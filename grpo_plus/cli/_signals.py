"""Signals to a launcher: passed on to its ranks, or its own end where there are none yet.

Python runs a handler between two of its own instructions, and a launcher that waits for other machines stands inside of
torch's store, for minutes. So a thread hears the signals.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class PassedOn:
    """Passes signals on to the ranks, which save and exit. A context, of the main thread.

    Attributes:
        heard: the signals that came.
        awaited: asked where there is no process to pass a signal on to. Where no rank has started yet, it gives what is
            waited for, and this process ends as the signal asks; None where ranks have come and gone.
    """

    def __init__(self) -> None:
        self.heard: list[int] = []
        self.awaited: Callable[[], str | None] = lambda: ""
        self._before: dict[int, Any] = {}
        self._ours, self._pythons = socket.socketpair()
        self._thread = threading.Thread(target=self._pass_on, name="grpo_plus signals", daemon=True)

    def __enter__(self) -> Self:
        """Begin to listen."""
        self._pythons.setblocking(False)
        self._waker = signal.set_wakeup_fd(self._pythons.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, lambda heard, _: self.heard.append(heard)) for number in SIGNALS}
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Hand the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._waker)
        self._pythons.close()  # the thread reads the end of it
        self._thread.join()
        self._ours.close()

    def _pass_on(self) -> None:
        import psutil  # type: ignore[import-untyped]  # comes with accelerate

        while word := self._ours.recv(1):
            number = word[0]
            if number not in SIGNALS:
                continue
            children = [child for child in psutil.Process().children() if child.pid not in _cleaners()]
            for child in children:
                with contextlib.suppress(psutil.Error):
                    child.send_signal(number)
            if not children and (awaited := self.awaited()) is not None:
                told = f"grpo-plus train: {signal.Signals(number).name} came before the ranks had started. {awaited}"
                try:
                    print(told.rstrip(), file=sys.stderr, flush=True)
                    sys.stdout.flush()
                finally:  # Ctrl-C ends a `| tee` as well, and nobody reads any more
                    os._exit(128 + number)


def _cleaners() -> list[int]:
    """What waits for the end of this process, to remove its folders."""
    try:
        from grpo_verifiers.sandbox.leftovers import cleaners
    except ImportError:  # Windows
        return []
    return cleaners()
