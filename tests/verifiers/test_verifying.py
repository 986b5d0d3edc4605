"""The decorator, get_verifier, and what a verifier does with columns, failures, logs and pickles."""

import asyncio
import os
import pickle
import re
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_verifiers import Status, Verdict, get_verifier, verifier
from grpo_verifiers.errors import ColumnError, KeywordError, UnknownNameError, VerifierError, VerifierFailedError
from grpo_verifiers.exec.policy import HOPELESS
from grpo_verifiers.exec.runner import close_shared_runners
from grpo_verifiers.stats import percentile
from grpo_verifiers.verifying import REGISTRY, load_plugins


@pytest.fixture(autouse=True)
def forget_registrations():
    before = set(REGISTRY.names())
    yield
    for name in set(REGISTRY.names()) - before:
        REGISTRY.unregister(name)


def same(completion, answer, note="none", *, bonus: float = 0.0):
    return Verdict(float(completion == answer) + bonus, detail=note)


def inline(fn, **more):
    return get_verifier(fn, isolation="inline", **more)


def chat(*texts):
    return [{"role": role, "content": text} for role, text in texts]


def test_columns_are_filled_by_name_or_by_options():
    @verifier("mine", timeout=5.0)
    def mine(completion, answer):
        return completion == answer

    assert (get_verifier("mine").verify("4", answer="4"), mine.__name__) == (Verdict(1.0, Status.CORRECT), "mine")
    assert mine(prompts=["p", "p"], completions=["4", "5"], completion_ids=[[1], [2]], answer=["4", "4"]) == [1.0, 0.0]
    assert mine([], [], answer=[]) == []

    def check(completion, answer, hint="none", *, weight: int = 1, prompt, messages, completion_ids, completion_text):
        given = (completion, answer, hint, prompt, messages, completion_ids, completion_text)
        return Verdict(float(weight), detail=repr(given))

    made = inline(check, columns={"answer": "solution"}, weight=3)
    assert (made.required_columns, made.optional_columns) == ({"answer": "solution"}, {"hint": "hint"})
    completion = chat(("assistant", "first"), ("tool", "42"), ("assistant", "final"))
    prompt = chat(("user", "q"))
    verdict = made.verify(completion, prompt, completion_ids=[5, 6], solution=7, answer="not this", other=1)
    given = ("final", 7, "none", prompt, prompt + completion, [5, 6], "final")
    assert verdict == Verdict(3.0, detail=repr(given))
    with_text = made.verify("abc", "q", solution=7, hint="h", completion_text="abc<eos>")
    messages = chat(("user", "q"), ("assistant", "abc"))
    assert with_text.detail == repr(("abc", 7, "h", "q", messages, None, "abc<eos>"))
    made = inline(same, answer="4")
    assert (made.required_columns, made.verify("4").score, made.verify("5", answer="5").score) == ({}, 1.0, 0.0)

    def check(completion, **rest):
        return Verdict(1.0, detail=repr(sorted(rest.items())))

    found = inline(check, columns={"gold": "answer"})(
        ["p"], ["c"], [[1]], answer=["a"], level=[3], trainer_state=object(), environments=None
    )
    assert found == [1.0]
    verdict = inline(check, columns={"gold": "answer"}).verify("c", "p", answer="a", level=3)
    assert verdict.detail == repr([("answer", "a"), ("gold", "a"), ("level", 3)])


def test_missing_columns_are_named_and_a_chat_is_read_for_its_last_text():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    for content, text in [
        (chat(("assistant", "x")), "x"), (chat(("assistant", "x"), ("tool", "y")), "x"), (chat(("assistant", parts)), "ab"),
        (chat(("assistant", None)), ""), (chat(("user", "x")), ""), ([], ""),
    ]:  # fmt: skip
        assert inline(lambda completion: Verdict(1.0, detail=completion)).verify(content).detail == text
    with pytest.raises(ColumnError, match=r"needs the column 'answer' .*Did you mean 'answers'"):
        inline(same)(None, ["a"], answers=["a"])
    with pytest.raises(TypeError, match="completion 1 is 5"):
        inline(same)(["p"] * 2, ["a", 5], answer=["a", "b"])


