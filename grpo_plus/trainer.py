"""`GRPOPlusTrainer`: TRL's trainer with a few seams opened to a list of hooks, each override calling ``super()``."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_plus import _trl
from grpo_plus.config import GRPOPlusConfig

from trl import GRPOTrainer  # isort: skip - after the version check of the config

from grpo_plus.checkpoints.choice import resume_choice
from grpo_plus.checkpoints.folder import Choice
from grpo_plus.engine import Engine
from grpo_plus.objectives import Objective
from grpo_plus.recipe.recipe import Chosen, recipe_of
from grpo_plus.recipe.table import say_notes
from grpo_plus.record import card
from grpo_plus.record.files import FINDINGS
from grpo_plus.record.prompts import DrawnPrompts
from grpo_plus.record.recorder import Recorder
from grpo_plus.report.escape import escape_all
from grpo_plus.report.write import write_report
from grpo_plus.training.advantages import Advantages, StepScorer
from grpo_plus.training.agreement import Agreement, on_all_machines
from grpo_plus.training.calling import Calling
from grpo_plus.training.clock import StepClock
from grpo_plus.training.colocate import Colocate
from grpo_plus.training.critic import Critic, CriticReturns
from grpo_plus.training.diagnosing import Diagnosing
from grpo_plus.training.drawing import Drawing
from grpo_plus.training.drift import Drift
from grpo_plus.training.engine import UpdateEngine
from grpo_plus.training.guard import Guard
from grpo_plus.training.hooks import Completions, Hook, Hooks, Setup, checked
from grpo_plus.training.inner import InnerIterations
from grpo_plus.training.loss import ObjectiveLoss, StockShares
from grpo_plus.training.pieces import Pieces
from grpo_plus.training.reference import AdapterReference, ModelReference
from grpo_plus.training.resuming.data_position import DataPosition, GenerationBatch
from grpo_plus.training.resuming.run_changes import ResumeCheck
from grpo_plus.training.retry import Retry
from grpo_plus.training.reward_model import RewardModelHook
from grpo_plus.training.rollouts import Rollouts
from grpo_plus.training.saving import Saving
from grpo_plus.training.selecting import Selecting
from grpo_plus.training.serving import Serving
from grpo_plus.training.supports import Supports
from grpo_plus.training.trackers import guard_trackers
from grpo_plus.training.verification import Verification
from grpo_verifiers.errors import Problem, raise_all
from grpo_verifiers.redaction import get_logger

_logger = get_logger("grpo_plus.resume")


class GRPOPlusTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` where advantage estimator, objective and verifiers are parts of the config.

    A drop-in: every argument of `GRPOTrainer` means what it means there.

    Args:
        reward_funcs: as in TRL; may be left out when the config has verifiers, and adds to them otherwise.
        args: a `GRPOPlusConfig`; a plain `GRPOConfig` is accepted and trains as in TRL.
        step_scorer: gives step scores for process estimators, called with ``prompts, completions, completion_ids`` and
            the dataset's columns; unset, they come from the verifiers that give steps.
        hooks: your own; called inside those of the trainer, and their state is in every checkpoint.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *further: Any,
        step_scorer: StepScorer | None = None,
        hooks: Iterable[Hook] = (),
        **kwargs: Any,
    ) -> None:
        args = GRPOPlusConfig(_default_output_dir(model)) if args is None else args
        self._drawn_behind: list[list[int]] | None = None  # ids of the prompts of this drawing
        self.card_facts: dict[str, Any] = {}  # rows of the model card that only the caller knows, by name
        self.command: dict[str, Any] = {}  # what a command line says beside the config, for the record
        self._add_hooks(recipe_of(args), step_scorer)
        self.hooks += checked(hooks)
        self.saving = Saving(self, self.hooks)
        named = _trl.trainer_arguments(further, kwargs)
        setup = Setup(model, reward_funcs, args, train_dataset, eval_dataset, named)
        raise_all(self.hooks.problems(setup))
        self.hooks.each("before_loading", setup)
        with self.hooks.inside("loading", args):
            super().__init__(model, setup.reward_funcs, args, train_dataset, eval_dataset, **setup.further)
        self.hooks.after_loading(self)

    @classmethod
    def problems(
        cls,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        step_scorer: StepScorer | None = None,
        **further: Any,
    ) -> list[Problem]:
        """All problems of these arguments that show before anything loads; those for which ``__init__`` would raise."""
        unbuilt = cls.__new__(cls)
        unbuilt._add_hooks(recipe_of(args), step_scorer)  # noqa: SLF001 - one of this class
        return unbuilt.hooks.problems(Setup(model, reward_funcs, args, train_dataset, eval_dataset, dict(further)))

    def _add_hooks(self, recipe: Any, step_scorer: StepScorer | None) -> None:
        """The hooks of every run, outermost first."""
        self.recipe, self.hooks = recipe, Hooks()
        self.resume_check = ResumeCheck(recipe)
        self.verification = Verification.of(recipe)
        self.inner = InnerIterations(None if recipe.objective is None else recipe.objective.stop_fraction)
        self.update = None if recipe.objective is None else ObjectiveLoss(recipe.objective, self.inner)
        self._advantages = Advantages(recipe, self.verification, step_scorer, self.update)
        self._engine = UpdateEngine(recipe)
        self.drawing = Drawing(recipe, self._advantages, self.verification, self.resume_check)
        self.drawing.shifted = self._engine.shifted
        self.recorder = Recorder(self._advantages, write_report) if recipe.report.record else None
        written = None if self.recorder is None else partial(self.recorder.keep, FINDINGS)
        ended = None if self.recorder is None else self.recorder.end
        self.diagnosing = Diagnosing(recipe, self.verification, written, ended)
        self.clock = StepClock()
        self.generation_batch = GenerationBatch()
        self.data_position = DataPosition(self.generation_batch, self.resume_check)
        chosen = recipe.selection
        self.selecting = None if chosen is None else Selecting(recipe, chosen, self._advantages, self.data_position)
        if self.selecting is not None and self.selecting.selection.draws:
            self.drawing.fresh, self.selecting.replaced = self.selecting.fresh, self.drawing.replaced
        prompts = None
        if self.recorder is not None and self.selecting is not None:
            prompts = DrawnPrompts(self.recorder, self.selecting.summary)
        self.retry = Retry(self._engine, self.hooks)
        self.calling = Calling(recipe)
        self.rollouts = Rollouts(recipe, self.retry)
        options = recipe.reward_model
        self.reward_model = None if options is None else RewardModelHook(recipe, options, self.verification)
        learned = [] if self.reward_model is None else [self.reward_model, self.reward_model.pairs]
        self.guard, self.serving, self.colocate = Guard(), Serving(recipe, lambda: self.saving), Colocate()
        every: list[Hook | None] = [Agreement(recipe), self.resume_check]
        every += [self.inner, self.selecting, self.drawing, Drift(self._engine.shifted)]
        self.critic = None if recipe.critic is None else Critic(recipe.critic, recipe, lambda: self.retry, self.inner)
        returns = None if recipe.critic is None else CriticReturns(recipe.critic, recipe, self._advantages)
        every += [self.critic, self._advantages, returns, self.recorder, prompts]
        every += [self.diagnosing, self.clock, self.retry, self.calling, self.verification, *learned]
        every += [Pieces(), AdapterReference(), ModelReference(), Supports(self.rollouts, self._served), self._engine]
        every += [self.rollouts, self.guard, self.serving, self.colocate, self.update or StockShares()]
        every += [self.data_position, self.generation_batch]
        self.hooks += [hook for hook in every if hook is not None]

    def _served(self) -> Any:
        """The vLLM that draws, where it is one of ours."""
        return self.serving.server or self.colocate.llm

    @property
    def estimator(self) -> Chosen | None:
        """The estimator that runs and its keywords; None for TRL's own."""
        return self._advantages.estimator

    @property
    def objective(self) -> Objective | None:
        """The objective; None for TRL's own loss."""
        return None if self.update is None else self.update.objective

    @property
    def engine(self) -> Engine:
        """The update engine."""
        return self._engine.engine

    def train(
        self, resume_from_checkpoint: Any = None, *arguments: Any, allow_changes: bool = False, **keywords: Any
    ) -> Any:
        """As in TRL, with remarks about the config before it and the state of the hooks where it resumes.

        ``resume_from_checkpoint`` is a checkpoint's path, or True or ``last`` for the newest whole one in the output
        folder; one that `choose` found is not judged again. With ``allow_changes`` a run may differ from the one
        that saved the checkpoint, and state that does not fit begins anew.

        Raises:
            CheckpointError: the checkpoint is torn, or none is whole.
            ConfigError: the processes were started with different data or models, or one lacks the checkpoint.
            StateError: its run differs from this one, or its state does not fit.
        """
        if isinstance(self.args, GRPOPlusConfig):
            say_notes(self.args)
        guard_trackers(self)
        with self.hooks.training():
            checkpoint = self._checkpoint(resume_from_checkpoint)
            if checkpoint is not None:
                on_all_machines(checkpoint)
                self.resume_check.restore(self.hooks, checkpoint, allow_changes=allow_changes)
            return super().train(checkpoint and str(checkpoint), *arguments, **keywords)

    def _checkpoint(self, resume: Any) -> Path | None:
        """The checkpoint to resume from, the same on all processes."""
        if isinstance(resume, Choice):
            return resume.checkpoint
        if not resume:
            return None
        found = _trl.from_main(lambda: resume_choice(resume, Path(self.args.output_dir)))
        if self.is_world_process_zero():
            for line in found.passed_over:
                _logger.warning("%s", line)
        return found.checkpoint

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        # The host would remove the last checkpoint before the model is saved.
        with _trl.replaced(self.args, "save_total_limit", None):
            return super()._finalize_training(trial, num_train_samples, start_time)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        self.data_position.sampler = own = super()._get_train_sampler(dataset)
        return own if self.selecting is None else self.selecting.sampler(own)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        counts = (max_steps, num_update_steps_per_epoch, num_train_epochs)
        found = super()._init_training_state(*counts, resume_from_checkpoint, trial)
        _, updates, passes = counts
        return self.data_position.begin(found, updates=updates, passes=passes, checkpoint=resume_from_checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        self.data_position.restored()

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        evaluate = partial(super()._evaluate, trial, ignore_keys_for_eval, skip_scheduler=skip_scheduler)
        return self.data_position.evaluation(evaluate, starts=skip_scheduler)

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, *further: Any, learning_rate: float | None = None, **keywords: Any
    ) -> None:
        norm, rate = self.data_position.measured(grad_norm, learning_rate)
        super()._maybe_log_save_evaluate(tr_loss, norm, *further, learning_rate=rate, **keywords)
        self.serving.between_steps()

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        with self.resume_check.loading_optimizer():
            super()._load_optimizer_and_scheduler(checkpoint)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        save = super()._save_checkpoint
        self.saving.save(_trl.checkpoint_folder(self, trial), lambda: save(model, trial))

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        score = super()._generate_and_score_completions

        def draw(rows: Any) -> dict[str, Any]:
            self._drawn_behind = None
            self.hooks.each("prompts", rows)
            scored: dict[str, Any] = score(rows)
            return scored

        output = self.hooks.around("draw", draw)(inputs)
        self.hooks.each("batch", output)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        prepare = super()._prepare_inputs
        return self.hooks.around("inputs", lambda: prepare(generation_batch))()

    def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **keywords: Any) -> Any:
        if self._drawn_behind is None:  # later turns go on behind what tools said
            self._drawn_behind = [list(ids) for ids in prompt_ids]
        with self.hooks.inside("sampling"):
            drawn = super()._generate_single_turn(prompt_ids, *arguments, **keywords)
        self.calling.drawn(prompt_ids, drawn[0])
        return drawn

    def _tool_call_loop(
        self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *further: Any
    ) -> Any:
        run = partial(super()._tool_call_loop, prompts, prompt_ids, completion_ids, completions, *further)
        return self.calling.loop(run, prompt_ids, completion_ids, completions)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        told = self.calling.turns, self.calling.turn_tokens
        batch = Completions(inputs, prompts, completions, completion_ids_list, self._drawn_behind, *told)
        self._drawn_behind = None
        with self.hooks.inside("scoring", batch):
            rewards_NK = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self.hooks.scored(batch, rewards_NK)

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        """As in TRL, inside the hooks."""
        with self.hooks.inside("evaluating"):
            return super().evaluation_loop(*arguments, **keywords)

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        score = super()._get_per_token_logps_and_entropies
        return self.hooks.around("logps", score)(*arguments, **keywords)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return self.hooks.around("loss", super()._compute_loss)(model, inputs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-batch, inside the hooks."""
        step = super().training_step
        loss: torch.Tensor = self.hooks.around("step", lambda: step(model, inputs, num_items_in_batch))()
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """As in TRL; the table of completions shows texts as they may be printed."""
        with _trl.printable_table(escape_all):
            super().log(logs, start_time)

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        """Save the model; the config beside it, which goes to the Hub with it, without secrets."""
        with self.saving.holding(), _trl.replaced(self, "args", _without_secrets(self.saving.args)):
            super()._save(output_dir, state_dict)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push to the Hub while training, which writes the config down once more."""
        if not self.saving.postpones_push():
            with _trl.replaced(self, "args", _without_secrets(self.args)):
                super()._push_from_checkpoint(checkpoint_folder)

    def create_model_card(self, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None:
        """TRL's model card, with the parts that trained the model added to it."""
        with self.saving.holding():
            super().create_model_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
            if self.is_world_process_zero():
                card.complete(self)


def _without_secrets(args: Any) -> Any:
    """The config as it is written beside a model; a plain `GRPOConfig` is written as TRL writes it."""
    return args.as_written() if isinstance(args, GRPOPlusConfig) else args


def _default_output_dir(model: Any) -> str:
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "model"
    return f"{name.rstrip('/').split('/')[-1]}-GRPO"
