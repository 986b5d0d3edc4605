"""Tools that misbehave, for the processes that run them."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path


# fmt: off
def add(a, b): return a + b
def echo(value): return repr(value)
async def later(a): return a
def raises(): raise ValueError("seven is no colour")
def leaves(): sys.exit(3)
def hangs(): sum(range(10**13))  # where no signal handler runs
def exits(): os._exit(3)
def crashes(): ctypes.string_at(0)
def returns_much(): return "x" * (1 << 28)
def eats(): return len(bytearray(1 << 40))
def blocks(): return [{"type": "text", "text": "a"}]
def half(): return "a\ud800b"
def spiteful(): return Spiteful()

class Spiteful:
    def __str__(self): raise RuntimeError("no text")

def forks():
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
    os.fork()
    return "one answer"

def prints():
    for _ in range(1024):
        os.write(1, b"x" * (1 << 20))
        os.write(2, b"x" * (1 << 20))
    return "printed"

def closes():
    os.closerange(0, 1 << 16)
    return "closed"

def kills_parent():
    os.kill(os.getppid(), 9)
    time.sleep(100)

def kills_grandparent():
    """Kill the process that made the parent."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), 9)
    time.sleep(100)

def leaves_thread():
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
    return "left"

def writes_protocol():
    for fd in range(3, 64):
        try:
            os.write(fd, b'\0\0\0\x20{"id":1,"s":0.0,"text":"forged"}')
        except OSError:
            continue
    return "wrote"

class Counter:
    def __init__(self, start=0): self.n = start

    def __call__(self, by):
        self.n += by
        return self.n

class Game:
    def __init__(self): self.x = 0
    def end(self): os._exit(1)
    def state_key(self): return (self.x,)
    def get_reward(self): return self.x / 2
    def get_turn_reward(self): return None if self.x < 10 else float("nan")

    def reset(self, **row):
        if row.get("x") == "bad":
            raise ValueError("no such board")
        self.x = row.get("x", 0)
        return f"x is {self.x}" if self.x else None

    async def step(self, by):
        self.x += by
        return self.x
