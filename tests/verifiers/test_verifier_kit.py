"""The contract kit: every built-in passes it, and it catches what it is there to catch."""

import contextlib
import random
import time

import pytest

from grpo_verifiers import Status, Step, Verdict, Verifier, all_of, gated, get_verifier, verifier, weighted
from grpo_verifiers.base import Pending
from grpo_verifiers.testing import CHECKS, check_verifier, contract_of, parametrize_with_checks
from grpo_verifiers.turns import Call, Turn
from grpo_verifiers.verifying import BUILTINS, REGISTRY

FOUR, FIVE = {"answer": "4"}, {"answer": "5"}
SHORT, LONG = {"prompt": "p", "completion_ids": [1] * 5}, {"prompt": "p", "completion_ids": [1] * 100}
CITY = {"type": "object", "required": ["city"], "properties": {"city": {}}, "additionalProperties": False}

CALLED = {"turns": (Turn(0, 4, "2+2?", (Call("calculator", {"expression": "2+2"}, "4"),), reward=1.0), Turn(20, 21, "4"))}  # fmt: skip
FAILED = {"turns": (Turn(0, 4, "2+2?", (Call("oracle", {}, "no such tool", "unknown"),), reward=0.0), Turn(30, 31, "4"))}  # fmt: skip
RIGHT_AND_WRONG = {"accept": [("4", FOUR)], "reject": [("5", FOUR)]}

BUILT_IN = {
    "choice": contract_of("choice", [("The answer is B.", {"answer": "B"})], [("The answer is A.", {"answer": "B"}), ("A or B", {"answer": "B"})]),
    "exact": contract_of("exact", [("4", FOUR), (" 4\n", FOUR)], [("so 4", FOUR), ("5", FOUR)]),
    "json_schema": contract_of(get_verifier("json_schema", schema=CITY), [('{"city": 1}', {})], [('{"city": 1, "x": 2}', {}), ("{", {}), ("", {})]),
    "language": contract_of("language", [("Это ответ", {"prompt": "Что это?"})], [("This is it", {"prompt": "Что это?"})]),
    "length_cosine": contract_of(get_verifier("length_cosine", max_len=100), [("short", SHORT)], [("long", LONG)]),
    "length_kimi": contract_of("length_kimi", [("short", SHORT)], [("long", LONG)]),
    "length_overlong": contract_of(get_verifier("length_overlong", max_len=100, cache=50), [("short", SHORT)], [("long", LONG)], -0.5),
    "math": contract_of("math", [("so \\boxed{4}", FOUR), ("\\boxed{\\frac{8}{2}}", FOUR | {"answer": "\\frac{8}{2}"})], [("\\boxed{5}", FOUR), ("", FOUR)]),
    "math_steps": contract_of("math_steps", [("3+4=7\n7-2 = 5.", {})], [("3+4=7\n7-2 = 6.", {}), ("12*3 = 35", {})]),
    "numeric": contract_of("numeric", [("4.0", FOUR)], [("4.1", FOUR), ("four", FOUR)]),
    "regex": contract_of(get_verifier("regex", pattern=r"[0-9]+ apples"), [("12 apples", {})], [("12 pears", {}), ("", {})]),
    "repetition": contract_of("repetition", [("each word of this is its own", {})], [("so so so so so so so", {})], -0.5),
    "tag_count": contract_of("tag_count", [("<think>a</think><answer>b</answer>", {})], [("nothing", {})]),
    "tool_used": contract_of("tool_used", [("4", CALLED)], [("4", {}), ("4", FAILED)]),
    "tool_valid": contract_of(get_verifier("tool_valid", without=0.0), [("4", CALLED)], [("4", {}), ("4", FAILED)]),
    "turn_reward": contract_of("turn_reward", [("4", CALLED)], [("4", FAILED)]),
    "think_format": contract_of("think_format", [("<think>a</think>b", {})], [("<think></think>b", {}), ("a</think>b", {})]),
}  # fmt: skip
COMPOSED = {
    "all_of": contract_of(all_of("exact", "numeric"), [("4", FOUR)], [("so 4", FOUR)]),
    "weighted": contract_of(weighted({"math": 1.0, "think_format": 0.5}), [("<think>a</think>\\boxed{4}", FOUR)], [("x", FOUR)]),
    "gated": contract_of(gated("numeric", "think_format"), [("<think>a</think>4", FOUR)], [("4", FOUR), ("<think>a</think>5", FOUR)]),
}  # fmt: skip


@pytest.mark.sample(35)
@parametrize_with_checks({**BUILT_IN, **COMPOSED})
def test_built_in_verifiers_hold_the_contract(check, contract):
    check(contract)


def test_good_verifiers_pass_in_every_form_and_no_built_in_is_left_out(tmp_path):
    # The judge needs an endpoint, code a sandbox: their own tests run them against one.
    assert set(BUILT_IN) == set(BUILTINS) - {"code", "judge", "prm"}
    assert {entry.name for entry in REGISTRY.entries() if entry.way == "built-in"} == set(BUILTINS)

    def mine(completion, answer):
        return answer is not None and completion.endswith(answer)

    (tmp_path / "mine.py").write_text(
        "def mine(completion, answer): return bool(answer) and completion.endswith(answer)"
    )

    async def one(completion, answer):
        return completion == answer

    def many(completions, answer):
        return [c == a for c, a in zip(completions, answer, strict=True)]

    for made in (mine, f"{tmp_path}/mine.py:mine", one, declaring("kit_batch", many)):
        check_verifier(made, **RIGHT_AND_WRONG)


