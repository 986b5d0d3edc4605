"""A vLLM server in a trainer: found before anything loads, handed the weights, and missed without losing the run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.truncation import truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.vllm_http import Client, ServerError
from grpo_plus.sampling.vllm_push import AdapterPush, FilePush, Push, Weights, adapter_problems
from grpo_plus.sampling.vllm_server import VllmServer, check_server, request_problems, warn_of_raw
from grpo_plus.sampling.vllm_support import asked_about
from grpo_plus.sampling.vllm_sync import Means, choose, sync_problems
from grpo_plus.training.guard import request_for
from grpo_plus.training.hooks import Hook, Setup
from grpo_plus.training.pieces import whole_tensors
from grpo_plus.training.saving import Saving
from grpo_verifiers.errors import ConfigError, Problem
from grpo_verifiers.lazy import installed
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

PROBE = "The answer to 3+4*(5-2) is \\boxed{15}."
"""A text whose tokens tell vocabularies apart."""


class Serving(Hook):
    """Draws completions from a vLLM server, unless TRL's own path does.

    ``server`` stands where TRL keeps its own vLLM client; None where that is left to TRL, or nothing is served.
    """

    def __init__(self, recipe: Recipe, saving: Callable[[], Saving]) -> None:
        """``saving`` gives what keeps the run where its server is lost."""
        self._saving = saving
        self._began = 0
        self.server: VllmServer | None = None
        self._asked = recipe.rollout.vllm_sync
        self._client: Client | None = None
        self._push: Push | None = None

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """A way that cannot be gone, and adapters that no server takes."""
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
                means = means._replace(takes_adapters=_trl.from_main(lambda: _takes_adapters(client)))
            way = choose(self._asked, means)
            if way.name == "nccl":
                return
            asked = asked_about(truncation(args))
            push: Push = AdapterPush(rank, asked) if way.name == "adapter" else FilePush(asked)
            _trl.from_main(lambda: check_server(client, name, push))
        except ServerError as error:
            raise ConfigError([str(error)]) from error
        self._client, self._push = client, push

    def loading(self, args: Any) -> AbstractContextManager[Any]:
        """Keep `use_vllm` from a host that would start its own client."""
        return _trl.replaced(args, "use_vllm", args.use_vllm and self._client is None)

    def after_loading(self, host: Host) -> None:
        """Connect the model with the server."""
        super().after_loading(host)
        if self._client is None or self._push is None:
            return
        client, sampling = self._client, _trl.sampling_parameters(host)
        model = _trl.plain_model(host, host.model)
        divided = host.is_fsdp_enabled or host.is_deepspeed_enabled
        self.server = VllmServer(
            self._client,
            self._push,
            weights=Weights(lambda: _trl.unwrapped(host), partial(whole_tensors, host) if divided else None),
            accelerator=host.accelerator,
            folder=Path(host.args.output_dir) / self._push.folder,
            sampling=sampling,
            name=_name(model),
            inspect=self._inspect,
            vocabulary=getattr(model.get_input_embeddings(), "num_embeddings", None),
        )
        try:
            _trl.from_main(self.server.meet)
            if host.args.vllm_importance_sampling_correction:
                _trl.from_main(lambda: warn_of_raw(client, sampling))
        except ServerError as error:
            raise ConfigError([str(error)]) from error
        _trl.draw_from(host, self.server)

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Note the step that the run begins at."""
        self._began = state.global_step

    @contextmanager
    def training(self) -> Iterator[None]:
        """Where the server is lost for good, save a checkpoint before the run ends."""
        try:
            yield
        except ServerError as error:
            raise ServerError(f"{error} {self._kept()}") from error

    def between_steps(self) -> None:
        """Called after each step and what follows it: the server may be lost before the next one ends."""
        if self.server is not None:
            self._saving().note()

    def _kept(self) -> str:
        """Save a checkpoint of the last whole step; gives the sentence about it."""
        step, saving = self.host.state.global_step, self._saving()
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
        ours = _trl.token_ids(self.host, PROBE)
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


def _means(setup: Setup, request: Any) -> Means:
    return Means(
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
