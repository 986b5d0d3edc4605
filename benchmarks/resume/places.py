"""Places of a run at which it kills itself: its whole process group, as the machine would."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Kill = tuple[str, int]
"""The name of a place and how many times the process gets there: ("micro", 3)."""

FILES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree"}


class Places:
    """Counts how often a process gets where; at one of them it dies."""

    def __init__(self, kill: Kill | None) -> None:
        self.counts: Counter[str] = Counter()
        self._kill = kill
        self._writing = False

    def reached(self, name: str) -> None:
        """Count; perhaps die."""
        self.counts[name] += 1
        if (name, self.counts[name]) == self._kill:
            os.killpg(0, signal.SIGKILL)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Inside, whatever happens to files is a place."""
        self._writing = True
        try:
            yield
        finally:
            self._writing = False

    def watch_files(self) -> None:
        """Count what this process does to files from here on; native writers are watched by their Python callers."""
        import safetensors.torch
        import torch

        sys.addaudithook(self._audit)
        torch.save = self._torn(torch.save, lambda given: given[1])
        safetensors.torch.serialize_file = self._torn(safetensors.torch.serialize_file, lambda given: given[1])

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if not self._writing:
            return
        if event == "open":
            writes = isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if not writes or str(given[0]).startswith("/dev/"):
                return
        elif event not in FILES:
            return
        self.reached("write")

    def _torn(self, write: Any, target: Any) -> Any:
        """A writer after which half of the file is a place, and the whole of it another."""

        def writes(*given: Any, **keywords: Any) -> Any:
            result = write(*given, **keywords)
            if self._writing and isinstance(target(given), str | Path):
                if self._kill == ("write", self.counts["write"] + 1):
                    path = Path(target(given))
                    os.truncate(path, path.stat().st_size // 2)
                self.reached("write")
                self.reached("write")
            return result

        return writes