def test_wrong_settings_and_functions_are_refused_all_at_once():
    for settings, said in [
        ({"bonsu": 1}, "unknown option 'bonsu'. Did you mean 'bonus'"), ({"bonus": "much"}, "'bonus' is 'much', expected a number"),
        ({"columns": {"anwser": "x"}}, "unknown parameter 'anwser'. Did you mean 'answer'"), ({"columns": {"answer": 3}}, "maps 'answer' to 3"),
        ({"columns": {"bonus": "x"}}, "'bonus', which is not filled from the dataset"), ({"columns": {"answer": "x"}, "answer": "4"}, "set in kwargs"),
        ({"timeout": 0}, "timeout is 0"), ({"timeout": float("nan")}, "timeout is nan"), ({"isolation": "thread"}, "unknown isolation 'thread'"),
        ({"timeout": 2.0, "isolation": "inline"}, "only a worker process can be stopped"), ({"on_error": "ignore"}, "unknown on_error 'ignore'"),
        ({"label": ""}, "label is ''"),
    ]:  # fmt: skip
        with pytest.raises(KeywordError, match=re.escape(said)):
            get_verifier(same, **settings)
    with pytest.raises(KeywordError, match="'answer' before it"):
        get_verifier(lambda answer, completion: 1.0)
    with pytest.raises(KeywordError) as caught:
        get_verifier(same, timeout=-1, bonsu=2, columns={"anwser": "x"})
    assert all(word in str(caught.value) for word in ("timeout", "bonsu", "anwser"))


def test_the_decorator_wants_a_name_and_right_settings():
    with pytest.raises(TypeError, match="needs a name"):
        verifier(same)
    with pytest.raises(UnknownNameError, match="Did you mean 'math'"):
        get_verifier("maht")
    timed = get_verifier("exact", timeout=3.0)
    assert (get_verifier("exact").isolation, timed.isolation) == ("inline", "process")
    assert timed.verify("4", answer="4").score == 1.0
    with pytest.raises(KeywordError, match="only a worker process"):
        get_verifier("exact", timeout=3.0, isolation="inline")
    for declared, said in [
        ({"isolation": "no"}, "unknown isolation"), ({"isolation": "inline", "timeout": 1.0}, "only a worker process"),
        ({"env": "MY_KEY"}, "env is 'MY_KEY', expected tuple"), ({"gold_columns": "answer"}, "gold_columns is 'answer', expected tuple"),
    ]:  # fmt: skip
        with pytest.raises(KeywordError, match=said):
            verifier("mine", **declared)(same)
    assert verifier("mine", env={"MY_KEY": 1}.keys())(lambda completion: 1.0).traits.env == ("MY_KEY",)
    with pytest.raises(KeywordError, match=r"unknown on_error(.|\n)*'conflicts' is <"):
        get_verifier("choice", on_error=_EqualToNothing(), conflicts=_EqualToNothing())
    for timeout in ["soon", "", [], {}, 10**400]:
        with pytest.raises(KeywordError, match=r"timeout is .*, expected seconds(.|\n)*'ignore_case' is 3"):
            get_verifier("exact", timeout=timeout, ignore_case=3)
        with pytest.raises(KeywordError, match=r"timeout is .*, expected seconds"):
            verifier("mine", timeout=timeout)(lambda completion: 1.0)


def raises(completion):
    if completion != "fine":
        raise ValueError("bad " + completion)
    return 1.0


