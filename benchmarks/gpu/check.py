"""A check: what the catalogue says of it, and what it is given and tells while it runs."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GIB = 1 << 30


class Skipped(Exception):  # noqa: N818 - nothing went wrong
    """The check cannot be made here; the text says why."""


@dataclass(frozen=True)
class Check:
    """A line of the catalogue.

    Attributes:
        name: on the command line and in the results.
        run: the function, ``module:name``; called with a `Context` and ``options``.
        about: what it shows, for the page of results.
        seconds: what it takes on a card, estimated; it is not begun with less time left, and ended after three times as
            long.
        gib: the fence around its memory of the card; 0 where it puts up its own.
        least: GiB of the card that must be free; 0 for the fence and what CUDA takes beside it.
        alone: whether it is timed, so that nothing else may run.
        cores: processor cores that it keeps busy.
        full: whether it is another check at another size, so that it is left out where all are tiny.
        bf16: whether it needs a card that computes in bfloat16.
        options: further keywords of the function.
    """

    name: str
    run: str
    about: str
    seconds: float
    gib: float = 4.0
    least: float = 0.0
    alone: bool = False
    cores: int = 2
    full: bool = False
    bf16: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class Context:
    """Where a check runs, and the file that it tells its results to, line by line: they survive its end.

    Attributes:
        device: the card, or the CPU.
        tiny: whether sizes are as small as they get: it shows that the check works, and nothing of the card.
        folder: an empty folder of its own.
        ends: the moment, by `time.monotonic`, at which it is ended.
    """

    def __init__(self, device: "torch.device", *, tiny: bool, folder: Path, answer: Path, ends: float) -> None:
        self.device, self.tiny, self.folder, self.ends = device, tiny, folder, ends
        self._answer = answer

    @property
    def cuda(self) -> bool:
        """Whether there is a card."""
        return self.device.type == "cuda"

    @property
    def real(self) -> bool:
        """Whether that is a real one, with kernels of its own."""
        import torch

        return self.cuda and not hasattr(torch, "_stand_in")

    @property
    def left(self) -> float:
        """Seconds until it is ended."""
        return self.ends - time.monotonic()

    def report(self, **figures: Any) -> None:
        """Figures for the results; a name given again is replaced."""
        self.tell(figures=figures)

    def headline(self, text: str) -> None:
        """A few words for the table."""
        self.tell(headline=text)

    def expect(self, holds: object, otherwise: str) -> None:
        """A claim: where it does not hold the check has failed, and goes on."""
        if not holds:
            self.tell(failed=otherwise)

    def tell(self, **line: Any) -> None:
        """One line of the answer."""
        with self._answer.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
