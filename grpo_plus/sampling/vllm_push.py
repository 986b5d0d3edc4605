"""How weights come to a vLLM server: the part of `VllmServer` that differs from way to way."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from grpo_plus.sampling.vllm_http import Client


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


class Push(Protocol):
    """A way to hand weights to a server; `save` is for all processes, the others for the one that talks to it.

    Attributes:
        folder: name of the folder below ``output_dir`` where the weights lie, which the server sees.
    """

    folder: str

    def command(self, name: str) -> str:
        """The command that starts a server for this."""

    def refusal(self, client: Client) -> str | None:
        """Why this server cannot be handed weights in this way; None if it can."""

    def save(self, weights: Weights, path: Path, *, write: bool) -> None:
        """Write the present weights; every process takes part, one of them has to ``write``."""

    def load(self, client: Client, version: str, path: Path) -> str | None:
        """Have the server take the weights in a folder, as this version; gives why it could not."""

    def holds(self, client: Client, version: str) -> bool:
        """Whether the server has this version, now."""

    def unload(self, client: Client, version: str) -> None:
        """Take a version out of the server, where it goes by itself otherwise."""

    def leave(self, client: Client, version: str, base: Mapping[str, Any]) -> None:
        """Leave the server as it was before the run, with its own weights; ``base`` is its entry of them."""

    def asked(self, name: str, version: str) -> str:
        """The name of this version in a request, where ``name`` is that of the base."""
