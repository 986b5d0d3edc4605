"""What honest programs do besides computing: threads, copies of files, archives. At every level."""

import pytest

from .programs import DONE

PROGRAMS = {
    "thread pool": "from multiprocessing.pool import ThreadPool\nwith ThreadPool(2) as p: assert p.map(abs, [-1]) == [1]",
    "copies": "import shutil, os\nopen('a', 'w').write('x'); shutil.copy('a', 'b'); shutil.copy2('a', 'c'); shutil.move('c', 'd')\nos.makedirs('e/f'); shutil.copy('a', 'e/f')\n"
              "shutil.copytree('e', 'g'); assert open('g/f/a').read() == open('d').read() == 'x'; shutil.make_archive('z', 'zip', 'g'); shutil.rmtree('g')",
    "modes and times": "import os, pathlib\np = pathlib.Path('a'); p.touch(); p.touch(); p.chmod(0o600); os.utime('a'); os.utime('a', (1, 1)); p.write_text('a')\n"
                       "assert p.read_text() == 'a'\ntry: os.chmod('nowhere', 0)\nexcept FileNotFoundError: pass\nelse: assert False",
    "temporary files": "import tempfile, os\nwith tempfile.TemporaryDirectory() as d: open(d + '/x', 'w').write('1')\nwith tempfile.NamedTemporaryFile('w+') as f: f.write('a')\n"
                       "tempfile.TemporaryFile().write(b'a'); os.close(tempfile.mkstemp()[0])",
    "archives": "import zipfile, tarfile\nopen('a', 'w').write('x')\nwith zipfile.ZipFile('z', 'w') as z: z.write('a')\nzipfile.ZipFile('z').extractall('o')\n"
                "with tarfile.open('t', 'w') as t: t.add('a')\ntarfile.open('t').extractall('p'); assert open('p/a').read() == open('o/a').read()",
    "databases": "import sqlite3, shelve\nc = sqlite3.connect('x.db'); c.execute('create table a(b)'); c.commit(); c.close()\nwith shelve.open('s') as s: s['a'] = 1\nassert shelve.open('s')['a'] == 1",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_honest_programs_run(judge, name):
    verdict = judge(PROGRAMS[name] + "\nprint('done')", DONE, time_limit=10.0)
    assert verdict.score == 1, verdict


# What a level refuses.
REFUSED = {
    "a process": "import multiprocessing as m\nm.Process(target=print).start()",
    "a server": "import socket\nsocket.create_server(('127.0.0.1', 0))",
    "a signal to a child": "import subprocess\np = subprocess.Popen(['/usr/bin/sleep', '9']); p.terminate(); p.wait()",
    "a mode that is looked at again": "import os\nopen('a', 'w').close(); os.chmod('a', 0o640); assert os.stat('a').st_mode & 0o777 == 0o640",
}
REFUSED_BY_PROCESS = ("a signal to a child", "a mode that is looked at again")


@pytest.mark.parametrize("name", REFUSED)
def test_what_programs_cannot_do_is_what_the_manual_lists(level, judge, name):
    verdict = judge(f"{REFUSED[name]}\nprint('done')", DONE, time_limit=3.0)
    assert verdict.score == (1 if level == "full" and name in REFUSED_BY_PROCESS else 0), verdict


FORKS = {
    "pool": "m.Pool(2)", "process": "m.Process(target=print).start()", "queue": "m.Queue()", "event": "m.Event()", "value": "m.Value('i', 0)", "array": "m.RawArray('d', 2)",
    "shared memory": "from multiprocessing import shared_memory as s; s.SharedMemory(create=True, size=1)", "executor": "from concurrent.futures import ProcessPoolExecutor as E; E(2)",
}  # fmt: skip


@pytest.mark.parametrize("name", FORKS)
def test_a_program_that_uses_multiprocessing_fails_with_a_reason(judge, name):
    body = f"def f():\n    import multiprocessing as m\n    {FORKS[name]}"
    verdict = judge(body, [{"function": "f", "expected": 1}])
    assert verdict.score == 0, verdict
    assert "multiprocessing is not available in the box" in str(verdict), verdict


IN_ORDER = "import itertools\ng = f()\nassert [next(g), *itertools.islice(g, 2000)] == list(range(2001))"
FAILS = "def f():\n    yield 1\n    raise ValueError('x')"
ANSWERS = {
    "functions in blocks of their own": (["def f(n): return n + 1", "from __future__ import annotations\n\ndef g(n: int) -> int: return 2 * n"], [{"code": "assert f(1) == g(1) == 2"}]),
    "a class in a block of its own": (["class T:\n    def __init__(self, v): self.v = v", "def f(t): return t.v"], [{"code": "assert f(T(3)) == 3"}]),
    "an async function": (["async def f(n):\n    return n + 1"], [{"code": "import asyncio\nassert asyncio.run(f(2)) == 3"}, {"function": "f", "args": [2], "expected": 3}]),
    "a generator without end": (["def f():\n    n = 0\n    while True:\n        yield n\n        n += 1"], [{"code": IN_ORDER}]),
    "a generator that fails": ([FAILS], [{"code": "g = f()\nassert next(g) == 1\ntry: next(g)\nexcept ValueError: pass\nelse: assert 0"}]),
    "an answer that spoils the next test": (["def f(n): return n"], [{"code": "import sys\nsys.modules['json'] = f(1)"}, {"code": "import json\nassert json.loads('1') == f(1)"}]),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_honest_answers_of_every_form_pass(judge, fenced, name):
    parts, tests = ANSWERS[name]
    verdict = judge(None, tests, text="And:\n".join(map(fenced, parts)))
    assert verdict.score == 1, verdict


@pytest.mark.parametrize("output", ["1 2", "Hello", "Hello, you!", "[3, 4]", "a: 1\nb: 2"])
def test_an_example_s_output_in_a_bare_fence_is_no_program(judge, output):
    text = f"```\nprint(int(input()) + 1)\n```\nIt prints\n```\n{output}\n```\n"
    assert judge(None, [{"stdin": "1", "stdout": "2"}], text=text).score == 1


# Locks and hints say that they were taken; what would tell a program of others, or of earlier ones, is refused.
APART = """
import fcntl, os, resource, struct
def refused(attempt):
    try: attempt()
    except OSError: return True
null = os.open("/dev/null", os.O_RDWR)
lock = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 7, 1, 0)
fcntl.flock(null, fcntl.LOCK_EX); fcntl.fcntl(null, fcntl.F_SETLK, lock)
if os.fork() == 0:
    fcntl.flock(os.open("/dev/null", os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
    os._exit(struct.unpack("hhqqi4x", fcntl.fcntl(null, fcntl.F_GETLK, lock))[0] == fcntl.F_UNLCK)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 1
page = os.open(os.__file__, os.O_RDONLY)
assert refused(lambda: os.preadv(page, [bytearray(1)], 0, os.RWF_NOWAIT)) and os.preadv(page, [bytearray(1)], 0) == 1
assert refused(lambda: resource.getrusage(resource.RUSAGE_SELF)) and refused(lambda: os.wait3(os.WNOHANG))
os.posix_fadvise(page, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fallocate(os.open("a", os.O_CREAT | os.O_RDWR), 0, 5000); assert os.path.getsize("a") == 5000
print("done")
"""


def test_programs_lock_nothing_and_learn_nothing_of_each_other(judge):
    verdict = judge(APART, DONE)
    assert verdict.score == 1, verdict


THREADS = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    assert [got[0] for got in pool.map(f, range(200))] == list(range(200))
"""
LEFT = "import threading\nfor at in range(9):\n    threading.Thread(target=f, args=(at,)).start()\nassert f(7)[0] == 7"


@pytest.mark.slow
def test_honest_threads_and_long_texts_cross_both_ways(judge):
    code = "a = list(range(10**9, 10**9 + 150_000))\nassert f(a[::-1]) == a\nassert f('ba' * 10**6) == ['a'] * 10**5"
    source = "def f(x): return sorted(x)[:150_000] if isinstance(x, list) else ['a'] * (x.count('a') // 10)"
    verdict = judge(source, [{"code": code}])
    assert verdict.score == 1, verdict
    tests = [{"code": code} for code in (THREADS, LEFT, THREADS)]
    ends = "import os\ndef f(x):\n    if x > 6: os._exit(0)\n    return [x] * 2000"
    for source, score in (("def f(x): return [x] * 2000", 1), ("def f(x): return [0] * 2000", 0), (ends, 0)):
        assert judge(source, tests, scoring="share", time_limit=60.0).score == score


CROWD = """
import threading
met = threading.Barrier(30)
def work():
    held = [bytearray(1000) for _ in range(100)]
    met.wait()
crowd = [threading.Thread(target=work) for _ in range(30)]
for thread in crowd: thread.start()
for thread in crowd: thread.join()
print("done")
"""


def test_allowed_threads_fit(judge):
    verdict = judge(CROWD, DONE)
    assert verdict.score == 1, verdict
