"""The outcome of each test, and the verdict on all of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from grpo_verifiers.errors.messages import show
from grpo_verifiers.verdict import Status, Verdict

Kind = Literal["pass", "unseen", "wrong", "raised", "timeout", "limit", "syntax", "ended", "refused"]
KINDS: tuple[str, ...] = get_args(Kind)
_MARKS = {"pass": "+", "timeout": "t", "limit": "l", "unseen": "?"}
_SHOWN = 200
_REASON = 2000
"""Characters of a reason."""
_BRACKETS = {
    "l": "[]",
    "t": "()",
    "s": "{}",
    "z": ("frozenset({", "})"),
    "g": ("an iterator of (", ")"),
    "r": ("range(", ")"),
    "q": ("deque([", "])"),
    "k": ("dict_keys([", "])"),
    "v": ("dict_values([", "])"),
    "y": ("dict_items([", "])"),
}


@dataclass(frozen=True)
class Result:
    """The outcome of one test; the reason where it has not passed. ``unseen``: it has no answer."""

    kind: Kind
    why: str = ""


PASSED, UNSEEN = Result("pass"), Result("unseen")


def pack_results(results: Sequence[Result]) -> list[list[str]]:
    """Outcomes in JSON form; reasons only of the first failure and the first unseen test, which a verdict shows."""
    unseen = next((at for at, each in enumerate(results) if each.kind == "unseen" and each.why), -1)
    failed = next((at for at, each in enumerate(results) if each.kind not in {"pass", "unseen"} and each.why), -1)
    return [[each.kind, each.why[:_REASON] if at in {unseen, failed} else ""] for at, each in enumerate(results)]


def unpack_results(packed: Any, tests: int) -> list[Result]:
    """The outcomes of ``pack_results``; ValueError if malformed or of another number of tests."""
    if not isinstance(packed, list) or len(packed) != tests:
        raise ValueError(f"outcomes of {tests} tests were expected: {show(packed, 200)}")
    for row in packed:
        kind, why = row if isinstance(row, list) and len(row) == 2 else (None, None)
        if kind not in KINDS or not isinstance(why, str) or len(why) > _REASON:
            raise ValueError(f"no outcome of a test: {show(row, 200)}")
    return [Result(*row) for row in packed]


def verdict_of(results: Sequence[Result], scoring: str, note: str = "") -> Verdict:
    """One verdict for all tests; ``scoring`` is that of ``code``, ``note`` is a remark on the grading for people."""
    passed = sum(result.kind == "pass" for result in results)
    every = 0 < passed == len(results)
    score = float(every) if scoring == "all" else passed / max(1, len(results))
    marks = "".join(_MARKS.get(result.kind, "-") for result in results[:_SHOWN])
    detail = f"{passed} of {len(results)} tests passed [{marks}{'…' if len(results) > _SHOWN else ''}]"
    failures = [(at, result) for at, result in enumerate(results, 1) if result.kind not in {"pass", "unseen"}]
    unseen = [(at, result) for at, result in enumerate(results, 1) if result.kind == "unseen"]
    status = None
    if failures or unseen:
        at, first = (failures or unseen)[0]
        detail += f"; test {at}: {first.why or 'no answer'}"
    if failures and unseen:
        reason = next((result.why for _, result in unseen if result.why), "")
        detail += f"; {len(unseen)} not reached" + (f": {reason}" if reason else "")
    if failures and (not passed or scoring == "all"):
        common = Counter(result.kind for _, result in failures).most_common(1)[0][0]
        status = {"timeout": Status.TIMEOUT, "syntax": Status.UNPARSABLE}.get(common)
    return Verdict(score, status, detail + (f" ({note})" if note else ""))  # type: ignore[arg-type]  # None: by score


def quote(text: object) -> str:
    """Words of a program, for a message."""
    return show(text, 200)


def spell(tree: Any) -> str:
    """A tree of values as Python would write it, cut. Built as text: untrusted values are not hashed here."""
    return show(_spell(tree), 200)[1:-1]


def _spell(tree: Any) -> str:
    if not isinstance(tree, list):
        return repr(tree)
    tag, *rest = tree
    if tag in {"d", "O", "C", "D"}:
        rest = rest[1:] if tag == "D" else rest
        return "{" + ", ".join(f"{_spell(key)}: {_spell(item)}" for key, item in rest) + "}"
    if tag in {"n", "a"}:
        return f"array({_spell(rest[1])})"
    if tag in {"b", "B"}:
        return f"{'bytes' if tag == 'b' else 'bytearray'}.fromhex({rest[0][:100]!r})"
    if tag == "x":
        return f"{rest[0]}({rest[1][:100]!r})"
    if tag == "e":
        return f"{rest[0][0]}.{rest[0][2]}"
    if tag in {"m", "o"}:
        names = rest[0][1 if tag == "m" else 2]
        fields = (f"{name}={_spell(item)}" for name, item in zip(names, rest[1:], strict=True))
        return f"{rest[0][0]}({', '.join(fields)})"
    if tag in _BRACKETS:
        left, right = _BRACKETS[tag]
        return left + ", ".join(map(_spell, rest)) + right
    return " ".join(str(item)[:100] for item in rest)
