"""Programs that want a point without solving the task, and solutions of unusual make that deserve theirs."""

import os
import time
from pathlib import Path

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.sandbox.inside.proc import descendants
from tests.cases.rows import sections

from .programs import ASSERTS, CALLS, RUNS

EACH = "def check(candidate):\n    for a, b in ((1, 2), (10, 5)):\n        assert candidate(a, b) == a + b\ncheck(add)"
CHECK = [{"code": EACH}]
NO_VALUES = [
    *(True, 3.0, None, "3", ["i", "0x3"], ["f", "3"], {"a": 3}, ["s", 3, 3], ["s", ["l"]], ["d", [["l"], 3]]),
    *(["n", "<i8", 3, 3], ["n", "|O", 3], ["r", 3], ["g", ["l"]], ["c"]),
]
FORGED = [
    *(["value", value] for value in NO_VALUES),
    *(["raised", *rest] for rest in ([], [1], ["x"], [None, None], ["SystemExit", "x"], ["StopIteration", "x", 5])),
    *(["test", outcome, ""] for outcome in ("pass", "idle", "uncrossable")),
    *(["value"], ["value", 3, 3], ["pass"], ["refused"], ["refused", 3], ["missing", [[]]], ["syntax", {}]),
    ["call", "add", ["l", 1, 2], ["d"]],
    ["raised", "ValueError", "\ud800", ["t", ["l"], {"a": 1}]],
    ["raised", "ExceptionGroup", "x", ["t", "x", ["l"]]],
    *(5, "x", [], {}, True, None, [[]], [None], [["value", 3]]),
]
SEND = """
import json, os, time
def forge(data):
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    os.write(3, len(data).to_bytes(4, "big") + data)
"""
RAW = [
    *(b"", b"\xff\xfe", b"9" * 5000, b'["raised",' + b"[" * 990 + b"]" * 990 + b"]"),
    b'["value",' + b"[" * 100_000 + b"]" * 100_000 + b"]",
    *(b'["raised","ValueError","x",' + b"[" * depth + b"]" * depth + b"]" for depth in (120, 970, 980, 985, 990)),
    *(b'["value",NaN]', b'["value",["l",' + b"1," * 100_000 + b"1]]"),
]


def stored(kind):
    """Programs of tests/cases by name."""
    every = sections("programs.txt").items()
    return {name.removeprefix(f"{kind}: "): "\n".join(lines) for name, lines in every if name.startswith(f"{kind}: ")}


FUNCTIONS = stored("a function that solves nothing") | {
    "a null byte": "def add(a, b): return a + b\n\0",
    "answers without end": SEND + "def add(a, b):\n    while True: forge(['value', None])",
}
OUTPUTS = stored("an output that solves nothing") | {
    "a message instead": SEND + "forge(['pass'])",
    "answers without end": SEND + "while True: forge(['value', None])",
}


def judged(level, programs, tests, fenced, time_limit=0.5):
    """Verdicts by name; one at a time on one box after the other, as in a run."""
    verifier = get_verifier("code", level=level, highest=level, time_limit=time_limit)
    texts = [fenced(source) for source in programs.values()]
    return dict(zip(programs, verifier.verify_batch(None, texts, None, tests=[tests] * len(texts)), strict=True))


@pytest.mark.sample(1)
@pytest.mark.parametrize("tests", [CALLS, CHECK], ids=["calls", "check"])
def test_functions_that_solve_nothing_score_nothing(level, tests, fenced):
    verdicts = judged(level, FUNCTIONS, tests, fenced)
    assert {name: each for name, each in verdicts.items() if each.score != 0 or each.status is Status.ERROR} == {}


@pytest.mark.slow
def test_outputs_that_solve_nothing_score_nothing(level, fenced):
    verdicts = judged(level, OUTPUTS, RUNS, fenced)
    assert {name: each for name, each in verdicts.items() if each.score != 0 or each.status is Status.ERROR} == {}


