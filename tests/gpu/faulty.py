"""Checks that go wrong, each in its own way."""

import os
import signal
import subprocess
import sys
import time

from benchmarks.gpu.check import Skipped


def passes(context, *, number=1):
    context.report(number=number, device=context.device.type)
    context.headline("all well")


def claims_too_much(context):
    context.expect([1], "never said")
    context.expect([], "one is not larger than two")
    context.report(after="it goes on")


def raises(context):
    context.report(before=1)
    raise ValueError("no such\nthing")


def crashes(context):
    print("what it said last")
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(context):
    context.report(before=1)
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    context.report(left=left.pid)
    time.sleep(600)


def eats(context):
    held = bytearray(3 << 30)
    held[:: 1 << 12] = bytes(len(held) >> 12)
    time.sleep(600)


def skips(context):
    raise Skipped("there is nothing to do")
