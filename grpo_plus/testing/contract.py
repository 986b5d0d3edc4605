"""Contract kits by kind of part, and the decorator that makes tests of them."""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from grpo_verifiers.errors.messages import counted, unknown
from grpo_verifiers.testing.contract import ContractCheck, as_tests, failures, in_words

if TYPE_CHECKING:
    import pytest
    from torch import Tensor

Part = Any
"""A name, a function or a part itself; or a pair of that and its keywords."""

KITS = {
    "advantage": "grpo_plus.testing.advantages",
    "objective": "grpo_plus.testing.objectives",
    "selection": "grpo_plus.testing.selections",
}
"""Kind of part to the module with its kit."""


@dataclass(frozen=True)
class Subject:
    """A part under test: the resolved part, its keywords, and its label in reports."""

    part: Any
    keywords: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""


@dataclass(frozen=True)
class Kit:
    """The checks of one kind of part; ``resolve`` returns the subject of a `Part`."""

    resolve: Callable[[Part], Subject]
    checks: tuple[ContractCheck[Subject], ...]

    def run(self, part: Part) -> None:
        """Run every check that applies to a part, and raise one AssertionError with all failures."""
        subject = self.resolve(part)
        failed = list(failures(subject, self.checks))
        if failed:
            lines = [f"  {check.name}: {in_words(error)}" for check, error in failed]
            text = "\n".join([f"{subject.label} fails {counted(len(failed), 'check')}:", *lines])
            raise AssertionError(text) from failed[0][1]


def label_of(name: str, keywords: Mapping[str, Any]) -> str:
    """``zscore(scale='batch')``."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in keywords.items())})" if keywords else name


def reloaded(part: Any) -> Any:
    """Return a part after pickling, as other processes get it."""
    try:
        return pickle.loads(pickle.dumps(part))  # noqa: S301 - pickled in this line
    except Exception as error:
        raise AssertionError(f"cannot be pickled: {error}. Define the function at the top of a module.") from error


def same_bits(run: "Callable[[], Tensor]") -> None:
    """Raise if two runs with different random states differ."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = run()
        torch.manual_seed(2)
        second = run()
    if not torch.equal(first, second):
        raise AssertionError(f"two runs differ: {first.tolist()} and {second.tolist()}")


def leaves_alone(title: str, values: Mapping[str, Any], run: Callable[[], object]) -> None:
    """Raise if a run changes one of the tensors."""
    import torch

    before = {name: value.clone() for name, value in values.items() if isinstance(value, torch.Tensor)}
    run()
    for name, value in before.items():
        if not torch.equal(value, values[name]):
            raise AssertionError(f"{title}.{name} was changed in place")


def refuses(problems: Callable[[Mapping[str, Any]], Sequence[object]], subject: Subject) -> None:
    """Raise if an unknown keyword is no problem."""
    if not problems({**subject.keywords, "no_such_keyword": 1}):
        raise AssertionError("no problem is reported for no_such_keyword=1: name the keywords instead of taking **any")


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

    if kind not in KITS:
        raise ValueError(unknown("kind of part", kind, KITS))
    kit: Kit = import_module(KITS[kind]).KIT
    subjects = [(subject.label, subject) for subject in map(kit.resolve, parts)]
    return pytest.mark.parametrize("check", as_tests(subjects, kit.checks, expected_failures))
