"""Tools and environments in TRL: functions of each row, parsed calls, encoded results, rollouts outside training."""

import copy
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from grpo_plus.trl.host import Host


def tools_by_row(host: Host) -> list[dict[str, Any]]:
    """Functions that TRL's tool loop may call, by name, for each row of the batch."""
    return host._sync_tool_dicts


def rewarding_environments(host: Host) -> list[str]:
    """Environments with a reward of their own, as TRL names the rewards."""
    pools: Mapping[Any, list[Any]] = getattr(host, "_environment_pool", None) or {}
    kinds = [type(pool[0]) for pool in pools.values() if pool]
    return [kind.__name__ for kind in dict.fromkeys(kinds) if callable(getattr(kind, "get_reward", None))]


def tool_tokenizer(tokenizer: Any) -> tuple[Any, str | None]:
    """A copy of a tokenizer that parses tool calls, and TRL's chat template for it; None: the tokenizer's own."""
    from trl.chat_template_utils import (
        add_response_schema,
        get_training_chat_template,
        is_chat_template_prefix_preserving,
        supports_tool_calling,
    )

    if not supports_tool_calling(tokenizer):
        raise ValueError("the chat template cannot write a call of a tool with its result")
    parsing = copy.deepcopy(tokenizer)
    if all(getattr(parsing, name, None) is None for name in ("response_template", "response_schema")):
        parsing = add_response_schema(parsing)
    return parsing, None if is_chat_template_prefix_preserving(parsing) else get_training_chat_template(parsing)


def parse_message(
    tokenizer: Any, ids: Sequence[int], prefix: Sequence[int], tools: Sequence[Any] | None = None
) -> dict[str, Any]:
    """The message that TRL parses from a turn's token ids after ``prefix``."""
    from trl.chat_template_utils import parse_response

    # Older releases read arguments without the schemas of their tools.
    typed = {"tools": list(tools)} if tools and "tools" in inspect.signature(parse_response).parameters else {}
    message: dict[str, Any] = parse_response(tokenizer, list(ids), prefix=list(prefix), **typed)
    return message


def parse_turn(host: Host, row: int, ids: list[int], prefix: list[int]) -> dict[str, Any]:
    """The message that TRL's tool loop will parse from a row's next turn; empty without ids."""
    if not ids:
        return {}
    tools = host.tools
    if getattr(host, "environment_factories", None) is not None:
        trainer: Any = host
        tools = trainer._env_tools[trainer._batch_environments[row]]
    return parse_message(host._tokenizer, ids, prefix, tools)


def encode_tool_results(
    tokenizer: Any, template: str | None, keywords: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]
) -> list[int]:
    """Token ids that TRL's tool loop appends to a turn with calls: the results and the start of the next turn."""
    from trl import GRPOTrainer

    trainer: Any = SimpleNamespace(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        _is_vlm=False,
        chat_template=template,
        chat_template_kwargs=dict(keywords),
    )
    ids: list[int] = GRPOTrainer._get_tool_suffix_ids(trainer, [dict(message) for message in messages])
    return ids


@dataclass(frozen=True)
class ToolRollouts:
    """Completions of several turns after TRL's tool loop, before scoring.

    ``prompts`` include the environments' first messages. ``mask`` is 1 for tokens of the model. ``environments`` has
    one environment per row, or is None.
    """

    prompts: list[Any]
    prompt_ids: list[list[int]]
    ids: list[list[int]]
    mask: list[list[int]]
    completions: list[list[dict[str, Any]]]
    environments: list[Any] | None


class _RolloutsDone(Exception):  # noqa: N818 - not an error
    """Leaves TRL's method before scoring; its argument is the `ToolRollouts`."""


def tool_rollout_trainer(
    host: Host,
    single_turn: Callable[[list[list[int]]], list[list[int]]],
    loop: Callable[..., Any],
    max_completion_length: int,
) -> Any:
    """TRL's sampling with the tools and environments of ``host``, for `sample_tool_rollouts`.

    Shares the host's parts without changing its state: metrics, counters and tools of a batch are separate, and other
    processes are not involved. ``single_turn`` samples one turn after each prompt; ``loop`` receives TRL's tool loop
    as a function, and the lists that it fills.
    """
    from transformers import TrainerState
    from trl import GRPOTrainer

    class RolloutTrainer(GRPOTrainer):
        def __init__(self) -> None:  # the host has run TRL's own
            for name, value in vars(host).items():
                if not callable(getattr(RolloutTrainer, name, None)):
                    setattr(self, name, value)
            device = host.accelerator.device  # without other ranks
            self.accelerator = SimpleNamespace(device=device, is_main_process=True, gather=lambda values: values)
            self.state = TrainerState()
            self._metrics: dict[str, Any] = {mode: defaultdict(list) for mode in ("train", "eval")}
            self.use_vllm, self.rollout_func = False, None
            self.max_completion_length = max_completion_length

        def _generate(self, prompts: Any, *further: Any) -> Any:
            prompt_ids, ids, mask, completions, *_ = super()._generate(prompts, *further)
            raise _RolloutsDone(ToolRollouts(prompts, prompt_ids, ids, mask, completions, self.environments))

        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            return single_turn([list(ids) for ids in prompt_ids]), None

        def _tool_call_loop(
            self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *further: Any
        ) -> Any:
            run = partial(super()._tool_call_loop, prompts, prompt_ids, completion_ids, completions, *further)
            return loop(run, prompt_ids, completion_ids, completions)

    return RolloutTrainer()


def sample_tool_rollouts(sampler: Any, rows: Sequence[Mapping[str, Any]]) -> ToolRollouts:
    """Sample the rows as in training, without scoring them."""
    try:
        sampler._generate_and_score_completions([dict(row) for row in rows])
    except _RolloutsDone as done:
        rollouts: ToolRollouts = done.args[0]
        return rollouts
    raise AssertionError  # its _generate ends in the exception


def tiny_tool_trainer(args: Any, tokenizer: Any, positions: int | None, **further: Any) -> Host:
    """TRL's trainer with tools, environments and a tiny unused model: the host of `tool_rollout_trainer`.

    ``positions`` is the context length of the model that samples: TRL drops tool results beyond it.
    """
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import GRPOTrainer

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = LlamaConfig(**sizes, num_attention_heads=1, max_position_embeddings=positions or sys.maxsize)
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": ""}]] * 2, "environment": [""] * 2})
    reward, model = lambda completions, **_: [0.0] * len(completions), LlamaForCausalLM(config)
    trainer: Host = GRPOTrainer(model, [reward], args, rows, processing_class=tokenizer, **further)
    return trainer
