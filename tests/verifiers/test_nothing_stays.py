"""After a SIGKILL, whoever it hits, no process or folder of the dead stays; looked at from outside."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.waiting import comes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the processes are looked up in /proc")

SECONDS = 20
"""Enough for a busy machine; on an idle one everything has gone within one."""
SUBREAPER = 36

DAEMONS = """
import os, signal, time
held = os.pipe()
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("daemon", "wb").write(b"x" * 100_000)
        time.sleep(1000)
    os._exit(0)
os.makedirs("a/b/c")
open("a/b/c/d", "w").write("x")
os.chmod("a/b", 0)
"""
"""What hides from its parent: in a session of its own, deaf to signals, with files, and held pipes."""

PROGRAM = f"{DAEMONS}\ndef f():\n    time.sleep(1000)"

CHECKS = f"""
import os, subprocess, sys, tempfile, time

DAEMONS = {DAEMONS!r}

def hides(completion, told, stuck):
    folder = tempfile.mkdtemp()
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen([sys.executable, "-c", DAEMONS], start_new_session=True, env={{}}, cwd=folder)
    while not os.path.exists(folder + "/daemon"):
        time.sleep(0.01)
    open(told, "w").close()
    if stuck:
        sum(range(10**13))  # one call of C, which looks at no signal
    time.sleep(1000)
"""

TRAINER = """
import os, sys, threading, time
sys.path.insert(0, os.getcwd())
from grpo_verifiers import get_verifier
kind, told, program = sys.argv[1:]
if kind in ("check", "stuck check"):
    import checks
    check = get_verifier(checks.hides, isolation="process", timeout=900.0)
    check.verify("x", told=told, stuck=kind == "stuck check")
elif kind == "idle boxes":
    code = get_verifier("code", level="process", highest="process")
    code.verify("```python\\nprint(1)\\n```", tests=[{"stdin": "", "stdout": "1"}])
    open(told, "w").close()
    time.sleep(1000)
elif kind == "maths":
    print(get_verifier("math", isolation="process").verify("\\\\boxed{\\\\sin x + \\\\cos x}", answer="\\\\cos x").score)
    open(told, "w").close()
    time.sleep(1000)
else:
    code = get_verifier("code", level=kind, highest=kind, timeout=900.0)
    code.verify(f"```python\\n{program}\\n```", tests=[{"function": "f", "expected": 1}])
    time.sleep(1000)
"""

WORK = ("maths", "idle boxes", "check", "stuck check", "full", "process", "none")


def below(process):
    """The processes that one has started, and those that they have."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(process.children(recursive=True))
    return set()


