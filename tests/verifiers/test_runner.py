"""The runner with checks that misbehave in every way: in real processes, killed for real."""

import ctypes
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from grpo_verifiers import Step, Verdict
from grpo_verifiers.exec.runner import Runner, default_memory, worker_count
from grpo_verifiers.exec.spec import CheckSpec, make_spec
from grpo_verifiers.registry import import_reference
from grpo_verifiers.sandbox.children import socket_pair
from tests.waiting import comes

WAIT = 60.0


@pytest.fixture
def runner():
    with Runner(2) as made:
        yield made


def ask(runner, fn, completions, timeout=10.0, memory=2 << 30, **options):
    spec = make_spec(fn, memory=memory)
    return runner.submit(spec, [(text, options, None) for text in completions], timeout).wait(WAIT)


def kinds(outcomes):
    return [outcome.kind for outcome in outcomes]


def scores(outcomes):
    return [outcome.verdicts[0].score if outcome.verdicts else outcome.kind for outcome in outcomes]


def misbehave(completion, folder=""):
    """What a completion asks for happens, in the worker."""
    if completion == "sleep":
        time.sleep(1000)
    elif completion == "c loop":
        # One C call that never checks for signals of Python: only SIGKILL ends it.
        ctypes.CDLL(None).pause()
    elif completion == "power":
        return len(str(9**9**8))
    elif completion == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif completion == "segfault":
        ctypes.string_at(1)
    elif completion == "exit":
        os._exit(0)
    elif completion == "sys.exit":
        sys.exit(3)
    elif completion == "memory":
        return len(bytearray(8 << 30))
    elif completion == "raise":
        raise RuntimeError("as asked")
    elif completion == "once":
        mark = Path(folder) / "been here"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@pytest.mark.slow
def test_each_misbehaviour_costs_only_its_own_item(runner, tmp_path):
    asked = ["ok", "sleep", "ok", "killed", "raise", "ok", "exit", "memory", "sys.exit", "once", "segfault", "ok"]
    found = ask(runner, misbehave, asked, timeout=2.0, folder=str(tmp_path))
    by_name = dict(zip(asked, found, strict=True))
    ends = {"sleep": "timeout", "raise": "raised", "sys.exit": "raised"}
    ends |= dict.fromkeys(("killed", "exit", "memory", "segfault"), "died")
    assert kinds(found) == [ends.get(name, "value") for name in asked]
    assert "signal 9" in by_name["killed"].message
    assert "code 0" in by_name["exit"].message
    assert [word for word in ("memory", "2048 MiB") if word not in by_name["memory"].message] == []
    assert "signal 11" in by_name["segfault"].message
    assert by_name["raise"].message == "RuntimeError: as asked"
    assert by_name["raise"].trace.rstrip().endswith("RuntimeError: as asked")
    assert "_worker.py" not in by_name["raise"].trace
    assert by_name["sys.exit"].message == "SystemExit: 3"


@pytest.mark.slow
@pytest.mark.parametrize("completion", ["c loop", "power"])
def test_code_that_ignores_signals_and_holds_the_gil_is_killed_at_its_deadline(runner, completion):
    (outcome,) = ask(runner, misbehave, [completion], timeout=0.5)
    assert outcome.kind == "timeout"


@pytest.mark.slow
def test_clocks_start_with_items_and_not_with_queues_or_loading(tmp_path):
    def slow(completion):
        time.sleep(0.4)
        return float(completion)

    with Runner(1) as runner:
        # Eight items of 0.4 s wait for one worker: the last waits 2.8 s, longer than any may run.
        found = ask(runner, slow, [str(i) for i in range(8)], timeout=2.5)
    assert scores(found) == list(range(8))
    slow_import = tmp_path / "slow_to_import.py"
    slow_import.write_text("import time\ntime.sleep(3.0)\ndef check(completion):\n    return 1.0\n")
    fn = import_reference(f"{slow_import}:check")
    with Runner(1) as runner:
        assert scores(ask(runner, fn, ["x"], timeout=2.0)) == [1.0]


