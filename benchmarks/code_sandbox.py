"""What the sandbox of the code verifier costs, beside a bare interpreter and bubblewrap for each program.

python benchmarks/code_sandbox.py                 # time per program, programs per second
python benchmarks/code_sandbox.py --soak 10000    # that many in a row, one in twenty hostile
"""

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from grpo_verifiers import get_verifier
from grpo_verifiers.code import probe
from grpo_verifiers.code.pool import close_pool
from grpo_verifiers.code.run import ProgramRun
from grpo_verifiers.sandbox.box import Box, BoxKind, Limits
from grpo_verifiers.sandbox.inside.proc import descendants

SOURCE = "def add(a, b):\n    return a + b\n"
CALL = {"name": "add", "args": ["l", 1, 2], "kwargs": ["d"]}
TEXT = f"```python\n{SOURCE}```"
TESTS = [{"function": "add", "args": [1, 2], "expected": 3}]
HOSTILE = [
    "import os\nos._exit(0)",
    "import os\nfor fd in range(3, 100):\n    try: os.write(fd, b'1')\n    except OSError: pass\ndef add(a, b): pass",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    while True: pass\ndef add(a, b): pass",
    "def add(a, b): return 'x' * (1 << 27)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef add(a, b): pass",
    "import ctypes\nctypes.string_at(0)\ndef add(a, b): pass",
    "open('left', 'w').write('x' * 10**6)\ndef add(a, b): pass",
]


def in_process() -> None:
    """The program in this process: what everything else is measured against."""
    space: dict[str, object] = {}
    exec(compile(SOURCE, "program", "exec"), space)
    assert space["add"](1, 2) == 3  # type: ignore[operator]


def bare() -> None:
    """An interpreter for each program."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"{SOURCE}\nprint(add(1, 2))"], capture_output=True, check=True
    )
    assert done.stdout == b"3\n"


def bubblewrap() -> None:
    """A bubblewrap and an interpreter for each program."""
    prefix = str(Path(sys.base_prefix).resolve())
    box = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--ro-bind", prefix, prefix]
    python = str(Path(sys.executable).resolve())
    subprocess.run([*box, python, "-I", "-S", "-c", f"{SOURCE}\nprint(add(1, 2))"], capture_output=True, check=True)


def median_ms(run: Callable[[], object], times: int) -> float:
    """Median of so many runs, in milliseconds."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent) * 1e3


def processor_seconds(pids: set[int]) -> float:
    """Processor time of processes and of their children that have ended."""
    total = 0
    for pid in pids:
        total += sum(map(int, Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def speed(times: int) -> dict[str, object]:
    """Time per program by every way, and programs per second of the verifier."""
    found: dict[str, object] = {"load": os.getloadavg()[0], "cores": len(os.sched_getaffinity(0))}
    base = median_ms(in_process, times)
    found["in process ms"] = round(base, 3)
    found["bare interpreter ms"] = round(median_ms(bare, times // 4), 2)
    if shutil.which("bwrap"):
        found["bubblewrap per program ms"] = round(median_ms(bubblewrap, times // 4), 2)
    for level in ("full", "process"):
        if probe(level).level != level:
            found[level] = probe(level).details[level]
            continue
        box = Box(BoxKind(level))
        messages = [{"mode": "calls", "source": SOURCE}, CALL]

        def once(box: Box = box, messages: list[dict[str, object]] = messages) -> None:
            with ProgramRun(box, Limits(), messages, last=True) as program:
                assert program.receive() == ["loaded"]
                assert program.receive() == ["value", 3]

        once()
        pids = descendants(box.pid) | {box.pid}
        cpu = processor_seconds(pids) + time.process_time()
        found[f"{level}: overhead ms"] = round(median_ms(once, times) - base, 2)
        cpu = processor_seconds(pids) + time.process_time() - cpu
        found[f"{level}: processor ms per program"] = round(cpu / times * 1e3, 2)
        box.close()
        verifier = get_verifier("code", level=level, highest=level)
        verifier.verify_batch(None, [TEXT] * 20, None, tests=[TESTS] * 20)
        start = time.perf_counter()
        verdicts = verifier.verify_batch(None, [TEXT] * times, None, tests=[TESTS] * times)
        found[f"{level}: programs per second"] = round(times / (time.perf_counter() - start), 1)
        assert all(verdict.score == 1 for verdict in verdicts)
        close_pool()
    return found


def soak(count: int) -> dict[str, object]:
    """So many programs, one in twenty hostile; every verdict must be its own, and memory stay where it was."""
    verifier = get_verifier("code", time_limit=4.0)
    draw = random.Random(11)
    wrong = 0
    memory = []
    start = time.perf_counter()
    for first in range(0, count, 500):
        texts, tests, wanted = [], [], []
        for at in range(first, min(first + 500, count)):
            right = draw.random() < 0.5
            source = f"def add(a, b):\n    return a + b + {at if right else at + 1}"
            texts.append(f"```python\n{draw.choice(HOSTILE) if at % 20 == 0 else source}\n```")
            tests.append([{"function": "add", "args": [1, 2], "expected": at + 3}])
            wanted.append(float(right and at % 20 != 0))
        verdicts = verifier.verify_batch(None, texts, None, tests=tests)
        wrong += sum(verdict.score != score for verdict, score in zip(verdicts, wanted, strict=True))
        boxes = [Path(f"/proc/{pid}/statm") for pid in descendants(os.getpid())]
        pages = sum(int(path.read_text(encoding="ascii").split()[1]) for path in boxes if path.exists())
        memory.append(pages * resource.getpagesize() >> 20)
    seconds = time.perf_counter() - start
    close_pool()
    return {
        "programs": count,
        "wrong verdicts": wrong,
        "programs per second": round(count / seconds, 1),
        "boxes MiB, first and last": [memory[0], memory[-1]],
        "trainer MiB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "processes left": len(descendants(os.getpid())),
    }


def main() -> None:
    """Measure, and print as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=400, help="programs per measurement")
    parser.add_argument("--soak", type=int, default=0, help="run so many programs in a row instead")
    options = parser.parse_args()
    print(json.dumps(soak(options.soak) if options.soak else speed(options.times), indent=2))


if __name__ == "__main__":
    main()
