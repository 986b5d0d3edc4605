"""`GRPOPlusTrainer`: TRL's trainer with a few seams opened, each override short and each calling ``super()``."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from grpo_plus import _trl
from grpo_plus.config import GRPOPlusConfig
from grpo_plus.record import card

from trl import GRPOTrainer  # isort: skip - after the version check of the config

from grpo_plus.advantages import advantage_metrics, compute_advantages
from grpo_plus.engine import Engine
from grpo_plus.qlora.attach import Rollouts, advice_for, draw_from_server, optimizer_advice_for
from grpo_plus.qlora.guard import Guard
from grpo_plus.recipe.advantage import running_advantage, step_problems
from grpo_plus.recipe.notes import say_notes
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.recipe.unread import rollout_func_problems
from grpo_plus.record.recorder import recorder_of
from grpo_plus.training.clock import StepClock
from grpo_plus.training.loss import ObjectiveLoss
from grpo_plus.training.reference import hidden_sync, is_adapter, refresh_adapter
from grpo_plus.training.retry import Retry
from grpo_plus.training.reward_table import (
    is_truncated,
    local_rows,
    per_completion,
    per_token,
    reward_table,
    step_scores,
)
from grpo_plus.training.step_source import StepSource
from grpo_plus.training.token_spans import scorer_steps
from grpo_plus.training.unusable import Unusable
from grpo_plus.training.verification import Verification
from grpo_verifiers.errors import raise_all

StepScorer = Callable[..., Sequence[Sequence[tuple[int, int, float]]]]
"""Gives, for each completion, its scored steps as (first token, one past the last token, score)."""


class GRPOPlusTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` where advantage estimator, objective and verifiers are parts of the config.

    A drop-in: every argument of `GRPOTrainer` means what it means there.

    Args:
        model: as in TRL.
        reward_funcs: as in TRL; may be left out when the config has verifiers, and adds to them otherwise.
        args: a `GRPOPlusConfig`; a plain `GRPOConfig` is accepted and trains as in TRL.
        train_dataset: as in TRL.
        eval_dataset: as in TRL.
        step_scorer: gives step scores for process estimators, called with ``prompts, completions, completion_ids`` and
            the dataset's columns; unset, they come from the verifiers that give steps.
        **kwargs: everything else that `GRPOTrainer` takes.
    """

    reward_weights: torch.Tensor

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *further: Any,
        step_scorer: StepScorer | None = None,
        **kwargs: Any,
    ) -> None:
        args = GRPOPlusConfig(_default_output_dir(model)) if args is None else args
        recipe = self.recipe = recipe_of(args)
        self.objective = recipe.objective
        self.step_sources = recipe.step_sources
        grows = kwargs.get("rollout_func") is not None or kwargs.get("environment_factory") is not None
        self.verification = Verification.of(recipe, rows_may_grow=grows)
        self.step_scorer = step_scorer
        givers = self.verification.step_givers
        self.step_source = StepSource(recipe.step_source, givers)
        self._functions = self.verification.function_names(reward_funcs)
        self._outcome_settled = False
        self.estimator, ignored = running_advantage(recipe, givers, self._functions, scorer=step_scorer is not None)
        raise_all(
            [
                *step_problems(recipe, scorer=step_scorer is not None),
                *self.verification.dataset_problems(train_dataset, eval_dataset),
                *self.verification.weight_problems(args.reward_weights, reward_funcs),
                *ignored,
                *(rollout_func_problems(args) if kwargs.get("rollout_func") is not None else ()),
                *self.verification.idle_problems(
                    args.reward_weights, reward_funcs, steps=self.step_sources is not None or train_dataset is None
                ),
            ]
        )
        self.verification.report_golds(train_dataset)
        self.verification.warm()
        reward_funcs = self.verification.beside(reward_funcs)
        if "reward_processing_classes" in kwargs:
            given = kwargs["reward_processing_classes"]
            kwargs["reward_processing_classes"] = self.verification.processors_beside(given)
        self.guard = Guard.before_loading(model, args, **_trl.adapter_arguments(further, kwargs))
        self.clock = StepClock(lambda name, seconds: _trl.log_training_metric(self, name, seconds))
        adapter = is_adapter(model, (*further, *kwargs.values()))
        with hidden_sync(args, hide=adapter), self.guard.own_vllm(args):
            super().__init__(model, reward_funcs, args, train_dataset, eval_dataset, *further, **kwargs)
        self.add_callback(self.clock)
        if adapter and args.sync_ref_model:
            self.add_callback(refresh_adapter(self.accelerator.unwrap_model(self.model), args, self.accelerator))
        self.engine = Engine(
            recipe.engine,
            recipe.engine_tokens_per_pass,
            facts=lambda: _trl.update_facts(self),
            autocast=self.accelerator.autocast,
            unwrap=lambda model: _trl.plain_model(self, model),
        )
        self.engine.check(self.model)
        self.guard.after_loading(self.model)
        draw_from_server(self)
        self.rollouts = Rollouts(self)
        self.retry = Retry(self, advice=lambda: advice_for(self), optimizer_advice=lambda: optimizer_advice_for(self))
        self.update = None if self.objective is None else ObjectiveLoss(self.objective, self)
        self.reward_weights = self.verification.weigh(self.reward_weights, self.reward_funcs)
        self.unusable = Unusable(main=self.accelerator.is_main_process)
        self.card_facts: dict[str, Any] = {}  # rows of the model card that only the caller knows, by name
        self._rewards_NK: torch.Tensor | None = None
        self._lengths_N: torch.Tensor | None = None
        self._truncated_N: torch.Tensor | None = None
        self._steps: Any = None
        self.recorder = recorder_of(self)

    def train(self, *arguments: Any, **keywords: Any) -> Any:
        """As in TRL, with remarks about the config before it, and its end written into the run's record."""
        if isinstance(self.args, GRPOPlusConfig):
            weights = zip(self.reward_func_names, self.reward_weights.tolist(), strict=True)
            say_notes(self.args, list(weights), self.estimator)
        with nullcontext() if self.recorder is None else self.recorder.running(), self.retry.training():
            return super().train(*arguments, **keywords)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.verification.check_row(inputs[0] if inputs else {}, training=self.model.training)
        output = super()._generate_and_score_completions(inputs)
        if self.update is not None:
            self.update.add_old_logps(output)
        if self.estimator is not None:
            output["advantages"] = self._advantages(output)
        if self.update is not None:
            self.update.prepare(output)
        if self.recorder is not None:
            self.recorder.batch(output, self._steps)
        return output

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        prepare = super()._prepare_inputs
        return self.retry.inputs(lambda: _trl.arranged(self, prepare(generation_batch), self.engine.arrange))

    def _generate_single_turn(self, *arguments: Any, **keywords: Any) -> Any:
        clock = self.clock.part("rollout", counts=self.model.training)
        drawing = self.retry.ending("completions were drawn", self.rollouts.whole)
        with clock, drawing, self.rollouts.applied(), self.guard.sampling(self.model):
            return super()._generate_single_turn(*arguments, **keywords)

    def evaluation_loop(self, *arguments: Any, **keywords: Any) -> Any:
        """As in TRL, with whatever it casts for the evaluation cast back."""
        with self.guard.evaluating(self.model):
            return super().evaluation_loop(*arguments, **keywords)

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **keywords: Any) -> Any:
        score = partial(self.engine.score, super()._get_per_token_logps_and_entropies)
        return self.retry.score(score, *arguments, **keywords)

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        with self.engine.loss_on(inputs):
            loss = super()._compute_loss(model, inputs) if self.update is None else self.update(model, inputs)
        for name, value in self.engine.metrics.items():
            _trl.metrics_of(self)[name].append(value)
        return loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """One micro-batch, unless the inner iterations on its generation batch are over."""
        step = self._step
        if self.update is not None and self.update.skips(step):
            _trl.pass_over_step(self)
            return torch.zeros((), device=self.accelerator.device)
        train = super().training_step
        with self.clock.part("update"):
            loss = self.retry.run(lambda: train(model, inputs, num_items_in_batch))
        if self.update is not None:
            self.update.finish(step)
        return loss

    def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
        """Save the model; the config beside it, which goes to the Hub with it, without secrets."""
        with _trl.config_replaced(self, self.args.as_written()):
            super()._save(output_dir, state_dict)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push to the Hub while training, which writes the config down once more."""
        with _trl.config_replaced(self, self.args.as_written()):
            super()._push_from_checkpoint(checkpoint_folder)

    def create_model_card(self, model_name: Any = None, dataset_name: Any = None, tags: Any = None) -> None:
        """TRL's model card, with the parts that trained the model added to it."""
        super().create_model_card(model_name=model_name, dataset_name=dataset_name, tags=tags)
        if self.is_world_process_zero():
            card.complete(self)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        given = (inputs, prompts, completions, completion_ids_list)
        training = self.model.training
        try:
            with self.clock.part("scoring", counts=training), self.retry.ending("completions were scored", _at_once):
                self.verification.start(*given, self.processing_class, training=training)
                rewards_NK = super()._calculate_rewards(*given)
                self.verification.log_evaluation(_trl.metric_logger(self))
        finally:
            self.verification.settle()
        if self.estimator is not None or self.verification.live:
            rewards_NK = self._logged(self.unusable.rewards(rewards_NK, self.reward_func_names))
        if self.recorder is not None:
            self.recorder.scored(prompts, completion_ids_list, rewards_NK)
        if self.estimator is not None:
            device = self.accelerator.device
            stops = _trl.stop_ids(self)
            lengths = torch.tensor([len(ids) for ids in completion_ids_list], device=device)
            truncated = torch.tensor(is_truncated(completion_ids_list, stops), device=device)
            self._rewards_NK = rewards_NK
            self._lengths_N = self.accelerator.gather(lengths)
            self._truncated_N = self.accelerator.gather(truncated)
            self._steps = self._gather_steps(inputs, prompts, completions, completion_ids_list)
        return rewards_NK

    def _gather_steps(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Any:
        """Step scores of all ranks' completions, for estimators that read them."""
        if self.step_sources is None:
            return None
        if self.step_scorer is not None:
            columns = {key: [row[key] for row in inputs] for key in inputs[0] if key != "prompt"}
            given = self.step_scorer(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
            local, wrong = scorer_steps(given, len(prompts), first=self.accelerator.process_index * len(prompts))
            if wrong := _trl.gather_objects(wrong):  # on any rank
                raise ValueError(wrong[0])
        else:
            seen = _trl.gather_objects([self.verification.steps_seen(completion_ids, self.processing_class)])
            labels = self.step_source.labels(seen, training=self.model.training)
            self._settle_outcome(labels)
            local = self.verification.steps(labels, completion_ids, self.processing_class)
        everywhere = _trl.gather_objects(local)
        if self.step_scorer is not None:
            everywhere = self._logged(self.unusable.steps(everywhere))
        return step_scores(everywhere, device=self.accelerator.device, dtype=torch.float32)

    def _settle_outcome(self, labels: Sequence[str]) -> None:
        """Once it is seen which verifier gives the steps, how the outcome counts beside them follows from that."""
        if self._outcome_settled or len(labels) != 1:
            return
        self._outcome_settled = True
        givers = dict.fromkeys(self.verification.labels, False) | {labels[0]: True}
        found, ignored = running_advantage(self.recipe, givers, self._functions)
        raise_all(ignored)
        if found != self.estimator:
            self.estimator = found
            if self.recorder is not None:
                self.recorder.parts_changed()

    def _logged(self, found: tuple[Any, dict[str, float]]) -> Any:
        """The first of the two, the metrics beside it logged."""
        for name, value in found[1].items():
            _trl.metrics_of(self)[name].append(value)
        return found[0]

    def _advantages(self, output: Any) -> torch.Tensor:
        """The estimator's advantages of this rank's rows; metrics and TRL's table follow what is trained with."""
        assert self.estimator is not None
        assert self._rewards_NK is not None
        assert self._lengths_N is not None
        assert self._truncated_N is not None
        estimator, keywords = self.estimator
        penalty_N = None if self.update is None else self.update.kl_penalty(output)
        table = reward_table(
            self._rewards_NK,
            penalty_N=penalty_N,
            weights_K=self.reward_weights,
            lengths_N=self._lengths_N,
            truncated_N=self._truncated_N,
            num_generations=self.num_generations if self.model.training else self.num_generations_eval,
            names=self.reward_func_names,
            steps=self._steps,
            trainable_NT=self._trainable(output),
        )
        advantages_N = compute_advantages(estimator, table, **keywords).float()
        for name, value in advantage_metrics(estimator, table, advantages_N).items():
            if name != "frac_reward_zero_std":  # TRL has logged its own
                _trl.metrics_of(self)[name].append(value)
        _trl.replace_logged_advantages(self, per_completion(advantages_N, table))
        if advantages_N.dim() == 2:
            _trl.log_extra(self, "advantages_per_token", per_token(advantages_N, table))
        rows, width = output["completion_ids"].shape
        return local_rows(advantages_N, rank=self.accelerator.process_index, rows=rows, width=width)

    def _trainable(self, output: Any) -> torch.Tensor:
        """Which completion tokens are trained on, all ranks': tool results and cut-off completions may be left out."""
        mask_BT = output["completion_mask"] * output.get("tool_mask", 1)
        everywhere: torch.Tensor = self.accelerator.gather(self.accelerator.pad_across_processes(mask_BT, dim=1))
        return everywhere.bool()


def _at_once() -> str:
    return "A reward model reads all completions of a generation batch at once: lower steps_per_generation."


def _default_output_dir(model: Any) -> str:
    name = model if isinstance(model, str) else getattr(model.config, "_name_or_path", "") or "model"
    return f"{name.rstrip('/').split('/')[-1]}-GRPO"
