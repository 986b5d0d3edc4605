"""The machinery of the contract kit: what a check is, and how a list of parts becomes a test parametrised over them."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    import pytest

Part = Any
"""A name, a function or a part itself; or a pair of that and its keywords."""

KITS = {
    "advantage": "grpo_plus.testing.advantages:KIT",
    "objective": "grpo_plus.testing.objectives:KIT",
}
"""Kind of part to the kit that checks it."""


@dataclass(frozen=True)
class Subject:
    """A part under test: the resolved part, its keywords, and what to call it."""

    part: Any
    keywords: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Check:
    """One property that every part of a kind must have.

    Attributes:
        name: what it is called in reports and in ``expected_failures``.
        run: raises AssertionError when the subject lacks the property.
        applies: whether the property is demanded of the subject.
    """

    name: str
    run: Callable[[Subject], None]
    applies: Callable[[Subject], bool] = lambda _: True

    @property
    def about(self) -> str:
        """The property in words."""
        return (self.run.__doc__ or self.name).strip().partition("\n")[0]


@dataclass(frozen=True)
class BoundCheck:
    """A check together with its subject: call it."""

    check: Check
    subject: Subject

    def __call__(self) -> None:
        """Run it."""
        self.check.run(self.subject)

    def __str__(self) -> str:
        return f"{self.subject.label}-{self.check.name}"


class Kit(Protocol):
    """What checks one kind of part."""

    def resolve(self, part: Part) -> Subject:
        """The subject that a name, a function, or a pair of that and keywords stands for."""

    def checks(self) -> list[Check]:
        """All checks, whether or not they apply to a given subject."""


def kit_of(kind: str) -> Kit:
    """The kit for one kind of part."""
    if kind not in KITS:
        raise ValueError(unknown("kind of part", kind, KITS))
    module, _, attr = KITS[kind].partition(":")
    kit: Kit = getattr(importlib.import_module(module), attr)
    return kit


def label_of(name: str, keywords: Mapping[str, Any]) -> str:
    """``zscore(scale='batch')``."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in keywords.items())})" if keywords else name


def run_checks(subject: Subject, checks: Iterable[Check]) -> None:
    """Run every check that applies, and raise one AssertionError that lists all that failed."""
    failed: list[str] = []
    causes = []
    for check in checks:
        if not check.applies(subject):
            continue
        try:
            check.run(subject)
        except AssertionError as error:
            failed.append(f"  {check.name}: {error}")
            causes.append(error)
    if failed:
        text = "\n".join([f"{subject.label} fails {len(failed)} check{'s' * (len(failed) > 1)}:", *failed])
        raise AssertionError(text) from causes[0]


def parametrize_with_checks(
    parts: Iterable[Part],
    *,
    kind: str = "advantage",
    expected_failures: Mapping[str, Mapping[str, str]] | None = None,
) -> "pytest.MarkDecorator":
    """Parametrise a test over parts and the checks that apply to them; needs pytest.

    ::

        @parametrize_with_checks(["sign", ("zscore", {"scale": "batch"}), my_estimator])
        def test_contract(check):
            check()

    Args:
        parts: names, references, functions or parts, or pairs of that and a mapping of keywords.
        kind: which kind of part they are, one of `KITS`.
        expected_failures: label of a part (its name, with keywords as in ``"zscore(scale='batch')"``) to names of
            checks and the reason why they fail. Such a test must fail: passing is an error (strict xfail).
    """
    import pytest

    kit = kit_of(kind)
    subjects = [kit.resolve(part) for part in parts]
    checks = kit.checks()
    expected = expected_failures or {}
    _check_expected(expected, subjects, checks)
    cases = []
    for subject in subjects:
        for check in checks:
            if not check.applies(subject):
                continue
            reason = expected.get(subject.label, {}).get(check.name)
            marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)] if reason is not None else []
            bound = BoundCheck(check, subject)
            cases.append(pytest.param(bound, id=str(bound), marks=marks))
    return pytest.mark.parametrize("check", cases)


def _check_expected(
    expected: Mapping[str, Mapping[str, str]], subjects: Iterable[Subject], checks: Iterable[Check]
) -> None:
    """A misspelt expectation would otherwise expect nothing."""
    by_label = {subject.label: subject for subject in subjects}
    for label, failures in expected.items():
        if label not in by_label:
            raise ValueError(f"expected_failures: {unknown('part', label, by_label)}")
        names = [check.name for check in checks if check.applies(by_label[label])]
        for name in failures:
            if name not in names:
                raise ValueError(f"expected_failures[{label!r}]: {unknown('check', name, names)}")
