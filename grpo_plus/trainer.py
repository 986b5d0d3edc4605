"""`GRPOPlusTrainer`: TRL's trainer. Each override calls the `Pipeline` with TRL's own method."""

import inspect
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from grpo_plus.check.data import check_arguments
from grpo_plus.check.finding import guarded, settle
from grpo_plus.config import GRPOPlusConfig
from grpo_plus.trl.fields import bind_trainer_arguments
from grpo_plus.trl.host import temporary_attribute
from grpo_plus.trl.logs import escape_printed_table

from trl import GRPOConfig, GRPOTrainer  # isort: skip - after the version check of the config

from grpo_plus.engine import Engine
from grpo_plus.objectives import Objective
from grpo_plus.recipe.aliases import UnknownOptionError, remedy
from grpo_plus.recipe.recipe import Chosen, recipe_of
from grpo_plus.recipe.rewards import adopt
from grpo_plus.recipe.table import logger, say_notes
from grpo_plus.report.escape import escape_all
from grpo_plus.report.write import write_report
from grpo_plus.training.batch import StepScorer
from grpo_plus.training.hooks import Hook, Setup, check_hooks
from grpo_plus.training.observers import complete_card
from grpo_plus.training.pipeline import Pipeline
from grpo_verifiers.errors import ConfigError, Problem, raise_all


class GRPOPlusTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` where advantage estimator, objective and verifiers are parts of the config.

    A drop-in replacement: every argument of `GRPOTrainer` has the same meaning here.

    Args:
        reward_funcs: as in TRL; may be left out when the config has verifiers, and adds to them otherwise.
        args: a `GRPOPlusConfig`; a plain `GRPOConfig` is accepted and trains as in TRL.
        step_scorer: returns step scores for process estimators, called with ``prompts, completions, completion_ids``
            and the dataset's columns; unset, they come from verifiers that score steps.
        hooks: stages of your own; their state is in every checkpoint.
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
        names = inspect.signature(GRPOTrainer.__init__).parameters.keys()
        if strange := [f"no argument {name!r}{remedy(name, names)}" for name in kwargs if name not in names]:
            raise UnknownOptionError([f"GRPOPlusTrainer has {text}" for text in strange])
        if args is not None and not isinstance(args, GRPOConfig):
            raise ConfigError([f"args is {args!r:.80}, expected a GRPOPlusConfig."])
        args = GRPOPlusConfig(_default_output_dir(model)) if args is None else args
        self.card_facts: dict[str, Any] = {}  # the caller's rows of the model card, by name
        self.command: dict[str, Any] = {}  # settings of a command line outside the config, for the record
        more = bind_trainer_arguments(further, kwargs)
        self.recipe, functions = adopt(recipe_of(args), args, reward_funcs, more.get("reward_processing_classes"))
        self.pipeline = Pipeline(self.recipe, step_scorer, write_report, check_hooks(hooks))
        setup = Setup(model, functions, args, train_dataset, eval_dataset, more)
        raise_all(self.pipeline.problems(setup))
        raise_all(self._data_problems(setup))
        with self.pipeline.loading(setup):
            super().__init__(model, setup.reward_funcs, args, train_dataset, eval_dataset, **setup.further)
        self.pipeline.loaded(self)

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
        """Return the problems of these arguments before anything loads, for which ``__init__`` would raise."""
        recipe, functions = adopt(recipe_of(args), args, reward_funcs, further.get("reward_processing_classes"))
        setup = Setup(model, functions, args, train_dataset, eval_dataset, dict(further))
        return Pipeline(recipe, step_scorer, write_report).problems(setup)

    def _data_problems(self, setup: Setup) -> list[Problem]:
        """Return the problems of the rows that stop the run; log the rest on the main process."""
        mode = getattr(setup.args, "check", "warn")
        if mode == "off":
            return []
        further = setup.train_dataset, setup.eval_dataset, setup.further.get("processing_class")
        findings = check_arguments(setup.model, setup.args, *further, grows=setup.rows_may_grow)
        problems, lines = settle(guarded("data", findings), mode)
        for line in lines if setup.args.process_index == 0 else ():
            logger.warning("note: %s", line)
        return [*problems]

    @property
    def estimator(self) -> Chosen | None:
        """The estimator that runs and its keywords; None for TRL's own."""
        return self.pipeline.advantages.estimator

    @property
    def objective(self) -> Objective | None:
        """The objective; None for TRL's own loss."""
        return self.recipe.objective

    @property
    def engine(self) -> Engine:
        """The update engine."""
        return self.pipeline.engine.engine

    def train(
        self, resume_from_checkpoint: Any = None, *arguments: Any, allow_changes: bool = False, **keywords: Any
    ) -> Any:
        """Train as in TRL; log notes on the config first, and restore the state of the stages in a resumed run.

        ``resume_from_checkpoint`` is a checkpoint's path, or True or ``last`` for the newest whole one in the output
        folder; a `Choice` is not checked again. With ``allow_changes`` a run may differ from the one that saved the
        checkpoint, and state that does not fit begins anew.

        Raises:
            CheckpointError: the checkpoint is torn, none is whole, or the output folder has those of another run.
            ConfigError: the processes were started with different data or models, or one lacks the checkpoint.
            StateError: its run differs from this one, or its state does not fit.
        """
        if isinstance(self.args, GRPOPlusConfig):
            say_notes(self.args)
        with self.pipeline.training():
            checkpoint = self.pipeline.restore(resume_from_checkpoint, allow_changes=allow_changes)
            return super().train(checkpoint and str(checkpoint), *arguments, **keywords)

    def _finalize_training(self, trial: Any, num_train_samples: int, start_time: float) -> Any:
        # The host would remove the last checkpoint before the model is saved.
        with temporary_attribute(self.args, "save_total_limit", None):
            return super()._finalize_training(trial, num_train_samples, start_time)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return self.pipeline.sampler(super()._get_train_sampler(dataset))

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        counts = (max_steps, num_update_steps_per_epoch, num_train_epochs)
        start = super()._init_training_state(*counts, resume_from_checkpoint, trial)
        return self.pipeline.begin(start, counts, resume_from_checkpoint)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        # Files have tied weights once; the host warns of the other names unless this attribute lists them.
        tied = list(getattr(self.model, "all_tied_weights_keys", None) or ())
        with temporary_attribute(self.model, "_keys_to_ignore_on_save", tied) as earlier:
            tied += earlier or ()
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        self.pipeline.data_position.restored()

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        evaluate = partial(super()._evaluate, trial, ignore_keys_for_eval, skip_scheduler=skip_scheduler)
        return self.pipeline.data_position.evaluation(evaluate, starts=skip_scheduler)

    def _maybe_log_save_evaluate(self, *arguments: Any, learning_rate: float | None = None, **keywords: Any) -> None:
        after = super()._maybe_log_save_evaluate
        self.pipeline.after_step(after, *arguments, learning_rate=learning_rate, **keywords)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        with self.pipeline.resume_check.loading_optimizer():
            super()._load_optimizer_and_scheduler(checkpoint)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.pipeline.save(super()._save_checkpoint, model, trial)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        return self.pipeline.make_batch(super()._generate_and_score_completions, inputs)

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return self.pipeline.micro_batch(partial(super()._prepare_inputs, generation_batch))

    def _generate_single_turn(self, prompt_ids: Any, *arguments: Any, **keywords: Any) -> Any:
        return self.pipeline.sample(super()._generate_single_turn, prompt_ids, *arguments, **keywords)

    def _tool_call_loop(self, *arguments: Any) -> Any:
        return self.pipeline.run_tools(super()._tool_call_loop, *arguments)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        return self.pipeline.score(super()._calculate_rewards, inputs, prompts, completions, completion_ids_list)

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        return self.pipeline.logps(super()._get_per_token_logps_and_entropies, *arguments, **keywords)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return self.pipeline.loss(super()._compute_loss, model, inputs)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Run one micro-batch through the stages."""
        return self.pipeline.step(partial(super().training_step, model, inputs, num_items_in_batch))

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        """Evaluate as in TRL, without casts of a 4-bit base."""
        with self.pipeline.quantised.evaluating():
            return super().evaluation_loop(*arguments, **keywords)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log as in TRL; control characters in the table of completions are escaped."""
        with escape_printed_table(escape_all):
            super().log(logs, start_time)

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        """Save the model, and the config without secrets, which is pushed to the Hub with it."""
        with (
            self.pipeline.saving.collect_write_errors(),
            temporary_attribute(self, "args", _without_secrets(self.pipeline.saving.args)),
        ):
            super()._save(output_dir, state_dict)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push to the Hub during training, which writes the config again."""
        if not self.pipeline.saving.defer_push():
            with temporary_attribute(self, "args", _without_secrets(self.args)):
                super()._push_from_checkpoint(checkpoint_folder)

    def create_model_card(self, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None:
        """Create TRL's model card and add the parts that trained the model."""
        with self.pipeline.saving.collect_write_errors():
            super().create_model_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
            if self.is_world_process_zero():
                complete_card(self)


def _without_secrets(args: Any) -> Any:
    """Return the config to write next to a model; a plain `GRPOConfig` is written as TRL does."""
    return args.as_written() if isinstance(args, GRPOPlusConfig) else args


def _default_output_dir(model: Any) -> str:
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "model"
    return f"{name.rstrip('/').split('/')[-1]}-GRPO"