def test_policies_stop_the_run_go_on_or_wait_until_it_is_hopeless():
    with pytest.raises(VerifierFailedError) as caught:
        get_verifier(raises, on_error="raise").verify_batch(None, ["fine", "x"])
    words = ("verifier 'raises'", "test_verifying.py", 'raise ValueError("bad " + completion)')
    assert [word for word in words if word not in str(caught.value)] == []
    found = get_verifier(raises, isolation="inline", on_error="zero").verify_batch(None, ["x"] * 3 * HOPELESS)
    assert {v.score for v in found} == {0.0}

    def check(completions):
        raise ValueError(len(completions))

    made = inline(check)
    for _ in range(3):
        assert {v.status for v in made.verify_batch(None, ["x"] * 64)} == {Status.ERROR}
    with pytest.raises(VerifierFailedError):
        made.verify_batch(None, ["x"] * 64)

    def check(completion):
        raise VerifierFailedError("pip install something")

    for isolation in ("process", "inline"):
        with pytest.raises(VerifierFailedError, match="pip install something"):
            get_verifier(check, isolation=isolation, on_error="zero").verify("x")


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_verifier_that_always_fails_stops_the_run(isolation):
    made = get_verifier(raises, isolation=isolation)
    assert [v.score for v in made.verify_batch(None, ["x"] * (HOPELESS - 1))] == [0.0] * (HOPELESS - 1)
    assert made.verify("fine").score == 1.0
    made.verify_batch(None, ["x"] * (HOPELESS - 2))
    assert made.verify("y").score == 0.0
    with pytest.raises(VerifierFailedError, match=f"failed on all of the last {HOPELESS} completions.*bad z"):
        made.verify("z")


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_batch_of_another_size_stops_the_run(isolation):
    def short(completions):
        return [1.0]

    with pytest.raises(VerifierFailedError, match="returned 1 result for 3 completions"):
        get_verifier(short, isolation=isolation).verify_batch(None, ["a"] * 3)


def test_what_a_check_prints_follows_its_reason_and_is_told_once(caplog):
    def check(completion):
        print("saw", completion, "\x1b[2J")
        sys.stderr.buffer.write(b"e" * 100_000)
        sys.stdout.reconfigure(line_buffering=True)
        if completion == "x":
            raise ValueError("no")
        return 1.0

    good, bad = get_verifier(check).verify_batch(None, ["a", "x"])
    assert re.fullmatch(r"printed: 'saw a \\x1b\[2J\\ne{400,500}'…", good.detail)
    assert bad.detail.startswith("ValueError: no; printed: 'saw x ")
    assert caplog.text.count("verify --show all") == 1


@pytest.mark.slow
def test_timeouts_and_deaths_score_zero_with_their_status():
    def check(completion):
        if completion == "hang":
            time.sleep(100)
        if completion == "die":
            os._exit(1)
        return 0.5

    found = get_verifier(check, timeout=2.0).verify_batch(None, ["a", "hang", "die", "b"])
    kinds = [(0.5, "partial"), (0.0, "timeout"), (0.0, "error"), (0.5, "partial")]
    assert [(v.score, v.status.value) for v in found] == kinds


@pytest.mark.slow
def test_all_verifiers_run_before_the_first_is_waited_for(tmp_path, monkeypatch):
    def meet(completion, *, mine: str, other: str):
        Path(mine).touch()
        end = time.monotonic() + 30
        while not Path(other).exists():
            if time.monotonic() > end:
                return 0.0
            time.sleep(0.01)
        return 1.0

    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    close_shared_runners()
    monkeypatch.setenv("GRPO_VERIFIERS_WORKERS", "2")
    try:
        parts = [get_verifier(meet, timeout=60.0, mine=a, other=b) for a, b in ((one, two), (two, one))]
        pending = [part.start(None, ["x"]) for part in parts]
        # Each waits for the other: asked one after the other, both would score 0.
        assert [one.result()[0].score for one in pending] == [1.0, 1.0]
    finally:
        close_shared_runners()


