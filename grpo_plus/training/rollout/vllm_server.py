"""A vLLM server in a trainer: found before anything loads, handed the weights, and missed without losing the run."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.truncation import truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.vllm_http import Client, ServerError
from grpo_plus.sampling.vllm_push import AdapterPush, FilePush, Push, Weights, adapter_problems, logprobs_count
from grpo_plus.sampling.vllm_server import VllmServer, check_server, request_problems, warn_of_raw
from grpo_plus.sampling.vllm_sync import SyncConditions, choose, sync_problems
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.resume.saving import Saving
from grpo_plus.training.update.quantised import request_for
from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.ranks import broadcast_from_main, plain_model, unwrapped_model
from grpo_plus.trl.rollout import encode_text
from grpo_plus.trl.sharded import whole_tensors
from grpo_plus.trl.vllm import use_vllm_server, vllm_sampling_parameters
from grpo_verifiers.errors import ConfigError, Problem
from grpo_verifiers.lazy import installed
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

PROBE = "The answer to 3+4*(5-2) is \\boxed{15}."
"""A text whose tokens tell vocabularies apart."""


class ServerRollout(TrainerStage):
    """Draws completions from a vLLM server, unless TRL's own path does.

    ``server`` stands where TRL keeps its own vLLM client; None where that is left to TRL, or nothing is served.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._began = 0
        self.server: VllmServer | None = None
        self._asked = recipe.rollout.vllm_sync
        self._client: Client | None = None
        self._push: Push | None = None

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """Problems: an impossible `vllm_sync`, or an adapter the server cannot load."""
        args = setup.args
        if not _served(args):
            return []
        request = request_for(setup)
        means = _means(setup, request)
        found: list[Problem] = [*sync_problems(self._asked, means)]
        way = choose(self._asked, means).name
        if way == "adapter" and request.adapter is not None:
            found += adapter_problems(request.adapter)
        if way != "nccl":
            keywords = mapping("generation_kwargs", args.generation_kwargs)
            found += request_problems(keywords, args.vllm_structured_outputs_regex)
        weighs = args.vllm_importance_sampling_correction and not args.vllm_importance_sampling_mode.startswith("token")
        if way != "nccl" and args.loss_type == "vespo" and weighs:  # the host says so itself, of its own path
            found.append(
                "loss_type is 'vespo', which with vLLM needs importance weights per token: set "
                "vllm_importance_sampling_mode to 'token_truncate' or 'token_mask'."
            )
        return found

    def before_loading(self, setup: Setup) -> None:
        """Choose the way that weights go, and see that the server is there for it."""
        args = setup.args
        if not _served(args):
            return
        request = request_for(setup)
        means, rank = _means(setup, request), getattr(request.adapter, "r", None)
        url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
        name = _name(setup.model)
        try:
            # The other ranks wait for this one: where they gave up first, there would be no message and no checkpoint.
            longest = 0.8 * args.ddp_timeout if args.world_size > 1 else 1800.0
            client = Client(url, patience=args.vllm_server_timeout, timeout=min(1800.0, longest))
            if self._asked is None and means.doubtful:
                means = means._replace(takes_adapters=broadcast_from_main(lambda: _takes_adapters(client)))
            way = choose(self._asked, means)
            if way.name == "nccl":
                return
            asked = logprobs_count(truncation(args))
            push: Push = AdapterPush(rank, asked) if way.name == "adapter" else FilePush(asked)
            broadcast_from_main(lambda: check_server(client, name, push))
        except ServerError as error:
            raise ConfigError([str(error)]) from error
        self._client, self._push = client, push

    def loading(self, args: Any) -> AbstractContextManager[Any]:
        """Keep `use_vllm` from a host that would start its own client."""
        return temporary_attribute(args, "use_vllm", args.use_vllm and self._client is None)

    def after_loading(self, host: Host) -> None:
        """Connect the model with the server."""
        super().after_loading(host)
        if self._client is None or self._push is None:
            return
        client, sampling = self._client, vllm_sampling_parameters(host)
        model = plain_model(host, host.model)
        divided = host.is_fsdp_enabled or host.is_deepspeed_enabled
        self.server = VllmServer(
            self._client,
            self._push,
            weights=Weights(lambda: unwrapped_model(host), partial(whole_tensors, host) if divided else None),
            accelerator=host.accelerator,
            folder=Path(host.args.output_dir) / self._push.folder,
            sampling=sampling,
            name=_name(model),
            inspect=self._inspect,
            vocabulary=getattr(model.get_input_embeddings(), "num_embeddings", None),
        )
        try:
            broadcast_from_main(self.server.meet)
            if host.args.vllm_importance_sampling_correction:
                broadcast_from_main(lambda: warn_of_raw(client, sampling))
        except ServerError as error:
            raise ConfigError([str(error)]) from error
        use_vllm_server(host, self.server)

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Note the step that the run begins at."""
        self._began = state.global_step

    @contextmanager
    def saved_at_loss(self, saving: Saving) -> Iterator[None]:
        """If the server is lost for good, save a checkpoint before the run ends."""
        try:
            yield
        except ServerError as error:
            raise ServerError(f"{error} {self._save(saving)}") from error

    def between_steps(self, saving: Saving) -> None:
        """Called after each step and its evaluation: the server may be lost before the next one ends."""
        if self.server is not None:
            saving.note()

    def _save(self, saving: Saving) -> str:
        """Save a checkpoint of the last whole step; returns the sentence about it."""
        step = self.host.state.global_step
        if step == self._began:
            return "No step was trained by then."
        folder = saving.keep()
        if saving.failed is not None:
            return f"The checkpoint of step {step} could not be written: {saving.failed}."
        return f"The run is saved up to step {step}, in {folder}."

    def _inspect(self, base: Mapping[str, Any]) -> None:
        """See that a server has room for the completions, and the vocabulary of the model."""
        assert self._client is not None
        url, room, needed = self._client.url, base.get("max_model_len"), self.host.max_completion_length
        if isinstance(room, int) and needed is not None and room <= needed:
            raise ServerError(
                f"the vLLM server at {url} has room for {room} tokens, prompt and completion together, but "
                f"max_completion_length is {needed}: start it with a larger --max-model-len."
            )
        theirs = self._client.tokens(str(base.get("id")), PROBE)
        ours = encode_text(self.host, PROBE)
        if theirs is not None and theirs != ours:
            raise ServerError(
                f"the vLLM server at {url} has another vocabulary than the model: {PROBE!r} is {theirs[:8]}… there and "
                f"{ours[:8]}… here. Start it with the model's own folder, or with its --tokenizer."
            )

    def close(self) -> None:
        """Leave nothing of the run on the server."""
        if self.server is not None:
            self.server.close()


def _served(args: Any) -> bool:
    return bool(args.use_vllm) and args.vllm_mode == "server"


def _means(setup: Setup, request: Any) -> SyncConditions:
    return SyncConditions(
        quantised=request.bits is not None,
        adapters=request.adapters,
        accelerator=setup.args.device.type != "cpu",
        vllm=installed("vllm"),
        servable=not adapter_problems(request.adapter),
        as_object=not isinstance(setup.model, str),
    )


def _takes_adapters(client: Client) -> bool:
    client.wait()
    return client.takes_adapters()


def _name(model: Any) -> str:
    return model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
