"""The contract kit of tools and environments: checks that each must pass, run on a few calls.

::

    from grpo_verifiers.testing.tools import check_environment, check_tool

    def test_mine():
        check_tool("./tools.py:shout", [{"text": "hello"}])

    def test_my_game():
        check_environment("./env.py:Game", rows=[{"goal": 3}], calls=[("move", {"to": "left"})])

The calls run in the process of the test, without a deadline.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_verifiers.registry import import_reference
from grpo_verifiers.testing.contract import ContractCheck, require
from grpo_verifiers.tools.arguments import argument_problem
from grpo_verifiers.tools.guest import key_text, number_of
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.registry import get_environment, get_tool

MethodCall = tuple[str, Mapping[str, Any]]
MAX_RESULT = 100_000
"""Characters of a result: one that fills the context ends the completion."""


@dataclass(frozen=True)
class ToolContract:
    """A tool or an environment, rows of data, and calls that its author vouches for."""

    part: ToolPart
    calls: tuple[MethodCall, ...]
    rows: tuple[Mapping[str, Any], ...] = ()

    def fresh(self) -> Any:
        """The function, or a new object of the class, as at the start of a completion."""
        value = import_reference(self.part.reference)
        return value if self.part.kind == "function" else value(**self.part.kwargs)

    def play(self, subject: Any, row: Mapping[str, Any] | None) -> list[Any]:
        """The results of ``reset`` (with a row) and of each call, in order."""
        results = [] if row is None else [subject.reset(**self.row_for(row))]
        for name, arguments in self.calls:
            if self.part.kind == "environment":
                results.append(getattr(subject, name)(**json.loads(json.dumps(arguments))))
            else:
                kwargs = self.part.kwargs if self.part.kind == "function" else {}
                results.append(subject(**json.loads(json.dumps(arguments)), **kwargs))
        return results

    def row_for(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a row that ``reset`` takes."""
        takes = self.part.takes
        return {name: value for name, value in row.items() if takes is None or name in takes}

    def first_row(self) -> Mapping[str, Any] | None:
        """The first row of an environment, else None."""
        return self.rows[0] if self.part.kind == "environment" else None


def check_calls_fit(contract: ToolContract) -> None:
    """The calls fit the schemas and survive JSON, and every method that the model may call is among them."""
    methods: dict[str, Method] = {method.name: method for method in contract.part.methods}
    for name, arguments in contract.calls:
        assert name in methods, f"{name!r} is not a method for the model; there is: {', '.join(methods)}"
        problem = argument_problem(methods[name], arguments)
        assert problem is None, f"the call does not fit the schema: {problem}"
        assert json.loads(json.dumps(arguments)) == arguments, f"{arguments!r:.200} does not survive JSON"
    lacking = methods.keys() - {name for name, _ in contract.calls}
    assert not lacking, f"no call of {', '.join(sorted(lacking))}: give one of each"


def check_results(contract: ToolContract) -> None:
    """Results are texts, or become short ones by ``str`` that say more than a type and an address."""
    results = contract.play(contract.fresh(), contract.first_row())
    names = (["reset"] if contract.part.kind == "environment" else []) + [name for name, _ in contract.calls]
    for name, result in zip(names, results, strict=True):
        if name == "reset":
            assert result is None or isinstance(result, str), f"reset returns {result!r:.80}, expected a text or None"
            continue
        text = str(result)
        assert result is not None, f"{name} returns None: the model would read 'None'"
        assert len(text) <= MAX_RESULT, f"{name} returns {len(text):,} characters"
        shown = re.search(r" object at 0x[0-9a-f]+>", text) is None
        assert shown, f"{name} returns a {type(result).__name__}, which is not text: {text:.80}"


def check_determinism(contract: ToolContract) -> None:
    """Equal calls, each from a fresh start, have equal results."""
    first, second = ([str(each) for each in contract.play(contract.fresh(), contract.first_row())] for _ in range(2))
    assert first == second, f"results differ from run to run: {first!r:.200} and {second!r:.200}"


