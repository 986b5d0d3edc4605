"""One check, in a process of its own: `python -m benchmarks.gpu.child`, which the command starts."""

import argparse
import contextlib
import importlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import psutil


def main() -> int:
    """Run the check and tell its results to the file."""
    options = _parser().parse_args()
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    if options.device == "stand-in":
        from benchmarks.gpu import stand_in

        stand_in.load()
    import torch

    from benchmarks.gpu.check import GIB, Check, Context, Skipped

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    check = Check(**json.loads(options.check))
    device = torch.device("cpu") if options.device == "cpu" else torch.device("cuda", 0)
    ends = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory(prefix=f"gpu-{check.name}-") as folder:
        context = Context(device, tiny=options.size == "tiny", folder=Path(folder), answer=options.answer, ends=ends)
        if context.cuda and check.gib:
            total = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, check.gib * GIB / total), device)
        where, _, name = check.run.partition(":")
        try:
            getattr(importlib.import_module(where), name)(context, **check.options)
        except Skipped as reason:
            context.tell(skipped=str(reason))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
            traceback.print_exc()
            context.tell(
                error=f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[:400]
            )
        if context.cuda:
            with contextlib.suppress(RuntimeError):
                context.tell(peak=torch.cuda.max_memory_allocated() / GIB)
        context.tell(ended=True)
    return 0


def _end_with(parent: int) -> None:
    """End this process and what it has started once the command is gone, which cannot do so when it is killed."""
    while os.getppid() == parent:
        time.sleep(1)
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", help="a Check as JSON")
    parser.add_argument("--device", choices=("cuda", "cpu", "stand-in"), default="cuda")
    parser.add_argument("--size", choices=("tiny", "full"), default="full")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--answer", type=Path, default=Path("/dev/stdout"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
