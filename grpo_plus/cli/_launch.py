"""Start several processes through ``accelerate launch``: each runs the train command without launch arguments."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from grpo_plus.cli._parent import naming_us
from grpo_verifiers.files import temporary_folder

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed

_MISTAKE = 2
"""Exit code of a rank that has said what is wrong with its config."""


def launch(parsed: "Parsed", arguments: Sequence[str]) -> int:
    """Start the ranks, and return their exit code."""
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from grpo_plus.checkpoints.disk import UNSAVED
    from grpo_plus.cli._arguments import LAUNCHED

    os.environ.update(naming_us({LAUNCHED: "1"}))
    given = [*parsed.launch, "--module", "grpo_plus.cli", "train", *arguments]
    chosen = launch_command_parser().parse_args(given)
    # Torch's launcher kills the ranks 30 seconds after a signal it handles: too early for a step and a checkpoint.
    chosen.signals_to_handle = "SIGHUP,SIGQUIT"
    if (parsed.processes or 1) > 1:
        _spread_over_cpu(chosen, use_cpu=bool(parsed.training.use_cpu))
    with _passed_on() as heard, _logs(chosen):
        try:
            launch_command(chosen)
        except SignalException as error:
            heard.append(int(error.sigval))
        except (subprocess.CalledProcessError, ChildFailedError, SystemExit) as error:
            failure = error.get_first_failure()[1] if isinstance(error, ChildFailedError) else error
            for code in (UNSAVED, _MISTAKE):
                if code in (getattr(failure, "exitcode", None), getattr(failure, "returncode", None)):
                    return code
            if not heard:
                raise
    return 128 + heard[0] if heard else 0


@contextlib.contextmanager
def _logs(chosen: Any) -> Iterator[None]:
    """Give the launcher a folder that goes with it; its own one stays, even where nothing is to be logged."""
    if chosen.log_dir is not None or str(chosen.tee) != "0":
        yield
        return
    with temporary_folder() as chosen.log_dir:
        yield


@contextlib.contextmanager
def _passed_on() -> Iterator[list[int]]:
    """Forward signals to the ranks, which save and exit; yields the list of received signals."""
    import psutil  # type: ignore[import-untyped]  # comes with accelerate

    heard: list[int] = []

    def hear(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(number)

    before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {
        number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _spread_over_cpu(launch: Any, *, use_cpu: bool) -> None:
    """Start CPU ranks like GPU ranks: accelerate would use MPI, or a single rank without it."""
    import torch

    from grpo_plus.recipe.options import read_yaml

    kind = read_yaml(Path(launch.config_file)).get("distributed_type") if launch.config_file else None
    other = (launch.tpu, launch.use_deepspeed, launch.use_fsdp, launch.use_megatron_lm, launch.mpirun_hostfile)
    on_cpu = use_cpu or launch.cpu or not torch.accelerator.is_available()
    if on_cpu and (launch.use_fsdp or kind == "FSDP"):
        print(
            "FSDP needs accelerators: on a CPU, accelerate runs this as plain DDP, the whole model in each process.",
            file=sys.stderr,
        )
    if any(other) or kind not in (None, False, "NO", "MULTI_CPU", "MULTI_GPU"):  # YAML reads a bare NO as false
        return
    if launch.cpu or kind == "MULTI_CPU" or not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
        launch.cpu, launch.multi_gpu = False, True
