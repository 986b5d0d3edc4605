"""Draw completions of several turns: TRL's own loop over tools and environments, each turn with its own seed."""

import asyncio
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from grpo_plus.evaluation.results import PASSES, OwnReward, Sample
from grpo_plus.evaluation.sample import Sampler, seed_of
from grpo_plus.record.turns import turn_rows
from grpo_plus.training.rollout.tool_loop import ToolLoop, Turns
from grpo_plus.trl.host import Host
from grpo_plus.trl.tools import ToolRollouts, rewarding_environments, sample_tool_rollouts, tool_rollout_trainer
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.turns import Turn
from grpo_verifiers.verdict import Status

NOT_RUN = "cut"
"""The status of a call that the completion ended with: it has no result, and no turn behind it."""


class Completed(NamedTuple):
    """A batch of completions, as verifiers read them.

    ``samples`` have the verdicts of environments that give rewards, and no others yet.
    """

    prompts: list[Any]
    texts: list[Any]
    ids: list[list[int]]
    turns: list[Sequence[Turn]] | None
    samples: list[Sample]


class TurnSampler:
    """Completes rows in turns, with the tools and environments of a trainer.

    ``rewards`` are the rewards that its environments give.
    """

    def __init__(self, sampler: Sampler, host: Host, calling: ToolLoop) -> None:
        """Draw with ``sampler``, whose ``most`` tokens count for all turns of a completion and what tools say.

        ``host`` and ``calling`` are a trainer and its hook, which must not draw at the same time.
        """
        self._sampler, self._calling = sampler, calling
        self._pairs: Sequence[tuple[int, int]] = ()
        self._seed = 0
        self._turns: Turns | None = None  # of the last batch that called a tool
        self.rewards = [OwnReward(name) for name in rewarding_environments(host)]
        self._drawer = tool_rollout_trainer(host, self._turn, self._loop, sampler.most)

    def borrowed(self) -> AbstractContextManager[None]:
        """Within the block completions can be drawn; at its end no session of a tool is left."""
        return self._calling.borrowed_by(self._drawer)

    def _loop(self, *arguments: Any) -> Any:
        result, self._turns = self._calling.loop(*arguments)
        return result

    def complete(self, rows: Sequence[dict[str, Any]], pairs: Sequence[tuple[int, int]], seed: int) -> Completed:
        """A completion for each of the rows, whose numbers and the samples' are ``pairs``."""
        calling = self._calling
        self._pairs, self._seed = pairs, seed
        calling.open(rows)
        drawn = sample_tool_rollouts(self._drawer, rows)
        calling.request_rewards()
        samples = [self._sample(place, *pair, rows[place], drawn) for place, pair in enumerate(pairs)]
        return Completed(
            drawn.prompts, drawn.completions, drawn.ids, None if self._turns is None else self._turns.turns, samples
        )

    def _sample(self, place: int, row: int, sample: int, given: dict[str, Any], drawn: ToolRollouts) -> Sample:
        assert self._turns is not None
        turns, spans = self._turns
        ids, prompt, said = drawn.ids[place], drawn.prompts[place], turns[place]
        statuses = [call.status for turn in said for call in turn.calls]
        run = [status for status in statuses if status != NOT_RUN]
        return Sample(
            row=row,
            sample=sample,
            prompt=given.get("prompt", prompt),
            completion=_answer(drawn.completions[place]),
            tokens=sum(drawn.mask[place]),
            cut_off=self._sampler.is_cut_off(ids) or NOT_RUN in statuses[-1:],
            verdicts=self._rewarded(drawn.environments[place] if drawn.environments else None),
            turns=turn_rows(said, spans[place]),
            calls=len(run),
            failed_calls=sum(status != "ok" for status in run),
            observation=_observation(given.get("prompt"), prompt),
        )

    def _turn(self, prompt_ids: list[list[int]]) -> list[list[int]]:
        """The tokens of a turn behind each of the prompts."""
        waiting, calling = self._calling.rows_to_continue, self._calling
        chosen = self._pairs if waiting is None else [self._pairs[place] for place in waiting]
        seeds = [seed_of(self._seed, *pair, calling.round) for pair in chosen]
        most = self._sampler.most
        if waiting is not None:  # TRL cuts off what is longer
            most = max(1, min(most, max(calling.room(prompt_ids))))
        ids = self._sampler.complete(prompt_ids, seeds, most=most)
        calling.begin_calls(prompt_ids, ids)
        return ids

    def _rewarded(self, environment: Any) -> dict[str, dict[str, Any]]:
        """The verdicts of all rewards of environments on a completion that was drawn in this one."""
        found = {each.label: _verdict(None, Status.NOT_APPLICABLE, "of another environment") for each in self.rewards}
        if (name := type(environment).__name__) in found:
            value = environment.get_reward()
            if inspect.isawaitable(value):
                value = asyncio.run(_waited(value))
            why = self._calling.why_no_reward(environment) or "the environment gave no reward"
            found[name] = _verdict(None, Status.ERROR, why)
            if value is not None:
                status = Status.CORRECT if value >= PASSES else Status.PARTIAL if value > 0 else Status.WRONG
                found[name] = _verdict(float(value), status, "")
        return found


async def _waited(value: Any) -> Any:
    return await value


def _verdict(score: float | None, status: Status, detail: str) -> dict[str, Any]:
    return {"score": score, "status": status.value, "detail": detail}


def _observation(asked: Any, prompt: Sequence[dict[str, Any]]) -> str | None:
    """What stands in the last message of a prompt behind that of its row."""
    if not isinstance(asked, list) or not asked:
        return None
    before, now = (content_text(messages[-1].get("content")) for messages in (asked, prompt))
    return now[len(before) :] or None


def _answer(messages: Sequence[dict[str, Any]]) -> str:
    """What verifiers take for the answer: the text of the assistant's last message."""
    said = [message for message in messages if message.get("role") == "assistant"]
    return content_text(said[-1].get("content")) if said else ""
