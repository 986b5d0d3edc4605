"""How weights come to a vLLM server: the part of `VllmServer` that differs from way to way.

`save` is for all processes, the other methods for the one that talks to the server.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.sampling.vllm_http import Client, ServerError, message
from grpo_plus.sampling.vllm_support import server_flags

BASE_CHANGING = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Ways to start an adapter that change the base weights, which the server does not see."""

UNSERVED = (
    "modules_to_save", "use_dora", "lora_bias", "rank_pattern", "alpha_pattern", "layer_replication",
    "trainable_token_indices", "target_parameters",
)  # fmt: skip
"""Settings of LoRA that vLLM does not serve."""

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks that vLLM makes room for; an adapter of another one goes into the next."""


def room_for(rank: int) -> int | None:
    """The least rank that vLLM can be made for and that holds this one; None: there is none."""
    return next((room for room in RANKS if room >= rank), None)


def start_command(name: str, rank: int | None = None, asked: int = 0) -> str:
    """How to start the server that a run needs, which asks it about so many tokens."""
    large = f" --max-lora-rank {room_for(rank) or rank}" if rank and rank > 16 else ""
    return f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {name} --enable-lora{large} {server_flags(asked)}"


def adapter_problems(config: Any) -> list[str]:
    """Why vLLM cannot serve an adapter of this kind; empty when it can."""
    if config is None:
        return []
    kind = str(getattr(config, "peft_type", "missing")).rpartition(".")[2]
    if kind != "LORA":
        return [f"use_vllm: a server takes LoRA adapters, and this one is {kind}: use LoRA, or set use_vllm: false."]
    start, bias = getattr(config, "init_lora_weights", True), getattr(config, "bias", "none")
    found = {name: getattr(config, name, None) for name in UNSERVED}
    found["bias"] = None if bias == "none" else bias
    found["init_lora_weights"] = start if isinstance(start, str) and start.lower().startswith(BASE_CHANGING) else None
    problems = [
        f"use_vllm: vLLM cannot serve adapters with {name} ({value!r}). Leave it out, or set use_vllm: false and "
        "rollout: auto."
        for name, value in found.items()
        if value
    ]
    rank = getattr(config, "r", None)
    if isinstance(rank, int) and room_for(rank) is None:
        problems.append(f"use_vllm: vLLM takes adapters up to rank {RANKS[-1]}, and this one has {rank}: lower lora_r.")
    return problems


@dataclass(frozen=True)
class Weights:
    """The weights of the trained model, as they are when they are asked for.

    Attributes:
        model: gives the unwrapped model, with its adapters.
        whole: gives the tensors with these names, whole and on the CPU, where no process has all of them; every process
            must call it, and the main one gets them. None where the model itself is whole.
    """

    model: Callable[[], Any]
    whole: Callable[[Callable[[str], bool]], Mapping[str, Any]] | None = None

    def tensors(self, wanted: Callable[[str], bool]) -> Mapping[str, Any] | None:
        """Tensors by name, gathered from all processes; None: the model has them."""
        return None if self.whole is None else self.whole(wanted)


@dataclass(frozen=True)
class AdapterPush:
    """Hands over the active adapter alone, under a name of its own each time, to a server that holds the base itself.

    The usual way to keep vLLM at the policy is to merge the adapter into the base and send all weights. Merged into a
    quantised base the adapter is lost in the rounding; and sent alone it is a thousandth of the size. The server keeps
    a base of its own, in 16 bits or quantised as it likes, so its log-probabilities differ a little from the trained
    model's: TRL's own importance sampling correction (``vllm_importance_sampling_*``) sees both and corrects for it.

    A name that was used before may be answered from what the server remembers of it. ``rank`` is that of the adapter,
    and a request asks about so many ``tokens``: for advice.
    """

    rank: int | None = None
    tokens: int = 0
    folder = "_vllm_adapter"

    def command(self, name: str) -> str:
        """The command that starts a server for this."""
        return start_command(name, self.rank, self.tokens)

    def refusal(self, client: Client) -> str | None:
        """Why this server cannot be handed weights in this way; None if it can."""
        if not client.takes_adapters():
            return "has no /v1/load_lora_adapter, so adapters cannot be handed to it"
        if others := [mark for mark in client.marks() if mark]:
            return f"has the weights that another run wrote to it ({others[0]}) in place of its own"
        return None

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """Write the present weights; every process takes part, one of them has to ``write``."""
        model = weights.model()
        active = model.active_adapters[0]
        tensors = weights.tensors(lambda name: f".{active}." in name)
        if not write:
            return
        further = {} if tensors is None else {"state_dict": dict(tensors)}
        model.save_pretrained(
            path, selected_adapters=[active], safe_serialization=True, save_embedding_layers=False, **further
        )
        if active != "default":  # those stand in folders of their own
            for file in (path / active).iterdir():
                shutil.move(file, path / file.name)

    def load(self, client: Client, version: str, path: Path) -> str | None:
        """Have the server take the weights in a folder, as this version; gives why it could not."""
        return client.load(version, str(path))

    def holds(self, client: Client, version: str) -> bool:
        """Whether the server has this version, now, over a base that nobody wrote to."""
        return not any(client.marks()) and any(model.get("id") == version for model in client.models())

    def unload(self, client: Client, version: str) -> None:
        """Take a version out of the server: by default it has room for one."""
        client.unload(version)

    def leave(self, client: Client, version: str, base: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Leave the server as it was before the run; ``base`` is its entry of its own weights."""
        client.unload(version)

    def asked(self, name: str, version: str) -> str:  # noqa: ARG002
        """The name of this version in a request, where ``name`` is that of the base."""
        return version


