"""All weights, as safetensors in a folder that a vLLM server sees, which it loads in place.

No process group joins trainer and server, so it works without NCCL: on a CPU, on machines of two kinds, across a shared
disk. The server must run in development mode, which lets anybody who reaches it call methods of its workers.

Each of its workers carries a mark that names the version it has loaded. A server that was restarted has the weights of
its start and no mark, and one that another run has written to has another mark: neither goes unnoticed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_plus.sampling.vllm_http import Client, ServerError, message
from grpo_plus.sampling.vllm_push import Weights
from grpo_plus.sampling.vllm_support import server_flags


class FilePush:
    """Hands over all weights."""

    folder = "_vllm_weights"

    def __init__(self, asked: int = 0) -> None:
        """A request asks about so many tokens: for advice."""
        self._asked = asked

    def command(self, name: str) -> str:
        """See `Push.command`."""
        return f"VLLM_SERVER_DEV_MODE=1 vllm serve {name} {server_flags(self._asked)}"

    def refusal(self, client: Client) -> str | None:
        """See `Push.refusal`."""
        return None if client.takes_calls() else "has no /collective_rpc, so it cannot be told to load weights"

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """See `Push.save`."""
        tensors = weights.tensors(lambda _: True)
        if write:
            weights.model().save_pretrained(path, state_dict=None if tensors is None else dict(tensors))

    def load(self, client: Client, version: str, path: Path) -> str | None:
        """See `Push.load`: the mark goes first, and comes back when all is there."""
        return _reload(client, version, str(path))

    def holds(self, client: Client, version: str) -> bool:
        """See `Push.holds`: all workers have the mark."""
        return set(client.marks()) == {version}

    def unload(self, client: Client, version: str) -> None:
        """See `Push.unload`: the next weights take the place of these."""

    def leave(self, client: Client, version: str, base: Mapping[str, Any]) -> None:
        """See `Push.leave`: weights that somebody else wrote to it are left alone."""
        if self.holds(client, version) and (failed := _reload(client, "", str(base.get("root")))):
            raise ServerError(f"it did not load its own weights again: {failed}")

    def asked(self, name: str, version: str) -> str:  # noqa: ARG002
        """See `Push.asked`."""
        return name


def _reload(client: Client, mark: str, path: str) -> str | None:
    """Have the workers load what is in a folder, or has this name on the hub; gives why they could not."""
    status, text = client.mark("")
    if status == 200:
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        status, text = client.request("POST", "/collective_rpc", body)
    if status == 200:
        # Without the flag nothing is emptied while anybody's request runs, and the answer is 200 all the same.
        status, text = client.request("POST", "/reset_prefix_cache?reset_running_requests=true", None)
        if status == 200 and '"success":false' in text.replace(" ", ""):
            return "its prefix cache, which is of other weights, could not be emptied"
    if status == 200:
        status, text = client.mark(mark)
    return None if status == 200 else f"HTTP {status}: {message(text)}"
