"""Programs that tests start, forked from a process that has torch and TRL imported: each saves some 6 s of imports.

``Popen`` and ``run`` take what those of ``subprocess`` take. A new interpreter runs what a fork could not show: options of
the interpreter, a function before the program, and other values of variables that are read during imports.
"""

import atexit
import functools
import json
import os
import re
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

AT_IMPORT = re.compile(
    "BITSANDBYTES_|BNB_|DATASETS_|GRADIO_|HF_|HOME|LANG|LC_|LD_|MKL_|OMP_|PYTHON|TOKENIZERS_|TORCH_|TRACKIO_|TRANSFORMERS_"
    "|TRL_|XDG_"
)
"""Beginnings of names of variables that are read while modules are imported."""
AFTER_IMPORT = ("PYTHONPATH", "PYTHONUNBUFFERED")


def clean_environment():
    """Variables for a program: this process's own, without what a test runner and accelerate add."""
    added = ("PYTEST_", "COV_", "ACCELERATE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(added)}


class Zygote:
    """The process that forks."""

    def __init__(self):
        self.variables = clean_environment()
        self.name = f"\0grpo-plus-tests-{os.getpid()}-{time.time_ns()}"
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("zygote.py"), self.name[1:]],
            env=self.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[1],
        )
        if self.process.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that programs are forked from did not start: see its errors")
        self.process.wait()  # the one that forks is its child
        atexit.register(self.process.stdin.close)

    def start(self, request, descriptors):
        """A connection, on which the status will come, and the process's number."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self.name)
        socket.send_fds(connection, [json.dumps(request).encode()], descriptors)
        kind, _, rest = connection.recv(4096).decode().partition(" ")
        if kind != "pid":
            raise RuntimeError(f"no program was forked: {kind} {rest}")
        return connection, int(rest)


_own_zygote = functools.cache(Zygote)


def _zygote(variables):
    """The process to fork, or None where a variable has another value than it had there."""
    if os.environ.get("GRPO_PLUS_FORK") == "0":
        return None
    if not sys.platform.startswith("linux"):
        warnings.warn("no fork here: each program that a test starts imports torch again", stacklevel=4)
        return None
    own = _own_zygote()
    at_import = [
        {name: value for name, value in each.items() if AT_IMPORT.match(name) and name not in AFTER_IMPORT}
        for each in (variables, own.variables)
    ]
    return own if at_import[0] == at_import[1] else None


def _program(words, folder):
    """Kind and text of a program of Python with its arguments and first folder of modules; None for any other."""
    if words[0] != sys.executable:
        return None
    rest, unbuffered = words[1:], False
    if rest[:1] == ["-u"]:
        rest, unbuffered = rest[1:], True
    match rest:
        case ["-c", code, *arguments]:
            found = ("code", code), ["-c", *arguments], ""
        case ["-m", module, *arguments]:
            found = ("module", module), [module, *arguments], folder
        case [file, *arguments] if not file.startswith("-"):
            path = str(Path(folder, file))
            found = ("file", path), [file, *arguments], str(Path(path).resolve().parent)
        case _:
            return None
    program, argv, path = found
    return {"program": program, "argv": argv, "path": [path], "unbuffered": unbuffered}


class Popen(subprocess.Popen):
    """A process as ``subprocess`` has it; the status comes from the process that was forked."""

    _connection = None

    def _execute_child(self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more):  # noqa: PLR0917 - the host's
        (_, _, shell, p2cread, _, _, c2pwrite, _, errwrite, _, gid, gids, uid, umask, session, group) = more
        words = [args] if isinstance(args, str | Path) else [os.fspath(word) for word in args]
        variables = {**(os.environ if env is None else env)}
        folder = Path(cwd or ".").absolute()
        program = _program(words, str(folder))
        special = executable or preexec_fn or shell or gid or gids or uid or umask >= 0 or group >= 0 or not close_fds
        if not program or special or not folder.is_dir() or not (zygote := _zygote(variables)):
            return super()._execute_child(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, *more)
        program["path"] += [part for part in variables.get("PYTHONPATH", "").split(os.pathsep) if part]
        program["unbuffered"] |= bool(variables.get("PYTHONUNBUFFERED"))
        umask = os.umask(0)
        os.umask(umask)
        request = {**program, "env": variables, "cwd": str(folder), "session": session, "umask": umask}
        streams = [given if given != -1 else own for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._connection, self.pid = zygote.start({**request, "keep": list(pass_fds)}, [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(*more[3:9])
        return None

    def _try_wait(self, wait_flags):
        if self._connection is None:
            return super()._try_wait(wait_flags)
        try:
            answer = self._connection.recv(64, socket.MSG_DONTWAIT if wait_flags & os.WNOHANG else 0)
        except BlockingIOError:
            return 0, 0
        self._connection.close()
        return self.pid, int(answer.decode().removeprefix("status ") or 9)  # nothing where the zygote has been ended

    def _internal_poll(self, _deadstate=None, **more):
        if self._connection is None:
            return super()._internal_poll(_deadstate, **more)
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            except OSError:  # collected as garbage together with its connection, and asked once more by ``subprocess``
                if _deadstate is None:
                    raise
                self.returncode = _deadstate
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(*words, input=None, capture_output=False, timeout=None, check=False, **options):  # noqa: A002 - the name there
    """``subprocess.run``."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(*words, **options) as process:
        try:
            out, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


class Ranks:
    """The processes of one run on CPUs, with the variables that ``accelerate launch`` sets."""

    def __init__(self, count, port, words, env, **options):
        run = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        run |= {"ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
        self.processes = []
        for rank in range(count):
            own = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
            variables = {name: str(value) for name, value in {**env, **run, **own}.items()}
            self.processes.append(Popen(words, env=variables, **options))

    def wait(self, timeout):
        """The first status other than 0, or 0."""
        until = time.monotonic() + timeout
        waiting = list(self.processes)
        while waiting:
            waiting = [each for each in waiting if each.poll() is None]
            if failed := [each.returncode for each in self.processes if each.returncode]:
                return failed[0]
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("ranks", timeout)
            time.sleep(0.01)
        return 0
