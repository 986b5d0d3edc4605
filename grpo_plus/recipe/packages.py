"""Packages that a config asks for and this machine lacks: said before a model loads, where TRL says it afterwards."""

from collections.abc import Mapping
from typing import Any

from grpo_verifiers.lazy import installed

PROBED = ("tensorboard", "wandb", "trackio", "mlflow", "comet_ml", "swanlab", "clearml", "dvclive", "neptune")
"""Trackers whose installation the host can check."""
_ATTENTION = {
    "flash_attention_2": (("flash_attn", "kernels"), "flash-attn"),
    "flash_attention_3": (("flash_attn_interface", "flash_attn_3", "kernels"), "flash-attn-3"),
    "flash_attention_4": (("flash_attn", "kernels"), "flash-attn-4"),
}
"""By implementation the modules of which one must be there, and the package to install."""


def package_problems(config: Any) -> list[str]:
    """All that is missing for a run on this machine; a config for another one is not judged by it."""
    return [*_vllm_problems(config), *attention_problems(config.model_init_kwargs), *tracker_problems(config.report_to)]


def attention_problems(init: Any) -> list[str]:
    """An ``attn_implementation`` whose kernels are not there."""
    chosen = init.get("attn_implementation") if isinstance(init, Mapping) else None
    if not isinstance(chosen, str):
        return []
    bare = chosen.removeprefix("paged|")
    if "/" in bare and not installed("kernels"):
        text = f"attn_implementation is {chosen!r}, a kernel of the hub, which needs the package kernels"
        return [f"{text}: pip install kernels, or set sdpa."]
    modules, package = _ATTENTION.get(bare, ((), ""))
    if not modules or any(map(installed, modules)):
        return []
    text = f"attn_implementation is {chosen!r}, which needs {package}, and it is not installed"
    return [f"{text}: pip install {package} (or kernels, which fetches it from the hub), or set sdpa."]


def tracker_problems(report_to: Any) -> list[str]:
    """Trackers that are not installed; the config has checked their names."""
    from transformers.integrations import get_available_reporting_integrations

    names = [report_to] if isinstance(report_to, str) else list(report_to or ())
    there = get_available_reporting_integrations() if set(names) & set(PROBED) else ()
    return [
        f"report_to is {name!r}, but {name} is not installed: pip install {name}, or set report_to: none."
        for name in names
        if name in PROBED and name not in there
    ]


def missing_deepspeed(config: Any) -> dict[str, str]:
    """By field: DeepSpeed is asked for and not there, which the host says in the words of its package manager."""
    if not config.deepspeed or installed("deepspeed"):
        return {}
    return {
        "deepspeed": "deepspeed is set, but DeepSpeed is not installed: pip install deepspeed, or remove the option."
    }


def _vllm_problems(config: Any) -> list[str]:
    """VLLM in this process; a server runs elsewhere, and whether it needs the package here is judged with it."""
    if not config.use_vllm or config.vllm_mode != "colocate" or installed("vllm"):
        return []
    text = "use_vllm is true with vllm_mode 'colocate', but vLLM is not installed: pip install 'trl[vllm]' on a machine"
    remedy = "set vllm_mode: server for one that runs elsewhere, or use_vllm: false (rollout: auto draws leaner, too)"
    return [f"{text} with CUDA, {remedy}."]