@pytest.mark.slow
def test_ten_thousand_items_come_back_in_order_and_huge_answers_are_refused(runner):
    def number(completion):
        return int(completion) * 3 + 1

    found = ask(runner, number, [str(i) for i in range(10_000)])
    assert scores(found) == [i * 3 + 1 for i in range(10_000)]

    def huge(completion):
        if completion == "detail":
            return Verdict(1.0, detail="x" * (16 << 20))
        return Verdict(1.0, steps=tuple(Step(i, i + 1, 1.0) for i in range(20_000)))

    def many(completions):
        return [Verdict(1.0, detail="x" * 2000)] * len(completions)

    detail, steps = ask(runner, huge, ["detail", "steps"], timeout=60.0)
    (batch,) = runner.submit(make_spec(many), [(["x"] * 5000, {}, 5000)], 60.0).wait(WAIT)
    assert len(detail.verdicts[0].detail) <= 2000
    assert kinds([steps, batch]) == ["raised", "raised"]
    assert "too many" in steps.message
    assert "too large" in batch.message

    def forge(completion):
        body = completion.encode()
        for fd in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, struct.pack("!I", len(body)) + body)
            except OSError:
                continue
        return 0.0

    other = '{"id":99,"s":0.1,"v":[[1.0,"correct","",[]]]}'
    lies = ["not json", "[]", other, '{"id":2,"s":0.1,"v":"pickle"}', "[" * 50_000]
    assert kinds(ask(runner, forge, lies)) == ["died"] * len(lies)
    assert scores(ask(runner, misbehave, ["ok"])) == [1.0]


