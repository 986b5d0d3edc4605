"""Ways to transfer weights to a vLLM server: the part of `VllmServer` that depends on the way.

All processes call `save`; only the process that talks to the server calls the other methods.

The allowed tokens of truncated sampling are read from the top log-probabilities at each sampled token. Processed ones
are those after top-k, top-p and min-p: -inf for an excluded token. If the top tokens include an excluded one, they
include all allowed tokens. Otherwise there may be more, and the set is unknown.
"""

import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_plus.sampling.vllm_http import Client, ServerError, message

LEAST, MOST = 20, 128
"""Log-probabilities requested: vLLM's default ``--max-logprobs``, and the number for top-p and min-p."""
FARTHEST = 1024
"""The most requested: each takes about 40 bytes of the response, at every token."""
NEVER = -9000.0
"""A log-probability below this means -inf, which JSON lacks: servers return -9999."""

_MARK = "token_id:"
NEUTRAL = {"top_p": (None, 1, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0, 0.0)}


def logprobs_count(sampling: Mapping[str, Any], vocabulary: int | None = None) -> int:
    """Return the number of log-probabilities to request at each token; 0 without truncation."""
    if all(sampling.get(name) in neutral for name, neutral in NEUTRAL.items()):
        return 0
    top, count = sampling.get("top_k"), MOST
    if isinstance(top, int) and top > 0:
        alone = all(sampling.get(name) in NEUTRAL[name] for name in ("top_p", "min_p"))
        count = min(top + 1, MOST) if not alone else top + 1 if top < FARTHEST else LEAST
    return min(count, vocabulary - 1) if vocabulary else count


def server_flags(count: int) -> str:
    """Return the flags of a server that can return ``count`` log-probabilities at each token."""
    return "--logprobs-mode processed_logprobs" + (f" --max-logprobs {count}" if count > LEAST else "")


def allowed_ids(logps: Mapping[int, float]) -> list[int] | None:
    """Return the allowed tokens among the top ones with their log-probabilities; None if there may be more."""
    ids = [token for token, logp in logps.items() if not math.isnan(logp) and logp > NEVER]
    return sorted(ids) if ids and len(ids) < len(logps) else None


def from_json(top: Any) -> list[list[int] | None]:
    """Return `allowed_ids` of each token of a completion, from the ``top_logprobs`` of a response."""

    def one(logps: Any) -> list[int] | None:
        try:
            return allowed_ids({int(name.removeprefix(_MARK)): float(logp) for name, logp in logps.items()})
        except (AttributeError, ValueError, TypeError):  # no mapping of numbers
            return None

    return [one(logps) for logps in top] if isinstance(top, list) else []


BASE_CHANGING = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Initializations of an adapter that change the base weights, unknown to the server."""

UNSERVED = (
    "modules_to_save", "use_dora", "lora_bias", "rank_pattern", "alpha_pattern", "layer_replication",
    "trainable_token_indices", "target_parameters",
)  # fmt: skip
"""Settings of LoRA that vLLM does not serve."""

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM's values of ``--max-lora-rank``; an adapter uses the next larger one."""


def room_for(rank: int) -> int | None:
    """Return the least ``--max-lora-rank`` for this rank; None if it is too large."""
    return next((room for room in RANKS if room >= rank), None)


def adapter_problems(config: Any) -> list[str]:
    """Return the reasons why vLLM cannot serve an adapter with this config."""
    if config is None:
        return []
    kind = str(getattr(config, "peft_type", "missing")).rpartition(".")[2]
    if kind != "LORA":
        return [f"use_vllm: a server takes LoRA adapters, and this one is {kind}: use LoRA, or set use_vllm: false."]
    start, bias = getattr(config, "init_lora_weights", True), getattr(config, "bias", "none")
    values = {name: getattr(config, name, None) for name in UNSERVED}
    values["bias"] = None if bias == "none" else bias
    values["init_lora_weights"] = start if isinstance(start, str) and start.lower().startswith(BASE_CHANGING) else None
    problems = [
        f"use_vllm: vLLM cannot serve adapters with {name} ({value!r}). Leave it out, or set use_vllm: false and "
        "rollout: auto."
        for name, value in values.items()
        if value
    ]
    rank = getattr(config, "r", None)
    if isinstance(rank, int) and room_for(rank) is None:
        problems.append(f"use_vllm: vLLM takes adapters up to rank {RANKS[-1]}, and this one has {rank}: lower lora_r.")
    return problems


