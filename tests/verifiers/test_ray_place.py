"""`isolation: ray` as far as it needs no Ray: what is refused, what travels, and what is read of what comes back."""

import json
import math
import os
import pickle
import re
import site
import sys
import types
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

import grpo_verifiers
from grpo_verifiers import get_verifier
from grpo_verifiers.code import levels
from grpo_verifiers.errors import KeywordError, VerifierError
from grpo_verifiers.exec.batch import pack
from grpo_verifiers.exec.isolation import ELSEWHERE
from grpo_verifiers.exec.outcome import InvalidRow, Outcome
from grpo_verifiers.exec.runner import Runner, shared_runner
from grpo_verifiers.exec.spec import by_value, make_spec
from grpo_verifiers.exec.wire import MAX_REPLY, WireError
from grpo_verifiers.math import math as built_in
from grpo_verifiers.ray.bridge import actor_size, room
from grpo_verifiers.ray.runner import RayRunner
from grpo_verifiers.ray.station import Station, pack_outcome, read_fields, unpack_outcome
from grpo_verifiers.redaction import remember
from grpo_verifiers.verdict import Step, Verdict
from tests.waiting import comes


def check(completion, answer=None):
    if completion == "raise":
        raise ValueError("not this one")
    return float(completion)


async def later(completion):
    return float(completion)


def with_trainer(completion, trainer_state):
    return 1.0


@pytest.fixture
def ray_there(monkeypatch):
    """Ray as far as looking for it goes: it is neither imported nor asked."""
    found = types.ModuleType("ray")
    found.__spec__ = ModuleSpec("ray", None, origin="ray/__init__.py")
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


class Other:
    """Another way to other machines, as an installed package would bring it."""

    closed = False
    problem = staticmethod(lambda: "")

    def close(self):
        pass


class Closed:
    problem = staticmethod(lambda: "not today")


@pytest.fixture
def others():
    for name, kind in (("other", Other), ("closed", Closed)):
        ELSEWHERE.register(name, kind)
    yield
    for name in ("other", "closed"):
        ELSEWHERE.unregister(name)


def problem(what, **settings):
    with pytest.raises(KeywordError) as raised:
        get_verifier(what, isolation=settings.pop("isolation", "ray"), **settings)
    return str(raised.value)


def test_one_file_imports_ray_and_without_it_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "which needs the package ray: pip install 'ray>=2.40'" in problem(check)
    package = Path(grpo_verifiers.__file__).parent
    sources = {path.relative_to(package).as_posix(): path.read_text(encoding="utf-8") for path in package.rglob("*.py")}
    importing = [name for name, text in sources.items() if re.search(r"^\s*(import|from) ray\b", text, re.MULTILINE)]
    assert importing == ["ray/bridge.py"]
    assert not [name for name, text in sources.items() if re.search(r"import.*ray\.bridge|ray\.bridge import", text)]


def test_what_cannot_run_there_is_refused_in_words_before_ray_is_imported(ray_there, monkeypatch):
    lock = __import__("threading").Lock()
    assert "only waits for a server" in problem("judge", model="m", base_url="http://localhost:1/v1", rubric="r")
    assert "needs 'trainer_state'" in problem(with_trainer)
    assert "cannot be sent to a worker process" in problem(lambda completion: lock)
    assert "for boxes of its own" in problem("code", isolation="process")
    assert "There is: inline, process, ray." in problem(check, isolation="cloud")
    monkeypatch.setattr(levels, "probe", lambda highest: levels.Findings("none", {}))
    assert "the highest that works here is 'none'" in problem("code", isolation="inline", level="full")
    assert get_verifier("code", isolation="ray", level="full").check() == []
    assert "highest ('process') is below level ('full')" in problem("code", level="full", highest="process")
    monkeypatch.setenv("RAY_ADDRESS", "ray://host:10001")
    assert "Ray's client is not supported" in problem(check)


def test_another_way_to_other_machines_is_found_by_its_name(others):
    assert get_verifier(check, isolation="other").spec.target == ""
    assert "not today" in problem(check, isolation="closed")
    assert "There is: closed, inline, other, process, ray." in problem(check, isolation="cloud")
    assert type(shared_runner("other")) is Other


