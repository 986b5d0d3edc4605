"""The hacking monitor: a judge scores samples of the training completions, and rewards nothing.

It runs at the same time as the verifiers. Completions with a failed check are left out; a judge that always fails is
switched off with a warning.
"""

import contextlib
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

import torch

from grpo_plus.diagnosis import Finding, hacking
from grpo_plus.recipe.recipe import Monitor
from grpo_plus.sampling.token_spans import decoder
from grpo_plus.training.hooks import Completions
from grpo_plus.training.observers.run import RunHost
from grpo_plus.training.scoring import ROW_KEYS, TURNS, LiveVerifier
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import gather_objects
from grpo_verifiers.errors import VerifierError
from grpo_verifiers.redaction import get_logger, redact_text
from grpo_verifiers.verdict import Verdict

logger = get_logger("grpo_plus.diagnosis")

EXAMPLES = 4
LONGEST = 600


class HackingMonitor:
    """Checks of one run.

    ``examples`` are completions with a high reward and a low score of the judge; ``reward_range`` is the range of the
    summed reward, or None.
    """

    reward_range: float | None = None

    def __init__(self, options: Monitor) -> None:
        self.options = options
        self.judge = LiveVerifier(options.judge.verifier)
        self.checks: list[hacking.RewardCheck] = []
        self.examples: list[dict[str, Any]] = []
        self.alarm: Finding | None = None
        self._rows: list[int] = []  # of this rank, in the judge's sample
        self._last = -1
        self._off = False

    def due(self, step: int) -> bool:
        """Return True if the completions for the next step are checked: the first, then in intervals."""
        return self._last < 0 or step - self._last >= self.options.every

    def start(self, host: RunHost, completions: Completions) -> None:
        """Start the judge on a sample of the completions."""
        size, rank, rows = host.num_generations, host.accelerator.process_index, len(completions)
        chosen = set(sample(rows * host.accelerator.num_processes, size, self.options.sample))
        self._rows = [row for row in range(rows) if rank * rows + row in chosen]
        if self._off or not self._rows:
            return
        picked = [completions.rows[row] for row in self._rows]
        columns = {key: [row[key] for row in picked] for key in picked[0] if key not in ROW_KEYS}
        if completions.turns is not None:
            columns[TURNS] = [completions.turns[row] for row in self._rows]
        try:
            self.judge.start(
                [completions.prompts[row] for row in self._rows],
                [completions.texts[row] for row in self._rows],
                [completions.ids[row] for row in self._rows],
                columns,
                decoder(host.processing_class),
            )
        except VerifierError as error:
            self._switch_off(error)

    def collect(self, host: RunHost, step: int, completions: Completions, rewards_NK: torch.Tensor) -> None:
        """Compare the judge's scores with the rewards of all ranks, and check for an alarm. Every rank must call it."""
        self._last = step
        first = host.accelerator.process_index * len(completions)
        rewards = watched(rewards_NK, host.reward_weights, host.reward_func_names, self.options.against)
        mine, shown = [], []
        for row, verdict in zip(self._rows, self._scores(), strict=False):
            reward = rewards[first + row]
            if verdict.score is None or isnan(reward):
                continue
            mine.append(((first + row) // host.num_generations, reward, verdict.score))
            shown.append((reward - verdict.score, row, reward, verdict))
        shown.sort(key=lambda each: -each[0])
        examples = [
            example(step + 1, completions, row, reward, verdict)
            for gap, row, reward, verdict in shown[:EXAMPLES]
            if gap > 0 and reward > 0
        ]
        of_ranks = gather_objects([(mine, examples)])
        pairs: dict[int, list[tuple[float, float]]] = {}
        for group, reward, score in (each for part, _ in of_ranks for each in part):
            pairs.setdefault(group, []).append((reward, score))
        fresh = [each for _, part in of_ranks for each in part]
        if fresh:
            self.examples = sorted(fresh, key=lambda each: each["judge"] - each["reward"])[:EXAMPLES]
        if not pairs:
            return
        check = hacking.RewardCheck.of_prompts(step + 1, pairs.values())
        self.checks.append(check)
        log_metrics(host, {"hacking/reward": check.reward, "hacking/judge": check.judge})
        self._look()

    def _scores(self) -> Sequence[Verdict]:
        if self._off or not self._rows:
            return ()
        try:
            self.judge.collect(lambda *_: None)
        except VerifierError as error:
            self._switch_off(error)
            return ()
        return self.judge.verdicts

    def _switch_off(self, error: Exception) -> None:
        self._off = True
        with contextlib.suppress(Exception):
            self.judge.settle()
        logger.warning("the hacking monitor is off, its judge fails: %s", redact_text(str(error)))

    def _look(self) -> None:
        if self.alarm is not None or (now := hacking.alarm(self.checks, self._scales())) is None:
            return
        options = self.options
        watched_reward = "the trained reward" if options.against is None else f"the score of {options.against}"
        where = f"in training (every {options.every} steps)" if options.every > 1 else "in every step"
        self.alarm = hacking.finding(
            now, judge=options.judge.verifier.label, reward=watched_reward, where=where, examples=self.examples
        )

    def _scales(self) -> tuple[float, float]:
        """Return the ranges of reward and judge: 1 for a verifier, the weights' sum for the summed reward.

        Any other range is estimated by twice the spread of single completions, or that of the checks if it is larger.
        """
        if self.options.against is not None:
            return 1.0, 1.0
        if self.reward_range is not None:
            return self.reward_range, 1.0
        means = [check.reward for check in self.checks]
        return max(2 * hacking.spread(self.checks), max(means) - min(means)) or 1.0, 1.0

    def state_dict(self) -> dict[str, Any]:
        if not self.checks:
            return {}
        return {"checks": [check.as_data() for check in self.checks], "examples": self.examples, "last": self._last}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.checks = [hacking.RewardCheck(**check) for check in state["checks"]]
        self.examples, self._last = [dict(each) for each in state["examples"]], int(state["last"])


def sample(rows: int, size: int, most: int) -> list[int]:
    """Choose at most ``most`` rows, evenly over the groups and equally many of each.

    >>> sample(8, 4, 4), sample(8, 4, 99), sample(12, 4, 2)
    ([0, 1, 4, 5], [0, 1, 2, 3, 4, 5, 6, 7], [0, 4])
    """
    groups = rows // size
    each = min(size, max(1, most // max(1, groups)))
    count = min(groups, most // each)
    return [group * groups // count * size + place for group in range(count) for place in range(each)]


def watched(
    rewards_NK: torch.Tensor, weights_K: torch.Tensor, names: Sequence[str], against: str | None
) -> list[float]:
    """Return the monitored reward of each completion; NaN without any score."""
    if against is not None:
        totals = rewards_NK[:, list(names).index(against)]
    else:
        totals = (rewards_NK.nan_to_num() * weights_K.to(rewards_NK)).sum(dim=1)
        totals = totals.masked_fill(rewards_NK.isnan().all(dim=1), float("nan"))
    rewards: list[float] = totals.tolist()
    return rewards


def example(step: int, completions: Completions, row: int, reward: float, verdict: Verdict) -> dict[str, Any]:
    """Return a completion with its scores, as JSON values."""
    return {
        "step": step,
        "prompt": _text(completions.prompts[row]),
        "completion": _text(completions.texts[row]),
        "reward": round(reward, 6),
        "judge": round(verdict.score or 0.0, 6),
        "reason": redact_text(verdict.detail[:LONGEST]),
    }


def _text(value: Any) -> str:
    """Return the end of a text, or of the last message of a chat."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        value = value[-1].get("content")
    text = value if isinstance(value, str) else str(value)
    return redact_text(text if len(text) <= LONGEST else f"…{text[-LONGEST:]}")
