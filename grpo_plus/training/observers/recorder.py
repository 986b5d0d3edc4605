"""Writes the record of a run; errors of the record never end the run."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.record.files import (
    FINDINGS,
    FOLDER,
    GROUPS,
    METRICS,
    PREVIOUS,
    RUN,
    ByteBudget,
    RunError,
    append_line,
    dump,
)
from grpo_plus.record.sample import (
    PROMPT_KEPT,
    QUANTILES,
    as_text,
    choose,
    completion_record,
    digits,
    runs,
    steps_by_row,
    turn_rows,
)
from grpo_plus.sampling.token_spans import decoder
from grpo_plus.training.batch import is_truncated
from grpo_plus.training.hooks import CRITIC_VALUES, ScoredBatch, TrainerStage
from grpo_plus.training.observers.about import about
from grpo_plus.training.observers.run import RunHost
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.rollout import stop_token_ids
from grpo_verifiers.files import write_atomic
from grpo_verifiers.redaction import get_logger, redact_text
from grpo_verifiers.verdict import Verdict

logger = get_logger("grpo_plus.record")

BATCHES = 400
"""Generation batches of a run that are sampled at most, evenly spread."""
DETAIL_SENT = 1000
"""Characters of a reason that another rank sends."""


WriteReport = Callable[[Sequence[Path]], object]
"""Writes ``report.html`` of runs' folders."""