@dataclass(frozen=True)
class FilePush:
    """Hands over all weights, as safetensors in a folder that the server sees, which it loads in place.

    No process group joins trainer and server, so it works without NCCL: on a CPU, on machines of two kinds, across a
    shared disk. The server must run in development mode, which lets anybody who reaches it call methods of its workers.

    Each of its workers carries a mark that names the version it has loaded. A server that was restarted has the weights
    of its start and no mark, and one that another run has written to has another mark: neither goes unnoticed. A
    request asks about so many ``tokens``: for advice.
    """

    tokens: int = 0
    folder = "_vllm_weights"

    def command(self, name: str) -> str:
        """The command that starts a server for this."""
        return f"VLLM_SERVER_DEV_MODE=1 vllm serve {name} {server_flags(self.tokens)}"

    def refusal(self, client: Client) -> str | None:
        """Why this server cannot be handed weights in this way; None if it can."""
        return None if client.takes_calls() else "has no /collective_rpc, so it cannot be told to load weights"

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """Write the present weights; every process takes part, one of them has to ``write``."""
        tensors = weights.tensors(lambda _: True)
        if write:
            weights.model().save_pretrained(path, state_dict=None if tensors is None else dict(tensors))

    def load(self, client: Client, version: str, path: Path | str) -> str | None:
        """Have the workers load what is in a folder, or has this name on the hub; gives why they could not.

        The mark goes first, and comes back when all is there.
        """
        status, text = client.mark("")
        if status == 200:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
            status, text = client.request("POST", "/collective_rpc", body)
        if status == 200:
            # Without the flag nothing is emptied while anybody's request runs, and the answer is 200 all the same.
            status, text = client.request("POST", "/reset_prefix_cache?reset_running_requests=true", None)
            if status == 200 and '"success":false' in text.replace(" ", ""):
                return "its prefix cache, which is of other weights, could not be emptied"
        if status == 200:
            status, text = client.mark(version)
        return None if status == 200 else f"HTTP {status}: {message(text)}"

    def holds(self, client: Client, version: str) -> bool:
        """Whether the server has this version, now: all workers have the mark."""
        return set(client.marks()) == {version}

    def unload(self, client: Client, version: str) -> None:
        """The next weights take the place of these."""

    def leave(self, client: Client, version: str, base: Mapping[str, Any]) -> None:
        """Give the server its own weights again; those that somebody else wrote to it are left alone."""
        if self.holds(client, version) and (failed := self.load(client, "", str(base.get("root")))):
            raise ServerError(f"it did not load its own weights again: {failed}")

    def asked(self, name: str, version: str) -> str:  # noqa: ARG002
        """The name of the weights in a request is that of the base."""
        return name


Push = AdapterPush | FilePush
"""A way to hand weights to a server; ``folder`` is where below ``output_dir`` they lie, which the server sees."""
