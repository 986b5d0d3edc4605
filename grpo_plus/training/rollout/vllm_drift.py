"""Compare vLLM's log-probabilities with the trainer's own: vLLM must sample from the model in training.

TRL corrects for a difference between the two, which hides errors: weights that never arrived, another model, or other
log-probabilities. If TRL has computed both, every generation batch is compared. If it has not, or with dropout, a few
completions of every tenth batch are scored and compared.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_plus.engine.dropout import has_dropout
from grpo_plus.qlora.model import bits_of
from grpo_plus.recipe.choice import shown, truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.decode import is_adapted
from grpo_plus.training.hooks import Setup, TrainerStage
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import gather_objects, plain_model, unwrapped_model
from grpo_plus.trl.rollout import decode_tokens
from grpo_plus.trl.scoring import SUPPORT, score_without_gradient
from grpo_verifiers.redaction import RedactedError, get_logger

logger = get_logger(__name__)

FOREIGN = 1.0
"""Mean difference of the first batch, in nats, that means another model: the run ends."""
LARGE = 0.2
"""Mean difference with a warning in any batch: 4 bits against 16 are below, and so is bfloat16 by far."""
LARGE_FROM_OBJECT = 0.05
"""The same for the first batch of an adapter on a base that was passed as an object, which vLLM loads by name."""
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


@dataclass(frozen=True)
class Gap:
    """Difference of log-probabilities of sampled tokens; id, place and both values of the worst token."""

    total: float = 0.0
    tokens: int = 0
    worst: float = 0.0
    token: int = -1
    place: int = -1
    sampled: float = 0.0
    scored: float = 0.0

    @classmethod
    def of(cls, sampled_BC: Tensor, scored_BC: Tensor, ids_BC: Tensor, compared_BC: Tensor) -> "Gap":
        """The gap of the tokens in ``compared_BC``, without those that have no value of the sampler."""
        compared_BC = compared_BC.bool() & ~sampled_BC.isnan()
        if not bool(compared_BC.any()):
            return cls()
        gap_BC = (sampled_BC.double() - scored_BC.double()).abs().nan_to_num(nan=MAX_GAP).clamp(max=MAX_GAP)
        gap_BC = torch.where(compared_BC, gap_BC, -1.0)
        row, place = divmod(int(gap_BC.argmax()), gap_BC.shape[1])
        chosen = [float(values[row, place]) for values in (gap_BC, sampled_BC, scored_BC)]
        total = float(gap_BC.clamp(min=0.0).sum())
        return cls(total, int(compared_BC.sum()), chosen[0], int(ids_BC[row, place]), place, *chosen[1:])

    @classmethod
    def over(cls, parts: Sequence["Gap"]) -> "Gap":
        """The gap of all ranks."""
        worst = max(parts, key=lambda part: part.worst)
        values = vars(worst) | {"total": sum(part.total for part in parts), "tokens": sum(p.tokens for p in parts)}
        return cls(**values)

    @property
    def mean(self) -> float:
        """Mean absolute difference, in nats."""
        return self.total / max(self.tokens, 1)


def classify_drift(first: list[float], now: float, *, from_object: bool = False) -> str | None:
    """The problem: ``foreign`` or ``object`` (first batch only), ``grown`` (later ones only), ``large``, or None.

    ``first`` are the means of the first batches, without those that had grown; ``now`` is appended. ``from_object``: an
    adapter is trained on a base that was passed as an object, and vLLM loads its base by name.
    """
    if first and now > max(FLOOR, GROWTH * statistics.median_low(first)):
        return "grown"
    begins = not first
    first += [now] * (len(first) < FIRST)
    if begins and now >= FOREIGN:
        return "foreign"
    if begins and from_object and now > LARGE_FROM_OBJECT:
        return "object"
    return "large" if now > LARGE else None


def likely_cause(problem: str, settings: str) -> str:
    """The likely cause of a problem; ``settings`` may give vLLM other log-probabilities than the loss."""
    other = (
        f" With {settings} the two may differ by definition: a temperature needs processed log-probabilities "
        "(--logprobs-mode processed_logprobs); penalties and masks change vLLM's values, but not the loss."
    )
    causes = {
        "grown": "It has grown since the first batches, so vLLM most likely samples from old weights: check that it "
        "gets each update (its log, another run on the same server, a proxy in between).",
        "large": "It is there from the start: most likely vLLM has the base in another precision or quantisation, or "
        "another version of the model.",
        "object": "The model was passed as an object, and vLLM has loaded the base by its name: most likely they are "
        "not the same weights. Save the object, and train and serve that folder by its name.",
        "foreign": "So large a difference on the first batch means another model or another vocabulary.",
    }
    return causes[problem] + (other if settings else "")


class LogpDrift(TrainerStage):
    """Compares vLLM's log-probabilities with the trainer's own; does nothing in runs without vLLM."""

    def __init__(self, shifted: Callable[[], str | None]) -> None:
        self._shifted = shifted
        self._first: list[float] = []  # means of the first batches
        self._batches = 0
        self._warned: set[str] = set()
        self._new_tokens = False  # the next tokens to be scored are new
        self._from_object = False

    def before_loading(self, setup: Setup) -> None:
        """Note a base that is passed as an object."""
        self._from_object = not isinstance(setup.model, str) and bits_of(setup.model) is None

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
        gap = Gap.over(gather_objects([Gap.of(sampled, scored, output["completion_ids"], compared_BC)]))
        if gap.tokens:
            log_metrics(self.host, {MEAN: gap.mean, WORST: gap.worst})
            self._report(gap)

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

    def _report(self, gap: Gap) -> None:
        from_object = self._from_object and is_adapted(unwrapped_model(self.host))
        problem = classify_drift(self._first, gap.mean, from_object=from_object)
        if problem is None:
            return
        settings, word = self._settings(), decode_tokens(self.host, [gap.token])
        first = statistics.median_low(self._first)
        if problem == "foreign" and settings:
            problem = "large"
        text = (
            f"{MEAN}: vLLM and the model in training give sampled tokens log-probabilities that differ by "
            f"{gap.mean:.3g} on average (first batches: {first:.3g}; {gap.tokens} tokens). The worst is token "
            f"{gap.token} ({word!r}) at place {gap.place} of a completion: vLLM {gap.sampled:.4g}, the model "
            f"{gap.scored:.4g}. {likely_cause(problem, settings)}"
        )
        if problem == "foreign":
            raise DriftError(f"{text} Start vLLM with the model that is trained.")
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
