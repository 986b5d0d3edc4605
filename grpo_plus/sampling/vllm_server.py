"""Completions from a vLLM server that receives the weights of the trained model, all of them or the adapter alone.

All completions come from exactly these weights: before and after each request for completions the loaded version is
checked. After a restart, or a write by another client, the weights are transferred again and the request is repeated.
The trainer waits for a server that stopped.
"""

import itertools
import shutil
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from grpo_plus.sampling.allowed_tokens import from_ids, unknown
from grpo_plus.sampling.vllm_http import PAUSES, Client, ServerError, ServerLostError, UnknownModelError
from grpo_plus.sampling.vllm_push import LEAST, MOST, Push, Weights, from_json, logprobs_count
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

Completion = tuple[list[int], list[float | None], Any]
"""Tokens, their log-probabilities when sampled, and the allowed tokens of truncated sampling."""

OWN = (
    *("model", "prompt", "n", "logprobs", "return_token_ids", "return_tokens_as_token_ids"),
    *("stream", "stream_options", "echo", "best_of", "use_beam_search", "prompt_logprobs"),
)
"""Fields of a completion request that are set here, or change the form of the response."""
BY_TRAINING = "is set by training itself"

TRIES = 4
"""Tries of a request for completions while the server is lost before the run ends."""


def request_problems(keywords: Mapping[str, Any], regex: str | None) -> list[str]:
    """Return the problems of `generation_kwargs` in a request, with or without `vllm_structured_outputs_regex`."""
    reasons = dict.fromkeys(OWN, BY_TRAINING)
    if regex is not None:
        reasons["structured_outputs"] = f"would override vllm_structured_outputs_regex ({regex!r})"
    return key_problems(keywords, reasons)


def key_problems(keywords: Mapping[str, Any], reasons: Mapping[str, str]) -> list[str]:
    """Return a problem for each key of `generation_kwargs` that is not allowed."""
    return [
        f"generation_kwargs has {name} ({keywords[name]!r}), which {why}: leave it out."
        for name, why in reasons.items()
        if name in keywords
    ]


def check_server(client: Client, name: str, push: Push) -> dict[str, Any]:
    """Wait for the server and check that it serves this base and can receive weights; returns its entry of the base."""
    command = push.command(name)
    try:
        client.wait()
        served = [model for model in client.models() if not model.get("parent")]
    except ServerError as error:
        raise type(error)(f"{error} The command is: {command}") from error
    names = [str(model[key]) for model in served for key in ("id", "root") if model.get(key)]
    base = next((model for model in served if any(_same(name, str(model.get(key))) for key in ("id", "root"))), None)
    if base is None:
        raise ServerError(
            f"the vLLM server at {client.url} serves {', '.join(dict.fromkeys(names)) or 'nothing'}, but {name} is "
            f"trained. Start it with: {command}. If it is the same model in another folder or precision, say so with "
            f"--served-model-name {name}."
        )
    if refusal := push.refusal(client):
        raise ServerError(f"the vLLM server at {client.url} {refusal}. Start it with: {command}")
    return base


def _same(name: str, other: str) -> bool:
    return name == other or (Path(name).exists() and Path(other).exists() and Path(name).samefile(other))