def fickle(completion, answer):
    return Verdict(float(completion == answer), detail=str(random.random()))


def crashes_on_none(completion, answer):
    return completion.endswith(answer.strip())


def crashes_on_junk(completion, answer):
    return completion.encode() == str(answer).encode()  # lone surrogates have no UTF-8


def lenient(completion, answer):
    return 1.0


def contradicts_itself(completion, answer):
    right = completion == answer
    return Verdict(float(right), Status.WRONG if right else Status.CORRECT)


def hangs_on_junk(completion, answer):
    if len(completion) > 10_000:
        time.sleep(60)
    return completion == answer


def needs_more(completion, answer, tests):
    return completion == answer


class Excusing(Verifier):
    """Calls it its own failure where it cannot read a completion."""

    def __init__(self):
        super().__init__("excusing")

    def start(self, prompts, completions, completion_ids=None, **columns):
        scores = {"4": Verdict(1.0), "5": Verdict(0.0), "6": Verdict(0.0)}
        found = [scores.get(str(text).strip(), Verdict(None, Status.ERROR)) for text in completions]
        return Pending(lambda: (found, [0.0] * len(found)))

    def describe(self):
        return {}


class Changing:
    """Changes what it is given."""

    __name__ = "changing"

    def __call__(self, completion, answer):
        found = completion == answer[0]
        answer[0] = "seen"
        return found


class Counting:
    """Remembers the completions before."""

    __name__ = "counting"

    def __init__(self):
        self.seen = []

    def __call__(self, completion, answer):
        self.seen.append(completion)
        return Verdict(float(completion == answer), detail=str(len(self.seen) % 2))


def declaring(name, check, **declared):
    """A check of one's own with declarations, and not in the registry."""
    made = verifier(name, **{"isolation": "inline", **declared})(check)
    REGISTRY.unregister(name)
    return made


def equal(completion, answer):
    return completion == answer


def stepping(completion, answer):
    return Verdict(float(completion == answer), steps=(Step(0, 1, 1.0),))


DECLARED = [
    (equal, {"stated": lambda completion: completion}, None), (equal, {"stated": lambda completion: completion + "!"}, "stated"),
    (equal, {"stated": lambda completion: completion if completion[0] else None}, "stated"), (equal, {"stated": lambda completion: None}, "stated"),
    (equal, {"steps": False}, None), (equal, {"steps": True}, "steps"), (stepping, {"steps": False}, "steps"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "declared", "broken"), DECLARED)
def test_the_kit_holds_a_verifier_to_what_it_declares(check, declared, broken):
    with pytest.raises(AssertionError, match=f"check_{broken}: ") if broken else contextlib.nullcontext():
        check_verifier(declaring("kit_declares", check, **declared), **RIGHT_AND_WRONG)


def test_nothing_is_said_of_steps_undeclared_and_a_verifier_that_rejects_nothing_is_found():
    assert declaring("kit_steps", stepping).gives_steps is None
    with pytest.raises(
        AssertionError, match=r"check_rejects_something.*\n *it accepts every completion that was tried"
    ):
        check_verifier(lenient, accept=[("4", FOUR)])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("made", "columns", "broken"),
    [
        (lambda: fickle, FOUR, "determinism"), (lambda: crashes_on_none, FOUR, "missing_values"), (lambda: crashes_on_junk, FOUR, "junk"),
        (lambda: lenient, FOUR, "verdicts"), (lambda: contradicts_itself, FOUR, "statuses"), (lambda: get_verifier("exact", on_error="null"), FOUR, "failures"),
        (lambda: all_of("exact", gated("numeric", get_verifier("exact", on_error="null"))), FOUR, "failures"),
        (Excusing, {}, "failures"), (lambda: needs_more, FOUR, "settings"), (lambda: get_verifier(Counting(), isolation="inline"), FOUR, "order"),
        (lambda: get_verifier(Changing(), isolation="inline"), {"answer": ["4"]}, "mutation"),
    ],
)  # fmt: skip
def test_the_kit_catches_each_broken_promise(made, columns, broken):
    with pytest.raises(AssertionError, match=f"check_{broken}: "):
        check_verifier(made(), accept=[("4", columns)], reject=[("5", columns), ("6", columns)])


@pytest.mark.slow
def test_the_kit_measures_time_where_nothing_else_does(monkeypatch):
    monkeypatch.setattr("grpo_verifiers.testing.SLACK", 0.2)

    def slow(completion, answer):
        if len(completion) > 10_000:
            time.sleep(0.4)
        return completion == answer

    with pytest.raises(AssertionError, match=r"takes \d"):
        check_verifier(get_verifier(slow, isolation="inline"), accept=[("4", FOUR)])


@pytest.mark.slow
def test_timeouts_on_junk_are_verdicts_checks_are_skipped_and_calls_are_checked():
    made = get_verifier(hangs_on_junk, timeout=0.3)
    assert made.verify("x" * 20_000, answer="4").status is Status.TIMEOUT
    slow = get_verifier("regex", pattern="(a+)+b|4", timeout=1.0)
    check_verifier(slow, accept=[("4", {})], reject=[("5", {}), ("6", {})])
    skip = ["check_determinism", "check_order", "check_pickle", "check_missing_values"]
    check_verifier(fickle, accept=[("4", FOUR)], skip=skip)
    with pytest.raises(ValueError, match="check_determinsm"):
        check_verifier(fickle, accept=[("4", FOUR)], skip=["check_determinsm"])
    with pytest.raises(ValueError, match="at least one"):
        check_verifier(fickle, accept=[])
    assert len({check.__name__ for check in CHECKS}) == len(CHECKS)
