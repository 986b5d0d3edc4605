"""Sample completions of several turns in TRL's loop over tools and environments; each turn has its own seed."""

import asyncio
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from grpo_plus.evaluation.results import PASSES, EvalSample, OwnReward
from grpo_plus.evaluation.sample import Sampler, seed_of
from grpo_plus.record.sample import turn_rows
from grpo_plus.training.rollout.tool_loop import ToolLoop, Turns
from grpo_plus.trl.host import Host
from grpo_plus.trl.tools import ToolRollouts, rewarding_environments, sample_tool_rollouts, tool_rollout_trainer
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
        """Return the tokens of the next turn of each prompt."""
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
        """The verdicts of all environments' rewards on a completion in this environment."""
        verdicts = {
            each.label: _verdict(None, Status.NOT_APPLICABLE, "of another environment") for each in self.rewards
        }
        if (name := type(environment).__name__) in verdicts:
            value = environment.get_reward()
            if inspect.isawaitable(value):
                value = asyncio.run(_await(value))
            why = self._calling.why_no_reward(environment) or "the environment gave no reward"
            verdicts[name] = _verdict(None, Status.ERROR, why)
            if value is not None:
                status = Status.CORRECT if value >= PASSES else Status.PARTIAL if value > 0 else Status.WRONG
                verdicts[name] = _verdict(float(value), status, "")
        return verdicts


async def _await(value: Any) -> Any:
    return await value


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
