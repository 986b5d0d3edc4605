"""The order of a run on one page: a generation batch, a micro-batch, a checkpoint, a resumed run.

`GRPOPlusTrainer` overrides TRL's methods with one line each, which calls a method here; ``trl`` is TRL's own method.
The stages do the work. Their rooms, in the order of imports: resume, scoring, update, batch, rollout, observers.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.training.batch import Advantages, DeadGroupRefill, PromptSampler, StepScorer
from grpo_plus.training.hooks import (
    Completions,
    Compute,
    Hook,
    Prepare,
    PromptRow,
    Score,
    ScoredBatch,
    Setup,
    TrainerStage,
    name_problems,
    returned,
    too_few_rows,
)
from grpo_plus.training.observers import Recorder, RunDiagnosis, StepClock, WriteReport
from grpo_plus.training.resume import (
    DataPosition,
    GenerationBatch,
    RankCheck,
    ResumeCheck,
    Saving,
    require_on_all_machines,
)
from grpo_plus.training.rollout import (
    AllowedTokenScoring,
    ColocatedRollout,
    LeanRollouts,
    LogpDrift,
    ServerRollout,
    ToolLoop,
    Turns,
)
from grpo_plus.training.scoring import RewardModelStage, Verifiers
from grpo_plus.training.update import (
    AdapterReference,
    Critic,
    InnerIterations,
    ModelReference,
    ObjectiveLoss,
    QuantisedGuard,
    Retry,
    StockLoss,
    UpdateEngine,
)
from grpo_plus.trl.fields import data_problem, reward_problems
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import next_checkpoint_folder
from grpo_verifiers.errors import Problem


@dataclass
class Round:
    """Parts of a round of sampling while TRL's method runs: `sample`, `run_tools` and `score` each add theirs."""

    prompt_ids: list[list[int]] | None = None
    turns: Turns | None = None
    scored: ScoredBatch | None = None