@pytest.mark.sample(1)
@pytest.mark.parametrize("tests", [CALLS, ASSERTS, RUNS], ids=["calls", "asserts", "runs"])
@pytest.mark.parametrize("when", ["loading", "called"])
def test_forged_messages_are_wrong_answers_and_never_failures_of_ours(when, tests, fenced):
    if when == "called":
        body = "def add(a, b):\n    forge({0!r})\n    time.sleep(0.05); os._exit(0)"
    else:
        body = "forge(['loaded'])\nfor _ in range(3): forge({0!r})\ntime.sleep(0.05)\nos._exit(0)"
    forged = [*FORGED, *RAW]
    verdicts = judged("process", {str(at): SEND + body.format(each) for at, each in enumerate(forged)}, tests, fenced)
    for at, each in enumerate(forged):
        verdict = verdicts[str(at)]
        # A forged value of 3 is an answer of 3: to the second question it is wrong like any other.
        assert (verdict.score, verdict.status is Status.ERROR) == (0, False), (each, verdict)
        assert verdict.detail.isprintable(), each


@pytest.mark.slow
def test_a_program_that_calls_for_more_than_a_message_holds_is_wrong(fenced):
    tests = [{"code": "assert g(f()) == 'x'"}, {"code": "assert g([f(), f(), f()]) == 'x'"}]
    for size in ((4 << 20) - 20, (4 << 20) - 13, 2 << 20):
        source = f"def f(): return 'x' * {size}\ndef g(x): return 'y'"
        verdict = get_verifier("code").verify(fenced(source), tests=tests)
        assert (verdict.score, verdict.status) == (0, Status.WRONG), verdict


@pytest.mark.slow
def test_what_programs_leave_running_is_gone_wherever_it_hangs(level, fenced):
    mark = f"left{os.getpid()}"
    named = f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, b'{mark}', 0, 0, 0)\n"
    hang = "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n    time.sleep(60)"
    ways = [
        f"import signal\nif os.fork() == 0:\n    os.setsid()\n    {hang}",
        f"import signal\nif os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    {hang}",
        # As a child of the zygote rather than of the program.
        f"import signal\nif ctypes.CDLL(None).syscall(56, 0x8000 | 17, 0, 0, 0, 0) == 0:\n    {hang}",
        f"import signal\nfor _ in range(10):\n    if os.fork() == 0:\n        os.setpgid(0, 0)\n        os.closerange(0, 64)\n        {hang.replace('    ', '        ')}",
        "import threading\nthreading.Thread(target=time.sleep, args=(60,)).start()\nif os.fork() == 0: os.execv('/bin/sleep', ['sleep', '60'])",
    ]
    before = descendants(os.getpid())
    verdicts = judged(
        level, {str(at): named + way + "\ndef add(a, b): return a" for at, way in enumerate(ways)}, CALLS, fenced
    )
    assert all(verdict.score == 0 and "returned" in verdict.detail for verdict in verdicts.values()), verdicts
    close_pool()
    assert descendants(os.getpid()) <= before
    names = [path.read_text() for path in Path("/proc").glob("[0-9]*/comm") if path.exists()]
    assert not [name for name in names if name.startswith(mark)]


