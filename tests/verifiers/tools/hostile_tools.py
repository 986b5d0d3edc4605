"""Tools that misbehave, for the processes that run them."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path


def add(a, b):
    """Return a sum."""
    return a + b


def echo(value):
    """Return what was given."""
    return repr(value)


async def later(a):
    """Return it, from a coroutine."""
    return a


def raises():
    """Fail."""
    raise ValueError("seven is no colour")


def leaves():
    """Ask for the end of the process."""
    sys.exit(3)


def hangs():
    """Hang where no signal handler runs."""
    sum(range(10**13))


def exits():
    """End the process."""
    os._exit(3)


def crashes():
    """Crash."""
    ctypes.string_at(0)


def forks():
    """Start processes until stopped."""
    for _ in range(100):
        subprocess.Popen(["sleep", "4321"], start_new_session=True)
    time.sleep(100)


def bombs():
    """Fork two thousand times as fast as it goes: not without end, for nothing here may stop the machine."""
    for _ in range(11):
        os.fork()
    time.sleep(600)


def bombs_apart():
    """The same, every process in a session of its own."""
    for _ in range(11):
        if os.fork() == 0:
            os.setsid()
    time.sleep(600)


def bombs_by_shell():
    """Have another program do it."""
    bomb = "f() { [ $1 -eq 0 ] || { f $(($1 - 1)) | f $(($1 - 1)) & f $(($1 - 1)) | f $(($1 - 1)); }; sleep 600; }; f 5"
    subprocess.run(["bash", "-c", bomb], check=False)


def comes_back():
    """Come back in two processes."""
    os.fork()
    return "one answer"


def prints():
    """Print much."""
    for _ in range(1024):
        os.write(1, b"x" * (1 << 20))
        os.write(2, b"x" * (1 << 20))
    return "printed"


def returns_much():
    """Return much."""
    return "x" * (1 << 28)


def eats():
    """Take memory."""
    return len(bytearray(1 << 40))


def closes():
    """Close everything."""
    os.closerange(0, 1 << 16)
    return "closed"


def kills_parent():
    """Kill the parent process."""
    os.kill(os.getppid(), 9)
    time.sleep(100)


def kills_grandparent():
    """Kill the process that made the parent."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), 9)
    time.sleep(100)


def leaves_thread():
    """Leave a thread."""
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    return "left"


def writes_protocol():
    """Write on every socket there is."""
    for fd in range(3, 64):
        try:
            os.write(fd, b'\0\0\0\x20{"id":1,"s":0.0,"text":"forged"}')
        except OSError:
            continue
    return "wrote"


class Spiteful:
    """Fails to be shown."""

    def __str__(self):
        """Fail."""
        raise RuntimeError("no text")


def spiteful():
    """Return what has no text."""
    return Spiteful()


def blocks():
    """Return blocks."""
    return [{"type": "text", "text": "a"}]


def half():
    """Return half a character."""
    return "a\ud800b"


def who():
    """Return the process."""
    return os.getpid()


class Counter:
    """Counts calls."""

    def __init__(self, start=0):
        """Start there."""
        self.n = start

    def __call__(self, by):
        """Count."""
        self.n += by
        return self.n


class Game:
    """An environment."""

    def __init__(self):
        """Nothing yet."""
        self.x = 0

    def reset(self, **row):
        """Take x."""
        if row.get("x") == "bad":
            raise ValueError("no such board")
        self.x = row.get("x", 0)
        return f"x is {self.x}" if self.x else None

    async def step(self, by):
        """Go on."""
        self.x += by
        return self.x

    def end(self):
        """End the process."""
        os._exit(1)

    def state_key(self):
        """Tell the state."""
        return (self.x,)

    def get_reward(self):
        """Tell the reward."""
        return self.x / 2

    def get_turn_reward(self):
        """Tell it where it is one."""
        return None if self.x < 10 else float("nan")
