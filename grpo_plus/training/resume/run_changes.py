"""A resumed run against its checkpoint: the same config, or a table of the differences and ``allow_changes``."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from grpo_plus.checkpoints.folder import CheckpointError, Choice, empty, occupied, of_other_runs, resume_choice
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.resume.rank_check import require_equal_on_ranks
from grpo_plus.training.resume.run_fingerprint import differences, fingerprint, model_of
from grpo_plus.training.resume.state import StateError, load, read
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import broadcast_from_main, gather_objects
from grpo_verifiers.redaction import get_logger

logger = get_logger("grpo_plus")
resume_logger = get_logger("grpo_plus.resume")

Changes = Mapping[str, tuple[Any, Any]]
"""Dotted name of a difference, to the value in the checkpoint and the one of this run."""

LENGTH = ("max_steps", "num_train_epochs")
"""Fields that may change without ``allow_changes``: a run may become longer."""
_FIXED = (
    *("optim", "optim_args", "optim_target_modules", "optimizer", "fp16", "sharding", "adapters"),
    *("model.class", "model.shapes", "model.trained_shapes", "model.quantisation"),
)
"""Fixed, since the state of optimizer, scaler or adapter would not fit."""
_OPTIMIZER = ("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
"""DeepSpeed's optimizer restores these from the checkpoint."""
_BY_METRIC = ("reduce_lr_on_plateau", "greedy")
"""Schedules whose rate depends on earlier metrics."""
_OPTIONS = ("initial_lr", "weight_decay", "betas", "eps")
_WIDEST = 120


