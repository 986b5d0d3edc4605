"""Dead groups in a trainer: a generation batch drawn in rounds, and put together from the rows that teach."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from grpo_plus import _trl
from grpo_plus._trl import Host
from grpo_plus.advantages import StepScores
from grpo_plus.objectives.batch import SHARE
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.selection.dead_groups.assemble import Row, Source, cut, emptied, full, join, picked, sources_of
from grpo_plus.selection.dead_groups.judge import live_groups
from grpo_plus.selection.dead_groups.resample import Cursor, replacements
from grpo_plus.selection.dead_groups.roulette import Coins, shares
from grpo_plus.training.advantages import Advantages, Scored
from grpo_plus.training.hooks import Completions, Draw, Hook
from grpo_plus.training.verification import Verification
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.verdict import Status, Verdict

logger = get_logger(__name__)

STOPPED = Verdict(None, Status.NOT_APPLICABLE, "not drawn: its group stopped")
PromptRow = Mapping[str, Any]
Fresh = Callable[[int, Sequence[PromptRow]], Sequence[PromptRow]]
"""Gives so many rows of the data set, other prompts than those of the second argument; the same on all ranks."""
_SUMMED = ("rollout/row_steps", "rollout/prefills", "memory/retries")
_MEAN = ("rollout/", "verifiers/")


@dataclass(frozen=True)
class Round:
    """What one call of ``draw`` gave: this rank's batch, and what was found about all ranks' rows.

    Attributes:
        rows: rows of each rank.
        size: completions of each prompt.
        trainable: (N, T) completion tokens that are trained on.
        table: rows of TRL's table of completions.
        metrics: TRL's lists of metrics.
        verdicts: those of each of this rank's rows.
    """

    output: dict[str, Any]
    scored: Scored
    rows: int
    size: int
    trainable: torch.Tensor
    table: _trl.Table
    metrics: Mapping[str, Sequence[float]]
    verdicts: Sequence[Sequence[Verdict]]


class Drawing(Hook):
    """Draws a generation batch of training in rounds where the recipe's ``dead_groups`` asks for it.

    Attributes:
        fresh: gives fresh prompts.
    """

    name = "dead_groups"

    def __init__(self, recipe: Recipe, advantages: Advantages, verification: Verification) -> None:
        self.fresh: Fresh = self._next_prompts
        self._way = recipe.dead_groups
        self._keywords = recipe.dead_groups_kwargs
        self._advantages = advantages
        self._verification = verification
        self._said = False

    def after_loading(self, host: Host) -> None:
        """Start the streams of coins and of fresh prompts."""
        super().after_loading(host)
        self._coins = Coins(host.args.seed)
        self._cursor = Cursor(host.args.seed, shuffle=host.shuffle_dataset)

    def state_dict(self) -> dict[str, Any]:
        """The places in both streams, where anything is drawn in rounds."""
        if self._way == "keep":
            return {}
        return {"coins": self._coins.state_dict(), "fresh": self._cursor.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from them."""
        self._coins.load_state_dict(state["coins"])
        self._cursor.load_state_dict(state["fresh"])

    def draw(self, draw: Draw, rows: Sequence[PromptRow]) -> dict[str, Any]:
        """Draw in rounds; evaluation passes through."""
        ways = {"resample": self._resample, "roulette": self._roulette}
        if not self.host.model.training or self._way not in ways:
            return draw(rows)
        return ways[self._way](draw, rows)

    # -- the ways ---------------------------------------------------------------------------------------------------

    def _resample(self, draw: Draw, rows: Sequence[PromptRow]) -> dict[str, Any]:
        """Fresh prompts for dead groups, up to so many times; what is dead then stays."""
        size, taken = self.host.num_generations, self._prompts(rows)
        rounds = [self._round(draw, rows, size)]
        groups = [(0, group) for group in range(len(taken))]
        live = self._live(rounds, groups, size)
        dead = [place for place, lives in enumerate(live) if not lives]
        first, replaced = len(dead), 0
        while dead and len(rounds) <= self._keywords["rounds"]:
            count = full(len(dead), size, self.host.accelerator.num_processes)
            fresh = self.fresh(count, taken)
            taken = [*taken, *fresh]
            number = len(rounds)
            rounds.append(self._round(draw, self._mine(fresh, size), size))
            everything = [*((0, group) for group in range(len(live))), *((number, group) for group in range(count))]
            lives = self._live(rounds, everything, size)[len(live) :]
            for place, candidate in replacements(dead, lives):
                groups[place] = number, candidate
                replaced += 1
            dead = dead[sum(lives) :]
        counts = {"dead": first, "replaced": replaced, "still_dead": len(dead)}
        return self._finished(rounds, sources_of(groups, size), counts, len(groups))

    def _roulette(self, draw: Draw, rows: Sequence[PromptRow]) -> dict[str, Any]:
        """The first completions of each prompt; the rest of those with contrast, and of some of the others."""
        size, after = self.host.num_generations, self._keywords["after"]
        prompts = self._prompts(rows)
        rounds = [self._round(draw, self._mine(self._filled(prompts, after), after), after)]
        live = self._live(rounds, [(0, group) for group in range(len(prompts))], after)
        weights = shares(live, self._coins, self._keywords["keep"])
        going = [group for group, weight in enumerate(weights) if weight]
        if going:
            rest = self._filled([prompts[group] for group in going], size - after)
            rounds.append(self._round(draw, self._mine(rest, size - after), size - after))
        sources: list[Source] = []
        for group in range(len(prompts)):
            begun = sources_of([(0, group)], after)
            missing = [Source(0, group * after, kept=False)] * (size - after)
            sources += begun + (sources_of([(1, going.index(group))], size - after) if group in going else missing)
        counts = {"dead": live.count(False), "stopped": weights.count(0.0)}
        per_row = [weight for weight in weights for _ in range(size)]
        return self._finished(rounds, sources, counts, len(prompts), per_row)

    # -- their parts ------------------------------------------------------------------------------------------------

    def _prompts(self, rows: Sequence[PromptRow]) -> list[PromptRow]:
        """One row of each group of the batch, over all ranks."""
        size, first = self.host.num_generations, self.host.accelerator.process_index * len(rows)
        return _trl.gather_objects([row for place, row in enumerate(rows) if (first + place) % size == 0])

    def _filled(self, prompts: Sequence[PromptRow], size: int) -> list[PromptRow]:
        """With further groups, which are dropped, so that every rank has as many rows."""
        count = full(len(prompts), size, self.host.accelerator.num_processes)
        return [*prompts, *(prompts[place % len(prompts)] for place in range(count - len(prompts)))]

    def _mine(self, prompts: Sequence[PromptRow], size: int) -> list[PromptRow]:
        """This rank's rows of a round with ``size`` completions of each prompt."""
        accelerator = self.host.accelerator
        rows = len(prompts) * size // accelerator.num_processes
        first = accelerator.process_index * rows
        return [dict(prompts[place // size]) for place in range(first, first + rows)]

    def _round(self, draw: Draw, rows: Sequence[PromptRow], size: int) -> Round:
        with _trl.generating(self.host, size), _trl.logging_apart(self.host) as (table, metrics):
            output = draw(rows)
        scored = self._advantages.drawn
        assert scored is not None
        trainable, verdicts = self._advantages.trainable(output), self._verification.verdicts(len(rows))
        return Round(output, scored, len(rows), size, trainable, table, metrics, verdicts)

    def _live(self, rounds: Sequence[Round], groups: Sequence[tuple[int, int]], size: int) -> list[bool]:
        """Which of these groups teach anything, each a round and the group's number in it; the same on all ranks."""
        sources = sources_of(groups, size)
        scored = _everywhere(rounds, sources, rounds[0].scored.completions)
        advantages = self._advantages.judged(scored, _trainable(rounds, sources), size)
        return _trl.from_main(lambda: live_groups(advantages, size))

    def _next_prompts(self, count: int, taken: Sequence[PromptRow]) -> Sequence[PromptRow]:
        """Rows from the own way through the data set; prompts come again where it has no others."""
        data, known = self.host.train_dataset, {_key(row) for row in taken}

        def wanted(place: int) -> bool:
            key = _key(data[place])
            new = key not in known
            known.add(key)
            return new

        return [data[place] for place in self._cursor.take(count, len(data), wanted)]

    # -- the batch --------------------------------------------------------------------------------------------------

    def _finished(
        self,
        rounds: Sequence[Round],
        sources: Sequence[Source],
        counts: Mapping[str, int],
        groups: int,
        weights: Sequence[float] = (),
    ) -> dict[str, Any]:
        """The batch of these rows, with what is logged of it."""
        first = rounds[0]
        untouched = list(sources) == sources_of([(0, group) for group in range(groups)], self.host.num_generations)
        if untouched:
            output, scored, table, verdicts = first.output, first.scored, first.table, first.verdicts
        else:
            rows = self._moved(rounds, sources)
            output = self._batch(first, rows)
            completions = Completions(*([row["completion"][place] for row in rows] for place in range(4)))
            scored = _everywhere(rounds, sources, completions)
            table, verdicts = _table(rounds, sources), [row["verdicts"] for row in rows]
        self._verification.set_verdicts(verdicts)
        if any(weight != 1 for weight in weights):
            here = self.host.accelerator.process_index * len(scored.completions)
            mine = weights[here : here + len(scored.completions)]
            output[SHARE] = torch.tensor(mine, dtype=torch.float32, device=self.host.accelerator.device)
        self._advantages.drawn = scored
        _trl.extend_table(self.host, table)
        self._log(rounds, counts, groups)
        return output

    def _batch(self, first: Round, rows: Sequence[Row]) -> dict[str, Any]:
        host, device = self.host, self.host.accelerator.device
        values = [row["output"] for row in rows]
        output = join(values, pad=_trl.pad_id(host), multiple=host.pad_to_multiple_of, device=device)
        mask_BT = output["completion_mask"] * output.get("tool_mask", 1)
        whole = {name: value for name, value in first.output.items() if name not in output}
        return {**output, **whole, "num_items_in_batch": host.accelerator.gather(mask_BT.sum()).sum()}

    def _moved(self, rounds: Sequence[Round], sources: Sequence[Source]) -> list[Row]:
        """This rank's rows of the batch; those that other ranks drew are sent."""
        rank, each = self.host.accelerator.process_index, len(sources) // self.host.accelerator.num_processes
        owners = [source.row // rounds[source.round].rows for source in sources]
        held = [_rows_of(one) for one in rounds]
        mine: dict[int, Row] = {}
        leaving: dict[int, Row] = {}
        for place, (source, owner) in enumerate(zip(sources, owners, strict=True)):
            if owner == rank:
                row = held[source.round][source.row - rank * rounds[source.round].rows]
                row = row if source.kept else _without_completion(row)
                (mine if place // each == rank else leaving)[place] = row
        if any(place // each != owner for place, owner in enumerate(owners)):
            for sent in _trl.gather_objects([{place: _on_cpu(row) for place, row in leaving.items()}]):
                mine |= {place: row for place, row in sent.items() if place // each == rank}
        return [mine[place] for place in range(rank * each, (rank + 1) * each)]

    def _log(self, rounds: Sequence[Round], counts: Mapping[str, int], groups: int) -> None:
        """Metrics of the first round, which say how the policy does on the run's prompts; costs are those of all."""
        drawn = sum(len(one.scored.rewards) for one in rounds)
        own = {name: count / groups for name, count in counts.items()}
        lists = _trl.metrics_of(self.host)
        for name, values in _metrics([one.metrics for one in rounds]).items():
            lists[name] = [*values] if name == "num_tokens" else [*lists[name], *values]
        found = {"rounds": float(len(rounds)), "drawn": float(drawn), **own}
        _trl.log(self.host, {f"{self.name}/{name}": value for name, value in found.items()})
        if counts.get("still_dead", counts.get("stopped")) == groups and not self._said:
            self._said = True
            if self.host.accelerator.is_main_process:
                logger.warning(
                    "no group of a generation batch teaches anything, after %d rounds with %d completions: all rewards "
                    "of each prompt are equal. Training goes on; look at the verifiers, and at how hard the prompts "
                    "are.",
                    len(rounds),
                    drawn,
                )


def _key(row: PromptRow) -> str:
    return json.dumps(row["prompt"], sort_keys=True, default=str)


def _rows_of(one: Round) -> list[Row]:
    completions = one.scored.completions
    outputs = cut(one.output, [len(ids) for ids in completions.ids])
    whole = zip(completions.rows, completions.prompts, completions.texts, completions.ids, strict=True)
    return [
        {"output": output, "completion": parts, "verdicts": verdicts}
        for output, parts, verdicts in zip(outputs, whole, one.verdicts, strict=True)
    ]


def _without_completion(row: Row) -> Row:
    prompt_row, prompt, text, _ = row["completion"]
    completion: tuple[Any, ...] = (prompt_row, prompt, type(text)(), [])
    return {"output": emptied(row["output"]), "completion": completion, "verdicts": [STOPPED for _ in row["verdicts"]]}


def _on_cpu(row: Row) -> Row:
    values = row["output"].items()
    moved = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in values}
    return {**row, "output": moved}


def _trainable(rounds: Sequence[Round], sources: Sequence[Source]) -> torch.Tensor:
    return picked([one.trainable for one in rounds], sources, 0)


def _everywhere(rounds: Sequence[Round], sources: Sequence[Source], completions: Completions) -> Scored:
    """What was found about these rows of all ranks."""
    scored = [one.scored for one in rounds]
    rewards = picked([one.rewards for one in scored], sources, float("nan"))
    lengths = picked([one.lengths for one in scored if one.lengths is not None], sources, 0)
    truncated = picked([one.truncated for one in scored if one.truncated is not None], sources, 0)
    places = {(source.round, source.row): place for place, source in enumerate(sources) if source.kept}
    steps = [(number, one.steps) for number, one in enumerate(scored) if one.steps is not None]
    return Scored(completions, rewards, lengths, truncated, _steps(steps, places) if steps else None)


def _steps(scored: Iterable[tuple[int, StepScores]], places: Mapping[tuple[int, int], int]) -> StepScores:
    """Steps with their rows numbered anew, in the order of the rows."""
    found = []
    for number, steps in scored:
        rows = torch.tensor([places.get((number, row), -1) for row in steps.rows.tolist()], dtype=torch.long)
        found.append(replace(steps, rows=rows.to(steps.rows.device)).select((rows >= 0).to(steps.rows.device)))
    rows_S = torch.cat([steps.rows for steps in found])
    order = torch.argsort(rows_S, stable=True)
    scores_S, spans_S = torch.cat([one.scores for one in found]), torch.cat([one.spans for one in found])
    return StepScores(rows_S[order], scores_S[order], spans_S[order])


def _table(rounds: Sequence[Round], sources: Sequence[Source]) -> _trl.Table:
    """The rows of TRL's table that are trained with."""
    tables = [one.table for one in rounds]
    lengths = [len(one.scored.rewards) for one in rounds]

    def column(values: Sequence[Sequence[Any]], nothing: Callable[[Any], Any]) -> list[Any]:
        held = [[*given, *[None] * (length - len(given))] for given, length in zip(values, lengths, strict=True)]
        chosen = [(held[source.round][source.row], source.kept) for source in sources]
        return [value if kept else nothing(value) for value, kept in chosen]

    empty: Mapping[str, Callable[[Any], Any]] = {
        "prompt": lambda value: value,
        "completion": lambda value: type(value)(),
    }
    found: _trl.Table = {}
    for name in tables[0]:
        if isinstance(tables[0][name], dict):
            names = dict.fromkeys(inner for table in tables for inner in table[name])
            found[name] = {
                inner: column([table[name].get(inner, []) for table in tables], lambda _: None) for inner in names
            }
        elif any(table[name] for table in tables):
            found[name] = column([table[name] for table in tables], empty.get(name, lambda _: None))
    return found


def _metrics(rounds: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Of the first round, the sums of costs, and means of what is neither."""
    found = {name: list(values) for name, values in rounds[0].items()}
    for later in rounds[1:]:
        for name, values in later.items():
            if name == "num_tokens":
                found[name] = list(values)
            elif name in _SUMMED:
                found[name] = [sum(found.get(name, [])) + sum(values)]
            elif name.startswith(_MEAN):
                found[name] = [*found.get(name, []), *values]
    return found
