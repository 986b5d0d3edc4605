"""Which way weights go to a vLLM server: ``vllm_sync``, or what there is decides."""

from typing import NamedTuple

WAYS = ("files", "nccl", "adapter")


class Way(NamedTuple):
    """A way and the reason for it, the end of a sentence."""

    name: str
    why: str


class Means(NamedTuple):
    """What decides about the way.

    Attributes:
        quantised: the base is held in 4 or 8 bits.
        adapters: adapters are trained, and not all weights.
        accelerator: training runs on a device that NCCL or its like knows.
        vllm: vLLM is installed beside the trainer, which TRL's own path needs.
        takes_adapters: the server takes adapters; None where nobody asked it yet.
        servable: vLLM serves adapters of this kind.
        as_object: the model was handed over as an object, whose weights may not be those that its name stands for.
    """

    quantised: bool = False
    adapters: bool = False
    accelerator: bool = False
    vllm: bool = False
    takes_adapters: bool | None = None
    servable: bool = True
    as_object: bool = False

    @property
    def doubtful(self) -> bool:
        """The server has to be asked whether it takes adapters: weights could go on TRL's own path as well."""
        group = self.accelerator and self.vllm
        return self.adapters and self.servable and not self.quantised and not self.unlike and group

    @property
    def unlike(self) -> bool:
        """The server may hold another base than the one that adapters are trained on."""
        return self.adapters and self.as_object and not self.quantised


def choose(asked: str | None, means: Means) -> Way:
    """The way that weights go."""
    if asked is not None:
        return Way(asked, "rollout says so")
    group = means.accelerator and means.vllm
    if means.quantised:
        return Way("adapter", "the base is quantised, and a merge into it would be lost in the rounding")
    if means.adapters:
        if group and not means.servable:
            return Way("nccl", "the adapters are of a kind that vLLM cannot serve: TRL merges them")
        if group and means.unlike:
            return Way("nccl", "the model is an object, whose weights may not be the server's: TRL merges the adapters")
        if means.takes_adapters is not False or not group:
            unknown = " (nccl if the server turns out not to)" * (means.takes_adapters is None and group)
            return Way("adapter", f"adapters are trained, and the server takes them{unknown}")
        return Way("nccl", "adapters are trained, but the server takes none")
    if group:
        return Way("nccl", "all weights are trained, on an accelerator")
    lack = "vLLM is not installed beside the trainer" if means.accelerator else "there is no accelerator for NCCL"
    return Way("files", f"all weights are trained, and {lack}")


def sync_problems(asked: str | None, means: Means) -> list[str]:
    """Why a way that was asked for cannot be gone, or why none can be chosen."""
    if asked is None and means.unlike and choose(None, means).name == "adapter":
        text = (
            "adapters are trained on a model that was handed over as an object, and a server takes the adapter alone, "
            "over a base of its own that nobody can compare with yours. Hand over the name or folder of the model; or, "
            "where the server holds the same weights, set rollout: {vllm_sync: adapter}."
        )
        return [text]
    found = {
        "files nccl": means.quantised
        and "but the base is quantised: to hand over whole weights the adapter would have to be merged into it, which "
        "loses most of the adapter in the rounding. Set rollout: {vllm_sync: adapter}, or leave it unset.",
        "files": means.adapters
        and "but adapters are trained: whole weights go by file, and a merge into those that are trained would wear "
        "them away. Set rollout: {vllm_sync: adapter}, which sends a thousandth of it.",
        "adapter": not means.adapters
        and "but no adapters are trained: set rollout: {vllm_sync: files}, or use_peft: true.",
        "nccl": not means.accelerator
        and "which needs an accelerator, and training runs on a CPU: leave it unset, or set use_cpu: false.",
    }
    texts = [text for ways, text in found.items() if asked in ways.split() and text]
    return [f"rollout vllm_sync is {asked!r}, {text}" for text in texts[:1]]