HONEST_RUNS = stored("an honest program") | {"a byte order mark": "\ufeffn = int(input())\nprint(2 * n)\nprint(3 * n)"}
HONEST_CALLS = {
    "a method": ("class Solution:\n    def add(self, a, b): return a + b", CALLS),
    "a method by its class": (
        "class Solution:\n    def __init__(self): self.zero = 0\n    def add(self, a, b): return self.zero + a + b",
        [{"function": "Solution.add", "args": [1, 2], "expected": 3}],
    ),
    "methods of a class": (
        "class A:\n    @classmethod\n    def f(cls): return cls.__name__\n    class B:\n        @staticmethod\n        def g(): return 2",
        [{"function": "A.f", "expected": "A"}, {"function": "A.B.g", "expected": 2}],
    ),
    "printing": ("print('x' * 10**6)\ndef add(a, b):\n    print('x' * 10**6)\n    return a + b", CALLS),
    "much": ("def f(n): return list(range(n))", [{"function": "f", "args": [190_000], "expected": list(range(190_000))}]),
    "a long text": ("def f(n): return 'é' * n", [{"function": "f", "args": [400_000], "expected": "é" * 400_000}]),
    "long output": ("print('x' * 2_000_000)", [{"stdin": "", "stdout": "x" * 2_000_000}]),
    "an iterator": ("def f(n):\n    yield from range(n)", [{"code": "assert list(f(3)) == [0, 1, 2]\nassert next(f(1)) == 0"}]),
    "a range": ("f = range", [{"code": "assert f(3) == range(3) and 2 in f(3) and len(f(0, 9, 2)) == 5"}]),
    "an exception": (
        "class Negative(ValueError): pass\ndef f(x):\n    if x < 0: raise Negative('below', x)\n    return {}[x]",
        [{"code": "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert error.args == ('below', -1)"},
         {"code": "try:\n    f(1)\n    assert False\nexcept KeyError as error:\n    assert str(error) == '1'"}],
    ),
    "nothing printed": ("x = 1", [{"stdin": "", "stdout": "\n"}]),
}  # fmt: skip


@pytest.mark.slow
def test_solutions_of_unusual_make_get_their_point(level, fenced):
    verdicts = judged(level, HONEST_RUNS, RUNS, fenced, 10.0)
    assert not {name: verdict for name, verdict in verdicts.items() if verdict.score != 1}
    verifier = get_verifier("code", level=level, highest=level)
    for name, (source, tests) in HONEST_CALLS.items():
        verdict = verifier.verify(fenced(source), tests=tests)
        assert verdict.score == 1, (name, verdict)


@pytest.mark.parametrize("source", ["def f(:", "1 // 0", "import nowhere"])
def test_printing_nothing_by_mistake_is_no_answer(source, fenced):
    verdict = get_verifier("code").verify(fenced(source), tests=[{"stdin": "", "stdout": ""}])
    assert verdict.score == 0


@pytest.mark.slow
def test_programs_that_fail_slowly_are_not_run_on_every_input(fenced):
    tests = [{"stdin": str(at), "stdout": "x"} for at in range(400)]
    slow = fenced("import time\nn = int(input())\ntime.sleep(0.4)\nprint('x' if n == 0 else 'y')")
    started = time.monotonic()
    verdict = get_verifier("code", time_limit=1.0).verify(slow, tests=tests)
    assert time.monotonic() - started < 60
    assert (verdict.score, verdict.status) == (0, Status.WRONG)
    assert verdict.detail.startswith("1 of 400 tests passed [+---")
    quick = fenced("n = int(input())\nprint('x' if n % 2 else 'y')")
    assert get_verifier("code", scoring="share", time_limit=1.0).verify(quick, tests=tests).score == 0.5


NUMPY = [
    ("return np.array([1, 2]) + x", {"expected": [3, 4]}, 1),
    ("return np.array([[1.5, 2], [3, 4]])", {"expected": [[1.5, 2.0], [3.0, 4.0]]}, 1),
    *(("return np.float32(0.1) + 0 * x", {"expected": 0.1}, 1), ("return np.int64(x)", {"expected": 2}, 1)),
    *(("return np.int64(x)", {"expected": 2.0}, 1), ("return np.float64(x)", {"expected": 2}, 0)),
    *(("return np.bool_(True)", {"expected": True}, 1), ("return np.bool_(True)", {"expected": 1}, 0)),
    ("return {'a': (np.int8(1), np.arange(2))}", {"expected": {"a": [1, [0, 1]]}}, 1),
    ("return np.array([1, 2])", {"expected": [1, 3]}, 0),
    ("return np.array([1.0, np.nan])", {"expected": [1.0, 2.0]}, 0),
    ("return np.array([object()])", {"expected": [1]}, 0),
    (
        "class E(np.ndarray):\n        __eq__ = lambda s, o: True\n    return np.zeros(2).view(E)",
        {"expected": [1, 1]},
        0,
    ),
    ("return np.zeros(10**6)", {"expected": [0.0]}, 0),
    ("return np.longdouble(2)", {"expected": 2.0}, 0),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("body", "expected", "score"), NUMPY)