class Trainer:
    """A trainer in a session of its own, and everything that it has started, orphans too: they become ours."""

    def __init__(self, kind, place):
        self.kind, self.told, self.temporary = kind, place / "told", place / "temporary"
        self.temporary.mkdir()
        self.seen = set()
        self.others = below(psutil.Process())  # of tests before, in this process
        place.chmod(0o755)
        (place / "checks.py").write_text(CHECKS)
        command = [sys.executable, "-c", TRAINER, kind, str(self.told), PROGRAM]
        own = {**os.environ, "TMPDIR": str(self.temporary), "GRPO_VERIFIERS_WORKERS": "1"}
        self.process = subprocess.Popen(command, env=own, cwd=place, start_new_session=True)

    def processes(self):
        """Everything of it that lives, also what one look misses because its parent ends during it."""
        found = []
        strange = self.others.union(*map(below, self.others))
        self.seen.update(below(psutil.Process()) - strange)
        for each in [each for each in self.seen if each.is_running()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.status() != psutil.STATUS_ZOMBIE:
                    found.append((each, " ".join(each.cmdline())))
                elif each.ppid() == os.getpid() and each.pid != self.process.pid:
                    os.waitpid(each.pid, 0)
        return found

    def of(self, words):
        """The processes of that command, whose parent has another one, without bubblewrap's."""
        named = {each.pid: each for each, command in self.processes() if words in command and "bwrap " not in command}
        return [each for each in named.values() if each.ppid() not in named]

    def busy(self):
        """Whether the check, or the program with its daemon, runs."""
        if self.kind == "full":  # its folder is seen by nobody: count the daemon, its parent, and three above them
            return sum("inside.zygote" in command for _, command in self.processes()) == 5
        if self.kind in ("process", "none"):
            return any("daemon" in files for *_, files in os.walk(self.temporary))  # folders may go while it looks
        return self.told.exists()

    def files(self):
        """What it has in the temporary folder."""
        return list(self.temporary.iterdir())


@pytest.fixture
def start(tmp_path):
    """Starts a trainer at a kind of work; whatever is left of it ends with the test."""
    libc = ctypes.CDLL(None)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    started = []

    def start(kind):
        started.append(Trainer(kind, tmp_path))
        return started[-1]

    yield start
    for trainer in started:
        while left := trainer.processes():
            for each, _ in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            trainer.process.wait()
    libc.prctl(SUBREAPER, 0, 0, 0, 0)


def assert_gone(trainer):
    trainer.process.wait()
    comes(lambda: not trainer.processes() and not trainer.files(), SECONDS)
    assert (trainer.processes(), trainer.files()) == ([], [])


@pytest.mark.slow
@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("kind", "whole_group"),
    [
        ("check", True),
        *((kind, False) for kind in WORK),
        *(pytest.param(kind, True, marks=pytest.mark.nightly) for kind in WORK if kind != "check"),
    ],
)
def test_a_killed_trainer_leaves_nothing(kind, whole_group, start):
    trainer = start(kind)
    assert comes(trainer.busy)
    if whole_group:
        os.killpg(trainer.process.pid, signal.SIGKILL)
    else:
        trainer.process.kill()
    assert_gone(trainer)


@pytest.mark.slow
@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        *(("check", "exec.worker"), ("full", "_referee_process"), ("full", "inside.zygote")),
        *(pytest.param("process", words, marks=pytest.mark.nightly) for words in ("_referee_process", "inside.zygote")),
    ],
)
def test_a_trainer_that_is_killed_while_its_processes_start_leaves_nothing(kind, words, start):
    trainer = start(kind)
    assert comes(lambda: trainer.of(words))
    trainer.process.kill()
    assert_gone(trainer)


def victims(trainer, who):
    """The processes to kill: a worker itself, a referee, or what forks programs."""
    if who != "worker":
        return trainer.of(who)
    return [each for keeper in trainer.of("exec.worker") for each in keeper.children()]


@pytest.mark.slow
@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(
    ("kind", "who"),
    [
        *(("check", "worker"), ("stuck check", "worker")),
        *((kind, who) for kind in ("full", "process", "none") for who in ("_referee_process", "inside.zygote")),
    ],
)
@pytest.mark.parametrize("cgroup", ["", pytest.param("off", marks=pytest.mark.nightly)])
def test_one_that_is_killed_alone_leaves_nothing_while_the_trainer_goes_on(kind, who, cgroup, start, monkeypatch):
    monkeypatch.setenv("GRPO_VERIFIERS_CGROUP", cgroup)
    trainer = start(kind)
    assert comes(trainer.busy)
    killed = victims(trainer, who)
    below = {child for each in killed for child in each.children(recursive=True)}
    assert len(below) >= 2
    for each in killed:
        each.kill()

    def left():
        return [each for each, _ in trainer.processes() if each in below]

    comes(lambda: not left(), SECONDS)
    assert left() == []
    assert trainer.process.poll() is None
    trainer.process.kill()
    if who == "worker":  # its keeper may have ended with it: the next process of the machine removes the folder
        trainer.process.wait()
        sweep = f"from grpo_verifiers.sandbox.leftovers import sweep; sweep({str(trainer.temporary)!r})"
        subprocess.run([sys.executable, "-c", sweep], check=True)
    assert_gone(trainer)
