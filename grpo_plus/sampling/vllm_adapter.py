"""The adapter alone, for a vLLM server that holds the base itself.

The usual way to keep vLLM at the policy is to merge the adapter into the base and send all weights. Merged into a
quantised base the adapter is lost in the rounding; and sent alone it is a thousandth of the size. The server keeps a
base of its own, in 16 bits or quantised as it likes, so its log-probabilities differ a little from the trained
model's: TRL's own importance sampling correction (``vllm_importance_sampling_*``) sees both and corrects for it.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_plus.sampling.vllm_http import Client
from grpo_plus.sampling.vllm_push import Weights
from grpo_plus.sampling.vllm_support import server_flags

BASE_CHANGING = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Ways to start an adapter that change the base weights, which the server does not see."""

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
    start = getattr(config, "init_lora_weights", True)
    found = {
        "modules_to_save": getattr(config, "modules_to_save", None),
        "use_dora": getattr(config, "use_dora", False),
        "bias": None if getattr(config, "bias", "none") == "none" else config.bias,
        "lora_bias": getattr(config, "lora_bias", False),
        "rank_pattern": getattr(config, "rank_pattern", None),
        "alpha_pattern": getattr(config, "alpha_pattern", None),
        "layer_replication": getattr(config, "layer_replication", None),
        "trainable_token_indices": getattr(config, "trainable_token_indices", None),
        "target_parameters": getattr(config, "target_parameters", None),
        "init_lora_weights": start if isinstance(start, str) and start.lower().startswith(BASE_CHANGING) else None,
    }
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


class AdapterPush:
    """Hands over the active adapter, under a name of its own each time.

    A name that was used before may be answered from what the server remembers of it.
    """

    folder = "_vllm_adapter"

    def __init__(self, rank: int | None = None, asked: int = 0) -> None:
        """``rank`` is that of the adapter, and a request asks about so many tokens: for advice."""
        self._rank, self._asked = rank, asked

    def command(self, name: str) -> str:
        """See `Push.command`."""
        return start_command(name, self._rank, self._asked)

    def refusal(self, client: Client) -> str | None:
        """See `Push.refusal`: without the permission, the address does not exist."""
        if not client.takes_adapters():
            return "has no /v1/load_lora_adapter, so adapters cannot be handed to it"
        if others := [mark for mark in client.marks() if mark]:
            return f"has the weights that another run wrote to it ({others[0]}) in place of its own"
        return None

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """See `Push.save`."""
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
        """See `Push.load`."""
        return client.load(version, str(path))

    def holds(self, client: Client, version: str) -> bool:
        """See `Push.holds`: the adapter, and below it a base that nobody wrote to."""
        return not any(client.marks()) and any(model.get("id") == version for model in client.models())

    def unload(self, client: Client, version: str) -> None:
        """See `Push.unload`: by default a server has room for one."""
        client.unload(version)

    def leave(self, client: Client, version: str, base: Mapping[str, Any]) -> None:  # noqa: ARG002
        """See `Push.leave`."""
        client.unload(version)

    def asked(self, name: str, version: str) -> str:  # noqa: ARG002
        """See `Push.asked`."""
        return version