def test_async_checks_and_threads_share_one_limit():
    running, most = 0, 0

    @verifier("together", max_concurrency=3)
    async def together(completion):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return float(completion)

    pending = [together.start(None, [str(i) for i in range(20)]) for _ in range(2)]
    for one in pending:
        assert [v.score for v in one.result()] == list(range(20))
    assert most == 3

    async def check(completion):
        return 1.0

    for made in (get_verifier(check), get_verifier(same), inline(same)):
        make = type(made)._place.func  # what each of them runs where Python holds no lock over it
        assert make(made) is make(made) is made._place
        assert made.derive()._place is not made._place


@pytest.mark.slow
def test_async_checks_have_deadlines_of_their_own_and_one_that_blocks_loses_itself():
    async def check(completion):
        if completion == "hang":
            await asyncio.sleep(1000)
        if completion == "stubborn":
            while True:
                try:
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.5)
        if completion == "raise":
            raise ValueError("no")
        if completion == "cancel":
            raise asyncio.CancelledError
        return "text" if completion == "text" else 1.0

    asked = ["ok", "hang", "stubborn", "raise", "cancel", "text"]
    found = get_verifier(check, timeout=1.0).verify_batch(None, asked)
    assert [v.status.value for v in found] == ["correct", "timeout", "timeout", "error", "error", "error"]
    assert found[3].detail == "ValueError: no"
    assert "returned 'text'" in found[5].detail
    release = threading.Event()

    async def check(completion):
        if completion == "block":
            release.wait(60)
        await asyncio.sleep(0)
        return 1.0

    try:
        found = get_verifier(check, timeout=1.0).verify_batch(None, ["a", "block", "b"])
    finally:
        release.set()
    assert [v.status.value for v in found] == ["correct", "timeout", "correct"]
    assert "blocked the event loop" in found[1].detail
    assert get_verifier(check).verify("again").score == 1.0


def test_batch_functions_get_lists_of_texts_and_columns():
    def check(completions, prompts, answer, *, bonus: int = 0):
        assert all(isinstance(text, str) for text in completions)
        return [Verdict(float(c == a) + bonus, detail=p) for c, a, p in zip(completions, answer, prompts, strict=True)]

    for isolation in ("process", "inline"):
        made = get_verifier(verifier(f"batch_{isolation}", isolation=isolation)(check), bonus=1)
        found = made.verify_batch(["p", "q"], [chat(("assistant", "4")), "5"], answer=["4", "4"])
        assert [(v.score, v.detail) for v in found] == [(2.0, "p"), (1.0, "q")]


def test_metrics_and_reasons_go_where_trl_takes_them_with_interpolated_percentiles():
    def check(completion):
        if completion == "raise":
            raise ValueError("why")
        return {"right": 1.0, "half": 0.5, "wrong": 0, "n/a": None}[completion]

    extra, metrics = {}, {}
    made = inline(check, label="mine")
    logs = {"log_extra": extra.__setitem__, "log_metric": metrics.__setitem__}
    more = {"trainer_state": object(), "environments": [object()] * 5}
    scores = made(["p"] * 5, ["right", "half", "wrong", "n/a", "raise"], [[1]] * 5, **logs, **more)
    assert scores == [1.0, 0.5, 0.0, None, 0.0]
    assert extra["mine_status"] == ["correct", "partial", "wrong", "not_applicable", "error"]
    assert (extra["mine_reason"][4], metrics["verifiers/mine/mean"]) == ("ValueError: why", 0.375)
    assert (metrics["verifiers/mine/status/correct"], metrics["verifiers/mine/status/timeout"]) == (0.2, 0.0)
    assert 0 <= metrics["verifiers/mine/latency_p50"] <= metrics["verifiers/mine/latency_p95"]
    assert (percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([1.0], 0.95)) == (2.5, 1.0)
    assert percentile(list(range(101)), 0.95) == 95


