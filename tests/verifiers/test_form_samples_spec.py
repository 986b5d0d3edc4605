"""How a call is made of a function and a batch: forms, arguments, columns, references, places, and what comes of it."""

import functools
import json
import sys
import threading
import types
from types import SimpleNamespace

import pytest

from grpo_verifiers.errors import ColumnError, KeywordError, VerifierError
from grpo_verifiers.exec import spec, wire
from grpo_verifiers.exec.form import Form, arguments, form_of
from grpo_verifiers.exec.outcome import InvalidRow
from grpo_verifiers.exec.samples import Samples, completion_text
from grpo_verifiers.exec.spec import CheckSpec, make_spec, reference_to
from grpo_verifiers.turns import Turn
from grpo_verifiers.verdict import Verdict

FORMS = [
    (lambda completion: 1, {"first": "completion"}), (lambda text, answer, hint=1, *, option=2, prompt, messages=(): 1, {"first": "text", "columns": {"answer": True, "hint": False}, "options": ("option",), "reserved": ("prompt", "messages")}),
    (lambda completions, answer: 1, {"first": "completions", "batch": True, "columns": {"answer": True}}), (lambda prompts, completions, **rest: 1, {"first": "completions", "batch": True, "by_name": True, "reserved": ("prompts",), "open": True}),
    (lambda **rest: 1, {"first": "completions", "batch": True, "by_name": True, "open": True}), (lambda completion, prompts, **rest: 1, {"first": "completion", "columns": {"prompts": True}, "open": True}), (lambda completion, log_extra=None, *, log_metric, trainer_state, environments=0: 1, {"first": "completion", "logs": ("log_extra",), "extras": ("log_metric", "trainer_state", "environments")}),
    (lambda x, *more, completion_ids, turns, turn_spans, completion_text: 1, {"first": "x", "reserved": ("completion_ids", "turns", "turn_spans", "completion_text")}), (lambda *, completions: 1, {"first": "completions", "batch": True, "by_name": True}), (lambda x, /, y: 1, {"first": "x", "columns": {"y": True}}),
]  # fmt: skip
EMPTY = {"batch": False, "by_name": False, "columns": {}, "options": (), "reserved": (), "extras": (), "logs": (), "open": False, "is_async": False}  # fmt: skip


class Later:
    async def __call__(self, completion):
        return 1

    async def method(self, completion):
        return 1


def test_a_signature_is_read_once_for_all_calls():
    for fn, parts in FORMS:
        assert form_of("n", fn) == Form(**{**EMPTY, **parts}), parts
    asynchronous = (Later(), Later().method, functools.partial(Later().method), functools.partial(Later()))
    assert [form_of("n", fn).is_async for fn in (*asynchronous, len_of)] == [True, True, True, True, False]
    for fn, said in (
        (lambda: 1, "takes no completion"), (lambda *, a: 1, "takes no completion"), (lambda prompt: 1, "the first parameter of .* is 'prompt'"), (lambda a, completion: 1, "has the parameter 'completion', but 'a' before it"),
        (lambda a, b, /: 1, "parameter 'b' of .* cannot be passed by name"), (lambda a, *, timeout: 1, "the option 'timeout' of"), (5, "has no signature"), (lambda prompts, completions, /: 1, "cannot be passed by name|completions"),
    ):  # fmt: skip
        with pytest.raises(KeywordError, match=said):
            form_of("n", fn)


def len_of(completion):
    return len(completion)