@pytest.mark.parametrize(
    ("name", "value"),
    [("PATIENCE", "0"), ("PATIENCE", "nan")],
)
def test_a_setting_that_is_none_is_named_when_the_config_is_built(ray_there, monkeypatch, name, value):
    monkeypatch.setenv(f"GRPO_VERIFIERS_RAY_{name}", value)
    assert f"GRPO_VERIFIERS_RAY_{name} is {value!r}, expected" in problem(check)


def test_functions_of_every_form_are_let_in_and_ray_is_not_imported(ray_there):
    for what in (check, later, lambda completions: [1.0] * len(completions), "math", "regex", "code"):
        made = get_verifier(what, isolation="ray", **({"pattern": "a"} if what == "regex" else {}))
        assert made.isolation == "ray"
    assert not hasattr(sys.modules["ray"], "init")
    assert get_verifier("code", isolation="ray").spec.boxes == 4096
    assert get_verifier("math", isolation="ray").spec.confined


def test_what_travels_by_value_changes_nothing_and_specs_are_told_apart(tmp_path, monkeypatch):
    assert make_spec(check).target
    here = make_spec(check, elsewhere=True, plugins=(str(tmp_path / "mine.py"), "json"))
    assert (here.target, here.plugins, here.load()("2")) == ("", ("json",), 2.0)
    assert make_spec(built_in, elsewhere=True, confined=True).target == "grpo_verifiers.math:math"
    assert make_spec(json.dumps, elsewhere=True).target == "json:dumps"
    import cloudpickle

    beside, users = types.ModuleType("beside_it"), types.ModuleType("registered_by_its_user")
    for module in (beside, users):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(users)
    try:
        for along, refused in (([beside, users, beside], False), ([beside, users, types.ModuleType("nowhere")], True)):
            with pytest.raises(VerifierError, match=r"cannot be sent to .*nowhere") if refused else nullcontext():
                by_value(check, along)
            assert cloudpickle.list_registry_pickle_by_value() == {users.__name__}
    finally:
        cloudpickle.unregister_pickle_by_value(users)
    ways = ({}, {"confined": True}, {"memory": 1}, {"env": ("A",)}, {"boxes": 1})
    assert len({make_spec(check, **way).identity for way in ways}) == 5


@pytest.mark.slow
def test_processes_of_ours_find_this_package_and_no_site_folder_before_the_standard_library(monkeypatch, tmp_path):
    own = str(Path(grpo_verifiers.__file__).resolve().parents[1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["beside", "", "/far"]))
    given = [f"{tmp_path}/beside", "/far"]
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    for sites, expected in (([], [own, *given]), ([own], given)):
        monkeypatch.setattr(site, "getsitepackages", lambda sites=sites: sites)
        ray, here = RayRunner(), Runner(1)
        try:
            for runner in (ray, here):
                runner.warm(make_spec(check))
                assert comes(runner.pids)
                environ = Path(f"/proc/{runner.pids()[0]}/environ").read_text().split("\0")
                assert dict(each.split("=", 1) for each in environ if each)["PYTHONPATH"] == os.pathsep.join(expected)
        finally:
            ray.close()
            here.close()


