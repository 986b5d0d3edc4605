"""Compare vLLM's log-probabilities with the trainer's own: vLLM must sample from the model in training.

TRL corrects for a difference between the two, which hides errors: weights that never arrived, another model, or other
log-probabilities. If TRL has computed both, every generation batch is compared. If it has not, or with dropout, a few
completions of every tenth batch are scored and compared.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from grpo_plus.engine.dropout import has_dropout
from grpo_plus.recipe.choice import shown, truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.training.hooks import TrainerStage
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import gather_objects, plain_model
from grpo_plus.trl.scoring import SUPPORT, score_without_gradient
from grpo_verifiers.redaction import RedactedError, get_logger

logger = get_logger(__name__)

FOREIGN = 1.0
"""Mean difference of the first batch, in nats, that means another model: the run ends."""
LARGE = 0.2
"""Mean difference with a warning in any batch: 4 bits against 16 are below, and so is bfloat16 by far."""
GROWTH, FLOOR = 4.0, 0.01
"""Factor over the usual mean, and least mean, with a warning about growth."""
FIRST = 5
"""Number of batches whose median is the usual mean."""
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


def classify_drift(first: list[float], now: float) -> str | None:
    """The problem: ``foreign`` (first batch only), ``grown`` (later ones only), ``large``, or None.

    ``first`` are the means of the first batches, without those that had grown; ``now`` is appended.
    """
    if first and now > max(FLOOR, GROWTH * statistics.median_low(first)):
        return "grown"
    begins = not first
    first += [now] * (len(first) < FIRST)
    if begins and now >= FOREIGN:
        return "foreign"
    return "large" if now > LARGE else None


_CAUSES = {
    "grown": "It has grown since the first batches, so vLLM most likely samples from old weights: check that it gets "
    "each update (its log, another run on the same server, a proxy in between).",
    "large": "Most likely vLLM has the base in another precision, or another version of the model.",
    "foreign": "So large a difference on the first batch means another model or another vocabulary: start vLLM with "
    "the model that is trained.",
}


class LogpDrift(TrainerStage):
    """Compares vLLM's log-probabilities with the trainer's own; does nothing in runs without vLLM."""

    def __init__(self, shifted: Callable[[], str | None]) -> None:
        self._shifted = shifted
        self._first: list[float] = []  # means of the first batches
        self._batches = 0
        self._warned: set[str] = set()
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
            self._report(mean)

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
            self._warn(
                "unknown",
                f"{shown(self.host.args)}: the allowed tokens are unknown, so vLLM's log-probabilities are not "
                "compared with the model's: a drift between the two would go unnoticed.",
            )
            return torch.zeros_like(like[:, :1])
        return torch.tensor([bool(len(row)) for row in supports], device=like.device).to(like.dtype)[:, None]

    def _report(self, mean: float) -> None:
        problem = classify_drift(self._first, mean)
        if problem is None:
            return
        settings = self._settings()
        if problem == "foreign" and settings:
            problem = "large"
        text = (
            f"{MEAN}: vLLM and the model in training give sampled tokens log-probabilities that differ by {mean:.3g} "
            f"on average (first batches: {statistics.median_low(self._first):.3g}). {_CAUSES[problem]}"
        )
        if settings:
            text += (
                f" With {settings} the two may differ by definition: a temperature needs --logprobs-mode "
                "processed_logprobs; penalties and masks change vLLM's values, but not the loss."
            )
        if problem == "foreign":
            raise DriftError(text)
        self._warn(problem, text)

    def _settings(self) -> str:
        """Settings by which vLLM's log-probabilities may differ from the loss by definition."""
        args = self.host.args
        values = {"temperature": args.temperature, "repetition_penalty": args.repetition_penalty}
        values |= mapping("generation_kwargs", args.generation_kwargs)
        if args.vllm_structured_outputs_regex is not None:  # excluded tokens have no probability in vLLM
            values["vllm_structured_outputs_regex"] = args.vllm_structured_outputs_regex
        if self.host.rollout_func is not None:  # its log-probabilities are its own
            values["rollout_func"] = "your own"
        if reason := self._shifted():
            values["left padding in training"] = reason
        harmless = ("max_tokens", "n", "seed", "stop", "stop_token_ids")
        return ", ".join(f"{name} ({value!r})" for name, value in values.items() if value != 1 and name not in harmless)

    def _warn(self, problem: str, text: str) -> None:
        if problem not in self._warned and self.host.accelerator.is_main_process:
            logger.warning("%s", text)
        self._warned.add(problem)
