"""What a trainer does differently when bitsandbytes holds the base."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from grpo_plus.memory.advice import capacity_of, settings_of, shortage
from grpo_plus.memory.calibration import slack_of
from grpo_plus.memory.fit import DoesNotFitError
from grpo_plus.qlora.checks import compute_dtype, problems, read_config, request_of, warnings
from grpo_plus.qlora.dropout import without_dropout
from grpo_plus.qlora.model import bits_of, is_adapted
from grpo_plus.qlora.precision import Kept, dtypes_kept, float32_trainables
from grpo_plus.qlora.repack import keep_layout
from grpo_plus.sampling.vllm_adapter import check_server
from grpo_plus.sampling.vllm_http import Client, ServerError
from grpo_verifiers.errors import ConfigError, raise_all
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class Guard:
    """Stands beside a trainer: checks before loading, puts right after loading, and shields sampling.

    For a base that bitsandbytes does not hold it does nothing at all.

    Args:
        active: whether the base is, or will be, quantised by bitsandbytes.
        kept: the adapters of a model that came with some, as they were before the trainer.
        client: of the vLLM server that will be handed the adapter, where one is asked for.
    """

    def __init__(self, *, active: bool, kept: Kept | None = None, client: Client | None = None) -> None:
        self.active = active
        self.client = client
        self._kept = kept

    @classmethod
    def before_loading(
        cls, model: Any, args: Any, *, quantization_config: Any, peft_config: Any, capacity: float | None = None
    ) -> "Guard":
        """Refuse what cannot work, warn of what hardly will, and choose the type that a model given by name loads in.

        Args:
            model: as given to the trainer.
            args: the training config; ``model_init_kwargs`` gets a ``dtype`` if it has none and the base is quantised.
            quantization_config: as given to the trainer.
            peft_config: as given to the trainer.
            capacity: memory of the card in bytes; None asks the card, if there is one.

        Raises:
            ConfigError: lists every combination that is ruled out, with the way out of each.
        """
        request = request_of(model, args, quantization_config, peft_config)
        raise_all(problems(request))
        for warning in warnings(request):
            logger.warning(warning)
        if request.bits is None:
            return cls(active=False)
        client = _client(model, args, request.adapter) if args.use_vllm else None
        if isinstance(model, str):
            asked = quantization_config or (args.model_init_kwargs or {}).get("quantization_config")
            given = dict(args.model_init_kwargs or {})
            if "dtype" not in given and "torch_dtype" not in given:  # the second is its former name
                given["dtype"] = str(compute_dtype(asked, args)).removeprefix("torch.")
            args.model_init_kwargs = given
            room = capacity or capacity_of(args.device)
            _check_memory(model, args, peft_config, room, request.bits, double=request.double_quantisation)
            return cls(active=True, client=client)
        raise_all(_trainability_problems(model) if is_adapted(model) else [])
        keep_layout(model)
        return cls(active=True, kept=Kept.of(model, trainable_only=True), client=client)

    @contextmanager
    def own_vllm(self, args: Any) -> Iterator[None]:
        """Keep `use_vllm` from a host that would start its own client, for the time of the block."""
        wanted = args.use_vllm
        if self.client is not None:
            args.use_vllm = False
        try:
            yield
        finally:
            args.use_vllm = wanted

    def after_loading(self, model: nn.Module) -> None:
        """Put right what the host does to the adapters of a quantised model.

        Args:
            model: the model with its adapters.
        """
        if not self.active and bits_of(model) is None:
            return
        self.active = True
        keep_layout(model)
        if self._kept is not None:
            self._kept.restore()
            self._kept = None
        float32_trainables(model)
        raise_all(_trainability_problems(model))

    @contextmanager
    def sampling(self, model: nn.Module) -> Iterator[None]:
        """Around the drawing of completions: no dropout, and no cast survives it."""
        if not self.active:
            yield
            return
        with dtypes_kept(model), without_dropout(model):
            yield

    @contextmanager
    def evaluating(self, model: nn.Module) -> Iterator[None]:
        """Around an evaluation: `bf16_full_eval` and `fp16_full_eval` cast the model, adapters too, and leave it so."""
        if not self.active:
            yield
            return
        with dtypes_kept(model):
            yield


def _client(model: Any, args: Any, adapter: Any) -> Client:
    """The server that will draw completions, seen to be there before anything loads."""
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "")
    url = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    try:
        client = Client(url, patience=args.vllm_server_timeout)
        if args.process_index == 0:
            check_server(client, name, getattr(adapter, "r", None))
    except ServerError as error:
        raise ConfigError([str(error)]) from error
    return client


def _check_memory(name: str, args: Any, peft_config: Any, capacity: float | None, bits: int, *, double: bool) -> None:
    """Say before anything loads that it will not fit; refuse a card too small for the weights."""
    config = None if capacity is None else read_config(name, args.model_init_kwargs)
    if capacity is None or config is None:
        return
    settings = settings_of(args, peft_config, bits=bits, double=double)
    try:
        text = shortage(config, name, settings, capacity, args.num_generations, slack=slack_of(args.device))
    except DoesNotFitError as error:
        raise ConfigError([str(error)]) from error
    except ValueError:  # no causal language model: what it takes is not known here
        return
    if text is not None:
        logger.warning(text)


def _trainability_problems(model: nn.Module) -> list[str]:
    if any(parameter.requires_grad for parameter in model.parameters()):
        return []
    message = (
        "no parameter of the model is trainable. prepare_model_for_kbit_training freezes all that it finds, so called "
        "after the adapters were added (or a second time) it freezes them too. The trainer needs no such call: give it "
        "the quantised model and a peft_config, or a PeftModel with is_trainable=True."
    )
    return [message]