class Pipeline:
    """The stages of a run and the order in which they are called."""

    def __init__(
        self, recipe: Recipe, step_scorer: StepScorer | None, write_report: WriteReport, hooks: Sequence[Hook] = ()
    ) -> None:
        """Build each stage after those that it is built from."""
        self.hooks, self.environments = hooks, bool(recipe.environments)
        self.rank_check, self.resume_check = RankCheck(recipe), ResumeCheck(recipe)
        self.generation_batch = GenerationBatch()
        self.data_position = DataPosition(self.generation_batch, self.resume_check)

        self.verifiers = Verifiers.of(recipe)
        model = recipe.reward_model
        self.reward_model = None if model is None else RewardModelStage(recipe, model, self.verifiers)

        self.engine = UpdateEngine(recipe)
        self.inner = InnerIterations(None if recipe.objective is None else recipe.objective.stop_fraction)
        self.objective = StockLoss() if recipe.objective is None else ObjectiveLoss(recipe.objective, self.inner)
        self.retry = Retry(self.engine, self.objective.changed_in_a_pass())
        self.critic = None if recipe.critic is None else Critic(recipe.critic, recipe, self.retry, self.inner)
        self.quantised = QuantisedGuard()
        self.references = AdapterReference(), ModelReference()

        chosen = recipe.selection
        self.prompt_sampler = None if chosen is None else PromptSampler(recipe, chosen, self.data_position)
        self.advantages = Advantages(recipe, self.verifiers, step_scorer)
        draws = self.prompt_sampler is not None and self.prompt_sampler.selection.draws
        extra = self.prompt_sampler.extra_prompts if self.prompt_sampler is not None and draws else None
        self.dead_groups = DeadGroupRefill(recipe, self.advantages, self.resume_check, self.engine.shifted, extra)

        self.tools = ToolLoop(recipe)
        self.lean = LeanRollouts(recipe, self.retry)
        self.vllm_server, self.vllm_colocated = ServerRollout(recipe), ColocatedRollout()
        self.allowed_tokens = AllowedTokenScoring()
        self.vllm_drift = LogpDrift(self.engine.shifted)

        self.clock = StepClock()
        self.recorder = Recorder(write_report) if recipe.report.record else None
        self.diagnosis = RunDiagnosis(recipe, self.verifiers, self.recorder)
        self.round: Round | None = None

    @property
    def stages(self) -> list[TrainerStage]:
        """All stages in the order in which they load, and in which the training loop calls them."""
        pairs = None if self.reward_model is None else self.reward_model.pairs
        stages = [
            *(self.rank_check, self.resume_check, self.inner, self.prompt_sampler, self.dead_groups, self.vllm_drift),
            *(self.critic, self.advantages, self.recorder, self.diagnosis, self.clock, self.retry),
            *(self.tools, self.verifiers, self.reward_model, pairs, *self.references, self.allowed_tokens),
            *(self.engine, self.lean, self.quantised, self.vllm_server, self.vllm_colocated, self.objective),
            *(self.data_position, self.generation_batch),
        ]
        return [*(stage for stage in stages if stage is not None), *self.hooks]

    # -- loading and training ------------------------------------------------------------------------------------------

    def problems(self, setup: Setup) -> list[Problem]:
        """Problems of the trainer's arguments."""
        owned = setup.rows_may_grow or self.environments
        data = filter(None, (data_problem(*each, owned=owned) for each in setup.datasets()))
        rows = too_few_rows(setup.train_dataset, setup.args)
        own = [*name_problems(self.stages), *data, *reward_problems(setup.reward_funcs), *rows]
        return [*own, *(one for stage in self.stages for one in stage.problems(setup))]

    @contextmanager
    def loading(self, setup: Setup) -> Iterator[None]:
        """Around TRL's ``__init__``."""
        for stage in self.stages:
            stage.before_loading(setup)
        with (
            self.references[0].loading(setup.args),
            self.vllm_server.loading(setup.args),
            self.vllm_colocated.loading(setup.args),
        ):
            yield

    def loaded(self, host: Host) -> None:
        """Give the stages the trainer and its model; each is a callback of the training loop from here on."""
        self.host = host
        self.saving = Saving(host, self.stages)
        for stage in self.stages:
            stage.host = host
            stage.after_loading(host)
            host.add_callback(stage)

    @contextmanager
    def training(self) -> Iterator[None]:
        with ExitStack() as stack:
            for stage in self.stages:
                stack.callback(stage.close)
            for stage in self.stages:
                stack.enter_context(stage.training())
            yield

    # -- a generation batch --------------------------------------------------------------------------------------------

    def make_batch(self, trl: Any, rows: Sequence[PromptRow]) -> dict[str, Any]:
        """From rows of the dataset to the tensors that are trained on."""
        batch = self.dead_groups.refill(partial(self.sample_and_score, trl), rows)
        if self.prompt_sampler is not None:
            batch = self.prompt_sampler.weigh(batch)
            self.prompt_sampler.observe(batch)
        if self.critic is not None:
            batch = self.critic.add_values(batch)
        batch = self.objective.add_old_logps(batch)
        penalty = self.objective.kl_penalty(batch)
        table = self.advantages.table(batch, penalty)
        batch = self.advantages.compute(batch, table)
        if self.critic is not None:
            batch = self.critic.add_returns(batch, table)
        if self.recorder is not None:
            self.recorder.record(batch)
        trained = self.objective.prepare(batch)
        for hook in self.hooks:
            hook.batch(trained)
        return dict(trained.output)

    def sample_and_score(self, trl: Any, rows: Sequence[PromptRow]) -> ScoredBatch:
        """One round: TRL samples a completion for each row and scores it, by `sample`, `run_tools` and `score`."""
        with (
            self._new_round() as own,
            self.vllm_drift.of_round(),
            self.tools.sessions(rows),
            self.allowed_tokens.of_round(),
        ):
            self.verifiers.check_row(rows[0] if rows else {}, training=self.host.model.training)
            for hook in self.hooks:
                hook.prompts(rows)
            output = self.allowed_tokens.add(trl(rows), own_sampler=self._sampler is not None)
        assert own.scored is not None
        batch = replace(own.scored, output=output)
        for hook in self.hooks:
            batch = returned(hook.sampled(batch), "sampled", [hook], batch)
        self.vllm_drift.compare(batch.output)
        return batch

    def sample(self, trl: Any, prompt_ids: Any, *arguments: Any, **keywords: Any) -> Any:
        """One turn of each completion."""
        if self.round is not None and self.round.prompt_ids is None:  # later turns continue completions
            self.round.prompt_ids = [list(ids) for ids in prompt_ids]
        with self.clock.sampling():
            with self.lean.sampling(), self.quantised.sampling():
                turn = trl(prompt_ids, *arguments, **keywords)
            self.allowed_tokens.take(self.lean.rollout, self._served)
        self.tools.begin_calls(prompt_ids, turn[0])
        return turn

    def run_tools(self, trl: Any, prompts: Any, prompt_ids: Any, ids: Any, completions: Any, *further: Any) -> Any:
        """TRL's loop over tools, which samples further turns."""
        run = partial(trl, prompts, prompt_ids, ids, completions, *further)
        result, turns = self.tools.loop(run, prompt_ids, ids, completions)
        if self.round is not None:
            self.round.turns = turns
        return result

    def score(self, trl: Any, rows: Any, prompts: Any, texts: Any, ids: Any) -> Tensor:
        """All ranks' rewards: judge, environments and verifiers begin, then TRL asks each reward function."""
        own = self.round or Round()
        turns, tokens = own.turns or (None, None)
        completions = Completions(rows, prompts, texts, ids, own.prompt_ids, turns, tokens)
        with (
            self.diagnosis.judging(completions),
            self.clock.scoring(),
            self.retry.scoring(),
            self.tools.rewarding(turns),
            self.verifiers.scoring(completions),
        ):
            if self.reward_model is not None:
                self.reward_model.begin(completions)
            rewards_NK: Tensor = trl(rows, prompts, texts, ids)
        verdicts = self.verifiers.verdicts(len(completions), training=self.host.model.training)
        for hook in reversed(self.hooks):
            rewards_NK = returned(hook.scored(completions, rewards_NK), "scored", [hook], rewards_NK)
        if self.reward_model is not None:
            self.reward_model.learn(completions, rewards_NK)
        self.diagnosis.compare(completions, rewards_NK)
        own.scored = self.advantages.read(completions, rewards_NK, verdicts)
        return own.scored.rewards

    @contextmanager
    def _new_round(self) -> Iterator[Round]:
        self.round = Round()
        try:
            yield self.round
        finally:
            self.round = None

    @property
    def _served(self) -> Any:
        """The vLLM that samples, if it is one of ours."""
        return self.vllm_server.server or self.vllm_colocated.llm

    @property
    def _sampler(self) -> Any:
        """The sampler in place of TRL's own; None without one."""
        return self._served or self.lean.rollout

    # -- a micro-batch -------------------------------------------------------------------------------------------------

    def micro_batch(self, trl: Prepare) -> Any:
        """The inputs of the next step, from the generation batch or a new one."""

        def prepare() -> Any:
            inputs = trl()
            self.objective.refresh_pulls()
            return self.engine.arrange(inputs)

        inputs = self.retry.inputs(prepare)
        if self.critic is not None:
            self.critic.take(inputs)
        return inputs

    def step(self, trl: Any) -> Tensor:
        """Forward and backward of a micro-batch."""

        def run() -> Tensor:
            inner = trl
            for hook in reversed(self.hooks):
                inner = partial(hook.step, inner)
            collecting = nullcontext() if self.critic is None else self.critic.collecting()
            with collecting, self.clock.step():
                return self.retry.step(lambda: returned(inner(), "step", self.hooks))

        return self.inner.step(run)

    def loss(self, trl: Compute, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """The loss of a micro-batch."""
        if self.critic is not None and (zero := self.critic.without_policy()) is not None:
            return zero
        compute: Compute = partial(self.objective.loss, trl)
        for hook in reversed(self.hooks):
            compute = partial(hook.loss, compute)
        with self.allowed_tokens.of_micro_batch(inputs), self.engine.computing_loss(inputs):
            loss: Tensor = returned(compute(model, inputs), "loss", self.hooks)
        return loss

    def logps(self, trl: Score, model: Any, input_ids: Tensor, *arguments: Any, **keywords: Any) -> Any:
        """Log-probabilities and entropies of sampled tokens."""
        self.vllm_drift.check_ids(input_ids)
        score = partial(self.allowed_tokens.logps, partial(self.engine.logps, trl))
        return self.retry.logps(score, model, input_ids, *arguments, **keywords)

    # -- checkpoints and resuming --------------------------------------------------------------------------------------

    def save(self, trl: Any, model: Any, trial: Any) -> None:
        """A checkpoint: the state of the stages, then TRL's files, then the manifest that says it is whole."""
        self.saving.save(next_checkpoint_folder(self.host, trial), lambda: trl(model, trial))

    def restore(self, resume: Any, *, allow_changes: bool) -> Path | None:
        """The checkpoint to resume from, once the run agrees with it and the stages have their state."""
        checkpoint = self.resume_check.choose(resume)
        if checkpoint is None:
            return None
        require_on_all_machines(checkpoint)
        self.resume_check.restore(self.stages, checkpoint, allow_changes=allow_changes)
        return checkpoint

    def sampler(self, own: Any) -> Any:
        """The order of the data: TRL's ``own``, or that of a selection."""
        self.data_position.sampler = own
        return own if self.prompt_sampler is None else self.prompt_sampler.sampler(own)

    def begin(self, found: tuple[int, int], counts: Sequence[int], checkpoint: str | None) -> tuple[int, int]:
        """The pass and the micro-batch that the run begins at; ``found`` is TRL's answer."""
        _, updates, passes = counts
        return self.data_position.begin(found, updates=updates, passes=passes, checkpoint=checkpoint)

    def after_step(self, trl: Any, loss: Any, norm: Any, *further: Any, learning_rate: Any, **keywords: Any) -> None:
        """TRL logs, saves and evaluates after an optimizer step."""
        norm, rate = self.data_position.measured(norm, learning_rate)
        trl(loss, norm, *further, learning_rate=rate, **keywords)
