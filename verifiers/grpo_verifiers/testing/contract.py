"""Contract kits: checks that every part of a kind must pass, run on one part or as tests of many."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from grpo_verifiers.errors.messages import unknown

S = TypeVar("S")


@dataclass(frozen=True)
class ContractCheck(Generic[S]):
    """One property that every part of a kind must have; ``run`` raises AssertionError if the subject lacks it.

    ``applies`` tests whether a subject must pass it; ``name`` is for reports and ``expected_failures``.
    """

    name: str
    run: Callable[[S], None]
    applies: Callable[[S], bool] = lambda _: True

    @property
    def about(self) -> str:
        """The property in words."""
        return (self.run.__doc__ or self.name).strip().partition("\n")[0]


def require(part: str, subject: S, checks: Sequence[ContractCheck[S]], skip: Sequence[str] = ()) -> None:
    """Run every check but those named in ``skip``, and raise one ``AssertionError`` that lists all failures.

    ``part`` is its name in messages.
    """
    names = [check.name for check in checks]
    for name in skip:
        if name not in names:
            raise ValueError(f"skip names {name!r}, which is not a check; there is: {', '.join(names)}.")
    broken: list[str] = []
    first: Exception | None = None
    for check in checks:
        if check.name in skip or not check.applies(subject):
            continue
        try:
            check.run(subject)
        except Exception as error:  # noqa: BLE001 - a failure of any kind is reported
            text = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            broken.append(f"{check.name}: {check.about}\n    {text}")
            first = first or error
    if broken:
        raise AssertionError(f"{part} breaks {len(broken)} of its promises:\n" + "\n".join(broken)) from first


def as_tests(
    subjects: Sequence[tuple[str, S]],
    checks: Sequence[ContractCheck[S]],
    expected_failures: Mapping[str, Mapping[str, str]] | None = None,
    values: Callable[[ContractCheck[S], S], tuple[Any, ...]] = lambda check, subject: (partial(check.run, subject),),
) -> list[Any]:
    """Parameters for pytest: one set for each subject, after its label, and check that applies to it.

    ``expected_failures`` maps a subject's label to names of checks and the reason why they fail. Such a test must fail:
    passing is an error (strict xfail). ``values`` makes the parameters of one test.
    """
    import pytest

    expected = expected_failures or {}
    applying = {label: [c for c in checks if c.applies(subject)] for label, subject in subjects}
    for label, names in expected.items():
        if label not in applying:
            raise ValueError(f"expected_failures: {unknown('part', label, applying)}")
        applicable = [check.name for check in applying[label]]
        for name in names:
            if name not in applicable:
                raise ValueError(f"expected_failures[{label!r}]: {unknown('check', name, applicable)}")
    sets = []
    for label, subject in subjects:
        for check in applying[label]:
            reason = expected.get(label, {}).get(check.name)
            marks = [pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason)] if reason is not None else []
            sets.append(pytest.param(*values(check, subject), id=f"{label}-{check.name}", marks=marks))
    return sets
