"""Tools and environments of an evaluation without training: entries as in a config, run by TRL's trainer."""

import copy
import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from grpo_plus.config import GRPOPlusConfig
from grpo_plus.evaluation.sample import Sampler, SampleSettings, restored_random_state
from grpo_plus.evaluation.turns import TurnSampler
from grpo_plus.training.hooks import Setup
from grpo_plus.training.rollout.tool_loop import ToolLoop
from grpo_plus.trl.host import Host
from grpo_plus.trl.tools import tiny_tool_trainer
from grpo_verifiers.errors import ConfigError, raise_all


@dataclass(frozen=True)
class ToolUse:
    """Tools and environments of an evaluation; fields and entries of a training config.

    >>> [part.label for part in ToolUse(tools=["calculator"]).config().recipe.tools]
    ['calculator']
    """

    tools: Sequence[Any] = ()
    environment: Any = None
    max_tool_calling_iterations: int | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    plugins: Sequence[str] = ()

    def __bool__(self) -> bool:
        """Return True if there is a tool or an environment."""
        return bool(self.tools or self.environment)

    def config(self, output_dir: str = "unused", **settings: Any) -> GRPOPlusConfig:
        """Return a config of these fields, on the CPU, with absolute paths.

        Raises:
            ConfigError: lists the problems of all entries.
        """
        own: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        own |= {name: list(own[name]) for name in ("tools", "plugins")}
        own |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "max_steps": 1}
        own |= {"num_generations": 2, "per_device_train_batch_size": 2, "use_cpu": True, "bf16": False}
        return GRPOPlusConfig(output_dir=output_dir, **{**own, **settings})

    @contextmanager
    def samplers(
        self, model: Any, tokenizer: Any, drawing: SampleSettings, rows: Any
    ) -> Iterator[tuple[Sampler, TurnSampler]]:
        """Yield samplers for completions of ``rows``, and close all tools at the end."""
        tokenizer = copy.deepcopy(tokenizer)  # TRL adds a parser of calls
        with tempfile.TemporaryDirectory(prefix="grpo_plus_eval") as folder:
            config = self.config(folder, max_completion_length=drawing.max_completion_length)
            calling = ToolLoop(config.recipe)
            setup = Setup(None, None, config, None, None, {})
            raise_all([*calling.problems(setup), *calling.data_problems("the dataset", _table(rows))])
            try:
                calling.before_loading(setup)
                host = _host(model, tokenizer, config, setup.further)
                calling.after_loading(host)
                sampler = Sampler(model, tokenizer, drawing, self.chat_template_kwargs)
                turns = TurnSampler(sampler, host, calling)
                with turns.borrowed():
                    yield sampler, turns
            finally:
                calling.close()


def _host(model: Any, tokenizer: Any, config: GRPOPlusConfig, further: Mapping[str, Any]) -> Host:
    """Return TRL's trainer with the tools; the random state does not change."""
    readable = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    state = random.getstate()
    try:
        with restored_random_state(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*experimental feature")
            return tiny_tool_trainer(config, tokenizer, readable, **further)
    except ValueError as error:  # from TRL, if a chat template does not support tools
        raise ConfigError([f"the tools cannot be shown to the model: {error}"]) from error
    finally:
        random.setstate(state)


def _table(rows: Any) -> Any:
    """Rows with ``column_names``."""
    if hasattr(rows, "column_names"):
        return rows
    from datasets import Dataset

    return Dataset.from_list([dict(row) for row in rows])