class Recorder(TrainerStage):
    """Writes metrics, sampled groups and the state of one run to ``output_dir/grpo_plus``.

    All ranks gather the same samples, by a rule that depends only on the config and the number of batches so far. Only
    the first rank writes; its errors (a full disk) do not affect other ranks.
    """

    name = "record"
    host: RunHost

    def __init__(self, write_report: WriteReport) -> None:
        self._write_report = write_report
        self._about: dict[str, Any] | None = None
        self._status: dict[str, Any] = {}
        self._batches = 0
        self._evaluated = -1
        self._began = False
        self._failing = False  # the last write did
        self._warned = False
        self._budget = ByteBudget()

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self.folder = Path(host.args.output_dir) / FOLDER
        self.main = bool(host.accelerator.is_main_process)

    def on_log(self, *_: Any, logs: dict[str, Any] | None = None, **__: Any) -> None:
        if self.main and self._began:
            kind = "eval" if any(key.startswith("eval_") for key in logs or {}) else "train"
            step = int(self.host.state.global_step)
            self._append(METRICS, {"kind": kind, "step": step, "time": time.time(), "values": logs or {}})

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Record the start or the resumption; move the record of an earlier run out of the way."""
        self._began, step = True, int(self.host.state.global_step)
        if not self.main:
            return
        with self._warn_on_disk_error():
            if step == 0:
                self._move_aside()
            self.folder.mkdir(parents=True, exist_ok=True)
        groups = self.folder / GROUPS
        self._budget.begin(groups.stat().st_size if groups.is_file() else 0)
        now = time.time()
        self._set_status(
            status="running", started=now, resumed_from=step or None, max_steps=int(self.host.state.max_steps)
        )
        further = [FINDINGS] if (self.folder / FINDINGS).is_file() else []
        for name in (METRICS, GROUPS, *further):
            self._append(name, {"kind": "begin", "step": step, "time": now})

    def end(self, status: str, error: BaseException | str | None = None) -> None:
        """Record how the run ended, once."""
        if not self.main or self._status.get("status") != "running":
            return
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        text = None if text is None else redact_text(text[:1000])
        self._set_status(status=status, ended=time.time(), error=text, step=int(self.host.state.global_step))
        self.write_report(last=status == "done")

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        self._batches, self._evaluated, self._budget.counted = 0, -1, None
        try:
            yield
        except KeyboardInterrupt as error:
            self.end("interrupted", error)
            raise
        except BaseException as error:
            self.end("failed", error)
            raise
        self.end("done")

    def write_report(self, *, last: bool = False) -> None:
        """Write ``report.html`` next to the model, unless the config disables it; a failure is a warning.

        Only the ``last`` one of a run must have something to show.
        """
        if not self.main or recipe_of(self.host.args).report.every == 0:
            return
        try:
            self._write_report([self.folder.parent])
        except Exception as error:  # noqa: BLE001 - a report must not end the run
            if isinstance(error, RunError) and not last:
                return  # it ended before its first log entry
            why = redact_text(str(error) or repr(error))
            logger.warning("the report of %s was not written: %s", self.folder.parent, why)

    def _set_status(self, **values: Any) -> None:
        if self._about is None:
            self._about = about(self.host)
        self._status |= values
        with self._warn_on_disk_error():
            self._write_status()

    def _move_aside(self) -> None:
        names = (RUN, METRICS, GROUPS, FINDINGS, "../report.html")
        old = [self.folder / name for name in names if (self.folder / name).exists()]
        if old:
            (self.folder / PREVIOUS).mkdir(exist_ok=True)
        for path in old:
            path.replace(self.folder / PREVIOUS / path.name)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        every = recipe_of(self.host.args).report.every
        if every and self.host.state.global_step % every == 0:
            self.write_report()

    def record(self, batch: ScoredBatch) -> None:
        """Sample groups of a generation batch, with its advantages, if it is one of those to sample."""
        if not self._due():
            return
        trainer = self.host
        training = trainer.model.training
        size = trainer.num_generations if training else trainer.num_generations_eval
        rewards = [[None if math.isnan(value) else value for value in row] for row in batch.rewards.tolist()]
        totals = [_total(row, trainer.reward_weights.tolist()) for row in rewards]
        groups = choose(totals, size)
        mine: dict[str, Any] = {"rows": [], "advantages": []}
        with self._warn_on_error():
            mine = rank_rows(trainer, batch, groups=groups, size=size)
        parts = gather_objects([mine])  # also if this rank failed: all ranks wait here
        if self.main and not self._failing:
            with self._warn_on_error():
                self._write_groups(parts, groups, size, rewards, steps_by_row(batch.steps))

    @contextlib.contextmanager
    def _warn_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the record must not end the run
            step, text = self.host.state.global_step, redact_text(repr(error))
            logger.warning("a batch of step %s was not recorded: %s", step, text)

    def _write_groups(
        self,
        parts: Sequence[dict[str, Any]],
        groups: Sequence[int],
        size: int,
        rewards: Sequence[Sequence[float | None]],
        steps: dict[int, list[list[Any]]],
    ) -> None:
        trainer = self.host
        training = trainer.model.training
        step = int(trainer.state.global_step) + (1 if training else 0)  # the step that trains on it
        stamp = {"step": step, "time": time.time(), "mode": "train" if training else "eval"}
        if training and all(rank["advantages"] for rank in parts):
            advantages = [value for rank in parts for value in rank["advantages"]]
            quantiles = [digits(value) for value in np.quantile(advantages, QUANTILES)]
            self._append(METRICS, stamp | {"kind": "batch", "values": {"quantiles": quantiles}})
        rows = {row["row"]: row for rank in parts for row in rank["rows"]}
        names, weights = list(trainer.reward_func_names), trainer.reward_weights.tolist()
        decode = decoder(trainer.processing_class)
        for group in groups:
            if self._failing or self._budget.used_up(step / max(1, trainer.state.max_steps)):
                break
            members = [rows[row] for row in range(group * size, (group + 1) * size) if row in rows]
            if len(members) < size:
                continue
            record = stamp | {
                "kind": "group",
                "group": group,
                "prompt": members[0]["prompt"],
                "columns": members[0]["columns"],
                "rewards": names,
                "weights": weights,
                "completions": [
                    completion_record(row, rewards[row["row"]], decode, steps.get(row["row"])) for row in members
                ],
            }
            self._budget.wrote(self._append(GROUPS, record))

    def _due(self) -> bool:
        """Return True if this batch is sampled; the same on every rank."""
        trainer = self.host
        if not self._began:
            return False
        if not trainer.model.training:
            before, self._evaluated = self._evaluated, int(trainer.state.global_step)
            return before != self._evaluated
        args = trainer.args
        per_batch = args.steps_per_generation * trainer.num_iterations / args.gradient_accumulation_steps
        stride = max(1, math.ceil(trainer.state.max_steps / per_batch / BATCHES))
        self._batches += 1
        return bool((self._batches - 1) % stride == 0)

    def state_dict(self) -> dict[str, Any]:
        """Batches and evaluations so far, which decide the next samples, and the bytes of the groups."""
        state = {"batches": self._batches, "evaluated": self._evaluated, "bytes": self._budget.counted}
        return state if self._batches or self._evaluated >= 0 else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._batches, self._evaluated = int(state["batches"]), int(state["evaluated"])
        self._budget.counted = int(state["bytes"]) if self.main and state["bytes"] is not None else None

    def append(self, name: str, line: Mapping[str, Any]) -> None:
        """Append a line to one of the record's files, on the first rank."""
        if self.main and self._began and not self._failing:
            self._append(name, {**line, "time": time.time()})

    def _append(self, name: str, value: Any) -> int:
        written = 0
        with self._warn_on_disk_error():
            if not (self.folder / RUN).exists():  # it was removed, or could not be written
                self._write_status()
            written += append_line(self.folder / name, value)
        return written

    def _write_status(self) -> None:
        write_atomic(self.folder / RUN, dump((self._about or {}) | self._status) + "\n")

    @contextlib.contextmanager
    def _warn_on_disk_error(self) -> Iterator[None]:
        """Turn a failed write into a warning: it loses lines of the record, not the run."""
        try:
            yield
        except OSError as error:
            if not self._warned:
                logger.warning("the record in %s is incomplete, training continues: %s", self.folder, error)
            self._warned = self._failing = True
        else:
            self._failing = False


