"""Dead groups in a trainer: a generation batch sampled in rounds, and joined from the rows that teach."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch.utils.data import IterableDataset

from grpo_plus.objectives.batch import COIN, KEEP, SHARE
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.selection.dead_groups.assemble import PROMPT_WIDTH, SCORED, Source, full, join, live_groups, sources_of
from grpo_plus.selection.dead_groups.resample import PromptCursor, replacements
from grpo_plus.selection.dead_groups.roulette import Coins, shares
from grpo_plus.training.batch import subbatches
from grpo_plus.training.batch.advantages import Advantages
from grpo_plus.training.batch.replay import ReplayBuffer, StoredRow, round_of, store_groups, with_old_logps
from grpo_plus.training.batch.subbatches import SubBatch, SubRow
from grpo_plus.training.hooks import Completions, PromptRow, Sample, ScoredBatch, Setup, TrainerStage
from grpo_plus.training.resume import ResumeCheck
from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.logs import capture_logs, extend_table, log_metric_lists, log_metrics
from grpo_plus.trl.ranks import broadcast_from_main, gather_objects
from grpo_plus.trl.rollout import padding_token_id
from grpo_verifiers.errors import ConfigError, Problem

Item = TypeVar("Item")
ExtraPrompts = Callable[[int, Sequence[PromptRow]], Sequence[PromptRow]]
"""Returns N rows of the dataset with other prompts than the rows of the second argument; equal on all ranks."""


class DeadGroupRefill(TrainerStage):
    """Samples a generation batch of training in rounds, by the recipe's ``dead_groups``.

    Args:
        extra: chooses extra prompts; None takes the next ones of a separate pass through the dataset.
        shifted: the reason why padding on the left changes log-probabilities, or None.
    """

    name = "dead_groups"

    def __init__(
        self,
        recipe: Recipe,
        advantages: Advantages,
        check: ResumeCheck,
        shifted: Callable[[], str | None],
        extra: ExtraPrompts | None = None,
    ) -> None:
        self._extra_prompts: ExtraPrompts = extra or self._next_prompts
        self._shifted = shifted
        self._check = check
        self._way, self._keywords = recipe.dead_groups
        self._advantages = advantages
        self._replay_buffer = ReplayBuffer(**self._keywords) if self._way == "replay" else None
        self._restored: Mapping[str, Any] | None = None  # state of the buffer, until its tensors are loaded

    def problems(self, setup: Setup) -> list[Problem]:
        data = setup.train_dataset
        if self._way == "keep" or data is None:
            return []
        columns = getattr(data, "column_names", None) or ()
        problems: list[Problem] = [
            f"dead_groups is {self._way!r}, but the column {name!r} of train_dataset has images, whose rows cannot "
            "be joined into a batch: remove dead_groups."
            for name in ("image", "images")
            if name in columns
        ]
        if self._way == "resample" and (isinstance(data, IterableDataset) or not hasattr(data, "__len__")):
            problems.append(
                "dead_groups is 'resample', but train_dataset is a stream, whose rows come in one order only: "
                "load it without streaming, or set dead_groups to 'roulette'."
            )
        return problems

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self._coins = Coins(host.args.seed)
        self._cursor = PromptCursor(host.args.seed, shuffle=host.shuffle_dataset)

    def state_dict(self) -> dict[str, Any]:
        if self._way == "keep":
            return {}
        state: dict[str, Any] = {"coins": self._coins.count, "fresh": self._cursor.state_dict()}
        if self._replay_buffer is not None and self._replay_buffer.buffer.batch:
            return {**state, "replay": self._replay_buffer.packed()[0]}
        return state if self._coins.count or self._cursor.moved else {}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {} if self._replay_buffer is None else self._replay_buffer.packed()[1]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._coins.count = int(state["coins"])
        self._cursor.load_state_dict(state["fresh"])
        self._restored = state.get("replay")
        if self._replay_buffer is not None and self._restored is not None:
            self._replay_buffer.buffer.load(int(self._restored["batch"]), [])

    def load_tensors(self, tensors: Mapping[str, torch.Tensor]) -> None:
        if self._replay_buffer is not None and self._restored is not None and not self._check.changed:
            self._replay_buffer.load(self._restored, tensors)
        self._restored = None

    def refill(self, sample: Sample, rows: Sequence[PromptRow]) -> ScoredBatch:
        """Sample in rounds; an evaluation is one round."""
        ways = {"resample": self._resample, "roulette": self._roulette, "replay": self._replay}
        if not self.host.model.training or self._way not in ways:
            return sample(rows)
        return ways[self._way](sample, rows)

    def _resample(self, sample: Sample, rows: Sequence[PromptRow]) -> ScoredBatch:
        size, used = self.host.num_generations, self._prompts(rows)
        rounds = [self._round(sample, rows, size)]
        own = groups = [(0, group) for group in range(len(used))]
        dead = [place for place, lives in enumerate(self._live(rounds, own, size)) if not lives]
        first = len(dead)
        while dead and len(rounds) <= self._keywords["rounds"]:
            extra = self._extra_prompts(self._count(len(dead), size), used)
            used = [*used, *extra]
            further = [(len(rounds), group) for group in range(len(extra))]
            rounds.append(self._round(sample, self._mine(extra, size), size))
            live = self._live(rounds, [*own, *further], size)[len(own) :]
            new = dict(replacements(dead, live))
            groups = [further[new[place]] if place in new else group for place, group in enumerate(groups)]
            dead = [place for place in dead if place not in new]
        replaced, left = first - len(dead), len(dead)
        counts = {"dead_groups/dead": first, "dead_groups/replaced": replaced, "dead_groups/still_dead": left}
        return self._finished(rounds, sources_of(groups, size), counts)

    def _roulette(self, sample: Sample, rows: Sequence[PromptRow]) -> ScoredBatch:
        """Sample the first completions of each prompt; the rest for groups with contrast and some without."""
        size, after = self.host.num_generations, self._keywords["after"]
        prompts, rest = self._prompts(rows), size - after
        rounds = [self._round(sample, self._mine(self._filled(prompts, after), after), after)]
        live = self._live(rounds, [(0, group) for group in range(len(prompts))], after)
        weights = shares(live, self._coins, self._keywords["keep"])
        tokens = rounds[0].trainable.sum(1).reshape(-1, after).sum(1).tolist()
        guesses = [0.0 if lives else max(1.0, tokens[group] * size / after) for group, lives in enumerate(live)]
        going = [group for group, weight in enumerate(weights) if weight]
        if going:
            further = self._filled([prompts[group] for group in going], rest)
            rounds.append(self._round(sample, self._mine(further, rest), rest))
        sources: list[Source] = []
        for group in range(len(prompts)):
            sources += sources_of([(0, group)], after)
            if group in going:
                sources += sources_of([(1, going.index(group))], rest)
            else:
                sources += [Source(0, group * after, has_completion=False)] * rest
        counts = {"dead_groups/dead": live.count(False), "dead_groups/stopped": weights.count(0.0)}
        return self._finished(rounds, sources, counts, weights, guesses)

    def _replay(self, sample: Sample, rows: Sequence[PromptRow]) -> ScoredBatch:
        assert self._replay_buffer is not None
        size, buffer = self.host.num_generations, self._replay_buffer.buffer
        buffer.begin()
        first = self._round(sample, rows, size)
        groups = [(0, group) for group in range(len(self._prompts(rows)))]
        live = self._live([first], groups, size)
        dead = [group for group, lives in enumerate(live) if not lives]
        alive = [group for group, lives in enumerate(live) if lives][-self._keywords["groups"] :]
        back = buffer.take(len(dead))
        scored = with_old_logps(first, self.host) if alive or back else first
        buffer.put(store_groups(scored, alive, size, rank=self.host.accelerator.process_index))
        rounds = [first]
        if back:
            rounds = [scored, self._again([stored.group for stored in back], size)]
            log_metrics(self.host, {"dead_groups/age": sum(buffer.batch - one.batch for one in back) / len(back)})
        for number, place in enumerate(dead[: len(back)]):
            groups[place] = 1, number
        left = len(dead) - len(back)
        counts = {"dead_groups/dead": len(dead), "dead_groups/replaced": len(back), "dead_groups/still_dead": left}
        return self._finished(rounds, sources_of(groups, size), counts)

    def _again(self, groups: Sequence[Sequence[StoredRow]], size: int) -> SubBatch:
        host, accelerator = self.host, self.host.accelerator
        return round_of(
            [row for group in self._filled(groups, size) for row in group],
            rank=accelerator.process_index,
            ranks=accelerator.num_processes,
            pad=padding_token_id(host),
            multiple=host.pad_to_multiple_of,
            device=accelerator.device,
        )

    def _prompts(self, rows: Sequence[PromptRow]) -> list[PromptRow]:
        """Return one row of each group of the batch, over all ranks."""
        size, first = self.host.num_generations, self.host.accelerator.process_index * len(rows)
        return gather_objects([row for place, row in enumerate(rows) if (first + place) % size == 0])

    def _count(self, groups: int, size: int) -> int:
        """Return the groups of a round in which every rank has as many rows."""
        return full(groups, size, self.host.accelerator.num_processes)

    def _filled(self, groups: Sequence[Item], size: int) -> list[Item]:
        """Repeat groups, which are dropped later, so that every rank has as many rows."""
        return [groups[place % len(groups)] for place in range(self._count(len(groups), size))]

    def _mine(self, prompts: Sequence[PromptRow], size: int) -> list[PromptRow]:
        """Return this rank's rows of a round with ``size`` completions of each prompt."""
        accelerator = self.host.accelerator
        rows = len(prompts) * size // accelerator.num_processes
        first = accelerator.process_index * rows
        return [dict(prompts[place // size]) for place in range(first, first + rows)]  # TRL may write into a row

    def _round(self, sample: Sample, rows: Sequence[PromptRow], size: int) -> SubBatch:
        with temporary_attribute(self.host, "num_generations", size), capture_logs(self.host) as (table, metrics):
            scored = sample(rows)
        return SubBatch(scored, self._advantages.trainable(scored.output), table, metrics)

    def _live(self, rounds: Sequence[SubBatch], groups: Sequence[tuple[int, int]], size: int) -> list[bool]:
        """Return True for groups (round, number in it) with a nonzero advantage; the same on all ranks."""
        sources = sources_of(groups, size)
        scored = subbatches.gather_scored(rounds, sources, rounds[0].scored.completions)
        trainable_NT = subbatches.trainable(rounds, sources)
        advantages = self._advantages.estimate(scored, trainable_NT, size).clone()
        advantages[~trainable_NT.any(dim=1)] = 0
        return broadcast_from_main(lambda: live_groups(advantages, size))

    def _next_prompts(self, count: int, used: Sequence[PromptRow]) -> Sequence[PromptRow]:
        """Return the next rows of a separate pass through the dataset; prompts repeat if it has no new ones."""
        data, keys = self.host.train_dataset, {_key(row) for row in used}

        def is_new(place: int) -> bool:
            key = _key(data[place])
            new = key not in keys
            keys.add(key)
            return new

        return [data[place] for place in self._cursor.take(count, len(data), is_new)]

    def _finished(
        self,
        rounds: Sequence[SubBatch],
        sources: Sequence[Source],
        counts: Mapping[str, int],
        weights: Sequence[float] = (),
        guesses: Sequence[float] = (),
    ) -> ScoredBatch:
        """Return the batch of these rows; ``weights`` of groups, ``guesses`` of the tokens of tied ones."""
        host, first = self.host, rounds[0]
        size, rank, ranks = host.num_generations, host.accelerator.process_index, host.accelerator.num_processes
        groups = len(sources) // size
        batch, table = first.scored, first.table
        if sources != sources_of([(0, group) for group in range(groups)], size):
            rows = subbatches.local_rows(rounds, sources, rank=rank, ranks=ranks)
            output = self._joined(first, rows)
            batch = subbatches.gather_scored(rounds, sources, Completions.of(row.completion for row in rows))
            batch = replace(batch, output=output, verdicts=[row.verdicts for row in rows])
            table = subbatches.table(rounds, sources)
        if any(weight != 1 for weight in weights):
            for name, values in ((SHARE, weights), (COIN, guesses)):
                rows_N = torch.tensor(values, device=host.accelerator.device).repeat_interleave(size)
                batch = batch.adding(**{name: rows_N.chunk(ranks)[rank].clone()})
            keep = torch.tensor(self._keywords["keep"], dtype=torch.float64, device=host.accelerator.device)
            batch = batch.adding(**{KEEP: keep})
        extend_table(host, table)
        sampled = [one for one in rounds if one.metrics]  # without replayed groups
        completions = sum(len(one.scored.rewards) for one in sampled)
        log_metric_lists(host, subbatches.metrics(sampled))
        figures = {name: count / groups for name, count in counts.items()}
        log_metrics(
            host, figures | {"dead_groups/rounds": float(len(sampled)), "dead_groups/drawn": float(completions)}
        )
        return replace(
            batch,
            rounds=[one.scored for one in sampled],
            replaced=[source.round > 0 for source in sources[::size]] if self._way == "resample" else (),
        )

    def _joined(self, first: SubBatch, rows: Sequence[SubRow]) -> dict[str, Any]:
        host = self.host
        values, device = [row.values for row in rows], host.accelerator.device
        output = join(values, pad=padding_token_id(host), multiple=host.pad_to_multiple_of, device=device)
        self._check_padding(output)
        mask_BT = output["completion_mask"] * output.get("tool_mask", 1)
        total = host.accelerator.gather(mask_BT.sum()).sum()
        rest = {name: value for name, value in first.scored.output.items() if name not in output}
        return {**output, **rest, "num_items_in_batch": total}

    def _check_padding(self, output: dict[str, Any]) -> None:
        """Refuse log-probabilities of other padding, if the model is not invariant to it."""
        width, widths = output["prompt_ids"].size(1), set(output.pop(PROMPT_WIDTH).tolist()) - {0}
        padded = bool(widths - {width}) and any(output.get(name) is not None for name in SCORED)
        if any(gather_objects([padded])) and (reason := self._shifted()) is not None:
            problem = (
                f"dead_groups is {self._way!r}, which joins rows whose prompts were {min(widths | {width})} to {width} "
                f"columns wide when they were scored, but {reason}. Set pad_to_multiple_of to the tokens of the "
                "longest prompt, or remove dead_groups."
            )
            raise ConfigError([problem])


def _key(row: PromptRow) -> str:
    return json.dumps(row.get("prompt", dict(row)), sort_keys=True, default=str)
