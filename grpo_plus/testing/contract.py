"""Contract kits by kind of part, and the decorator that makes tests of them."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.testing.contract import Check, as_tests, failures, in_words

if TYPE_CHECKING:
    import pytest

Part = Any
"""A name, a function or a part itself; or a pair of that and its keywords."""

KITS = {
    "advantage": "grpo_plus.testing.advantages:KIT",
    "objective": "grpo_plus.testing.objectives:KIT",
    "selection": "grpo_plus.testing.selections:KIT",
}
"""Kind of part to the kit that checks it."""


@dataclass(frozen=True)
class Subject:
    """A part under test: the resolved part, its keywords, and its label in reports."""

    part: Any
    keywords: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Kit:
    """The checks of one kind of part; ``resolve`` finds the subject that a `Part` stands for."""

    resolve: Callable[[Part], Subject]
    all_checks: tuple[Check[Subject], ...]

    def checks(self) -> list[Check[Subject]]:
        """All checks, whether or not they apply to a given subject."""
        return list(self.all_checks)


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


def run_checks(subject: Subject, checks: Iterable[Check[Subject]]) -> None:
    """Run every check that applies, and raise one AssertionError that lists all that failed."""
    failed = list(failures(subject, checks))
    if failed:
        lines = [f"  {check.name}: {in_words(error)}" for check, error in failed]
        text = "\n".join([f"{subject.label} fails {len(failed)} check{'s' * (len(failed) > 1)}:", *lines])
        raise AssertionError(text) from failed[0][1]


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

    ``kind`` is one of `KITS`. ``expected_failures`` maps the label of a part (its name, with keywords as in
    ``"zscore(scale='batch')"``) to names of checks and the reason why they fail. Such a test must fail: passing is an
    error (strict xfail).
    """
    import pytest

    kit = kit_of(kind)
    subjects = [(subject.label, subject) for subject in map(kit.resolve, parts)]
    return pytest.mark.parametrize("check", as_tests(subjects, kit.checks(), expected_failures))
