"""A vLLM server in a trainer: checked before loading, and updated with weights."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from grpo_plus.recipe.choice import truncation
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.vllm_http import Client, ServerError
from grpo_plus.sampling.vllm_push import AdapterPush, FilePush, Push, Weights, adapter_problems, logprobs_count
from grpo_plus.sampling.vllm_server import VllmServer, check_server, request_problems
from grpo_plus.sampling.vllm_sync import SyncConditions, choose, sync_problems
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.update import request_for
from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.ranks import broadcast_from_main, plain_model, unwrapped_model, whole_tensors
from grpo_plus.trl.rollout import use_vllm_server, vllm_sampling_parameters
from grpo_verifiers.errors import ConfigError, Problem
from grpo_verifiers.lazy import installed
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class ServerRollout(TrainerStage):
    """Samples from a vLLM server, unless TRL's own client does; ``server`` is then None."""

    def __init__(self, recipe: Recipe) -> None:
        self.server: VllmServer | None = None
        self._vllm_sync = recipe.rollout.vllm_sync
        self._client: Client | None = None
        self._push: Push | None = None

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """Problems: an impossible `vllm_sync`, or an adapter the server cannot load."""
        args = setup.args
        if not uses_server(args):
            return []
        request = request_for(setup)
        conditions = _conditions(setup, request)
        problems: list[Problem] = [*sync_problems(self._vllm_sync, conditions)]
        way = choose(self._vllm_sync, conditions).name
        if way == "adapter" and request.adapter is not None:
            problems += adapter_problems(request.adapter)
        if way != "nccl":
            keywords = mapping("generation_kwargs", args.generation_kwargs)
            problems += request_problems(keywords, args.vllm_structured_outputs_regex)
        weighs = args.vllm_importance_sampling_correction and not args.vllm_importance_sampling_mode.startswith("token")
        if way != "nccl" and args.loss_type == "vespo" and weighs:  # TRL checks its own path itself
            problems.append(
                "loss_type is 'vespo', which with vLLM needs importance weights per token: set "
                "vllm_importance_sampling_mode to 'token_truncate' or 'token_mask'."
            )
        return problems

    def before_loading(self, setup: Setup) -> None:
        """Choose the transfer of weights, and check that the server supports it."""
        args = setup.args
        if not uses_server(args):
            return
        request = request_for(setup)
        conditions, rank = _conditions(setup, request), getattr(request.adapter, "r", None)
        url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
        name = _name(setup.model)
        try:
            # The other ranks wait for this one; if they timed out first, there would be no message.
            longest = 0.8 * args.ddp_timeout if args.world_size > 1 else 1800.0
            client = Client(url, patience=args.vllm_server_timeout, timeout=min(1800.0, longest))
            if self._vllm_sync is None and conditions.doubtful:
                conditions = conditions._replace(takes_adapters=broadcast_from_main(lambda: _takes_adapters(client)))
            way = choose(self._vllm_sync, conditions).name
            if way == "nccl":
                return
            logprobs = logprobs_count(truncation(args))
            push: Push = AdapterPush(rank, logprobs) if way == "adapter" else FilePush(logprobs)
            broadcast_from_main(lambda: check_server(client, name, push))
        except ServerError as error:
            raise ConfigError([str(error)]) from error
        self._client, self._push = client, push

    def loading(self, args: Any) -> AbstractContextManager[Any]:
        """Hide `use_vllm` from TRL, which would start its own client."""
        return temporary_attribute(args, "use_vllm", args.use_vllm and self._client is None)

    def after_loading(self, host: Host) -> None:
        """Connect the model with the server."""
        super().after_loading(host)
        if self._client is None or self._push is None:
            return
        model = plain_model(host, host.model)
        divided = host.is_fsdp_enabled or host.is_deepspeed_enabled
        self.server = VllmServer(
            self._client,
            self._push,
            weights=Weights(lambda: unwrapped_model(host), partial(whole_tensors, host) if divided else None),
            accelerator=host.accelerator,
            folder=Path(host.args.output_dir) / self._push.folder,
            sampling=vllm_sampling_parameters(host),
            name=_name(model),
            inspect=self._inspect,
            vocabulary=getattr(model.get_input_embeddings(), "num_embeddings", None),
        )
        try:
            broadcast_from_main(self.server.meet)
        except ServerError as error:
            raise ConfigError([str(error)]) from error
        use_vllm_server(host, self.server)

    def _inspect(self, base: Mapping[str, Any]) -> None:
        assert self._client is not None
        url, room, needed = self._client.url, base.get("max_model_len"), self.host.max_completion_length
        if isinstance(room, int) and needed is not None and room <= needed:
            raise ServerError(
                f"the vLLM server at {url} has room for {room} tokens, prompt and completion together, but "
                f"max_completion_length is {needed}: start it with a larger --max-model-len."
            )

    def close(self) -> None:
        """Remove the run's adapters and files from the server."""
        if self.server is not None:
            self.server.close()


def uses_server(args: Any) -> bool:
    """True if completions come from a vLLM server."""
    return bool(args.use_vllm) and args.vllm_mode == "server"


def _conditions(setup: Setup, request: Any) -> SyncConditions:
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
