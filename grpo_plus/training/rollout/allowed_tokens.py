"""Truncated sampling in a trainer: the batch stores the allowed tokens, and tokens are scored among them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from grpo_plus.recipe.choice import UNSCORED, reshaping, shown, truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.allowed_tokens import AllowedTokens, fitting, unknown
from grpo_plus.sampling.rollout import Rollout
from grpo_plus.training.hooks import Score, TrainerStage
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import plain_model
from grpo_plus.trl.scoring import SUPPORT
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class AllowedTokenScoring(TrainerStage):
    """Computes log-probabilities among the allowed tokens, unless TRL's own vLLM client samples.

    TRL scores a generation batch before it returns it: the rows of such a call are those sampled last.
    """

    def __init__(self) -> None:
        self._sampler: Any = None  # of the last turn: a `Rollout`, or a vLLM; None for TRL's own
        self._served = False
        self._rows: Sequence[Tensor] | None = None  # allowed tokens of the rows that are being scored
        self._turns = 0
        self._warned = False

    def after_loading(self, host: Host) -> None:
        """Warn about settings of the model's own generation config that change the distribution."""
        super().after_loading(host)
        stored = getattr(plain_model(host, host.model), "generation_config", None)
        if stored is None or host.args.use_vllm or not host.accelerator.is_main_process:
            return
        explicit = {**vars(host.args), **mapping("generation_kwargs", host.args.generation_kwargs)}
        silent = {
            name: one for name, one in stored.to_dict().items() if name != "do_sample" and explicit.get(name) is None
        }
        if changing := reshaping(silent):
            logger.warning("generation_config of the model, %s: %s.", changing, UNSCORED)

    def take(self, rollout: Rollout | None, served: Any) -> None:
        """Take the allowed tokens of a new turn from the sampler: ``served`` (vLLM), else ``rollout``, else TRL's."""
        self._turns += 1
        self._served, self._sampler = served is not None, rollout if served is None else served
        self._rows = self._sampler.allowed if self._sampler is not None and self._turns == 1 else None

    def _all_allowed(self) -> bool:
        rollout = self._sampler
        if self._turns != 1 or self._served:
            return False
        return rollout is None or (rollout.stock is None and rollout.allowed is None)

    @contextmanager
    def of_round(self) -> Iterator[None]:
        """Around a round of sampling, in which TRL scores what it sampled."""
        self._rows, self._turns, self._sampler, self._served = None, 0, None, False
        try:
            yield
        finally:
            self._rows = self._sampler = None

    def add(self, output: dict[str, Any], *, own_sampler: bool) -> dict[str, Any]:
        """The output with the allowed tokens of its rows, empty if unknown; ``own_sampler``: TRL did not sample."""
        if self._rows is None and not (own_sampler and truncation(self.host.args)):
            return output
        lengths = output["completion_mask"].sum(1).tolist()
        rows = [unknown() for _ in lengths]
        if self._rows is not None and len(self._rows) == len(lengths):
            rows = fitting(self._rows, lengths)
        if not any(map(len, rows)) and not self._all_allowed():
            if not self._warned and self.host.accelerator.is_main_process:
                logger.warning(
                    "%s: the allowed tokens are unknown (several turns, the model's own generate, or more than vLLM's "
                    "--max-logprobs). The loss scores tokens over the full vocabulary: log-probabilities and ratios "
                    "are not those of sampling. To avoid this, set top_p 1.0, top_k 0 and min_p 0.",
                    shown(self.host.args),
                )
            self._warned = True
        return output | {SUPPORT: rows}

    @contextmanager
    def of_micro_batch(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Around the loss of a micro-batch, which is scored among the allowed tokens of its rows."""
        self._rows = inputs.get(SUPPORT)
        try:
            yield
        finally:
            self._rows = None

    def logps(
        self,
        score: Score,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *further: Any,
        support: Sequence[Tensor] | None = None,
        **keywords: Any,
    ) -> Any:
        """Score among the allowed tokens: those of ``support``, or of the rows of the round or micro-batch."""
        rows = self._rows if support is None else support
        if rows is not None and len(rows) == len(input_ids):
            rows = fitting(rows, attention_mask[:, -logits_to_keep:].sum(1).tolist())
            if any(map(len, rows)):
                keywords["support"] = AllowedTokens(rows, logits_to_keep, input_ids.device)
        return score(model, input_ids, attention_mask, logits_to_keep, *further, **keywords)