class ResumeCheck(TrainerStage):
    """Saves the run's fingerprint in its checkpoints, and compares it in a resumed run.

    ``changed`` are the differences that ``allow_changes`` accepted.
    """

    name = "run_fingerprint"
    begins_anew = True

    def __init__(self, recipe: Recipe) -> None:
        self.changed: Changes = {}
        self._differs = False
        self._recipe = recipe
        self._optimizer: str | None = None
        self._weights = ""
        self._now: dict[str, Any] = {}

    def before_loading(self, setup: Setup) -> None:
        own = (setup.further.get("optimizers") or (None,))[0]
        chosen = (setup.further.get("optimizer_cls_and_kwargs") or (None,))[0]
        self._optimizer = type(own).__name__ if own is not None else getattr(chosen, "__name__", None)

    def after_loading(self, host: Host) -> None:
        super().after_loading(host)
        self._weights = model_of(host)["weights"]

    @contextmanager
    def training(self) -> Iterator[None]:
        self.changed, self._differs = {}, False
        mine = self._fingerprint()
        if self.host.accelerator.num_processes > 1:
            require_equal_on_ranks(_common(mine))
        self._now = gather_objects([mine])[0]
        yield

    def _fingerprint(self) -> dict[str, Any]:
        return fingerprint(self.host, self._recipe, weights=self._weights, optimizer=self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        return self._now or self._fingerprint()

    def choose(self, resume: Any) -> Path | None:
        """Return the checkpoint to resume from, the same on all processes."""
        if isinstance(resume, Choice):
            return resume.checkpoint
        if not resume:
            broadcast_from_main(self._begin)
            return None
        choice = broadcast_from_main(lambda: resume_choice(resume, Path(self.host.args.output_dir)))
        if self.host.is_world_process_zero():
            for line in choice.passed_over:
                resume_logger.warning("%s", line)
        return choice.checkpoint

    def _begin(self) -> None:
        """Refuse or remove checkpoints of another run in the output folder; with a plain `GRPOConfig` they stay."""
        folder, overwrite = Path(self.host.args.output_dir), getattr(self.host.args, "overwrite_output_dir", None)
        old = [] if overwrite is None else of_other_runs(folder)
        if old and not overwrite:
            resume, anew = 'trainer.train("last")', "GRPOPlusConfig(overwrite_output_dir=True)"
            raise CheckpointError([occupied(folder, old, resume=resume, elsewhere="another output_dir", anew=anew)])
        for line in empty(folder, old) if old else ():
            resume_logger.warning("%s", line)

    def restore(self, stages: Sequence[TrainerStage], checkpoint: Path, *, allow_changes: bool) -> None:
        """Compare the runs, then load the state of all stages.

        Raises:
            StateError: a difference is not allowed, or the state of a stage does not fit.
        """
        self.compare(read(checkpoint).get(self.name), checkpoint, allow_changes=allow_changes)
        rank, processes = self.host.accelerator.process_index, self.host.accelerator.num_processes
        load(stages, checkpoint, rank=rank, processes=processes, anew=allow_changes)

    def compare(self, part: Any, checkpoint: Path, *, allow_changes: bool) -> None:
        """Compare with this stage's part of a checkpoint; one of TRL's own trainer has none."""
        if not isinstance(part, dict) or not part.get("state"):
            return
        differing = changes(part["state"], self.state_dict())
        self._differs = bool(differing)
        self.changed = {name: pair for name, pair in differing.items() if name not in LENGTH}
        if not self.changed:
            return
        text = f"the checkpoint {checkpoint} was saved by a run that differs from this one:\n{table(self.changed)}\n"
        if names := fixed(self.changed, self.state_dict()):
            cannot = f"{', '.join(names)} cannot change in a run. Resume with its config, or start "
            raise StateError([f"{text}{cannot}a new run from its weights: model_name_or_path: {checkpoint}."])
        if not allow_changes:
            allowed = "set allow_changes (--allow_changes): the run then continues with a new generation batch."
            raise StateError([f"{text}Resume with the config that saved it, or {allowed}"])
        if self.host.accelerator.is_main_process:
            logger.warning("allow_changes: %sA new generation batch begins.", text)

    def loading_optimizer(self) -> AbstractContextManager[None]:
        """Around the host's loading of optimizer and schedule, which would restore their old settings."""
        if not self._differs or self.host.is_deepspeed_enabled:
            return nullcontext()
        return keep_optimizer_options(self.host.optimizer, self.host.lr_scheduler)

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Log, save and evaluate by this run's config, not the checkpoint's; restore the state of callbacks."""
        state.compute_steps(args, state.max_steps)
        if not args.restore_callback_states_from_checkpoint:  # else the host builds them from their state
            restore_callbacks(self.host.callback_handler.callbacks, state.stateful_callbacks)


@contextmanager
def keep_optimizer_options(optimizer: Any, schedule: Any) -> Iterator[None]:
    """Around the loading of a checkpoint's optimizer and schedule: keep this run's options.

    The learning rate becomes that of the new schedule at the checkpoint's step. A schedule that follows a metric keeps
    its present rate.
    """
    own = [{key: group[key] for key in _OPTIONS if key in group} for group in optimizer.param_groups]
    yield
    for group, options in zip(optimizer.param_groups, own, strict=True):
        group.update(options)
    if not isinstance(schedule, LambdaLR):
        return
    schedule.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    rates = [base * at(schedule.last_epoch) for base, at in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates  # noqa: SLF001 - the value of torch's `get_last_lr`


def restore_callbacks(callbacks: Sequence[TrainerCallback], states: Mapping[str, Any]) -> None:
    """Restore the attributes of callbacks from a checkpoint, without their arguments.

    For several of one class the host appends states at every checkpoint: the last ones are current.
    """
    by_class = defaultdict(list)
    for callback in callbacks:
        if isinstance(callback, ExportableState):
            by_class[type(callback).__name__].append(callback)
    for name, same in by_class.items():
        saved = states.get(name, [])
        saved = saved if isinstance(saved, list) else [saved]
        for callback, state in zip(reversed(same), reversed(saved), strict=False):
            for attribute, value in state.get("attributes", {}).items():
                setattr(callback, attribute, value)


def _common(mine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part that must be equal on all processes; shards of weights may differ."""
    model = dict(mine["model"])
    if mine["sharding"] is not None:
        del model["weights"]
    return {key: mine[key] for key in ("data", "eval_data", "rewards", "adapters")} | {"model": model}


def changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differences of two fingerprints."""
    differing = {name: (old, new) for name, old, new in differences(dict(saved), dict(now))}
    replaced = not now["adapters"] and not now.get("beta")  # by the checkpoint's, and there is no reference policy
    if replaced or "model.dtype" in differing:  # another rounding has another digest
        differing.pop("model.weights", None)
    return differing


def fixed(changed: Changes, now: Mapping[str, Any]) -> list[str]:
    """Return the names of changes that are never allowed."""
    never = [*_FIXED]
    if now["adapters"]:
        never.append("model.weights")  # an adapter fits its own base only
    if str(now["sharding"]).startswith("DeepSpeed"):
        never += ["processes", *_OPTIMIZER]
    if any(kind in _BY_METRIC for kind in changed.get("lr_scheduler_type", (now.get("lr_scheduler_type"),))):
        never += ["lr_scheduler_type", "learning_rate"]
    return [name for name in changed if any(name == one or name.startswith(f"{one}.") for one in never)]


def table(changed: Changes) -> str:
    """Format one row a change: name, value in the checkpoint, value now.

    >>> print(table({"beta": (0.0, 0.04), "num_generations": (8, 16)}))
      name            | checkpoint | now
      beta            | 0.0        | 0.04
      num_generations | 8          | 16
    """
    rows = [("name", "checkpoint", "now"), *((name, *map(_shown, pair)) for name, pair in changed.items())]
    names, saved = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"  {name:{names}} | {old:{saved}} | {new}" for name, old, new in rows)


def _shown(value: Any) -> str:
    return "unset" if value is None else " ".join(str(value).split())[:_WIDEST] or repr(value)
