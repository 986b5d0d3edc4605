"""Completions from a vLLM server that holds the base itself and is handed the adapter alone.

The usual way to keep vLLM at the policy is to merge the adapter into the base and send all weights. Merged into a
quantised base the adapter is lost in the rounding; and sent alone it is a thousandth of the size. The server keeps a
base of its own, in 16 bits or quantised as it likes, so its log-probabilities differ a little from the trained
model's: TRL's own importance sampling correction (``vllm_importance_sampling_*``) sees both and corrects for it.
"""

import itertools
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, TypeGuard

from grpo_plus.sampling.vllm_http import Client, ServerError
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

BASE_CHANGING = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Ways to start an adapter that change the base weights, which the server does not see."""


def start_command(name: str, rank: int | None = None) -> str:
    """How to start the server that a run needs."""
    large = f" --max-lora-rank {rank}" if rank and rank > 16 else ""
    return (
        f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve {name} --enable-lora{large} "
        "--logprobs-mode processed_logprobs"
    )


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
    return [
        f"use_vllm: vLLM cannot serve adapters with {name} ({value!r}). Leave it out, or set use_vllm: false and "
        "rollout: auto."
        for name, value in found.items()
        if value
    ]


def check_server(client: Client, name: str, rank: int | None) -> None:
    """Wait for the server, and see that it serves this base and takes adapters; the rank is for the advice.

    Raises:
        ServerError: it does not; the message holds the command that starts one that does.
    """
    command = start_command(name, rank)
    try:
        client.wait()
        served = [model for model in client.models() if not model.get("parent")]
    except ServerError as error:
        raise ServerError(f"{error} The command is: {command}") from error
    names = [str(model[key]) for model in served for key in ("id", "root") if model.get(key)]
    if not any(_same(name, other) for other in names):
        raise ServerError(
            f"the vLLM server at {client.url} serves {', '.join(dict.fromkeys(names)) or 'nothing'}, but {name} is "
            f"trained. Start it with: {command}. If it is the same model in another folder or precision, say so with "
            f"--served-model-name {name}."
        )
    if not client.takes_adapters():
        raise ServerError(
            f"the vLLM server at {client.url} has no /v1/load_lora_adapter, so adapters cannot be handed to it. Start "
            f"it with: {command}"
        )


def warn_of_raw(client: Client, sampling: Mapping[str, Any]) -> None:
    """Say so where the server's log-probabilities are not, or may not be, those that were sampled from."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    if all(sampling.get(name, value) == value for name, value in neutral.items()):
        return
    mode = client.logprobs_mode()
    if mode != "processed_logprobs":
        what = "does not say which log-probabilities it returns" if mode is None else f"returns {mode}"
        logger.warning(
            "The vLLM server %s; with these sampling parameters the importance sampling correction needs those after "
            "them: start it with --logprobs-mode processed_logprobs.",
            what,
        )


def _same(name: str, other: str) -> bool:
    return name == other or (Path(name).exists() and Path(other).exists() and Path(name).samefile(other))