def test_arguments_are_taken_from_columns_options_and_the_sample():
    chat = [{"role": "assistant", "content": "b"}]
    samples = Samples.of("l", ["p", "q"], ["a", chat], [[1], [2]], {"answer": ["x", "y"], "gold": [1, 2], "log_extra": "L", "level": [3, 4], "trainer_state": "T"})  # fmt: skip
    made = functools.partial(arguments, raw=False, inline=False)
    form = form_of("n", lambda completion, answer, gold=0, *, weight=1, prompt, trainer_state, log_extra=None: 1)
    rows = made(form, samples, {"answer": "gold"}, {"weight": 5})
    assert rows == [("a", {"answer": 1, "gold": 1, "prompt": "p", "trainer_state": "T", "weight": 5}, None), ("b", {"answer": 2, "gold": 2, "prompt": "q", "trainer_state": "T", "weight": 5}, None)]  # fmt: skip
    assert arguments(form, samples, {}, {"gold": 9}, raw=True, inline=True)[1] == (chat, {"answer": "y", "gold": 9, "prompt": "q", "trainer_state": "T", "log_extra": "L"}, None)  # fmt: skip
    several = form_of("n", lambda completions, answer, prompts: 1)
    assert made(several, samples, {}, {}) == [(["a", "b"], {"answer": ["x", "y"], "prompts": ["p", "q"]}, 2)]
    assert made(several, Samples.of("l", [], [], None, {"answer": []}), {}, {}) == []
    kwargs = form_of("n", lambda **rest: 1)
    ((first, rest, count),) = arguments(kwargs, samples, {"g": "gold"}, {}, raw=True, inline=False)
    assert (first, count) == (["a", chat], 2)
    assert rest == {"completions": ["a", chat], "prompts": ["p", "q"], "completion_ids": [[1], [2]], "answer": ["x", "y"], "gold": [1, 2], "level": [3, 4], "g": [1, 2]}  # fmt: skip
    ((_, rest, _),) = made(kwargs, samples, {}, {})
    assert sorted(rest) == ["answer", "completions", "gold", "level"]
    single = form_of("n", lambda completion, **rest: 1)
    assert [sorted(one[1]) for one in made(single, samples, {}, {"level": 0})] == [["answer", "gold", "level"]] * 2
    assert made(single, samples, {}, {"level": 0})[0][1]["level"] == 0
    with pytest.raises(ColumnError, match="needs the column 'none'"):
        made(form_of("n", lambda completion, none: 1), samples, {}, {})


