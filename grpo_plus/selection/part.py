"""`Selection`, the keywords of all selections, and errors."""

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from grpo_verifiers.errors import KeywordError
from grpo_verifiers.options import Range, takes_first
from grpo_verifiers.rules import PartRule

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


class SelectionKeywordError(KeywordError, ValueError):
    """Unknown keywords of a selection, wrong types or values out of range; lists every problem."""


class SelectionOutputError(ValueError):
    """The output of a selection is not valid as weights."""


class SelectionFailedError(RuntimeError):
    """A selection raised an exception, which is the cause and has the selection's own traceback."""


class NotASelectionError(TypeError):
    """Something that cannot be used as a selection."""


@dataclass(frozen=True)
class Selection:
    """A pure function that weights prompts, and its properties.

    Attributes:
        fn: ``(history, *, keywords) -> Tensor`` of shape (P,): a weight of 0 or more for each prompt.
        formula: one line for people.
        weighted: the default of the keyword ``weighted``.
        rules: its requirements and exclusions (`grpo_verifiers.rules`).
        draws: False: the host's own order of the prompts stays, and only the history is updated.
    """

    name: str
    fn: "Callable[..., Tensor]"
    formula: str = ""
    weighted: bool = True
    draws: bool = True
    rules: tuple[PartRule, ...] = ()

    def __post_init__(self) -> None:
        takes_first(self.fn, NotASelectionError, of=f"the {self.title}", takes="PromptHistory", named="history")
        reserved = sorted({*COMMON, "history"} & {*list(inspect.signature(self.fn).parameters)[1:]})
        if reserved:
            raise NotASelectionError(
                f"the selection {self.name!r} has a keyword {reserved[0]!r}, which every selection has: rename it."
            )
        if not self.formula:
            object.__setattr__(self, "formula", (inspect.getdoc(self.fn) or "").strip().partition("\n")[0].rstrip("."))

    @property
    def title(self) -> str:
        """Its name in messages."""
        return f"selection {self.name!r}"


def common(
    *,
    explore: Annotated[float, Range(0, 1)] = 0.1,
    weighted: bool = True,
    decay: Annotated[float, Range(0, 1)] = 0.7,
    every: Annotated[int, Range(1)] | None = None,
) -> None:
    """The signature of the keywords of every selection.

    Args:
        explore: share of the samples from all prompts alike.
        weighted: each group counts (1/N)/π, so that the objective stays that of all prompts alike.
        decay: factor of a prompt's earlier evidence at each visit.
        every: optimizer steps between updates of the weights; None: an update for every generation batch.
    """


COMMON = tuple(inspect.signature(common).parameters)
"""Keywords of every selection."""
