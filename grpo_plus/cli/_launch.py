"""Start several processes through ``accelerate launch``: each runs the train command without launch arguments."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._machines import Machines
from grpo_plus.cli._parent import naming_us
from grpo_plus.cli._ranks import FOLDER, report
from grpo_plus.cli._signals import PassedOn
from grpo_plus.cli._watch import Watch
from grpo_verifiers.files import temporary_folder
from grpo_verifiers.lazy import installed
from grpo_verifiers.redaction import redact_text

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed

_MISTAKE = 2
"""Exit code of a rank that has said what is wrong with its config."""


def launch(parsed: "Parsed", arguments: Sequence[str], command: str) -> int:
    """Start the ranks, and return their exit code; the message of the one that failed first is printed last.

    ``command`` is the whole command, as it may be printed.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    from grpo_plus.checkpoints.disk import UNSAVED
    from grpo_plus.cli._early import LAUNCHED

    given = [*parsed.launch, "--module", "grpo_plus.cli", "train", *arguments]
    chosen = launch_command_parser().parse_args(given)
    # Torch's launcher kills the ranks 30 seconds after a signal it handles: too early for a step and a checkpoint.
    chosen.signals_to_handle = "SIGHUP,SIGQUIT"
    if (parsed.processes or 1) > 1:
        _spread_over_cpu(chosen, use_cpu=bool(parsed.training.use_cpu))
    resume = f"Resume from the last checkpoint with:\n  {command} --resume_from_checkpoint last"
    failure: BaseException | None = None
    codes: dict[int, int] = {}
    with PassedOn() as signals, _watched(chosen) as watch:
        if watch:
            signals.awaited = watch.awaited
        heard = signals.heard
        os.environ.update(naming_us({LAUNCHED: "1", **({FOLDER: str(watch.folder)} if watch else {})}))
        try:
            launch_command(chosen)
        except SignalException as error:
            heard.append(int(error.sigval))
        except ChildFailedError as error:
            failure, codes = error, {rank: each.exitcode for rank, each in error.failures.items()}
        except (subprocess.CalledProcessError, SystemExit) as error:
            found = error.returncode if isinstance(error, subprocess.CalledProcessError) else error.code
            failure, codes = error, {0: found} if isinstance(found, int) else {}
        except RuntimeError as error:  # of torch's store
            if watch and (missing := watch.missing(error)):
                print(redact_text(f"grpo-plus train: {missing}"), file=sys.stderr, flush=True)
                return 1  # no mistake: what starts jobs may try it again
            failure = error
        # After a signal, ranks that ended as it asks have not failed; one that could not save has.
        asked = {code for number in (*heard, signal.SIGTERM) for code in (128 + number, -number)}
        fault = watch.verdict(codes) if watch and (not heard or set(codes.values()) - asked) else None
        if watch and fault:
            print(redact_text(report(fault, watch.others(fault), resume)), file=sys.stderr, flush=True)
            return fault.code
        known = next((code for code in (UNSAVED, _MISTAKE) if code in codes.values()), None)
        if known is None and watch and codes and codes.keys() <= watch.done():
            known = next((code for code in codes.values() if code > 0), None)
    if failure is not None and known is None and not heard:
        raise failure
    return known or (128 + heard[0] if heard else 0)


@contextlib.contextmanager
def _watched(chosen: Any) -> Iterator["Watch | None"]:
    """A watch over the ranks, unless torch is to restart those that fail (``--max_restarts``).

    Its folder goes with the launcher; torch's own one would stay, so it is put there, too.
    """
    setting = settings(chosen)
    with temporary_folder() as folder:
        if chosen.log_dir is None and str(chosen.tee) == "0":
            chosen.log_dir = folder
        if int(setting("max_restarts") or 0) > 0:
            yield None
            return
        ranks = Path(folder, "ranks")
        ranks.mkdir()
        # It names every signal that it sends, and the failure that is told here.
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        with contextlib.ExitStack() as stack:
            talk = None
            if (machines := int(setting("num_machines") or 1)) > 1:
                _check_machines(setting, machines)
                host, port = str(setting("main_process_ip")), int(setting("main_process_port") or 29500)
                talk = stack.enter_context(Machines(host, port, int(setting("machine_rank") or 0), machines))
            yield stack.enter_context(Watch(ranks, talk))


def _check_machines(setting: Callable[[str], Any], machines: int) -> None:
    if setting("main_process_ip") is None:
        raise UserError(f"num_machines is {machines}, but main_process_ip is not set: give each machine 0's address.")
    if (ranks := int(setting("num_processes") or 0)) % machines:
        raise UserError(
            f"num_processes is {ranks}, which {machines} machines cannot share evenly: it counts the ranks of all."
        )


def settings(chosen: Any) -> Callable[[str], Any]:
    """Launch arguments by name; what the command line does not set stands in accelerate's config file."""
    from accelerate.commands.config.config_args import default_config_file

    from grpo_plus.recipe.options import read_yaml

    path = chosen.config_file or (default_config_file if os.path.isfile(default_config_file) else None)  # noqa: PTH113
    file = read_yaml(Path(path)) if path else {}

    def setting(name: str) -> Any:
        given = getattr(chosen, name, None)
        return file.get(name) if given is None else given

    return setting


def _spread_over_cpu(launch: Any, *, use_cpu: bool) -> None:
    """Start CPU ranks like GPU ranks: accelerate would use MPI, or ranks that each train by themselves."""
    import torch

    from grpo_plus.recipe.options import read_yaml

    kind = read_yaml(Path(launch.config_file)).get("distributed_type") if launch.config_file else None
    deepspeed, fsdp = launch.use_deepspeed or kind == "DEEPSPEED", launch.use_fsdp or kind == "FSDP"
    if deepspeed and not installed("deepspeed"):
        raise UserError("the launch arguments ask for DeepSpeed, which is not installed: pip install deepspeed.")
    on_cpu = use_cpu or launch.cpu or not torch.accelerator.is_available()
    if on_cpu and fsdp:
        print(
            "FSDP needs accelerators: on a CPU, accelerate runs this as plain DDP, the whole model in each process.",
            file=sys.stderr,
        )
        os.environ["ACCELERATE_USE_CPU"] = "true"
    other = (launch.tpu, deepspeed, fsdp, launch.use_megatron_lm, launch.mpirun_hostfile)
    if any(other) or kind not in (None, False, "NO", "MULTI_CPU", "MULTI_GPU"):  # YAML reads a bare NO as false
        return
    if launch.cpu or kind == "MULTI_CPU" or not torch.accelerator.is_available():
        os.environ["ACCELERATE_USE_CPU"] = "true"
        launch.cpu, launch.multi_gpu = False, True
