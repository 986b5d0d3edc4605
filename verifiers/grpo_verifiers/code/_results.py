"""What became of each test, and the verdict on all of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_verifiers._show import show
from grpo_verifiers.verdict import Status, Verdict

Kind = Literal["pass", "wrong", "raised", "timeout", "limit", "syntax", "ended", "refused"]
_MARKS = {"pass": "+", "timeout": "t", "limit": "l"}
_SHOWN = 200
_BRACKETS = {
    "l": "[]",
    "t": "()",
    "s": "{}",
    "z": ("frozenset({", "})"),
    "g": ("an iterator of (", ")"),
    "r": ("range(", ")"),
}


@dataclass(frozen=True)
class Result:
    """The outcome of one test, and why."""

    kind: Kind
    why: str = ""


def verdict_of(results: Sequence[Result], scoring: str, note: str = "") -> Verdict:
    """One verdict for all tests of a program.

    Args:
        results: the tests' outcomes, in order.
        scoring: ``"all"`` for 1 where every test passed and else 0, ``"share"`` for the share that passed.
        note: what people should know about how it was judged.
    """
    passed = sum(result.kind == "pass" for result in results)
    every = passed == len(results)
    score = float(every) if scoring == "all" else passed / len(results)
    marks = "".join(_MARKS.get(result.kind, "-") for result in results[:_SHOWN])
    detail = f"{passed} of {len(results)} tests passed [{marks}{'…' if len(results) > _SHOWN else ''}]"
    failed = next(((at, result) for at, result in enumerate(results, 1) if result.kind != "pass"), None)
    status = None
    if failed is not None:
        detail += f"; test {failed[0]}: {failed[1].why}"
        kinds = Counter(result.kind for result in results if result.kind != "pass")
        if not passed or scoring == "all":
            status = {"timeout": Status.TIMEOUT, "syntax": Status.UNPARSABLE}.get(kinds.most_common(1)[0][0])
    return Verdict(score, status, detail + (f" ({note})" if note else ""))  # type: ignore[arg-type]  # None: by score


def said(text: object) -> str:
    """What a program said, for a message."""
    return show(text, 200)


def spelled(tree: Any) -> str:
    """A tree of values as Python would write it, cut. Built as text: a stranger's values are not hashed here."""
    return show(_spell(tree), 200)[1:-1]


def _spell(tree: Any) -> str:
    if not isinstance(tree, list):
        return repr(tree)
    tag, *rest = tree
    if tag == "d":
        return "{" + ", ".join(f"{_spell(key)}: {_spell(item)}" for key, item in rest) + "}"
    if tag == "n":
        return f"array({_spell(rest[1])})"
    if tag in _BRACKETS:
        left, right = _BRACKETS[tag]
        return left + ", ".join(map(_spell, rest)) + right
    return " ".join(str(item)[:100] for item in rest)
