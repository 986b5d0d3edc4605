"""Diagnosis of a run: findings are logged, recorded, reported to callbacks, and may end the run."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from grpo_plus.diagnosis import RULES, Curves, Finding, diagnose
from grpo_plus.diagnosis.catalogue import in_order
from grpo_plus.diagnosis.facts import facts_of
from grpo_plus.diagnosis.watch import FindingTracker
from grpo_plus.recipe.entries import VerifierPart
from grpo_plus.recipe.monitor import unreachable_findings
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.record.files import FINDINGS
from grpo_plus.training.hooks import Completions, Setup, TrainerStage
from grpo_plus.training.observers.monitor import LONGEST, HackingMonitor
from grpo_plus.training.observers.on_finding import LAST_LOG, Logged, OnFinding, max_over_ranks
from grpo_plus.training.observers.recorder import Recorder
from grpo_plus.training.observers.run import RunHost
from grpo_plus.training.scoring import Verifiers
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import evaluation_enabled
from grpo_plus.trl.ranks import adapter_configs
from grpo_verifiers.errors import Problem, raise_all
from grpo_verifiers.errors.messages import readable
from grpo_verifiers.redaction import get_logger, redact_text

logger = get_logger("grpo_plus.diagnosis")

_SHOWN, _WIDE = 2, 120


class RunDiagnosis(TrainerStage):
    """Judges every log entry by the rules of `grpo_plus.diagnosis`, on all ranks alike.

    Attributes:
        watch: open and reported findings.
        stopped_by: the finding that ended the run, or None.
        logs_at_end: log open findings at the end of the run; a command that prints them sets it to False.
    """

    name = "diagnosis"
    host: RunHost

    def __init__(self, recipe: Recipe, verifiers: Verifiers, recorder: Recorder | None) -> None:
        self.watch = FindingTracker()
        self.stopped_by: Finding | None = None
        self.logs_at_end = True
        self._recipe, self._verifiers, self._recorder = recipe, verifiers, recorder
        self._monitor = None if recipe.monitor is None else HackingMonitor(recipe.monitor)
        self._logged = Logged()
        self._listeners: list[OnFinding] = []
        self._stop_on = frozenset(recipe.stop_on)
        self._failed = False

    def problems(self, setup: Setup) -> Sequence[Problem]:
        monitor = self._recipe.monitor
        callbacks = [one for one in setup.further.get("callbacks") or () if isinstance(one, OnFinding)]
        problems = unreachable_findings(setup.args, [name for one in callbacks for name in one.stop_on])
        if monitor is None:
            return problems
        names = [*self._verifiers.function_names(setup.reward_funcs), *self._verifiers.labels]
        if monitor.against is not None and monitor.against not in names:
            rewards = ", ".join(names)
            problems.append(f"diagnosis against is {monitor.against!r}, expected one of the rewards: {rewards}.")
        columns = getattr(setup.train_dataset, "column_names", None)
        if isinstance(columns, list | tuple) and not setup.rows_may_grow:
            problems += [
                f"train_dataset has no column {column!r}, which the judge of diagnosis "
                f"({monitor.judge.verifier.label}) needs: name another in its columns, or another judge."
                for column in monitor.judge.verifier.required_columns.values()
                if column not in columns
            ]
        return problems

    def before_loading(self, setup: Setup) -> None:  # noqa: ARG002
        if self._monitor is not None:
            self._monitor.options.judge.verifier.warm()

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self.main = bool(host.accelerator.is_main_process)
        self._facts = facts_of(
            vars(host.args),
            grouped=self.host.estimator is None or any(part.group_relative for part, _ in self._recipe.estimator_parts),
            lora=bool(adapter_configs(host)),
            verifiers=_described(self._recipe.verifiers),
        )
        functions = set(host.reward_func_names) - set(self._verifiers.labels)
        self._facts["reward_scale"] = float(host.reward_weights.abs().sum()) or 1.0
        if not functions and self._monitor is not None:
            self._monitor.reward_range = self._facts["reward_scale"]

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        self._listeners = [one for one in self.host.callback_handler.callbacks if isinstance(one, OnFinding)]
        names = [name for one in self._listeners for name in one.stop_on]
        raise_all(unreachable_findings(self.host.args, names))
        self._stop_on = frozenset([*self._recipe.stop_on, *names])
        self.stopped_by = None
        for one in self._listeners:
            one.reported_by_trainer = True
        try:
            yield
        finally:
            for one in self._listeners:
                one.reported_by_trainer = False

    @contextlib.contextmanager
    def judging(self, completions: Completions) -> Iterator[None]:
        """Around the rewards: the judge works at the same time as the verifiers."""
        monitor, due = self._monitor, self._due()
        if monitor is None or not due:
            yield
            return
        monitor.start(self.host, completions)
        try:
            yield
        except BaseException:
            monitor.judge.settle()
            raise

    def compare(self, completions: Completions, rewards_NK: torch.Tensor) -> None:
        """Compare the judge's scores with the rewards."""
        if self._monitor is not None and self._due():
            self._monitor.collect(self.host, int(self.host.state.global_step), completions, rewards_NK)

    def _due(self) -> bool:
        training = bool(self.host.model.training)
        return self._monitor is not None and training and self._monitor.due(int(self.host.state.global_step))

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        state = self.host.state
        self._logged.load(entry for entry in state.log_history if entry.get("step", 0) <= state.global_step)

    def on_step_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report an alarm of the monitor at once."""
        alarmed = self._monitor is not None and self._monitor.alarm is not None
        if alarmed and "hacking" not in self.watch.current:
            self._diagnose(int(state.global_step), control)

    def on_log(self, _args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if not logs or LAST_LOG in logs:
            return
        self._logged.add(int(state.global_step), logs)
        self._diagnose(int(state.global_step), control, evaluates=not any(key.startswith("eval_") for key in logs))

    def on_epoch_end(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the end of the pass to the resumed run, if the run was stopped."""
        if self.stopped_by is not None and state.global_step < state.max_steps:
            control.should_log = control.should_evaluate = control.should_save = False

    def on_train_end(self, *_: Any, **__: Any) -> None:
        for one in self.at_end():  # with its last figures
            self._write({"step": int(self.host.state.global_step), **one.as_data()})
        if self.stopped_by is not None and self._recorder is not None:
            self._recorder.end("interrupted", f"stop_on {self.stopped_by.name}: {self.stopped_by.evidence}")
        if self.main and self.logs_at_end and (text := self.closing_text()):
            logger.warning("at the end of the run: %s", text)

    def closing_text(self) -> str:
        """Describe the most severe finding at the last log entry, and name the rest; empty without any."""
        if not (current := self.at_end()):
            return ""
        first, *rest = current
        more = f" Less severe: {', '.join(one.name for one in rest)} (see the report)." if rest else ""
        return redact_text(f"{first.name} (since step {self.watch.current[first.name].since}): {first.text}{more}")

    def at_end(self) -> list[Finding]:
        """Return the findings at the last log entry, most severe first."""
        return in_order(one.finding for one in self.watch.current.values() if not one.clear)

    @property
    def outcome(self) -> str:
        """The run's outcome by its most severe finding; empty without one."""
        return next((one.outcome for one in self.at_end() if one.outcome), "")

    def reward_change(self) -> str:
        """State the mean reward over the first and the last tenth of the run; empty without two log entries."""
        rewards = Curves(self._logged.series).full("reward")
        if len(rewards.values) < 2:
            return ""
        return f"Mean reward in training: {rewards.beginning:.3f} at first, {rewards.end:.3f} at the end."

    def state_dict(self) -> dict[str, Any]:
        monitor = {} if self._monitor is None else self._monitor.state_dict()
        state = {"watch": self.watch.state_dict(), "monitor": monitor}
        return {name: value for name, value in state.items() if value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state.get("watch"):
            self.watch.load_state_dict(state["watch"])
        if self._monitor is not None and state.get("monitor"):
            self._monitor.load_state_dict(state["monitor"])

    def _findings(self) -> list[Finding]:
        try:
            findings = diagnose(Curves(self._logged.series, self._facts))
        except Exception as error:  # noqa: BLE001 - a diagnosis must not end a run
            if not self._failed:
                logger.warning("the diagnosis failed, training continues: %s", redact_text(repr(error)))
            self._failed, findings = True, []
        alarm = None if self._monitor is None else self._monitor.alarm
        if alarm is not None:
            findings = in_order([alarm, *(one for one in findings if one.name != alarm.name)])
        return findings

    def _diagnose(self, step: int, control: Any, *, evaluates: bool = True) -> None:
        """Report findings that begin or end; stop by the config's ``stop_on``, on all ranks or on none."""
        fresh, ended = self.watch.update(step, self._findings())
        for one in fresh:
            self._write({"step": step, **one.as_data()})
            if self.watch.is_new(one):
                self._report(step, one)
        for entry in ended:
            self._write({"step": step, "name": entry.finding.name, "ends": True})
        if self._stop_on:
            names = list(RULES)
            mine = [names.index(one.name) + 1 for one in fresh if one.name in self._stop_on]
            number = max_over_ranks(self.host.args, max(mine, default=0))
            if number and step < self.host.state.max_steps:
                self._stop(names[number - 1], control, evaluates=evaluates)

    def _report(self, step: int, one: Finding) -> None:
        if not self.main:
            return
        lines = [f"{one.name}, step {step}: {one.text}", *map(_side_by_side, one.examples[:_SHOWN])]
        logger.warning("%s", redact_text("\n  ".join(lines)))
        for listener in self._listeners:
            listener.report(one)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._recorder is not None:
            self._recorder.append(FINDINGS, {"kind": "finding", **line})

    def _stop(self, name: str, control: Any, *, evaluates: bool) -> None:
        entry = self.watch.current.get(name)
        self.stopped_by = entry.finding if entry is not None else Finding(name, "warning", name, "", "")
        control.should_training_stop = control.should_save = True
        control.should_evaluate = evaluates and evaluation_enabled(self.host)
        if self.main:
            logger.warning("%s is in stop_on: this step is finished, a checkpoint is saved, and the run ends.", name)


def _described(parts: Sequence[VerifierPart]) -> list[dict[str, Any]]:
    return [{"label": part.label, "weight": part.weight, "settings": part.verifier.describe()} for part in parts]


def _side_by_side(one: Mapping[str, Any]) -> str:
    """Format a completion and its scores on one line that is safe to print."""
    text, reason = (readable(" ".join(str(one[name]).split()), 2 * LONGEST) for name in ("completion", "reason"))
    text = text if len(text) <= _WIDE else f"…{text[-_WIDE:]}"
    return f"reward {one['reward']:g}, judge {one['judge']:g} ({reason or 'no reason'}): {text}"