def test_items_of_several_batches_and_threads_do_not_mix(runner):
    def echo(completion, tag):
        return Verdict(float(completion), detail=tag)

    found = {}

    def one(tag):
        found[tag] = ask(runner, echo, [str(i) for i in range(200)], tag=tag)

    threads = [threading.Thread(target=one, args=(f"thread {n}",)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for tag, outcomes in found.items():
        assert [o.verdicts[0].score for o in outcomes] == list(range(200))
        assert {o.verdicts[0].detail for o in outcomes} == {tag}
    assert len(found) == 5


@pytest.mark.slow
def test_workers_killed_from_outside_lose_nothing(runner, tmp_path):
    def work(completion, folder):
        with (Path(folder) / f"{os.getppid()} {os.getpid()}").open("a") as file:
            file.write("x")
        time.sleep(0.02)
        return float(completion)

    spec = make_spec(work)
    batch = runner.submit(spec, [(str(i), {"folder": str(tmp_path)}, None) for i in range(300)], 10.0)
    killed = set()
    while not batch._done.is_set() and len(killed) < 4:
        time.sleep(0.1)
        # An item that was lost comes first on its next worker, and is given up if that is lost as well.
        past = {tuple(map(int, path.name.split())) for path in tmp_path.iterdir() if path.stat().st_size > 1}
        alive = set(runner.pids())
        for pids in sorted(pids for pids in past - killed if pids[0] in alive)[:1]:
            os.kill(pids[len(killed) % 2], signal.SIGKILL)  # the keeper, or the worker itself
            killed.add(pids)
    found = batch.wait(WAIT)
    assert len(killed) >= 3
    assert scores(found) == list(range(300))


def test_a_gigabyte_of_output_neither_blocks_nor_mixes_into_the_answers(runner):
    def chatty(completion):
        block = b"\x00\x00\x00\x02{}" * (1 << 17)
        for stream in (1, 2):
            for _ in range(512):
                os.write(stream, block)
        print("x" * 100_000)
        print("y" * 100_000, file=sys.stderr)
        return sys.stdin.read() == ""

    assert scores(ask(runner, chatty, ["a", "b"], timeout=60.0)) == [1.0, 1.0]


NO_SCORES = {"'1.0'": "(str), expected a number", "float('nan')": "finite", "10**400": "finite", "[1.0]": "(list)"}
NO_SCORES |= {"object": "type", "{'score': 1}": "dict"}
SCORES = {"True": 1.0, "None": None, "7": 7.0, "__import__('numpy').float32(0.5)": 0.5}


@pytest.mark.slow
def test_scores_are_named_or_arrive_and_batches_owe_one_for_each_completion(runner):
    found = dict(zip([*NO_SCORES, *SCORES], ask(runner, returns, [*NO_SCORES, *SCORES]), strict=True))
    for value, said in NO_SCORES.items():
        assert found[value].kind == "raised", value
        assert said in found[value].message
    assert {value: found[value].verdicts[0].score for value in SCORES} == SCORES
    (outcome,) = runner.submit(make_spec(lambda completions: [1.0]), [(["a", "b"], {}, 2)], 5.0).wait(WAIT)
    assert (outcome.kind, "2 completions" in outcome.message) == ("broken", True)


def returns(completion):
    """What the completion spells."""
    return eval(completion)


def living(marker):
    """Processes whose command line holds the marker."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if marker in " ".join(process.info["cmdline"] or ()) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def gone(marker):
    return comes(lambda: not living(marker), 10)


def spawn_and(completion, marker):
    """Start a child that outlives its parent as well as it can, then do what the completion says."""
    sleeper = [sys.executable, "-c", f"import time; time.sleep(1000)  # {marker}"]
    if completion.startswith("daemon"):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sleeper[0], sleeper)
            os._exit(0)
        time.sleep(0.1)
    elif completion.startswith("fork"):
        if os.fork() == 0 and os.fork() == 0:
            os.execv(sleeper[0], sleeper)
    else:
        subprocess.Popen(sleeper, start_new_session=True)
    if completion.endswith("hangs"):
        time.sleep(1000)
    if completion.endswith("dies"):
        os._exit(1)
    return 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("end", "kind"), [("returns", "value"), ("hangs", "timeout"), ("dies", "died")])
def test_what_a_check_started_does_not_outlive_its_item(runner, end, kind):
    marker = f"leak-{os.getpid()}-{end}"
    ways = [f"child {end}", f"daemon {end}", f"fork {end}"]
    found = ask(runner, spawn_and, ways, timeout=1.5 if end == "hangs" else 20.0, marker=marker)
    assert kinds(found) == [kind] * 3
    assert gone(marker)


def bomb(completion):
    """Fork two thousand times where a completion wants that: not without end, for nothing here may stop the machine."""
    if completion == "bomb":
        for _ in range(11):
            os.fork()
        time.sleep(600)
    return 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc")
@pytest.mark.slow
def test_a_fork_bomb_is_ended_long_before_its_deadline_and_costs_its_own_completion(runner):
    before = len(psutil.pids())
    found = ask(runner, bomb, ["a", "bomb", "b"], timeout=60.0)
    assert scores(found) == [1.0, "died", 1.0]
    assert "more than 128 processes" in found[1].message
    assert comes(lambda: len(psutil.pids()) < before + 1000)  # other tests may run beside this one


def fork_slowly(completion, marker):
    """Return while a child is inside a fork that takes its time, for all the memory it has to go through."""
    sleeper = [sys.executable, "-c", f"import time; time.sleep(1000)  # {marker}"]
    told, tell = os.pipe()
    if os.fork() == 0:
        block = bytearray(256 << 20)
        block[::4096] = b"x" * len(block[::4096])
        os.write(tell, b"!")
        if os.fork() == 0:
            os.execv(sleeper[0], sleeper)
        os._exit(0)
    os.read(told, 1)
    return 1.0


@pytest.mark.slow
def test_a_fork_that_is_under_way_does_not_escape(runner):
    marker = f"leak-{os.getpid()}-slowly"
    found = ask(runner, fork_slowly, ["x"] * 10, timeout=20.0, marker=marker)
    assert kinds(found) == ["value"] * 10
    assert gone(marker)


def test_the_processes_of_another_namespace_are_let_alone():
    code = """
import os, subprocess, time
from grpo_verifiers.sandbox.inside import proc as _proc
assert os.getpid() == 1 and os.readlink("/proc/self") != "1"
sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
assert not _proc.descendants(1)
_proc.end_descendants(1)
assert sleeper.poll() is None
assert _proc.end_tree(sleeper.pid) == []
assert sleeper.wait(60) == -9
print("fine")
"""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stdout == "fine\n", done.stderr


def test_helpers_started_while_loading_live_as_long_as_the_worker(tmp_path):
    marker = f"helper-{os.getpid()}"
    module = tmp_path / "with_helper.py"
    module.write_text(
        "import subprocess, sys\n"
        f"helper = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)  # {marker}'])\n"
        "def check(completion):\n"
        "    subprocess.Popen(['sleep', '1000'])\n"
        "    return helper.poll() is None\n"
    )
    with Runner(1) as runner:
        spec = CheckSpec(target=f"{module}:check")
        found = runner.submit(spec, [("x", {}, None)] * 3, 10.0).wait(WAIT)
        assert scores(found) == [1.0, 1.0, 1.0]
        assert living(marker)
    assert gone(marker)


def test_closing_leaves_no_process_no_zombie_no_descriptor_and_answers_everyone():
    me = psutil.Process()
    before = {child.pid for child in me.children(recursive=True)}
    descriptors = me.num_fds()
    runner = Runner(2)
    spec = make_spec(misbehave)
    batch = runner.submit(spec, [("sleep", {}, None)] * 5, 100.0)
    while len(runner.pids()) < 2:
        time.sleep(0.02)
    started = runner.pids()
    runner.close()
    runner.close()
    found = batch.wait(1.0)
    assert kinds(found) == ["broken"] * 5
    assert "closed" in found[0].message
    assert not any(psutil.pid_exists(pid) for pid in started)
    assert ({child.pid for child in me.children(recursive=True)}, me.num_fds()) == (before, descriptors)
    with pytest.raises(RuntimeError, match="closed"):
        runner.submit(spec, [("ok", {}, None)], 1.0)


def test_workers_are_kept_light_and_take_large_completions_whole(runner):
    def pid(completion):
        return os.getppid()  # of the worker's keeper

    first = set(scores(ask(runner, pid, ["x"] * 50)))
    second = set(scores(ask(runner, pid, ["x"] * 50)))
    assert second <= set(runner.pids())
    assert first & second

    def modules(completion):
        return float("torch" in sys.modules or "math_verify" in sys.modules or "pytest" in sys.modules)

    assert scores(ask(runner, modules, ["x"])) == [0.0]

    def length(completion):
        return len(completion)

    sizes = [0, 1, 5_000_000, 300_000]
    assert scores(ask(runner, length, ["é" * size for size in sizes], timeout=30.0)) == sizes


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "text", ["import nowhere_to_be_found\n", "1/0\n", "import os; os._exit(3)\n", "def other(): ...\n"]
)
def test_a_check_that_no_worker_can_load_fails_at_once_and_says_why(runner, tmp_path, text):
    (tmp_path / "bad.py").write_text(text)
    found = runner.submit(CheckSpec(target=f"{tmp_path / 'bad.py'}:check"), [("x", {}, None)] * 3, 5.0).wait(WAIT)
    assert kinds(found) == ["broken"] * 3
    assert "load" in found[0].message
    assert scores(ask(runner, misbehave, ["ok"])) == [1.0]


def test_numbers_of_workers_and_caps_of_memory_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("GRPO_VERIFIERS_WORKERS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    counts = []
    for ranks in ("1", "4", "16"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        counts.append(worker_count())
    assert counts == [8, 2, 1]
    monkeypatch.setenv("GRPO_VERIFIERS_WORKERS", "5")
    assert worker_count() == 5
    monkeypatch.setenv("GRPO_VERIFIERS_WORKERS", "many")
    with pytest.raises(ValueError, match="GRPO_VERIFIERS_WORKERS is 'many'"):
        worker_count()
    monkeypatch.setenv("GRPO_VERIFIERS_MEMORY", "0.5")
    assert default_memory() == 1 << 29
    monkeypatch.setenv("GRPO_VERIFIERS_MEMORY", "0")
    assert default_memory() is None
    monkeypatch.setenv("GRPO_VERIFIERS_MEMORY", "lots")
    with pytest.raises(ValueError, match="GRPO_VERIFIERS_MEMORY is 'lots'"):
        default_memory()
    for workers in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="workers is"):
            Runner(workers)
    pair = socket_pair()
    assert all(isinstance(end, socket.socket) and end.fileno() > 2 for end in pair)
    assert not any(os.get_inheritable(end.fileno()) for end in pair)
    for end in pair:
        end.close()


@pytest.mark.slow
def test_a_forked_trainer_or_one_without_standard_input_works_on(tmp_path, script, python):
    done = script(
        "import os\n"
        "for fd in (0, 1): os.close(fd)\n"
        "from grpo_verifiers import get_verifier\n"
        "def check(completion): return len(completion)\n"
        "scores = get_verifier(check)(None, ['a', 'bb', 'ccc'])\n"
        "open(os.path.join(os.path.dirname(__file__), 'out'), 'w').write(str(scores))\n"
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == "[1.0, 2.0, 3.0]"
    code = """
import os, sys, time
from grpo_verifiers import get_verifier
from grpo_verifiers.exec.runner import shared_runner
def even(completion):
    return len(completion) % 2 == 0
check = get_verifier(even)
assert check.verify("ab").score == 1.0
child = os.fork()
if child == 0:
    assert check.verify("abc").score == 0.0   # with workers of its own
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert check.verify("ab").score == 1.0
print("fine", *shared_runner().pids())
"""
    done = python(code)
    assert done.stdout.startswith("fine"), done.stderr
    pids = [int(pid) for pid in done.stdout.split()[1:]]
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_folder_of_the_working_directory_cannot_shadow_what_workers_import(tmp_path, clean_environment, python):
    for name in ("json", "socket", "math", "pickle"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('the wrong module')\n")
    script = tmp_path / "elsewhere" / "run.py"
    script.parent.mkdir()
    script.write_text(
        "from grpo_verifiers import get_verifier\n"
        "def check(completion): return len(completion)\n"
        "print(get_verifier(check).verify('abc').score)\n"
    )
    done = python(script, cwd=tmp_path, env=clean_environment)
    assert done.stdout == "3.0\n", done.stderr


@pytest.mark.slow
def test_when_no_worker_can_start_everyone_is_told_why(monkeypatch, tmp_path):
    from grpo_verifiers.exec import process as _process

    false = tmp_path / "python"
    false.write_text("#!/bin/sh\necho 'this python is broken' >&2\nexit 3\n")
    false.chmod(0o755)
    with Runner(2) as runner:
        monkeypatch.setattr(_process.sys, "executable", str(false))
        found = ask(runner, misbehave, ["ok"] * 3)
        assert kinds(found) == ["broken"] * 3
        assert "no worker process could be started: exited with code 3" in found[0].message
        assert "this python is broken" in found[0].message
        monkeypatch.setattr(_process.sys, "executable", str(tmp_path / "nowhere"))
        assert "FileNotFoundError" in ask(runner, misbehave, ["ok"])[0].message
        monkeypatch.undo()
        assert scores(ask(runner, misbehave, ["ok"])) == [1.0]


@pytest.mark.slow
def test_orphans_do_not_stay_as_zombies_of_a_trainer_that_inherits_them(script):
    done = script(
        "import ctypes, os, sys, time\n"
        "ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans come to this process, as to process 1 of a container\n"
        "from grpo_verifiers import get_verifier\n"
        "from grpo_verifiers.exec.runner import close_shared_runners\n"
        "def check(completion):\n"
        "    for _ in range(3):\n"
        "        if os.fork() == 0:\n"
        "            os.setsid()\n"
        "            time.sleep(1000)\n"
        "    if completion == 'hang': time.sleep(1000)\n"
        "    os._exit(1)\n"
        "print(*[v.status.value for v in get_verifier(check, timeout=2.0).verify_batch(None, ['hang', 'die'])])\n"
        "close_shared_runners()\n"
        "import psutil\n"
        "print(len(psutil.Process().children(recursive=True)))\n"
    )
    assert done.stdout.splitlines() == ["timeout error", "0"], done.stderr
