"""Leaner rollouts in a trainer whose recipe asks for them."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.sampling.decode import DecodeResult
from grpo_plus.sampling.in_step import in_step
from grpo_plus.sampling.rollout import Rollout
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.training.update.retry import Retry
from grpo_plus.trl.fields import other_samplers
from grpo_plus.trl.host import Host
from grpo_plus.trl.logs import metric_lists
from grpo_plus.trl.ranks import is_fsdp2, zero_stage
from grpo_verifiers.errors import ConfigError, Problem
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class LeanRollouts(TrainerStage):
    """Draws completions leaner where the recipe's ``rollout`` is ``auto``, and says why where memory runs out.

    ``retry`` counts rows that were drawn again, and words the end of a run. ``rollout`` draws; None where TRL does.
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
        """Keys that a ``rollout_func`` takes the place of."""
        rollout = self._recipe.rollout
        if setup.further.get("rollout_func") is None or not (self._recipe.rollout_is_set or rollout.rows):
            return []
        return ["rollout does not go with rollout_func, which draws the completions: remove one of the two."]

    def after_loading(self, host: Host) -> None:
        """Leave parameters that stay in pieces to TRL, and a ``rollout_func`` to itself."""
        super().after_loading(host)
        elsewhere = other_samplers(vars(host.args)) or host.rollout_func is not None
        self._in_step = is_fsdp2(host) and not elsewhere
        if host.tools and host.accelerator.num_processes > 1 and self._draws_together(elsewhere=bool(elsewhere)):
            told = (
                "tools on several ranks under FSDP2, ZeRO-3 or a vLLM server: each rank draws as many turns as its own "
                "completions ask for, and the others would wait for ever. Use DDP or ZeRO-2 without a server, or "
                "vllm_mode: colocate."
            )
            raise ConfigError([told])
        if self._recipe.rollout.how != "auto" or host.rollout_func is not None:
            return
        fsdp1 = host.is_fsdp_enabled and not is_fsdp2(host)
        if not (fsdp1 or (zero_stage(host) == 3 and not host.args.ds3_gather_for_generation)):
            self.rollout = Rollout(
                self._recipe.rollout.rows,
                self._report,
                explicit=self._recipe.rollout_is_set,
                alone=not self._in_step,
            )
        elif self._recipe.rollout_is_set and host.accelerator.is_main_process:
            logger.warning(
                "rollout is 'auto', but the parameters are sharded (FSDP1, or ZeRO-3 without "
                "ds3_gather_for_generation): TRL draws the completions, all rows at once.",
            )

    def _draws_together(self, *, elsewhere: bool) -> bool:
        """All ranks take part in each drawing: by the weights that they gather, or at the server of all."""
        args = self.host.args
        served = bool(args.use_vllm) and args.vllm_mode == "server"
        return served or self._in_step or (zero_stage(self.host) == 3 and not elsewhere)

    def state_dict(self) -> dict[str, Any]:
        """The rows drawn at once, where memory has run out."""
        learnt, asked = self.most_rows, self._recipe.rollout.rows
        return {} if self.rollout is None or learnt == asked else {"most_rows": learnt, "asked": asked}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with as many rows at most, unless the config asks for another number by now."""
        if self.rollout is not None and state and state["asked"] == self._recipe.rollout.rows:
            self.rollout.most_rows = int(state["most_rows"])

    @property
    def most_rows(self) -> int | None:
        """Rows drawn at once, at most; None for no bound, and where TRL draws them."""
        return None if self.rollout is None else self.rollout.most_rows

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Draw leaner; an out-of-memory error says why there were no smaller parts.

        Under FSDP2 ranks stay in step, whoever draws.
        """
        model = self.host.accelerator.unwrap_model(self.host.model_wrapped)
        with self._retry.ending("completions were drawn", self._whole), ExitStack() as around:
            if self._in_step:
                around.enter_context(in_step(model, self.host.accelerator.device))
            if self.rollout is not None:
                # Asked for now: the model's mode tells the lists apart, and while it samples it is in another one.
                self._lists = metric_lists(self.host)
                around.enter_context(self.rollout.applied(model))
            yield

    def _whole(self) -> str:
        """Why completions cannot be drawn in smaller parts than they were, and what to do; a sentence."""
        again = "drawing rows again, fewer at once, would favour short completions"
        if self.host.use_vllm:
            return "vLLM drew them: lower vllm_gpu_memory_utilization."
        if self.rollout is None:
            return (
                f"TRL's own sampling draws all rows at once, and {again}: set rollout: auto, which starts with fewer."
            )
        if self.rollout.stock is not None:
            return f"The model's own generate drew all rows at once ({self.rollout.stock}), and {again}."
        if self._in_step:
            return "A pass that all ranks take part in cannot be made again: set rollout: {rows: N}, or lower it."
        return "Not even one completion at a time fits."

    def _report(self, cost: DecodeResult) -> None:
        self._lists["rollout/row_steps"].append(float(cost.row_steps))
        self._lists["rollout/row_steps_saved"].append(cost.saved)
        self._lists["rollout/prefills"].append(float(cost.prefills))
        if cost.failures:
            self._retry.note(self._lists, cost.failures)
