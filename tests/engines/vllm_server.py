"""A real vLLM server, from the environment that `.ci/engines` makes: for tests and for the benchmark."""

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from grpo_plus.cli import quickstart

HOME = Path(os.environ.get("GRPO_PLUS_ENGINES") or Path.home() / ".cache/grpo_plus/engines")
ADAPTERS = ("--enable-lora", "--max-lora-rank", "16", "--logprobs-mode", "processed_logprobs")
"""What a server is started with that is handed adapters."""
SMALL = ("--max-model-len", "256", "--dtype", "float32", "--max-num-seqs", "64")
"""What keeps a server small and exact; on a CPU vLLM otherwise takes bfloat16 for anything."""


RUN = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4, "logging_steps": 1}
RUN |= {"lr_scheduler_type": "constant", "report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no"}
RUN |= {"use_vllm": True, "vllm_mode": "server"}
"""What runs against a server have in common."""


class Server(NamedTuple):
    url: str
    process: subprocess.Popen
    log: Path


def warm_model() -> str:
    """The folder of the quickstart's model, which the first call trains in a minute and keeps beside the environments."""
    quickstart.FOLDER = HOME / "quickstart"
    return quickstart.model()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def start(
    model, *arguments: str, log: Path, port: int = 0, development: bool = True, patience: float | None = 240
) -> Server:
    """Start a server and return once it answers; ``patience`` None returns at once, a ``RuntimeError`` has the end of its log.

    ``development`` opens `/collective_rpc` and `/server_info`, which weights by file need.
    """
    port = port or free_port()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VLLM_API_KEY")}
    environment |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True", "VLLM_SERVER_DEV_MODE": str(int(development))}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environment |= {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    # Its own command line asks for a package of the name vllm, which the CPU's build does not have.
    serve = [str(HOME / "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command = [*serve, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as output:
        # Its engine is a process of its own: both are ended by their group.
        streams = {"stdout": output, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen([*command, *SMALL, *arguments], env=environment, **streams)
    server = Server(f"http://127.0.0.1:{port}", process, log)
    if patience is not None:
        wait(server, patience)
    return server


def wait(server: Server, patience: float = 240) -> None:
    end = time.monotonic() + patience
    while time.monotonic() < end:
        if server.process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    code = server.process.poll()
    stop(server)
    what = f"gave no answer within {patience:g} s" if code is None else f"ended with exit code {code}"
    raise RuntimeError(f"vllm serve {what}:\n{server.log.read_text(errors='replace')[-4000:]}")


def kill(server: Server) -> None:
    """End a server as a machine does that loses power: SIGKILL to all of its processes."""
    with_group(server, signal.SIGKILL)
    server.process.wait(timeout=30)


def stop(server: Server) -> None:
    if server.process.poll() is None:
        with_group(server, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.process.wait(timeout=10)
    kill(server)


def with_group(server: Server, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.process.pid, number)


@contextmanager
def serving(model: str | Path, *arguments: str, log: Path, **options) -> Iterator[Server]:
    server = start(model, *arguments, log=log, **options)
    try:
        yield server
    finally:
        stop(server)