def test_verifiers_travel_or_are_refused():
    inner = get_verifier("exact", timeout=3.0)
    around = lambda completion, answer: inner.verify(completion, answer=answer).score  # noqa: E731 - a closure travels
    for check, options in [("exact", {}), (same, {"bonus": 2}), (around, {})]:
        made = get_verifier(check, label="e", **options)
        twin = pickle.loads(pickle.dumps(made))
        assert (twin.__name__, twin.describe()) == ("e", made.describe())
        assert twin.verify("4", answer="4") == made.verify("4", answer="4")
    lock = threading.Lock()

    def check(completion):
        with lock:
            return 1.0

    with pytest.raises(KeywordError, match=r'cannot be sent to a worker.*isolation="inline"'):
        get_verifier(check)
    assert inline(check).verify("x").score == 1.0
    with pytest.raises(VerifierError, match=r"its argument 'answer' is a .*lock.* cannot be sent"):
        get_verifier(same).verify("x", answer=threading.Lock())
    pending = get_verifier(same).start(None, ["a", "b"], answer=["a", "a"])
    assert (pending.result(), len(pending.seconds)) == (pending.result(), 2)
    assert all(second >= 0 for second in pending.seconds)
    failing = get_verifier(raises, on_error="raise").start(None, ["x"])
    for _ in range(2):
        with pytest.raises(VerifierFailedError):
            failing.result()


