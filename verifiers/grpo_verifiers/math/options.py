"""The options of the math verifier: which statements count as the answer, and which answers are equal."""

from dataclasses import dataclass
from typing import Annotated, Literal

from grpo_verifiers.options import Range, TagName

Conflicts = Literal["reject", "last"]
Matching = Literal["match", "ignore"]
Percent = Literal["either", "value"]
Decimals = Annotated[int, Range(0, 15)]


@dataclass(frozen=True)
class Options:
    """Policies of the math verifier, documented at :func:`grpo_verifiers.math.math`."""

    conflicts: Conflicts = "last"
    last_number: bool = False
    evaluated: bool = True
    reduced: bool = True
    units: Matching = "match"
    percent: Percent = "either"
    decimals: Decimals = 4
    think: TagName | None = "think"