@dataclass(frozen=True)
class Weights:
    """Access to the current weights of the trained model.

    Attributes:
        model: returns the unwrapped model, with its adapters.
        gather: for a sharded model, returns the full tensors with these names on the CPU of the main process; every
            process must call it. None if the model is not sharded.
    """

    model: Callable[[], Any]
    gather: Callable[[Callable[[str], bool]], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class AdapterPush:
    """Transfers the active adapter alone, under a new name each time, to a server that has the base.

    The usual way merges the adapter into the base and sends all weights. In a quantised base the merged adapter is lost
    in the rounding, and the adapter alone is a thousandth of the size. The server has its own base, in 16 bits or
    quantised, so its log-probabilities differ slightly from the trained model's; TRL's importance sampling correction
    (``vllm_importance_sampling_*``) corrects for that.

    Names are never reused: the server caches by name. ``rank`` (of the adapter) and ``tokens`` (log-probabilities
    requested at each token) are for messages.
    """

    rank: int | None = None
    tokens: int = 0
    folder = "_vllm_adapter"

    def command(self, name: str) -> str:
        """Return the command that starts a suitable server."""
        rank = self.rank
        large = f" --max-lora-rank {room_for(rank) or rank}" if rank and rank > 16 else ""
        flags = f"{large} {server_flags(self.tokens)}"
        return f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {name} --enable-lora{flags}"

    def refusal(self, client: Client) -> str | None:
        """Return the reason why this server cannot receive weights in this way; None if it can."""
        if not client.takes_adapters():
            return "has no /v1/load_lora_adapter, so adapters cannot be handed to it"
        if marks := [mark for mark in client.marks() if mark]:
            return f"has the weights that another run wrote to it ({marks[0]}) in place of its own"
        return None

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """Write the current weights; every process must call it, one of them with ``write``."""
        model = weights.model()
        active = model.active_adapters[0]
        tensors = weights.gather and weights.gather(lambda name: f".{active}." in name)
        if not write:
            return
        further = {} if tensors is None else {"state_dict": dict(tensors)}
        model.save_pretrained(
            path, selected_adapters=[active], safe_serialization=True, save_embedding_layers=False, **further
        )
        if active != "default":  # saved in a subfolder
            for file in (path / active).iterdir():
                shutil.move(file, path / file.name)

    def load(self, client: Client, version: str, path: Path) -> str | None:
        """Load the weights in a folder as this version; returns the reason of a failure."""
        return client.load(version, str(path))

    def holds(self, client: Client, version: str) -> bool:
        """Return True if the server has this version now, over its own base."""
        return not any(client.marks()) and any(model.get("id") == version for model in client.models())

    def unload(self, client: Client, version: str) -> None:
        """Remove a version from the server, which has room for one by default."""
        client.unload(version)

    def leave(self, client: Client, version: str, base: Mapping[str, Any]) -> None:  # noqa: ARG002
        """Restore the state before the run; ``base`` is the server's entry of its own weights."""
        client.unload(version)

    def model_name(self, name: str, version: str) -> str:  # noqa: ARG002
        """Return the model name of a request; ``name`` is that of the base."""
        return version


@dataclass(frozen=True)
class FilePush:
    """Transfers all weights as safetensors in a folder that the server can read and loads in place.

    There is no process group, so it works without NCCL: on CPUs, on different kinds of machines, over a shared disk.
    The server must run in development mode, in which every client can call methods of its workers.

    A mark on each worker names the loaded version. After a restart there is no mark, and after a write by another run
    the mark differs, so both are detected. ``tokens`` (log-probabilities requested at each token) is for messages.
    """

    tokens: int = 0
    folder = "_vllm_weights"

    def command(self, name: str) -> str:
        """Return the command that starts a suitable server."""
        return f"VLLM_SERVER_DEV_MODE=1 vllm serve {name} {server_flags(self.tokens)}"

    def refusal(self, client: Client) -> str | None:
        """Return the reason why this server cannot receive weights in this way; None if it can."""
        return None if client.takes_calls() else "has no /collective_rpc, so it cannot load weights on request"

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """Write the current weights; every process must call it, one of them with ``write``."""
        tensors = weights.gather and weights.gather(lambda _: True)
        if write:
            weights.model().save_pretrained(path, state_dict=None if tensors is None else dict(tensors))

    def load(self, client: Client, version: str, path: Path | str) -> str | None:
        """Load the weights of a folder or of a hub name into the workers; returns the reason of a failure.

        The mark is removed first and set after the load.
        """
        status, text = client.mark("")
        if status == 200:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
            status, text = client.request("POST", "/collective_rpc", body)
        if status == 200:
            # Without the flag nothing is emptied while a request runs, but the status is 200 all the same.
            status, text = client.request("POST", "/reset_prefix_cache?reset_running_requests=true", None)
            if status == 200 and '"success":false' in text.replace(" ", ""):
                return "its prefix cache, which is of other weights, could not be emptied"
        if status == 200:
            status, text = client.mark(version)
        return None if status == 200 else f"HTTP {status}: {message(text)}"

    def holds(self, client: Client, version: str) -> bool:
        """Return True if all workers have the mark of this version."""
        return set(client.marks()) == {version}

    def unload(self, client: Client, version: str) -> None:
        """Do nothing: the next weights replace these."""

    def leave(self, client: Client, version: str, base: Mapping[str, Any]) -> None:
        """Load the server's own weights again, unless another run has written to it."""
        if self.holds(client, version) and (failed := self.load(client, "", str(base.get("root")))):
            raise ServerError(f"it did not load its own weights again: {failed}")

    def model_name(self, name: str, version: str) -> str:  # noqa: ARG002
        """Return the model name of a request, that of the base."""
        return name


Push = AdapterPush | FilePush
"""A way to transfer weights to a server; ``folder`` is their folder below ``output_dir``, readable for the server."""
