"""Compare vLLM's log-probabilities with the trainer's own: vLLM must sample from the model in training.

TRL corrects for a difference between the two, which hides errors: weights that never arrived, another model, or other
log-probabilities. If TRL has computed both, every generation batch is compared. If it has not, or with dropout, a few
completions of every tenth batch are scored and compared.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grpo_plus.engine.dropout import has_dropout
from grpo_plus.recipe.choice import truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.training.hooks import TrainerStage
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import gather_objects, plain_model
from grpo_plus.trl.scoring import SUPPORT, score_without_gradient
from grpo_verifiers.redaction import RedactedError

FOREIGN = 1.0
"""Mean difference of the first batch, in nats, that means another model: the run ends."""
EVERY, ROWS = 10, 4
"""Without TRL's scores: every such batch is compared, and so many completions of each rank."""
MAX_GAP = 100.0
"""Largest difference of a token: one impossible token must not dominate the mean."""

MEAN, WORST = "rollout/logp_drift", "rollout/logp_drift_max"


class DriftError(RedactedError, RuntimeError):
    """vLLM samples from another model than the one in training."""


def gaps(sampled_BC: Tensor, scored_BC: Tensor, compared_BC: Tensor) -> tuple[float, int, float]:
    """Sum, number and maximum of the differences in ``compared_BC``, without tokens that the sampler gave no value."""
    compared_BC = compared_BC.bool() & ~sampled_BC.isnan()
    gap_BC = (sampled_BC.double() - scored_BC.double()).abs().nan_to_num(nan=MAX_GAP).clamp(max=MAX_GAP)
    gap_M = gap_BC[compared_BC]
    return float(gap_M.sum()), len(gap_M), float(gap_M.max()) if len(gap_M) else 0.0


class LogpDrift(TrainerStage):
    """Compares vLLM's log-probabilities with the trainer's own; does nothing in runs without vLLM."""

    def __init__(self, shifted: Callable[[], str | None]) -> None:
        self._shifted = shifted
        self._compared = False
        self._batches = 0
        self._new_tokens = False  # the next tokens to be scored are new

    @contextmanager
    def of_round(self) -> Iterator[None]:
        """Around a round of sampling: the first tokens to be scored are vLLM's."""
        self._new_tokens = bool(self.host.use_vllm)
        try:
            yield
        finally:
            self._new_tokens = False

    def compare(self, output: Mapping[str, Any]) -> None:
        """Compare a round of training; another model in the first batch ends the run on every rank."""
        if not (self.host.use_vllm and self.host.model.training):
            return
        batch, self._batches = self._batches, self._batches + 1
        sampled = output.get("sampling_per_token_logps")
        scored = None if has_dropout(self.host.model) else output.get("old_per_token_logps")
        if sampled is None or (scored is None and (batch % EVERY or output.get("pixel_values") is not None)):
            return
        if scored is None:
            self._check_vocabulary(output["completion_ids"])
            rows = {k: v[:ROWS] for k, v in output.items() if isinstance(v, list) or (torch.is_tensor(v) and v.dim())}
            output = {**output, **rows}
            sampled = output["sampling_per_token_logps"]
            self.host.model.eval()  # without dropout
            try:
                scored = score_without_gradient(self.host, output)
            finally:
                self.host.model.train()
        compared_BC = output["completion_mask"] * output.get("tool_mask", 1) * self._comparable(output)
        totals, counts, worst = zip(*gather_objects([gaps(sampled, scored, compared_BC)]), strict=True)
        if sum(counts):
            mean = sum(totals) / sum(counts)
            log_metrics(self.host, {MEAN: mean, WORST: max(worst)})
            self._refuse_another_model(mean)

    def check_ids(self, input_ids: Tensor) -> None:
        """Refuse tokens outside the model's embedding, which would be an obscure error."""
        if self._new_tokens:
            self._new_tokens = False
            self._check_vocabulary(input_ids)

    def _check_vocabulary(self, input_ids: Tensor) -> None:
        size = int(plain_model(self.host, self.host.model).config.get_text_config().vocab_size)
        highest = max(gather_objects([int(input_ids.max())]))
        if highest >= size:
            raise DriftError(
                f"vLLM sampled the token {highest}, and the model in training has {size} tokens: vLLM serves a model "
                "with another vocabulary. Start it with the model that is trained."
            )

    def _comparable(self, output: Mapping[str, Any]) -> Tensor:
        """(B, 1): rows that can be compared; under truncated sampling those whose allowed tokens are recorded."""
        like = output["completion_mask"]
        if not truncation(self.host.args):
            return torch.ones_like(like[:, :1])
        supports = output.get(SUPPORT)
        if supports is None or not any(map(len, supports)):
            return torch.zeros_like(like[:, :1])
        return torch.tensor([bool(len(row)) for row in supports], device=like.device).to(like.dtype)[:, None]

    def _refuse_another_model(self, mean: float) -> None:
        """End the run on a large difference of its first batch, unless settings explain it."""
        first, self._compared = not self._compared, True
        if first and mean >= FOREIGN and not self._may_differ():
            raise DriftError(
                f"{MEAN}: vLLM and the model in training give sampled tokens log-probabilities that differ by "
                f"{mean:.3g} on average. So large a difference on the first batch means another model or another "
                "vocabulary: start vLLM with the model that is trained."
            )

    def _may_differ(self) -> bool:
        """Return True if vLLM's log-probabilities may differ from the loss by definition."""
        args = self.host.args
        values = {"temperature": args.temperature, "repetition_penalty": args.repetition_penalty}
        values |= mapping("generation_kwargs", args.generation_kwargs)
        # Tokens that a regex excludes have no probability in vLLM; those of a rollout function are its own.
        if args.vllm_structured_outputs_regex is not None or self.host.rollout_func is not None or self._shifted():
            return True
        harmless = ("max_tokens", "n", "seed", "stop", "stop_token_ids")
        return any(value != 1 and name not in harmless for name, value in values.items())
