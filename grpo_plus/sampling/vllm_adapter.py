"""The adapter alone, for a vLLM server that holds the base itself.

The usual way to keep vLLM at the policy is to merge the adapter into the base and send all weights. Merged into a
quantised base the adapter is lost in the rounding; and sent alone it is a thousandth of the size. The server keeps a
base of its own, in 16 bits or quantised as it likes, so its log-probabilities differ a little from the trained
model's: TRL's own importance sampling correction (``vllm_importance_sampling_*``) sees both and corrects for it.
"""

from typing import Any

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
