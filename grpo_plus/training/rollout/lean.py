"""Memory-efficient sampling in the trainer's own process."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.sampling.decode import DecodeResult
from grpo_plus.sampling.in_step import in_step
from grpo_plus.sampling.rollout import Rollout
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.rollout.vllm_server import uses_server
from grpo_plus.training.update import Retry
from grpo_plus.trl.fields import other_samplers
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import metric_lists
from grpo_plus.trl.ranks import is_fsdp2, zero_stage
from grpo_verifiers.errors import ConfigError, Problem
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class LeanRollouts(TrainerStage):
    """Samples with fewer rows at once if the recipe's ``rollout`` is ``auto``; explains out-of-memory errors.

    ``retry`` counts rows that were sampled again. ``rollout`` is the sampler; None if TRL samples.
    """

    name = "rollouts"
    rank_local = True

    def __init__(self, recipe: Recipe, retry: Retry) -> None:
        self._recipe = recipe
        self._retry = retry
        self._lists: MutableMapping[str, list[float]] = {}
        self.rollout: Rollout | None = None
        self._in_step = False

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """Refuse ``rollout`` together with a ``rollout_func``, which replaces it."""
        rollout = self._recipe.rollout
        if setup.further.get("rollout_func") is None or not (self._recipe.rollout_is_set or rollout.rows):
            return []
        return ["rollout does not go with rollout_func, which samples the completions: remove one of the two."]

    def after_loading(self, host: Host) -> None:
        """Choose the sampler: sharded parameters are left to TRL, and a ``rollout_func`` samples by itself."""
        super().after_loading(host)
        elsewhere = other_samplers(vars(host.args)) or host.rollout_func is not None
        self._in_step = is_fsdp2(host) and not elsewhere
        ranks_in_step = uses_server(host.args) or self._in_step or (zero_stage(host) == 3 and not elsewhere)
        if host.tools and host.accelerator.num_processes > 1 and ranks_in_step:
            text = (
                "tools on several ranks do not work under FSDP2, ZeRO-3 or with a vLLM server: each rank samples as "
                "many turns as its own completions need, and would wait for the other ranks for ever. Use DDP or "
                "ZeRO-2 without a server, or vllm_mode: colocate."
            )
            raise ConfigError([text])
        if self._recipe.rollout.how != "auto" or host.rollout_func is not None:
            return
        fsdp1 = host.is_fsdp_enabled and not is_fsdp2(host)
        if not (fsdp1 or (zero_stage(host) == 3 and not host.args.ds3_gather_for_generation)):
            rows, explicit = self._recipe.rollout.rows, self._recipe.rollout_is_set
            self.rollout = Rollout(rows, self._report, explicit=explicit, alone=not self._in_step)
        elif self._recipe.rollout_is_set and host.accelerator.is_main_process:
            logger.warning(
                "rollout is 'auto', but the parameters are sharded (FSDP1, or ZeRO-3 without "
                "ds3_gather_for_generation): TRL samples the completions, all rows at once."
            )

    def state_dict(self) -> dict[str, Any]:
        """The rows sampled at once, if it fell when memory ran out."""
        reduced, configured = self.most_rows, self._recipe.rollout.rows
        return {} if self.rollout is None or reduced == configured else {"most_rows": reduced, "asked": configured}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of rows, unless the config has another number now."""
        if self.rollout is not None and state and state["asked"] == self._recipe.rollout.rows:
            self.rollout.most_rows = int(state["most_rows"])

    @property
    def most_rows(self) -> int | None:
        """Most rows sampled at once; None without a limit, and if TRL samples."""
        return None if self.rollout is None else self.rollout.most_rows

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Around a turn; an out-of-memory error gives the reason why fewer rows are impossible.

        Under FSDP2 ranks stay in step with any sampler.
        """
        model = self.host.accelerator.unwrap_model(self.host.model_wrapped)
        with self._retry.ending("completions were sampled", self._why_not_fewer), ExitStack() as around:
            if self._in_step:
                around.enter_context(in_step(model, self.host.accelerator.device))
            if self.rollout is not None:
                # Fetched now: the lists depend on the mode of the model, which changes while it samples.
                self._lists = metric_lists(self.host)
                around.enter_context(self.rollout.applied(model))
            yield

    def _why_not_fewer(self) -> str:
        """A sentence: the reason why completions cannot be sampled with fewer rows at once, and the remedy."""
        if self.host.use_vllm:
            return "vLLM samples them: lower vllm_gpu_memory_utilization."
        if self.rollout is not None and self.rollout.stock is None and not self._in_step:
            return "Not even one completion at a time fits."
        return "Sampling again, fewer at once, would favour short completions: set rollout: {rows: N}, or lower it."

    def _report(self, cost: DecodeResult) -> None:
        self._lists["rollout/row_steps"].append(float(cost.row_steps))
        self._lists["rollout/row_steps_saved"].append(cost.saved)
        self._lists["rollout/prefills"].append(float(cost.prefills))
        if cost.failures:
            self._retry.note(self._lists, cost.failures)