@pytest.mark.slow
def test_what_waits_when_its_runner_closes_has_an_outcome(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    runner = RayRunner()
    batches = [runner.submit(make_spec(check), [("1", {}, None)] * 3, 10.0) for _ in range(20)]
    assert comes(runner.pids)
    runner.close()
    assert {outcome.kind for batch in batches for outcome in batch.wait(0)} == {"broken"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_link_that_fails_while_its_runner_fails_leaves_nobody_waiting(monkeypatch, ray_there):
    def full(self, *_):
        raise MemoryError

    runner = RayRunner()
    cluster = runner._running()
    monkeypatch.setattr(cluster, "_link", SimpleNamespace(queue=full))
    batches = [runner.submit(make_spec(check), [("1", {}, None)] * 3, 10.0) for _ in range(3)]
    assert {outcome.kind for batch in batches for outcome in batch.wait(60)} == {"broken"}


def read(body, rows=None):
    return unpack_outcome(json.loads(body), rows)


RIGHT = [1.0, "correct", "", []]


def test_what_comes_back_is_the_outcome_that_was_sent_or_refused():
    for outcome, rows in [
        (Outcome("value", [Verdict(0.5, detail="ü", steps=(Step(0, 4, 1.0), Step(4, 9, None)))], seconds=1.5), None),
        (Outcome("value", [Verdict(None), InvalidRow("TypeError: no"), Verdict(-3.0)], seconds=0.0), 3),
        (Outcome("timeout", message="killed after 2 s", seconds=2.0), None),
        (Outcome("raised", message="ValueError: x", trace="Traceback\n  x", seconds=0.1), None),
        (Outcome("broken", message="no", seconds=0.0), 4),
    ]:
        assert read(pack_outcome(outcome), rows) == outcome
    for reply in [
        *({}, {"s": 0.0}, {"s": 0.0, "v": []}, {"s": 0.0, "v": [RIGHT] * 2}, {"s": 0.0, "v": [[1.0, "fine", "", []]]}),
        *({"s": seconds, "v": [RIGHT]} for seconds in (-1, True, math.inf, 10**400)),
        *({"s": 0.0, "v": [[1e400, "correct", "", []]]}, {"s": 0.0, "k": "value"}, {"s": 0.0, "k": ["raised"]}),
        {"s": 0.0, "k": "paid", "w": "", "t": ""},
    ]:
        with pytest.raises(WireError):
            unpack_outcome(reply, None)
    for body in [None, "{}", b"", b"[1]", b"\xff", b"[" * 10**6, b'{"s":' + b"1" * 5000 + b"}", b" " * (9 << 20)]:
        with pytest.raises(WireError):
            read_fields(body)
    remember("sk-journey-0123456789abcdefghij")
    told = {"s": 0.0, "k": "raised", "w": "key sk-journey-0123456789abcdefghij " * 1000, "t": "t" * 10**6}
    outcome = unpack_outcome(told, None)
    assert "sk-journey" not in outcome.message
    assert len(outcome.message) <= 2000
    assert len(outcome.trace) <= 4100
    for sizes, ranks, cpus, each in [
        *(([16.0] * 3, 8, 5, 1), ([6.0, 6.0], 3, 3, 1), ([3.0] * 3, 4, 1, 2), ([1.0, 1.0], 3, 0.5, 1)),
        *(([64.0, 64.0], 1, 8, 16), ([4.0, 64.0], 2, 4, 8)),
    ]:
        assert (actor_size(sizes, ranks), room(sizes, cpus) // ranks) == (cpus, each)


@pytest.mark.slow
def test_a_result_that_is_too_large_is_an_error_of_its_own():
    steps = tuple(Step(place, place + 1, 0.123456789) for place in range(10_000))
    outcome = read(pack_outcome(Outcome("value", [Verdict(1.0, detail="x" * 2000, steps=steps)] * 40)), 40)
    assert outcome.kind == "raised"
    assert "too large" in outcome.message


def test_a_station_answers_in_bytes_whatever_happens(monkeypatch):
    monkeypatch.setenv("GRPO_VERIFIERS_WORKERS", "1")
    station = Station(1)
    try:
        spec = pickle.dumps(make_spec(check, elsewhere=True))
        replies = [
            station.hello(),
            good := station.run("k", spec, pack(("2", {}, None)), 10.0, None),
            raised := station.run("k", spec, pack(("raise", {}, None)), 10.0, None),
            broken := station.run("other", b"no pickle", b"", 10.0, None),
            unread := station.run("k", spec, b"no pickle", 10.0, None),
        ]
    finally:
        station._runner.close()
    assert all(type(reply) is bytes and len(reply) <= MAX_REPLY for reply in replies)
    assert (read(good).verdicts, read(raised).message) == ([Verdict(2.0)], "ValueError: not this one")
    assert (read(broken).kind, read(unread).kind) == ("broken", "raised")
    assert json.loads(station.hello())["pid"] == os.getpid()