def test_numbers_of_numpy_count_as_the_values_that_they_stand_for(body, expected, score, fenced):
    pytest.importorskip("numpy")
    verdict = get_verifier("code", preload=["numpy"]).verify(
        fenced(f"import numpy as np\ndef f(x):\n    {body}"), tests=[{"function": "f", "args": [2], **expected}]
    )
    assert verdict.score == score, verdict


def test_arrays_cross_between_tests_and_program(fenced):
    pytest.importorskip("numpy")
    code = "import numpy as np\nx = np.arange(4.0).reshape(2, 2)\ngot = f(x)\nassert got.dtype == np.float64 and np.allclose(got, x.T)"
    verifier = get_verifier("code", preload=["numpy"])
    for body, score in (("x.T", 1), ("x", 0), ("x.T.tolist()", 0), ("type(x)", 0)):
        assert verifier.verify(fenced(f"def f(x): return {body}"), tests=[{"code": code}]).score == score, body


@pytest.mark.slow
def test_pytest_works_in_test_code_where_it_is_preloaded(fenced):
    code = "import pytest\nwith pytest.raises(ValueError, match='^no'):\n    f(-1)\nassert f(1) == pytest.approx(0.5)"
    tests = [{"code": code}]
    good = fenced("def f(x):\n    if x < 0: raise ValueError('no')\n    return 0.5 + 1e-9")
    verifier = get_verifier("code", preload=["pytest"])
    assert verifier.verify(good, tests=tests).score == 1
    assert verifier.verify(fenced("def f(x): return 0.5"), tests=tests).score == 0
    without = get_verifier("code").verify(good, tests=tests)
    assert without.score is None
    assert "preload" in without.detail


ROUNDABOUT = [
    ("t = make()\nassert take(t.count) == 5", "return [1]"),
    ("t = make()\nassert take([t.items]) == 5", "return {}"),
    ("t = make()\nassert take(t.date) == 5", "import datetime; return datetime.datetime(2000, 1, 1)"),
    ("t = make()\nassert take(t.match) == 5", "import pathlib; return pathlib.PosixPath('a')"),
    ("t = make()\nassert take({'x': t.index}) == 5", "import collections; return collections.deque([5])"),
    ("t = make()\nassert take(iter(t)) == 5", "import collections; return collections.deque([5])"),
    ("t = make()\nassert take(t.size) == 5", "import pathlib; return pathlib.PosixPath('a').parents"),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(("code", "body"), ROUNDABOUT)
def test_no_answer_makes_a_sound_test_one_that_cannot_run(code, body, fenced):
    verdict = get_verifier("code").verify(
        fenced(f"def make():\n    {body}\ndef take(x):\n    return 0"), tests=[{"code": code}]
    )
    assert verdict.score == 0, verdict


@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("given", ["lambda x: x", "len", "int", "math", "Own()", "Own().method", "math.sqrt"])
def test_what_a_test_itself_cannot_hand_over_excludes_the_row_after_answers_too(given, fenced):
    code = f"import math\nclass Own:\n    def method(self): pass\nassert f(1) == 1\nassert f({given}) == 1"
    verdict = get_verifier("code").verify(fenced("def f(x):\n    return 1"), tests=[{"code": code}])
    assert verdict.score is None
    assert "which cannot cross to the program" in verdict.detail


@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("memory", [0.05, 0.1, 0.2])
def test_no_answer_starves_the_test_after_it(memory, fenced):
    kept = "def check(c):\n    return c\nkept = [f(1)]\nassert kept == [1]"
    tests = [{"code": kept}, {"code": f"room = bytearray({int(memory * 2**29)})\nassert f(1) == 2"}]
    verifier = get_verifier("code", memory=memory)
    for empty in ("[]", "set()", "__import__('collections').deque()", "{}"):
        verdict = verifier.verify(fenced(f"def f(x):\n    return [{empty} for _ in range(100_000)]"), tests=tests)
        assert verdict.score == 0, (empty, verdict)
