"""A process that has imported torch and TRL, and forks itself for each program that a test starts.

``tests/started.py`` starts one for each worker of pytest and asks it over a socket. A request is a message of JSON with the
descriptors of the program's input, output and errors; the answers are the new process's number and, when it has ended, its
status. The fork returns from ``serve`` and runs the program as a new interpreter would: as ``__main__``, up to its end.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from pathlib import Path

MODULES = (
    "torch.distributed",
    "bitsandbytes",
    "datasets",
    "jinja2",
    "peft",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "trl.trainer.grpo_trainer",
    "grpo_plus.trainer",
    "grpo_plus.cli.train",
)


def serve(name):
    """Answer until the parent has gone; returns the request in the process that is to carry it out."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(f"\0{name}")
    server.listen(64)
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)  # the parent holds its other end
    running = {}
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                os._exit(0)
            if key.fd in running:
                selector.unregister(key.fd)
                connection, pid = running.pop(key.fd)
                _answer(connection, "status", os.waitpid(pid, 0)[1])
                os.close(key.fd)
                connection.close()
                continue
            connection, _ = server.accept()
            message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 32)
            if threads := _threads():
                _answer(connection, "a process with threads cannot be forked:", threads)
                pid = None
            elif not (pid := os.fork()):
                selector.close()
                for each in (server, *(other for other, _ in running.values())):
                    each.close()
                for each in running:
                    os.close(each)
                return json.loads(message), descriptors, connection
            for each in descriptors:
                os.close(each)
            if pid:
                end = os.pidfd_open(pid)
                running[end] = connection, pid
                selector.register(end, selectors.EVENT_READ)


def _threads():
    """Threads beside the first one, by name."""
    tasks = [each for each in Path("/proc/self/task").iterdir() if each.name != str(os.getpid())]
    named = {str(each.native_id): each.name for each in threading.enumerate()}
    return ", ".join(named.get(each.name) or (each / "comm").read_text().strip() for each in tasks)


def _answer(connection, *words):
    with contextlib.suppress(OSError):  # nobody waits for it
        connection.send(" ".join(map(str, words)).encode())


def become(request, descriptors):
    """Take on what a new process has: streams, folder, variables, session, arguments."""
    if request["session"]:
        os.setsid()
    # First out of the way of the numbers that they are to have.
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 200) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, number in zip(moved, [0, 1, 2, *request["keep"]], strict=True):
        os.dup2(each, number)
        os.close(each)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open to the end
    for name, number in (("stdout", 1), ("stderr", 2)):
        errors = "strict" if number == 1 else "backslashreplace"
        stream = open(number, "w", encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - open to the end
        lines = number == 2 or stream.isatty()
        stream.reconfigure(line_buffering=lines, write_through=request["unbuffered"])
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.path[:0] = request["path"]
    sys.argv = request["argv"]
    sys.modules["numpy"].random.seed()


def run(kind, what):
    """Run the program as ``__main__``; an error is shown without the frames of this file. Returns the exit status."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    try:
        if kind == "module":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        elif kind == "file":
            main.__file__ = what
            exec(compile(Path(what).read_bytes(), what, "exec"), vars(main))
        else:
            exec(compile(what, "<string>", "exec"), vars(main))
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in {ZYGOTE, "<frozen runpy>", runpy.__file__}:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        if isinstance(error, KeyboardInterrupt):
            return -signal.SIGINT
    else:
        return 0
    return 1


def end(status):
    """What an interpreter does at its end, but for the destruction of all modules, which takes longer than many a test."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, AttributeError):  # closed by the program
            stream.flush()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 255)


if __name__ == "__main__":
    ZYGOTE = __file__
    if os.fork():  # a child of nobody: tests count the children of their own process
        os._exit(0)
    os.setsid()
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    for module in MODULES:
        importlib.import_module(module)
    del sys.path[0]
    _request, _descriptors, _connection = serve(sys.argv[1])
    become(_request, _descriptors)
    _answer(_connection, "pid", os.getpid())  # from now on signals come to the program
    _connection.close()
    end(run(*_request["program"]))