def test_a_batch_has_one_entry_for_each_completion():
    turn = Turn("a!", 0, 2)
    samples = Samples.of("l", None, ["a", "b"], None, {"text": "ab", "map": {"a": 1, "b": 2}, "ok": (1, 2), "short": [1], "none": None, "completion_text": ["a!", "b!"], "turns": [[turn], "x"], "number": 5, "bytes": b"ab"})  # fmt: skip
    assert (sorted(samples.columns), sorted(samples.extras), len(samples), samples.prompts) == (["completion_text", "ok", "turns"], ["bytes", "map", "none", "number", "short", "text"], 2, [None, None])  # fmt: skip
    picked = samples.pick([1])
    assert (picked.completions, picked.columns["ok"], picked.prompts, picked.completion_ids, picked.label) == (["b"], [2], [None], None, "l")  # fmt: skip
    assert Samples.of("l", None, ["a"], [[7]], {}).pick([0, 0]).completion_ids == [[7], [7]]
    names = ("prompt", "messages", "completion_ids", "completion_text", "turns", "turn_spans")
    spoken = [{"role": "assistant", "content": "a"}]
    assert [samples.reserved(name, 0) for name in names] == [None, spoken, None, "a!", (turn,), [turn.span]]
    assert samples.reserved("turn_spans", 1) is None
    assert [(one.start, one.end) for one in samples.turns(1)] == [(0, 2)]
    assert Samples.of("l", ["p"], ["abc"], [[5]], {}).reserved("completion_text", 0) == "abc"
    assert Samples.of("l", ["p"], ["abc"], [[5]], {}).reserved("completion_ids", 0) == [5]
    assert [(one.start, one.end) for one in Samples.of("l", None, ["abc"], None, {}).turns(0)] == [(0, 3)]
    logged = Samples.of("l", None, ["a"], None, {"log_extra": print, "log_metric": None}).without_logs()
    assert (logged.extras["log_extra"]("x", [1]), logged.extras["log_metric"]) == (None, None)
    assert completion_text([{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]) == "a"
    assert (completion_text([{"role": "user", "content": "b"}]), completion_text("x")) == ("", "x")
    for wrong in ("abc", 5, [5], [b"a"], [["x"]]):
        with pytest.raises(TypeError):
            Samples.of("l", None, wrong, None, {})
    for prompts, ids in ((["p"], None), (None, [[1]])):
        with pytest.raises(ValueError, match=r"1 (prompts|completion_ids) for 2 completions"):
            Samples.of("l", prompts, ["a", "b"], ids, {})
    with pytest.raises(ColumnError, match=r"column 'short' is .*expected a list with one value for each of the 2"):
        samples.column("short", "short")
    with pytest.raises(ColumnError, match=r"needs the column 'okk' \(its parameter 'p'\): unknown column 'okk'. Did you mean 'ok'\? There is: completion_text, ok, turns"):  # fmt: skip
        samples.column("okk", "p")
    with pytest.raises(ColumnError, match=r"There is: nothing\. Rename"):
        Samples.of("l", None, ["a"], None, {"log_extra": 1}).column("log_extra", "p")


def test_a_function_is_referred_to_where_a_fresh_process_finds_it(tmp_path, monkeypatch):
    assert reference_to(len_of) == f"{__name__}:len_of"
    assert reference_to(Later.method) == f"{__name__}:Later.method"
    assert [reference_to(fn) for fn in (lambda: 1, functools.partial(len_of), 5)] == [None] * 3
    made_up = types.ModuleType("made_up_module")
    exec("def f(completion): return 1", made_up.__dict__)
    monkeypatch.setitem(sys.modules, "made_up_module", made_up)
    assert reference_to(made_up.f) is None
    (tmp_path / "found_module.py").write_text("def f(completion): return 1\ndef g(completion): return f(completion)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = __import__("found_module")
    assert reference_to(found.f) == "found_module:f"
    monkeypatch.setattr(found, "f", SimpleNamespace(fn=found.f))
    assert reference_to(found.f.fn) == "found_module:f"
    assert make_spec(found.f.fn).load() is found.f.fn
    monkeypatch.setattr(found, "__file__", str(tmp_path / "other.py"))
    assert reference_to(found.g) is None
    monkeypatch.undo()
    (tmp_path / "link.py").symlink_to(tmp_path / "found_module.py")
    assert [spec._same(str(tmp_path / name), str(tmp_path / "found_module.py")) for name in ("found_module.py", "link.py", "none")] == [True, True, False]  # fmt: skip
    assert [spec._same("/none", other) for other in ("/none", "/nowhere")] == [True, False]
    one = CheckSpec("a:b", b"p", ("x",), True, 5, ("E", "F"), 3)
    assert one.identity == f"{one.key} True 5 3 E F"
    changed = [CheckSpec("a:c", b"p", ("x",)), CheckSpec("a:b", b"q", ("x",)), CheckSpec("a:b", b"p", ("x", "y")), CheckSpec("a:b", b"p", ("x",), True, 5)]  # fmt: skip
    assert [each.key == one.key for each in changed] == [False, False, False, True]
    by_value = make_spec(lambda completion: len(completion) + 1)
    assert (by_value.target, bool(by_value.payload), by_value.load()("abc")) == ("", True, 4)
    monkeypatch.setattr(spec, "MAX_PAYLOAD", len(by_value.payload))
    assert make_spec(lambda completion: len(completion) + 1).payload
    monkeypatch.setattr(spec, "MAX_PAYLOAD", 10)
    with pytest.raises(VerifierError, match=r"carries 0 MiB \(at most 0\)"):
        make_spec(lambda completion: 1)
    monkeypatch.undo()
    lock = threading.Lock()
    with pytest.raises(VerifierError, match=r"cannot be sent to a worker process: TypeError.*isolation=\"inline\""):
        make_spec(lambda completion: lock)
    assert [spec._installed(sys.modules[name]) for name in ("json", "pytest", "sys", "grpo_verifiers", __name__)] == [True, True, True, True, False]  # fmt: skip
    assert spec._installed(None) is False
    (tmp_path / "plugged.py").write_text("import sys\nsys.plugged = True\ndef f(completion): return 1\n")
    assert CheckSpec("json:dumps", plugins=(str(tmp_path / "plugged.py"),)).load() is json.dumps
    assert sys.__dict__.pop("plugged") is True
    package = types.ModuleType("pack_age")
    package.__path__ = []
    for name in ("pack_age", "pack_age.part"):
        module = package if name == "pack_age" else types.ModuleType(name)
        module.__file__ = str(tmp_path / "pack_age.py")
        monkeypatch.setitem(sys.modules, name, module)
        assert spec._neighbours(SimpleNamespace(__module__=name)) == [package]
    beside = types.ModuleType("be_side")
    beside.__file__ = str(tmp_path / "be_side.py")
    monkeypatch.setitem(sys.modules, "be_side", beside)
    assert set(spec._neighbours(SimpleNamespace(__module__="be_side"))) >= {beside}
    assert [spec._neighbours(SimpleNamespace(__module__=name)) for name in ("none", "sys")] == [[], []]
    away = make_spec(len_of, elsewhere=True)
    assert (away.target, away.load()("abc")) == ("", 3)
    assert make_spec(json.dumps, elsewhere=True).target == "json:dumps"


def test_rows_on_the_wire_are_bounded_and_read_as_a_strangers():
    for value, row in ((True, 1.0), (3, 3.0), (None, None)):
        assert wire.to_rows(value, None)[0][0] == row
    most = wire.MAX_REPLY
    reply = {"id": 1, "s": 0.0, "v": "x" * (most - 24)}
    fits = json.dumps({**reply, "v": "x"}, separators=(",", ":"))
    exact = {**reply, "v": "x" * (most - len(fits) + 1)}
    assert len(wire.pack_reply(exact)) == most + 4
    over = json.loads(wire.pack_reply({**exact, "v": exact["v"] + "x"})[4:])
    assert over["e"]["message"] == f"the result is too large: {most >> 20} MiB, at most {most >> 20}"
    buffer = wire.ReplyBuffer()
    framed = wire.pack_reply({"id": 1, "s": 0.0})
    assert (list(buffer.feed(framed[:3])), list(buffer.feed(framed[3:9])), list(buffer.feed(framed[9:] + framed))) == ([], [], [{"id": 1, "s": 0.0}] * 2)  # fmt: skip
    assert list(wire.ReplyBuffer().feed(most.to_bytes(4, "big"))) == []
    for data, said in (((most + 1).to_bytes(4, "big"), "announced a reply of"), (b"\0\0\0\1{", "not JSON"), (b"\0\0\0\2[]", "not a reply")):  # fmt: skip
        with pytest.raises(wire.WireError, match=said):
            list(wire.ReplyBuffer().feed(data))
    assert [wire.duration_of({"s": each}) for each in (0, 1.5, wire.LONGEST)] == [0.0, 1.5, wire.LONGEST]
    for wrong in ({}, {"s": True}, {"s": -0.1}, {"s": "1"}, {"s": float("nan")}, {"s": wire.LONGEST * 1.01}):
        with pytest.raises(wire.WireError, match="without a duration"):
            wire.duration_of(wrong)
    assert wire.from_rows([[1.0, "correct", "", []], "odd"], 2) == [Verdict(1.0), InvalidRow("odd")]
    for rows in ([], [[1.0, "correct", "", []]], "ab", None, [[1.0], [1.0]], [[1.0, "correct", "", [1]], "x"]):
        with pytest.raises(wire.WireError):
            wire.from_rows(rows, 2)
