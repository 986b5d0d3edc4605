"""Command line: each command is a module imported by name, so ``--help`` does not import torch.

Modules with an underscore are helpers of the commands.
"""

import importlib
import io
import os
import select
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import TracebackType

from grpo_plus import __version__
from grpo_verifiers.errors.frames import place, plugin_traceback
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.redaction import RedactedError, redact_text

COMMANDS = {
    "init": "write a recipe of the project into this folder: a YAML file and the files it needs",
    "train": "train a model from a YAML file",
    "eval": "measure a model on a dataset: pass@k and majority with intervals",
    "sweep": "train a config's variants with several seeds, and compare them",
    "check": "print the effect, needs and problems of a config and of this machine",
    "plugins": "list every part and its source, or show one: formula, keywords, example",
    "export": "write a run's adapter, or the model with the adapter folded in",
    "report": "write one HTML page about a run, or about several side by side",
    "verify": "score a file of completions with a verifier",
}


UNREAD = 141
"""Exit code if the reader of the output ends first, as for a program killed by SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    end_with_parent()
    for stream in (sys.stdout, sys.stderr):  # escape characters missing from the terminal's encoding
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        print(f"grpo-plus: {unknown('command', name, COMMANDS)}", file=sys.stderr)
        return 2
    try:
        code: int = importlib.import_module(f"grpo_plus.cli.{name}").run(rest)
    except UserError as error:
        return _failed(f"{plugin_traceback(error)}grpo-plus {name}: {error}", 2)
    except KeyboardInterrupt as error:
        where = place(error)
        return _failed(f"grpo-plus {name}: interrupted{where and f' in {where}'}", 130)
    except BaseException as error:  # a plug-in may raise anything
        if isinstance(error, BrokenPipeError) and _is_unread():
            return UNREAD
        if message := _plugin_failure(error):
            return _failed(f"{plugin_traceback(error)}grpo-plus {name}: {message}", 2)
        sys.excepthook = _redacted_traceback
        raise
    finally:
        _is_unread()
    return code


def _is_unread() -> bool:
    """Return True, and discard further output, if its reader has ended, as ``head`` does."""
    try:
        descriptor, poll = sys.stdout.fileno(), select.poll()
    except (OSError, ValueError, AttributeError):  # no file, or a closed one
        return False
    poll.register(descriptor, 0)
    if not any(state & select.POLLERR for _, state in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return True


def _failed(text: str, code: int) -> int:
    print(redact_text(text), file=sys.stderr)
    return code


def _redacted_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(redact_text("".join(traceback.format_exception(kind, error, trace))))


def _plugin_failure(error: BaseException) -> str:
    """Return the message for an exception from a plug-in; empty for any other."""
    if not plugin_traceback(error):
        return ""
    ends = "ends the program" if isinstance(error, SystemExit) else "failed"
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    return f"a plug-in {ends} ({place(error)}): {reason}"


def usage() -> str:
    """Return the help text of the bare command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, about in COMMANDS.items()]
    return "\n".join(["usage: grpo-plus COMMAND [arguments]", "", *lines, "", "grpo-plus COMMAND --help has more."])


class UserError(RedactedError):
    """Mistake that the user can correct, printed as one message without a traceback."""


VARIABLE = "GRPO_PLUS_PARENT"
"""Variable with the process id of a sweep or launcher, for its child processes."""


def naming_us(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for processes that have to end with this one."""
    return {**environment, VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """Have the kernel kill this process with the sweep or launcher that started it; called first of all.

    A single run continues after the end of the shell that started it.
    """
    named = os.environ.pop(VARIABLE, "")
    if sys.platform != "linux":
        return
    from grpo_verifiers.sandbox.confine import die_with

    parent = os.getppid()
    if named.isdecimal() and int(named) != parent:
        if not os.path.exists(f"/proc/{named}"):  # noqa: PTH110 - it was killed already
            os._exit(1)
        return  # another launcher is in between
    if named or "TORCHELASTIC_RUN_ID" in os.environ:
        die_with(parent)
