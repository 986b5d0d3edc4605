"""Completions of several turns with tools and environments, in TRL's loop; each turn has its own seed."""

import asyncio
import copy
import inspect
import random
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from grpo_plus.config import GRPOPlusConfig
from grpo_plus.evaluation.results import PASSES, EvalSample, OwnReward
from grpo_plus.evaluation.sample import Sampler, SampleSettings, restored_random_state, seed_of
from grpo_plus.record.sample import turn_rows
from grpo_plus.training.hooks import Setup
from grpo_plus.training.rollout import ToolLoop, Turns
from grpo_plus.trl.host import Host
from grpo_plus.trl.tools import (
    ToolRollouts,
    rewarding_environments,
    sample_tool_rollouts,
    tiny_tool_trainer,
    tool_rollout_trainer,
)
from grpo_verifiers.errors import ConfigError, raise_all
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.turns import Turn
from grpo_verifiers.verdict import Status

NOT_RUN = "cut"
"""The status of a call at the end of a completion: it has no result and no next turn."""


class Completed(NamedTuple):
    """A batch of completions for verifiers; ``samples`` have the verdicts of environments with rewards only."""

    prompts: list[Any]
    texts: list[Any]
    ids: list[list[int]]
    turns: list[Sequence[Turn]] | None
    samples: list[EvalSample]


class TurnSampler:
    """Complete rows in turns, with the tools and environments of a trainer; ``rewards`` are those of environments."""

    def __init__(self, sampler: Sampler, host: Host, calling: ToolLoop) -> None:
        """Use ``sampler``, whose ``most`` tokens limit all turns of a completion with the tools' results.

        ``host`` and ``calling`` are a trainer and its hook, which must not sample at the same time.
        """
        self._sampler, self._calling = sampler, calling
        self._pairs: Sequence[tuple[int, int]] = ()
        self._seed = 0
        self._turns: Turns | None = None  # of the last batch that called a tool
        self.rewards = [OwnReward(name) for name in rewarding_environments(host)]
        self._drawer = tool_rollout_trainer(host, self._turn, self._loop, sampler.most)

    def borrowed(self) -> AbstractContextManager[None]:
        """Allow sampling in the block, and close all sessions of tools at its end."""
        return self._calling.borrowed_by(self._drawer)

    def _loop(self, *arguments: Any) -> Any:
        result, self._turns = self._calling.loop(*arguments)
        return result

    def complete(self, rows: Sequence[dict[str, Any]], pairs: Sequence[tuple[int, int]], seed: int) -> Completed:
        """Return a completion for each row; ``pairs`` are the numbers of row and sample."""
        calling = self._calling
        self._pairs, self._seed = pairs, seed
        calling.open(rows)
        batch = sample_tool_rollouts(self._drawer, rows)
        calling.request_rewards()
        samples = [self._sample(place, *pair, rows[place], batch) for place, pair in enumerate(pairs)]
        return Completed(
            batch.prompts, batch.completions, batch.ids, None if self._turns is None else self._turns.turns, samples
        )

    def _sample(self, at: int, row: int, sample: int, columns: dict[str, Any], batch: ToolRollouts) -> EvalSample:
        assert self._turns is not None
        turns, spans = self._turns
        ids, prompt, own_turns = batch.ids[at], batch.prompts[at], turns[at]
        statuses = [call.status for turn in own_turns for call in turn.calls]
        run = [status for status in statuses if status != NOT_RUN]
        return EvalSample(
            row=row,
            sample=sample,
            prompt=columns.get("prompt", prompt),
            completion=_answer(batch.completions[at]),
            tokens=sum(batch.mask[at]),
            cut_off=self._sampler.is_cut_off(ids) or NOT_RUN in statuses[-1:],
            verdicts=self._rewarded(batch.environments[at] if batch.environments else None),
            turns=turn_rows(own_turns, spans[at]),
            calls=len(run),
            failed_calls=sum(status != "ok" for status in run),
            observation=_observation(columns.get("prompt"), prompt),
        )

    def _turn(self, prompt_ids: list[list[int]]) -> list[list[int]]:
        waiting, calling = self._calling.rows_to_continue, self._calling
        chosen = self._pairs if waiting is None else [self._pairs[place] for place in waiting]
        seeds = [seed_of(self._seed, *pair, calling.round) for pair in chosen]
        most = self._sampler.most
        if waiting is not None:  # TRL truncates longer turns
            most = max(1, min(most, max(calling.room(prompt_ids))))
        ids = self._sampler.complete(prompt_ids, seeds, most=most)
        calling.begin_calls(prompt_ids, ids)
        return ids

    def _rewarded(self, environment: Any) -> dict[str, dict[str, Any]]:
        verdicts = {
            each.label: _verdict(None, Status.NOT_APPLICABLE, "of another environment") for each in self.rewards
        }
        if (name := type(environment).__name__) in verdicts:
            value = environment.get_reward()
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            why = self._calling.why_no_reward(environment) or "the environment gave no reward"
            verdicts[name] = _verdict(None, Status.ERROR, why)
            if value is not None:
                status = Status.CORRECT if value >= PASSES else Status.PARTIAL if value > 0 else Status.WRONG
                verdicts[name] = _verdict(float(value), status, "")
        return verdicts


def _verdict(score: float | None, status: Status, detail: str) -> dict[str, Any]:
    return {"score": score, "status": status.value, "detail": detail}


def _observation(row_prompt: Any, prompt: Sequence[dict[str, Any]]) -> str | None:
    """The text that the last message of a prompt adds to that of its row."""
    if not isinstance(row_prompt, list) or not row_prompt:
        return None
    before, now = (content_text(messages[-1].get("content")) for messages in (row_prompt, prompt))
    return now[len(before) :] or None


def _answer(messages: Sequence[dict[str, Any]]) -> str:
    """The answer that verifiers read: the text of the assistant's last message."""
    replies = [message for message in messages if message.get("role") == "assistant"]
    return content_text(replies[-1].get("content")) if replies else ""


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
    if hasattr(rows, "column_names"):
        return rows
    from datasets import Dataset

    return Dataset.from_list([dict(row) for row in rows])