UNGUARDED = """
import os, sys
print("started", flush=True)
OFFSET = 10
def helper(n):
    return n + OFFSET
from grpo_verifiers import get_verifier, verifier
@verifier("mine")
def mine(completion, answer):
    return helper(len(completion)) + answer
print(mine(["p"] * 3, ["a", "bb", "ccc"], None, answer=[1, 2, 3]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("stdin", [False, True], ids=["script", "stdin"])
def test_an_unguarded_script_is_not_run_again_by_workers(script, python, stdin):
    done = python("-", input=UNGUARDED) if stdin else script(UNGUARDED)
    assert done.stdout.splitlines() == ["started", "[12.0, 14.0, 16.0]"], done.stderr


def test_files_and_plugins_are_found_and_imported_in_workers_too(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from grpo_verifiers import verifier\nTABLE = {'a': 2.0}\ndef plain(completion): return TABLE[completion]\n"
        "@verifier('decorated_in_file')\ndef decorated(completion): return plain(completion) + 1\n"
        "def make(n):\n    def closure(completion): return plain(completion) + n\n    return closure\nclosure = make(5)\n"
    )
    for name, score in [("plain", 2.0), ("decorated", 3.0), ("closure", 7.0)]:
        made = get_verifier(f"./mine.py:{name}", base=tmp_path)
        assert made.verify("a").score == pickle.loads(pickle.dumps(made)).verify("a").score == score
    assert get_verifier("decorated_in_file").verify("a").score == 3.0
    with pytest.raises(ImportError, match=r"mine.py:plian'.*Did you mean 'plain'"):
        get_verifier("./mine.py:plian", base=tmp_path)
    source = "from grpo_verifiers import verifier\n@verifier('{0}')\ndef check(completion): return {1}\n"
    for name, score in (("one", 5.0), ("two", 7.0)):
        (tmp_path / f"{name}.py").write_text(source.format(f"{name}_of_a_plug_in", score))
    plugins = load_plugins(["./one.py", "./two.py"], base=tmp_path)

    def outer(completion):
        return get_verifier(f"{completion}_of_a_plug_in").verify("x").score

    assert get_verifier(outer, plugins=plugins)(None, ["one", "two"]) == [5.0, 7.0]


@pytest.mark.slow
def test_a_notebook_cell_can_be_checked_and_run_again(tmp_path):
    pytest.importorskip("ipykernel")
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    cell = (
        "from grpo_verifiers import verifier\nbonus = N\n@verifier('in_cell')\n"
        "def check(completion, answer): return len(completion) + answer + bonus\nprint(check(['p'], ['abc'], answer=[1]))\n"
    )
    try:
        for n in (1, 2):  # the second time the name is registered again, from another cell
            contents = []
            client.execute_interactive(cell.replace("N", str(n)), timeout=90, output_hook=contents.append)
            assert f"[{4.0 + n}]" in str(contents)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


# What must not be imported by a program.
LIGHT = {
    "torch|trl|numpy|asyncio|inspect|math_verify": "import grpo_verifiers",
    "torch|trl|math_verify|sympy": "from grpo_verifiers import get_verifier as v; v('math'), v('exact')",
    "torch|trl|verifiers": "from grpo_verifiers import get_verifier\n"
    "def check(completions, **kwargs): return [1.0]\nget_verifier(check)",
    r"torch|ssl|jsonschema|.*(text|judge)\._.*": "import grpo_verifiers.text, grpo_verifiers.judge\n"
    "from grpo_verifiers.verifying import REGISTRY; REGISTRY.names()",
    "torch|sympy|math_verify|latex2sympy2_extended|mpmath|antlr4": "from grpo_verifiers.math import math as check, check_golds\n"
    r"assert check('so \\boxed{\\frac{1}{2}}', '0.5').score == 1 and check_golds(['1', 'x^2']).ok"
    "\nimport math; assert math.isclose(math.pi, 3.14159265, rel_tol=1e-6)",
    "torch|trl|transformers": "from grpo_verifiers import get_verifier\n"
    "from grpo_verifiers.steps import segment, step_verdict\n"
    "assert get_verifier('prm', model='a/b', style='shepherd').gives_steps\n"
    r"assert get_verifier('math_steps').verify('3+4=7\n3+4=8').score == 0.0",
}


@pytest.mark.slow
@pytest.mark.parametrize("heavy", LIGHT)
def test_nothing_heavy_is_imported_before_it_is_used(python, heavy):
    done = python(f"import sys\n{LIGHT[heavy]}\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert [name for name in done.stdout.split() if re.fullmatch(heavy, name)] == []


def test_equal_questions_to_a_pure_check_are_asked_once(tmp_path):
    log = tmp_path / "asked"

    def check(completion, *, log: str):
        with Path(log).open("a") as file:
            file.write("x")
        return float(completion)

    plain = get_verifier(check, log=str(log))
    pure = plain.derive()
    pure.traits = replace(plain.traits, pure=True)
    assert (pure(None, ["1", "2", "1", "1", "2"]), log.read_text()) == ([1.0, 2.0, 1.0, 1.0, 2.0], "xx")
    plain(None, ["2", "2"])
    assert log.read_text() == "xxxx"


def _raises(*_args, **_given):
    raise RuntimeError("its own fault")


class _EqualToNothing:
    __hash__ = None

    def __eq__(self, other):
        raise ValueError("no comparison")


def test_looks_at_options_and_golds_that_do_not_work_are_problems_in_words():
    raised = r"raised RuntimeError\('its own fault'\)"
    for problems, said in [
        (_raises, raised), (lambda **_: None, "gave None, expected a list of texts"),
        (lambda **_: "k is odd", "gave 'k is odd', expected a list of texts"), (lambda **_: [1], r"gave \[1\], expected a list of texts"),
    ]:  # fmt: skip
        verifier("mine", option_problems=problems)(lambda completion, *, k=1: 1.0)
        with pytest.raises(KeywordError, match=f"option_problems {said}"):
            get_verifier("mine", k=2)
    for declared, said in [
        ({"golds": _raises}, f"golds {raised}"), ({"golds": lambda *_, **__: 3}, "golds gave 3, expected a report or None"),
        ({"trials": _raises}, f"trials {raised}"), ({"trials": lambda **_: None}, "trials raised TypeError"), ({"trials": lambda **_: "ab"}, "'a' is not a Trial"),
    ]:  # fmt: skip
        made = verifier("mine", isolation="inline", **declared)(lambda completion, answer: 1.0)
        report = made.check_golds({"answer": ["1", "2"]})
        assert not report.ok, said
        (line,) = report.lines()
        assert re.search(f"the golds were not checked: .*{said}", line)