class AdapterServer:
    """Stands where TRL's trainer keeps its own vLLM client; `check_server` comes first.

    ``model`` gives the unwrapped model with its adapter, which is saved in a ``folder`` that the server sees.
    ``sampling`` has the parameters of a completion request, ``name`` is that of the base, for messages.
    """

    def __init__(
        self,
        client: Client,
        *,
        model: Callable[[], Any],
        accelerator: Any,
        folder: Path,
        sampling: Mapping[str, Any],
        name: str,
    ) -> None:
        self._client = client
        self._model = model
        self._accelerator = accelerator
        self._folder = folder.resolve()
        self._sampling = dict(sampling)
        self._name = name
        self._run = uuid.uuid4().hex[:8]
        self._count = 0
        self._stale = True
        self._adapter: str | None = None

    def sync_weights(self) -> None:
        """The weights have changed: the next completions come from the new ones."""
        self._stale = True

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        images: Any,
        num_generations: int,  # noqa: ARG002 - the host's call; equal prompts side by side say the same
        profiler: Any = None,
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float | None]]], None]:
        """Completions of this rank's prompts, with the log-probabilities that they were sampled at.

        Raises:
            ServerError: on every rank, whatever went wrong on the one that talks to the server.
        """
        from accelerate.utils import broadcast_object_list, gather_object

        if images is not None and any(image is not None for image in images):
            raise ServerError("adapter-only vLLM takes token ids; for prompts with images set use_vllm: false.")
        parts: list[list[list[int]]] = gather_object([[list(prompt) for prompt in prompts]])
        answer: list[Any] = [None]
        if self._accelerator.is_main_process:
            try:
                with profiler or nullcontext():
                    if self._stale:
                        self._push()
                    answer = [self._complete([prompt for part in parts for prompt in part])]
            except ServerError as error:
                answer = [str(error)]
        broadcast_object_list(answer, from_process=0)
        self._stale = False
        if isinstance(answer[0], str):
            raise ServerError(answer[0])
        before = sum(len(part) for part in parts[: self._accelerator.process_index])
        mine = answer[0][before : before + len(prompts)]
        ids = [list(prompt) for prompt in prompts]
        return ids, [tokens for tokens, _ in mine], [[[logp] for logp in logps] for _, logps in mine], None

    def close(self) -> None:
        """Take the adapter out of the server and off the disk."""
        if self._accelerator.is_main_process and self._adapter is not None:
            try:
                self._client.unload(self._adapter)
            except ServerError as error:
                logger.warning("The adapter %s could not be taken out of the server: %s", self._adapter, error)
            shutil.rmtree(self._folder / self._adapter, ignore_errors=True)
            with suppress(OSError):  # of another run too
                self._folder.rmdir()
        self._adapter, self._stale = None, True

    def _push(self) -> None:
        """Save the adapter and have the server load it, under a name of its own.

        A name that was used before may be answered from what the server remembers of it. The old adapter goes first: by
        default a server has room for one.
        """
        model = self._model()
        active = model.active_adapters[0]
        self._count += 1
        name = f"grpo-plus-{self._run}-{self._count}"
        path = self._folder / name
        model.save_pretrained(path, selected_adapters=[active], safe_serialization=True, save_embedding_layers=False)
        if active != "default":
            path /= active
        old = self._adapter
        if old is not None:
            self._client.unload(old)
            self._adapter = None
        failed = self._client.load(name, str(path))
        if failed is not None:
            raise ServerError(
                f"the vLLM server at {self._client.url} did not load the adapter {path}: {failed}. It must see that "
                "folder (choose output_dir on a disk that both share) and have been started for adapters of this rank: "
                f"{start_command(self._name, model.peft_config[active].r)}"
            )
        self._adapter = name
        if old is not None:
            shutil.rmtree(self._folder / old, ignore_errors=True)

    def _complete(self, prompts: list[list[int]]) -> list[tuple[list[int], list[float | None]]]:
        groups = [(prompt, len(list(same))) for prompt, same in itertools.groupby(prompts)]
        wanted = {"model": self._adapter, "logprobs": 0, "return_token_ids": True}
        answers = self._client.complete(
            *({**self._sampling, **wanted, "prompt": prompt, "n": count} for prompt, count in groups)
        )
        return [completion for choices in answers for completion in self._completions(choices)]

    def _completions(self, choices: list[dict[str, Any]]) -> list[tuple[list[int], list[float | None]]]:
        found = []
        for choice in choices:
            ids, told = choice.get("token_ids"), choice.get("logprobs")
            logps: Any = told.get("token_logprobs") if isinstance(told, dict) else None
            if not _are_tokens(ids) or not _are_logps(logps) or len(logps) != len(ids):
                raise ServerError(
                    f"the vLLM server at {self._client.url} returned a completion without its token ids and their "
                    "log-probabilities: it must know return_token_ids; update vLLM."
                )
            found.append((list(ids), logps))
        return found


def _are_tokens(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and bool(value) and all(type(item) is int and item >= 0 for item in value)


def _are_logps(value: Any) -> TypeGuard[list[float | None]]:
    return isinstance(value, list) and all(item is None or isinstance(item, int | float) for item in value)
