"""Start several processes with ``accelerate launch``; each runs the train command without launch arguments."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError, naming_us
from grpo_verifiers.files import temporary_folder
from grpo_verifiers.lazy import installed
from grpo_verifiers.redaction import redact_text

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def launch(parsed: "Parsed", arguments: Sequence[str], command: str) -> int:
    """Start the ranks of this machine, and return their exit code; ``command`` is the full command without secrets."""
    from accelerate.commands.launch import launch_command_parser

    from grpo_plus.cli._quick_checks import LAUNCHED

    words = [*parsed.launch, "--module", "grpo_plus.cli", "train", *arguments]
    chosen = launch_command_parser().parse_args(words)
    # Torch's launcher kills the ranks 30 seconds after a signal it handles: too early for a step and a checkpoint.
    chosen.signals_to_handle = "SIGHUP,SIGQUIT"
    if (parsed.processes or 1) > 1:
        _spread_over_cpu(chosen, use_cpu=bool(parsed.training.use_cpu))
    with _forward_signals() as received, temporary_folder() as folder:
        if chosen.log_dir is None and str(chosen.tee) == "0":
            chosen.log_dir = folder  # torch would not remove its own
        before = dict(os.environ)
        os.environ.update(naming_us({LAUNCHED: "1"}))
        try:
            codes = _run(chosen)
        finally:
            os.environ.clear()
            os.environ.update(before)
    # After a signal, ranks ended by it have not failed; torch sends SIGTERM to the remaining ones.
    expected = {code for number in (*received, signal.SIGTERM) for code in (128 + number, -number)}
    failed = {rank: code for rank, code in codes.items() if code not in expected}
    if not failed:
        return 128 + (received or [signal.SIGTERM])[0] if received or codes else 0
    code = max(1, *failed.values())
    if code == 1:
        ends = ", ".join(f"{rank} {_ending(code)}" for rank, code in sorted(failed.items()))
        message = f"grpo-plus train: of the ranks, {ends}. Resume from the last checkpoint with:\n"
        print(redact_text(f"{message}  {command} --resume_from_checkpoint last"), file=sys.stderr, flush=True)
    return code


def _run(chosen: Any) -> Mapping[int, int]:
    """Run the ranks; return the exit codes other than 0."""
    from accelerate.commands.launch import launch_command
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it logs every signal that it sends
    try:
        launch_command(chosen)
    except ChildFailedError as error:
        return {rank: each.exitcode for rank, each in error.failures.items()}
    except SignalException as error:
        return {0: 128 + int(error.sigval)}
    except subprocess.CalledProcessError as error:
        return {0: error.returncode}
    except SystemExit as error:
        return {0: error.code} if isinstance(error.code, int) and error.code else {}
    except DistError as error:  # torch's store: the machines could not connect
        print(redact_text(f"grpo-plus train: {str(error).splitlines()[0]}"), file=sys.stderr, flush=True)
        return {0: 1}
    return {}


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
    return f"ended with exit code {code}"


@contextlib.contextmanager
def _forward_signals() -> Iterator[list[int]]:
    """Forward Ctrl-C and SIGTERM to the ranks, which save and exit; without ranks, exit with the signal's code.

    A thread does this: while torch's store waits for other machines, Python runs no handler.
    """
    import psutil  # type: ignore[import-untyped]  # comes with accelerate

    received: list[int] = []
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def forward() -> None:
        while word := reader.recv(1):
            if word[0] not in SIGNALS:
                continue
            received.append(word[0])
            ranks = psutil.Process().children()
            for rank in ranks:
                with contextlib.suppress(psutil.Error):
                    rank.send_signal(word[0])
            if not ranks:
                os._exit(128 + word[0])

    thread = threading.Thread(target=forward, name="grpo_plus signals", daemon=True)
    waker = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    before = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
    thread.start()
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(waker)
        writer.close()  # ends the thread's reads
        thread.join()
        reader.close()


def _spread_over_cpu(launch: Any, *, use_cpu: bool) -> None:
    """Start CPU ranks like GPU ranks: accelerate would use MPI, or ranks that each train by themselves."""
    import torch

    from grpo_plus.recipe.values import read_yaml

    kind = read_yaml(Path(launch.config_file)).get("distributed_type") if launch.config_file else None
    deepspeed, fsdp = launch.use_deepspeed or kind == "DEEPSPEED", launch.use_fsdp or kind == "FSDP"
    if deepspeed and not installed("deepspeed"):
        raise UserError("the launch arguments ask for DeepSpeed, which is not installed: pip install deepspeed.")
    on_cpu = use_cpu or launch.cpu or not torch.accelerator.is_available()
    if on_cpu and fsdp:
        print(
            "FSDP needs accelerators: on a CPU, accelerate runs this as plain DDP, the full model in each process.",
            file=sys.stderr,
        )
        os.environ["ACCELERATE_USE_CPU"] = "true"
    other = (launch.tpu, deepspeed, fsdp, launch.use_megatron_lm, launch.mpirun_hostfile)
    if any(other) or kind not in (None, False, "NO", "MULTI_CPU", "MULTI_GPU"):  # YAML reads a bare NO as false
        return
    if launch.cpu or kind == "MULTI_CPU" or not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
        launch.cpu, launch.multi_gpu = False, True
