"""The way of weights to a vLLM server: ``vllm_sync``, or a choice by the conditions of the run."""

from typing import NamedTuple

WAYS = ("files", "nccl", "adapter")


class Way(NamedTuple):
    """A way and the reason for it, as the end of a sentence."""

    name: str
    why: str


class SyncConditions(NamedTuple):
    """The conditions that the way depends on.

    Attributes:
        quantised: the base is in 4 or 8 bits.
        adapters: adapters are trained, and not all weights.
        accelerator: training runs on a device with NCCL or a similar library.
        vllm: vLLM is installed in the trainer's environment; TRL's own path needs it.
        takes_adapters: the server takes adapters; None before the first request.
        servable: vLLM serves adapters of this kind.
        as_object: the model was passed as an object; its weights may differ from those under its name.
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
        """The way depends on the server's support of adapters: TRL's own path is possible too."""
        group = self.accelerator and self.vllm
        return self.adapters and self.servable and not self.quantised and not self.unlike and group

    @property
    def unlike(self) -> bool:
        """The server may have a different base than the trained adapters."""
        return self.adapters and self.as_object and not self.quantised


def choose(explicit: str | None, conditions: SyncConditions) -> Way:
    """Return the way: ``explicit`` if set, else by the conditions."""
    if explicit is not None:
        return Way(explicit, "rollout says so")
    group = conditions.accelerator and conditions.vllm
    if conditions.quantised:
        return Way("adapter", "the base is quantised, and a merge into it would be lost in the rounding")
    if conditions.adapters:
        if group and not conditions.servable:
            return Way("nccl", "the adapters are of a kind that vLLM cannot serve: TRL merges them")
        if group and conditions.unlike:
            return Way("nccl", "the model is an object, whose weights may not be the server's: TRL merges the adapters")
        if conditions.takes_adapters is not False or not group:
            unknown = " (nccl if the server turns out not to)" * (conditions.takes_adapters is None and group)
            return Way("adapter", f"adapters are trained, and the server takes them{unknown}")
        return Way("nccl", "adapters are trained, but the server takes none")
    if group:
        return Way("nccl", "all weights are trained, on an accelerator")
    lack = "the trainer's environment lacks vLLM" if conditions.accelerator else "there is no accelerator for NCCL"
    return Way("files", f"all weights are trained, and {lack}")


def sync_problems(explicit: str | None, conditions: SyncConditions) -> list[str]:
    """Return the problem of an ``explicit`` way that is impossible, or of a choice between unsafe ways."""
    if explicit is None and conditions.unlike and choose(None, conditions).name == "adapter":
        text = (
            "adapters are trained on a model that was handed over as an object, and a server takes the adapter alone, "
            "over its own base, which cannot be compared with yours. Pass the name or folder of the model; or, if the "
            "server has the same weights, set rollout: {vllm_sync: adapter}."
        )
        return [text]
    problems = {
        "files nccl": conditions.quantised
        and "but the base is quantised: all weights means merging the adapter into it, which loses most of the adapter "
        "in the rounding. Set rollout: {vllm_sync: adapter}, or leave it unset.",
        "files": conditions.adapters
        and "but adapters are trained: files transfer all weights, and each merge would round the trained base again. "
        "Set rollout: {vllm_sync: adapter}, which sends a thousandth of it.",
        "adapter": not conditions.adapters
        and "but no adapters are trained: set rollout: {vllm_sync: files}, or use_peft: true.",
        "nccl": not conditions.accelerator
        and "which needs an accelerator, and training runs on a CPU: leave it unset, or set use_cpu: false.",
    }
    texts = [text for ways, text in problems.items() if explicit in ways.split() and text]
    return [f"rollout vllm_sync is {explicit!r}, {text}" for text in texts[:1]]