def check_reset(contract: ToolContract) -> None:
    """After another reset it is as new: nothing of the last completion is left."""
    for row in contract.rows:
        first = [str(each) for each in contract.play(contract.fresh(), row)]
        used = contract.fresh()
        contract.play(used, contract.rows[-1])
        again = [str(each) for each in contract.play(used, row)]
        assert first == again, f"after a reset it answers {again!r:.200}, a new one {first!r:.200}"


def check_reward(contract: ToolContract) -> None:
    """Rewards are finite numbers, before any call and after all; a turn's may be None."""
    env = contract.fresh()
    for row in contract.rows:
        for played in (lambda row=row: env.reset(**contract.row_for(row)), lambda row=row: contract.play(env, row)):
            played()
            for name in ("get_reward", "get_turn_reward"):
                if not hasattr(env, name):
                    continue
                value = getattr(env, name)()
                if value is not None or name == "get_reward":
                    number_of(name, value)


def check_state_key(contract: ToolContract) -> None:
    """Its state key can be a text; equal states have equal keys; reading it changes none."""
    if not contract.part.states:
        return
    keys = []
    for _ in range(2):
        env = contract.fresh()
        env.reset(**contract.row_for(contract.rows[0]))
        keys += [key_text(env.state_key()), key_text(env.state_key())]
        contract.play(env, contract.rows[0])
        key_text(env.state_key())
    assert len(set(keys)) == 1, f"the state after reset has the keys {keys!r:.200}"


def _is_environment(contract: ToolContract) -> bool:
    return contract.part.kind == "environment"


CHECKS: tuple[ContractCheck[ToolContract], ...] = (
    *(ContractCheck(each.__name__, each) for each in (check_calls_fit, check_results, check_determinism)),
    *(ContractCheck(each.__name__, each, _is_environment) for each in (check_reset, check_reward, check_state_key)),
)


def check_tool(
    tool: str | Callable[..., Any],
    calls: Sequence[Mapping[str, Any]],
    *,
    base: Path | str | None = None,
    skip: Sequence[str] = (),
    **kwargs: Any,
) -> None:
    """Run every check on a tool, and raise one ``AssertionError`` that lists all failures.

    Args:
        tool: its name, a reference to it, a function or a class.
        calls: arguments that it must answer without raising, in this order.
        base: folder that a relative ``./file.py`` starts from.
        skip: names of checks that fail on purpose ("check_determinism" for one that draws).
        **kwargs: its options.
    """
    part = get_tool(tool, base=base, **kwargs)
    _run(ToolContract(part, tuple((part.methods[0].name, arguments) for arguments in calls)), skip)


def check_environment(
    environment: str | Callable[..., Any],
    rows: Sequence[Mapping[str, Any]],
    calls: Sequence[MethodCall],
    *,
    base: Path | str | None = None,
    skip: Sequence[str] = (),
    **kwargs: Any,
) -> None:
    """Run every check on an environment, and raise one ``AssertionError`` that lists all failures.

    Args:
        environment: its name, a reference to it, or a class.
        rows: rows of data that it is reset with.
        calls: a method and its arguments each, which it must answer without raising after each reset, in this order.
        base: folder that a relative ``./file.py`` starts from.
        skip: names of checks that fail on purpose.
        **kwargs: its options.
    """
    if not rows:
        raise ValueError("check_environment needs at least one row to reset with.")
    part = get_environment(environment, base=base, **kwargs)
    lacking = [name for name in part.columns if any(name not in row for row in rows)]
    if lacking:
        raise ValueError(f"check_environment: a row lacks {', '.join(lacking)}, which reset needs.")
    _run(ToolContract(part, tuple(calls), tuple(rows)), skip)


def _run(contract: ToolContract, skip: Sequence[str]) -> None:
    if not contract.calls and contract.part.methods:
        raise ValueError("the check needs at least one call.")
    kind = "environment" if _is_environment(contract) else "tool"
    require(f"{kind} {contract.part.label!r}", contract, CHECKS, skip)