def _total(rewards: Sequence[float | None], weights: Sequence[float]) -> float | None:
    scored = [reward * weight for reward, weight in zip(rewards, weights, strict=True) if reward is not None]
    return sum(scored) if scored else None


def rank_rows(run: RunHost, batch: ScoredBatch, *, groups: Sequence[int], size: int) -> dict[str, Any]:
    """Return this rank's part of the chosen groups, and the advantages of all of its rows.

    ``groups`` are the numbers of the groups to write, each of ``size`` completions. Only trained tokens have a critic's
    value.
    """
    completions, output = batch.completions, batch.output
    prompts, completion_ids = completions.prompts, completions.ids
    advantages, first = output["advantages"].detach(), run.accelerator.process_index * len(prompts)
    mask_BT = output["completion_mask"] * output.get("tool_mask", 1)
    values_BT = output.get(CRITIC_VALUES)
    per_token = advantages.dim() == 2
    means = advantages
    if per_token:
        trained_BT = mask_BT.to("cpu", torch.float64)
        means = (advantages.to(trained_BT) * trained_BT).sum(1) / trained_BT.sum(1).clamp(min=1)
    means_B = means.tolist()
    truncated = is_truncated(completion_ids, stop_token_ids(run))
    live = run.pipeline.verifiers.at_work(training=run.model.training)
    labels = [one.verifier.label for one in live]
    columns = {column for one in live for column in one.verifier.required_columns.values()}
    needed = sorted(columns & {name for row in completions.rows[:1] for name in row})
    turns, spans = completions.turns, completions.turn_tokens
    chosen, rows = set(groups), []
    for at, ids in enumerate(completion_ids):
        if (first + at) // size not in chosen:
            continue
        trained = mask_BT[at, : len(ids)].tolist()
        values = None
        if values_BT is not None:
            pairs = zip(values_BT[at, : len(ids)].tolist(), trained, strict=True)
            values = [value if flag else None for value, flag in pairs]
        rows.append(
            {
                "row": first + at,
                "prompt": as_text(prompts[at])[:PROMPT_KEPT],
                "columns": {key: as_text(completions.rows[at][key])[:DETAIL_SENT] for key in needed},
                "ids": list(ids),
                "advantage": means_B[at],
                "advantages": advantages[at, : len(ids)].tolist() if per_token else None,
                "values": values,
                "untrained": runs([not flag for flag in trained]),
                "truncated": truncated[at],
                "turns": None if turns is None or spans is None else turn_rows(turns[at], spans[at]),
                "verdicts": [_verdict(*pair) for pair in zip(labels, batch.verdicts[at], strict=True)],
            }
        )
    return {"rows": rows, "advantages": means_B}


def _verdict(label: str, verdict: Verdict) -> dict[str, Any]:
    steps = [(step.start, step.end, step.score) for step in verdict.steps]
    return {"verifier": label, "status": verdict.status.value, "reason": verdict.detail[:DETAIL_SENT], "steps": steps}
