"""Runs jobs under one tree: started as a script, imports that tree once, and forks a process for each run.

Needs nothing of the tree but `grpo_plus.cli.main` and `grpo_plus.testing.make_tiny_model`, so it drives old trees too.

    python driver.py TREE JOBS.json          # a line of JSON on standard output for each event
    python driver.py --one TREE COMMAND.json # one command, as a process of its own: where os.fork is missing
"""

import atexit
import contextlib
import importlib
import io
import json
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HUNG = "hung"
PRELOADED = (
    "torch", "trl", "peft", "datasets", "pandas", "pyarrow.parquet", "bitsandbytes", "transformers.trainer",
    "transformers.generation.utils", "transformers.integrations.bitsandbytes",
    "transformers.models.qwen2.modeling_qwen2", "transformers.models.llama.modeling_llama",
)  # fmt: skip
"""Imported once for all runs, beside every module of the tree itself: only a matter of speed."""
NEVER = ("ray", "vllm", "__main__")
"""Parts of the names of modules that start threads, or programs, when they are imported."""


def main() -> int:
    """Run all jobs, or one command."""
    one = sys.argv[1] == "--one"
    tree, work = Path(sys.argv[-2]).resolve(), json.loads(Path(sys.argv[-1]).read_text())
    if one:
        _command(**work)
    told = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        _check(tree)
        if work["fork"]:
            _preload()
    except BaseException as error:  # noqa: BLE001 - whatever it is, this tree cannot be run
        traceback.print_exc()
        told.write(json.dumps({"problem": f"{type(error).__name__}: {error}"}) + "\n")
        return 1
    _Supervisor(tree, work["fork"]).run(work["jobs"], work["width"], told)
    return 0


def _check(tree: Path) -> None:
    import grpo_plus

    home = Path(str(grpo_plus.__file__)).resolve()
    if not home.is_relative_to(tree):
        raise RuntimeError(f"grpo_plus was imported from {home.parent}, not from {tree}")


def _preload() -> None:
    import grpo_plus
    import grpo_verifiers

    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for package in (grpo_plus, grpo_verifiers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda _: None):
            if not any(word in module.name for word in NEVER):
                with contextlib.suppress(ImportError):
                    importlib.import_module(module.name)
    if others := threading.enumerate()[1:]:
        raise RuntimeError(f"the imports have started threads, so nothing can be forked: {others}")


class _Supervisor:
    """Starts the processes of jobs, so many jobs at a time, and ends those that hang."""

    def __init__(self, tree: Path, fork: bool) -> None:
        self._tree, self._fork = tree, fork
        self._groups: set[int] = set()
        self._parent = os.getppid()

    def run(self, jobs: list[dict[str, Any]], width: int, told: io.TextIOBase) -> None:
        """Tell of each job when it ends, in any order; the first job is done before the others begin."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        signal.signal(signal.SIGINT, lambda *_: sys.exit(1))
        try:
            for some in (jobs[:1], jobs[1:]):
                self._together([(job["name"], self._job(job)) for job in some], width, told)
        finally:
            for group in self._groups:
                _kill(group)

    def _together(self, waiting: list[tuple[str, Iterator[dict[str, Any] | None]]], width: int, told: Any) -> None:
        running: list[tuple[str, Iterator[dict[str, Any] | None]]] = []
        while waiting or running:
            while waiting and len(running) < width:
                running.append(waiting.pop(0))
            for entry in list(running):
                if (result := next(entry[1])) is not None:
                    running.remove(entry)
                    told.write(json.dumps({"name": entry[0], **result}) + "\n")
            if os.getppid() != self._parent:
                sys.exit(1)  # the command was killed and can end nobody
            time.sleep(0.01)

    def _job(self, job: Mapping[str, Any]) -> Iterator[dict[str, Any] | None]:
        """The commands of a job, one after the other: None while they run, then the exit codes and seconds of CPU."""
        codes: list[Any] = []
        cpu = 0.0
        for number, arguments in enumerate(job["commands"]):
            ranks = [self._start(job, arguments, number, rank) for rank in range(job["ranks"])]
            ends = time.monotonic() + job["seconds"]
            ended: dict[int, int] = {}
            while len(ended) < len(ranks):
                for rank, process in enumerate(ranks):
                    if rank not in ended and (status := _status(process)) is not None:
                        ended[rank] = status[0]
                        cpu += status[1]
                if time.monotonic() > ends:
                    break
                yield None
            for process in ranks:
                group = process if isinstance(process, int) else process.pid
                _kill(group)  # also what an ended process has left behind
                self._groups.discard(group)
            if len(ended) < len(ranks):
                for process in (process for rank, process in enumerate(ranks) if rank not in ended):
                    while _status(process) is None:
                        time.sleep(0.01)
                codes.append(HUNG)
                break
            codes.append(ended[0] if len(ranks) == 1 else [ended[rank] for rank in range(len(ranks))])
        yield {"codes": codes, "cpu": round(cpu, 2)}

    def _start(self, job: Mapping[str, Any], arguments: list[str], number: int, rank: int) -> Any:
        environment = {}
        if job["ranks"] > 1:
            environment = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["ranks"]),
                "LOCAL_WORLD_SIZE": str(job["ranks"]), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"]),
                "ACCELERATE_USE_CPU": "true",
            }  # fmt: skip
        command = {
            "arguments": arguments,
            "folder": job["folder"],
            "log": f"printed-{number}.txt" if not rank else f"printed-{number}-rank{rank}.txt",
            "environment": environment,
        }
        if not self._fork:
            file = Path(job["folder"]).with_name(f"{Path(job['folder']).name}-{number}-{rank}.json")
            file.write_text(json.dumps(command))
            started = subprocess.Popen(
                [sys.executable, __file__, "--one", str(self._tree), str(file)], start_new_session=True
            )
            self._groups.add(started.pid)
            return started
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            os.setsid()
            _command(**command)
        self._groups.add(child)
        return child


def _command(arguments: list[str], folder: str, log: str, environment: Mapping[str, str]) -> None:
    """The process of a command, which ends here."""
    code: Any = 1
    try:
        os.chdir(folder)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(environment)
        sys.argv = ["grpo-plus", *arguments]
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)  # what is drawn before a run sets its own seed
        if arguments[0] == "models":
            code = _models(json.loads(arguments[1]))
        else:
            from grpo_plus.cli import main as command

            code = command(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as Python itself would end
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - workers of verifiers end there
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code or 0)


def _models(wanted: Mapping[str, Mapping[str, Any]]) -> int:
    from grpo_plus.testing import make_tiny_model

    for name, options in wanted.items():
        make_tiny_model(Path(name), **options)
    return 0


def _status(process: Any) -> tuple[int, float] | None:
    """Exit code, negative for a signal, and seconds of CPU of a process that has ended."""
    if isinstance(process, int):
        ended, status, used = os.wait4(process, os.WNOHANG)
        return None if not ended else (os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime)
    return None if process.poll() is None else (process.returncode, 0.0)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
