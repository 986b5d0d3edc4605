"""Contract kits by kind of part, and the decorator that makes tests of them."""

import inspect
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.testing.contract import ContractCheck, as_tests, require

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
        require(subject.label, subject, self.checks)


def label_of(name: str, keywords: Mapping[str, Any]) -> str:
    """``zscore(scale='batch')``."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in keywords.items())})" if keywords else name


def checks_of(
    module: Mapping[str, Any],
    output: "Callable[[Subject], Tensor]",
    problems: Callable[[Any, Mapping[str, Any]], Sequence[object]],
    **applies: Callable[[Subject], bool],
) -> tuple[ContractCheck[Subject], ...]:
    """Return the checks of a kit: its functions ``check_NAME(subject)`` in their order, and three of every kit.

    ``output`` runs a subject on a sample, ``problems`` are those of a part with keywords, ``applies`` has conditions of
    checks by their names.
    """
    import torch

    def deterministic(subject: Subject) -> None:
        """The same input gives the same bits, in any state of the random generators: all ranks compute alike."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            first = output(subject)
            torch.manual_seed(2)
            second = output(subject)
        if not torch.equal(first, second):
            raise AssertionError(f"two runs differ: {first.tolist()} and {second.tolist()}")

    def pickles(subject: Subject) -> None:
        """It survives pickling, as other processes need."""
        try:
            part = pickle.loads(pickle.dumps(subject.part))  # noqa: S301 - pickled in this line
        except Exception as error:
            raise AssertionError(f"cannot be pickled: {error}. Define the function at the top of a module.") from error
        got, expected = output(replace(subject, part=part)), output(subject)
        if not torch.equal(got, expected):
            raise AssertionError(f"after pickling: got {got.tolist()}, expected {expected.tolist()}")

    def unknown_keyword_raises(subject: Subject) -> None:
        """A keyword that it does not have is refused, not swallowed."""
        if not problems(subject.part, {**subject.keywords, "no_such_keyword": 1}):
            text = "no problem is reported for no_such_keyword=1: name the keywords instead of taking **any"
            raise AssertionError(text)

    own = {
        name.removeprefix("check_"): run
        for name, run in module.items()
        if name.startswith("check_") and list(inspect.signature(run).parameters) == ["subject"]
    }
    shared = {run.__name__: run for run in (deterministic, pickles, unknown_keyword_raises)}
    return tuple(ContractCheck(name, run, applies.get(name, lambda _: True)) for name, run in (own | shared).items())


def leaves_alone(title: str, values: Mapping[str, Any], run: Callable[[], object]) -> None:
    """Raise if a run changes one of the tensors."""
    import torch

    before = {name: value.clone() for name, value in values.items() if isinstance(value, torch.Tensor)}
    run()
    for name, value in before.items():
        if not torch.equal(value, values[name]):
            raise AssertionError(f"{title}.{name} was changed in place")


def parametrize_with_checks(
    parts: Iterable[Part], *, kind: str = "advantage", expected_failures: Mapping[str, Mapping[str, str]] | None = None
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