class VllmServer:
    """Replaces the vLLM client of TRL's trainer.

    ``push`` transfers the ``weights`` of the trained model through a ``folder`` that the server can read. ``sampling``
    has the parameters of a completion request, ``name`` is that of the base. ``inspect`` is called with the server's
    entry of the base, at the start and after a restart; it raises if the model differs. ``vocabulary`` is the number
    of tokens of the model.

    Attributes:
        allowed: the allowed tokens of this rank's latest completions; None without truncation.
        top_n: the number of log-probabilities requested at each token to find them; 0 without truncation.
    """

    def __init__(
        self,
        client: Client,
        push: Push,
        *,
        weights: Weights,
        accelerator: Any,
        folder: Path,
        sampling: Mapping[str, Any],
        name: str,
        inspect: Callable[[Mapping[str, Any]], None] = lambda _: None,
        vocabulary: int | None = None,
    ) -> None:
        self._client = client
        self._push = push
        self._weights = weights
        self._accelerator = accelerator
        self._folder = folder.resolve()
        self._sampling = dict(sampling)
        self._name = name
        self._inspect = inspect
        self._vocabulary = vocabulary
        self._run = uuid.uuid4().hex[:8]
        self._count = 0
        self._stale = True
        self._version: str | None = None  # of the weights in the folder
        self._loaded: str | None = None  # the version that the server loaded last
        self._base: Mapping[str, Any] = {}  # the server's entry of the base, after `meet`
        self.top_n = logprobs_count(sampling, vocabulary)
        self.allowed: list[Any] | None = None

    def sync_weights(self) -> None:
        """Mark the weights as changed; the next completions come from the new ones."""
        self._stale = True

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        images: Any,
        num_generations: int,  # noqa: ARG002 - the host's call; equal neighbouring prompts have this information
        profiler: Any = None,
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float | None]]], None]:
        """Return completions of this rank's prompts, with their log-probabilities when sampled.

        Raises:
            ServerError: on every rank, after any failure on the one that talks to the server.
        """
        from accelerate.utils import broadcast_object_list, gather_object

        shown = images is not None and any(image is not None for image in images)
        if any(gather_object([shown])):  # raised on all ranks, or the rest would wait
            raise ServerError("a vLLM server of its own takes token ids; for prompts with images set use_vllm: false.")
        parts: list[list[list[int]]] = gather_object([[list(prompt) for prompt in prompts]])
        answer: list[Any]
        with profiler or nullcontext():
            answer = [self._save() if self._stale else None]
            if self._accelerator.is_main_process and answer[0] is None:
                try:
                    answer = [self._draw([prompt for part in parts for prompt in part])]
                except ServerError as error:
                    answer = [str(error)]
        broadcast_object_list(answer, from_process=0)
        if isinstance(answer[0], str):
            raise ServerError(answer[0])
        self._stale = False
        before = sum(len(part) for part in parts[: self._accelerator.process_index])
        mine = answer[0][before : before + len(prompts)]
        ids = [list(prompt) for prompt in prompts]
        self.allowed = [row for *_, row in mine] if self.top_n else None
        return ids, [tokens for tokens, *_ in mine], [[[logp] for logp in logps] for _, logps, _ in mine], None

    def close(self) -> None:
        """Remove the run's weights from the server and from the disk."""
        if self._accelerator.is_main_process:
            if self._loaded is not None:
                try:
                    self._push.leave(self._client, self._loaded, self._base)
                except ServerError as error:
                    logger.warning("%s could not be taken out of the vLLM server: %s", self._loaded, error)
            for version in {self._loaded, self._version} - {None}:
                shutil.rmtree(self._folder / str(version), ignore_errors=True)
            with suppress(OSError):  # also used by another run
                self._folder.rmdir()
        self._version = self._loaded = None
        self._stale = True

    def _save(self) -> str | None:
        """Write a new version of the weights on all processes; returns the reason of a failure."""
        self._count += 1
        version = f"grpo-plus-{self._run}-{self._count}"
        aside, main = self._folder / f".{version}", self._accelerator.is_main_process
        if main and self._count == 1:  # leftovers of a killed run
            own = f"grpo-plus-{'[0-9a-f]' * 8}-[0-9]*"
            for left in (*self._folder.glob(own), *self._folder.glob(f".{own}")):
                shutil.rmtree(left, ignore_errors=True)
        try:
            self._push.save(self._weights, aside, write=main)
            if main:
                aside.rename(self._folder / version)  # all of it, or nothing
        except (OSError, SafetensorError) as error:  # a full disk is the second
            shutil.rmtree(aside, ignore_errors=True)
            return (
                f"the weights for the vLLM server could not be written to {self._folder}: {error}. Free some space "
                "there (it takes the weights twice), or choose another output_dir."
            )
        if main and self._version not in {None, self._loaded}:
            shutil.rmtree(self._folder / str(self._version), ignore_errors=True)  # never loaded
        self._version = version
        return None

    def _draw(self, prompts: list[list[int]]) -> list[Completion]:
        """Return completions that are certain to come from the latest version."""
        lost: ServerError | None = None
        assert self._version is not None
        for _ in range(TRIES):
            try:
                if lost is not None or not self._base:
                    self.meet(lost)
                if not self._push.holds(self._client, self._version):
                    self._load(self._version)
                completions = self._complete(prompts)
                if self._push.holds(self._client, self._version):
                    return completions
                lost = ServerLostError(f"the vLLM server at {self._client.url} received other weights while it drew.")
            except UnknownModelError as error:
                lost = error
            except ServerLostError as error:
                lost = error
                logger.warning("%s Waiting for it, %g s at most.", error, self._client.patience)
        assert lost is not None
        raise ServerError(f"{lost} That was try {TRIES} of {TRIES}.")

    def meet(self, lost: ServerError | None = None) -> None:
        """Check a server on the first contact or after it was ``lost``, in the process that talks to it."""
        try:
            base = check_server(self._client, self._name, self._push)
            self._inspect(base)
        except ServerError as error:
            raise type(error)(str(error) if lost is None else f"{lost} {error}") from error
        self._base = base

    def _load(self, version: str) -> None:
        """Load the latest version; the previous one is unloaded first, and its folder removed afterwards."""
        old = self._loaded
        if old == version:
            logger.warning(
                "The vLLM server at %s no longer has the weights of this run: it was restarted, or another client "
                "wrote to it. They are handed over again.",
                self._client.url,
            )
        elif old is not None:
            self._push.unload(self._client, old)
        path = self._folder / version
        for pause in (*PAUSES, None):
            failed = self._push.load(self._client, version, path)
            if failed is None or pause is None or not self._client.alive():
                break
            time.sleep(pause)  # a shared disk may show the files late
        if failed is not None and not self._client.alive():
            raise ServerLostError(f"the vLLM server at {self._client.url} broke while it loaded weights: {failed}.")
        if failed is not None:
            raise ServerError(
                f"the vLLM server at {self._client.url} did not load {path}: {failed}. It must see that folder (choose "
                f"output_dir on a disk that both share) and have been started with: {self._push.command(self._name)}"
            )
        self._loaded = version
        if old not in {None, version}:
            shutil.rmtree(self._folder / str(old), ignore_errors=True)

    def _complete(self, prompts: list[list[int]]) -> list[Completion]:
        groups = [(prompt, len(list(same))) for prompt, same in itertools.groupby(prompts)]
        model = self._push.model_name(str(self._base.get("id", self._name)), str(self._version))
        fixed = {"model": model, "return_token_ids": True, "return_tokens_as_token_ids": True}
        payloads = [{**self._sampling, **fixed, "prompt": prompt, "n": count} for prompt, count in groups]
        while True:
            try:
                bodies = ({**payload, "logprobs": self.top_n} for payload in payloads)
                answers = self._client.complete(*bodies, read=self._completions)
            except ServerError as error:
                if "maximum context length" in str(error):
                    way_out = "Start it with a larger --max-model-len, or lower max_completion_length."
                    raise ServerError(f"{error} {way_out}") from error
                if self.top_n <= LEAST or "logprobs" not in str(error):
                    raise
                self.top_n = LEAST if self.top_n <= MOST else MOST  # the server has a smaller --max-logprobs
            else:
                return [completion for answer in answers for completion in answer]

    def _completions(self, choices: list[dict[str, Any]]) -> list[Completion]:
        completions = []
        for choice in choices:
            ids, probabilities = choice["token_ids"], choice["logprobs"]
            if self._vocabulary is not None and max(ids) >= self._vocabulary:
                raise ServerError(
                    f"the vLLM server at {self._client.url} drew the token {max(ids)}, but {self._name} knows "
                    f"{self._vocabulary} tokens: it serves another model, or one with another vocabulary. Start it "
                    f"with: {self._push.command(self._name)}"
                )
            tops = from_json(probabilities.get("top_logprobs")) if self.top_n else []
            vocabulary = range(self._vocabulary or 1 << 31)
            tops = [one if one and one[0] in vocabulary and one[-1] in vocabulary else None for one in tops]
            allowed = from_ids(tops) if len(tops) == len(ids) else unknown()
            completions.append((ids, probabilities["token_logprobs"], allowed))
        return completions
