"""What a check may do instead of giving a score, and numbers of every kind; imported by tests and by workers."""

import math
import sys
from decimal import Decimal
from fractions import Fraction

import numpy as np

from grpo_verifiers import Step, Verdict
from grpo_verifiers.verdict import LARGEST


class Hostile:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name):
        raise RuntimeError("hostile")

    def __repr__(self):
        raise RuntimeError("hostile")

    __str__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __float__ = __index__ = __repr__


class HostileError(Exception):
    def __str__(self):
        raise SystemExit(3)

    __repr__ = __str__


class HostileText(str):
    __slots__ = ()

    def __getitem__(self, _):
        raise RuntimeError("hostile")

    def __str__(self):
        raise RuntimeError("hostile")

    encode = __len__ = __iter__ = __getitem__


class Lying(float):
    def __float__(self):
        return math.inf


class Bent(Verdict):
    """A verdict whose values are put in behind its back."""

    def __init__(self, **values):
        super().__init__(1.0)
        for name, value in values.items():
            object.__setattr__(self, name, value)


class BentStep(Step):
    def __init__(self, start, end, score):
        super().__init__(0, 1, 1.0)
        for name, value in (("start", start), ("end", end), ("score", score)):
            object.__setattr__(self, name, value)


def raising(error):
    def make():
        raise error

    return make


def tensor(value, kind, **settings):
    import torch

    return torch.tensor(value, dtype=getattr(torch, kind), **settings)


FAULTS = {
    "inf": lambda: math.inf, "nan": lambda: math.nan, "beyond float32": lambda: 1e308,
    "just beyond float32": lambda: math.nextafter(LARGEST, math.inf), "beyond any float": lambda: 10**400,
    "beyond what prints": lambda: -(10**5000), "a large decimal": lambda: Decimal("1e4000"),
    "a decimal that is none": lambda: Decimal("sNaN"), "a large fraction": lambda: Fraction(10**400, 3),
    "a decimal without a verdict": lambda: Decimal("0.5"), "a large fraction in a verdict": lambda: Verdict(Fraction(10**400, 3)),
    "a large numpy number": lambda: np.float64(1e300), "a large torch number": lambda: tensor(1e300, "float64"),
    "a number in text": lambda: "1.0", "a number in bytes": lambda: bytearray(b"1"), "a complex number": lambda: 1 + 0j,
    "a list": lambda: [1.0], "an object": Hostile, "a class": lambda: Hostile, "a lying float": lambda: Lying(1.0),
    "a verdict of inf": lambda: Bent(score=math.inf), "a verdict of text": lambda: Verdict("1.0"),
    "a verdict of an object": lambda: Bent(score=Hostile()), "a verdict with another status": lambda: Verdict(1.0, "fine"),
    "a verdict with a hostile status": lambda: Bent(status=Hostile()), "a verdict with a hostile detail": lambda: Bent(detail=Hostile()),
    "a verdict with hostile steps": lambda: Bent(steps=Hostile()),
    "steps that overlap": lambda: Verdict(1.0, steps=(Step(0, 3, 1.0), Step(2, 5, 0.0))),
    "steps that overlap behind its back": lambda: Bent(steps=(Step(0, 3, 1.0), Step(2, 5, 0.0))),
    "a step turned round": lambda: Verdict(1.0, steps=(BentStep(3, 1, 1.0),)),
    "a step before the text": lambda: Verdict(1.0, steps=(BentStep(-3, 1, 1.0),)),
    "a step of half a character": lambda: Verdict(1.0, steps=(BentStep(0, 1.5, 1.0),)),
    "a step of truth": lambda: Verdict(1.0, steps=(BentStep(False, True, 1.0),)),
    "a step without end": lambda: Verdict(1.0, steps=(Step(0, 10**400, 1.0),)),
    "a step of inf": lambda: Verdict(1.0, steps=(BentStep(0, 1, math.inf),)),
    "a step of nan": lambda: Verdict(1.0, steps=(Step(0, 1, math.nan),)),
    "a step beyond float32": lambda: Verdict(1.0, steps=(Step(0, 1, 1e39),)),
    "a step of an object": lambda: Verdict(1.0, steps=(BentStep(0, 1, Hostile()),)),
    "too many steps": lambda: Verdict(1.0, steps=tuple(Step(at, at + 1, 1.0) for at in range(20_000))),
    "steps that are none": lambda: Verdict(1.0, steps=((0, 1, 1.0),)), "an exception": raising(ValueError("no")),
    "an exception that cannot be shown": raising(HostileError()), "no memory": raising(MemoryError()),
    "too deep": raising(RecursionError()), "an exit": lambda: sys.exit(0), "another base exception": raising(GeneratorExit()),
}  # fmt: skip
SOUND = {
    "True": (lambda: True, 1.0), "minus zero": (lambda: -0.0, 0.0), "subnormal": (lambda: 5e-324, 0.0),
    "an integer": (lambda: 2**100, 2.0**100), "numpy": (lambda: np.float16(0.5), 0.5), "numpy's truth": (lambda: np.bool_(True), 1.0),
    "torch": (lambda: tensor(0.25, "bfloat16", requires_grad=True), 0.25), "a decimal in a verdict": (lambda: Verdict(Decimal("0.5")), 0.5),
    "a fraction in a verdict": (lambda: Verdict(Fraction(1, 4)), 0.25), "the largest": (lambda: LARGEST, LARGEST),
    "1e38": (lambda: 1e38, 1e38),
}  # fmt: skip
"""What a check may return, and the score in float32."""


def breaking(make):
    def check(completion: str) -> object:
        if "x" in completion:
            return make()
        return {"42": 1.0, "4": 0.5}.get(completion, 0.0)

    return check
