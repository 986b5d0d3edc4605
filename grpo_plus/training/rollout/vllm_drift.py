"""Log-probabilities of vLLM beside the trainer's own: what draws must be what is trained.

TRL corrects for a difference between the two, which hides one that should not be there: weights that never arrived,
another model, log-probabilities of something else. So the two are compared on every generation batch where TRL has
computed both, and elsewhere on a few completions of the first batch and of every tenth: where TRL computes nothing, and
where dropout is on while it does.
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
from grpo_plus.recipe.truncation import shown, truncation
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
"""Mean difference, in nats, of the first batch from which on it is another model: the run ends."""
LARGE = 0.2
"""Mean difference that is warned of in any batch: 4 bits against 16 are below, and so is bfloat16 by far."""
APART = 0.05
"""The same for the first batch of an adapter over a base that training was given as an object, and vLLM was not."""
GROWN, FLOOR = 4.0, 0.01
"""Warned of as well: a mean that has grown so many times over the usual one, and is above this."""
FIRST = 5
"""The usual mean is the median of so many batches."""
EVERY, ROWS = 10, 4
"""Where TRL scores nothing, one batch in so many is compared, and of it so many completions of each rank."""
MOST = 100.0
"""A difference counts as this at most, so that one impossible token leaves a mean that says something."""

MEAN, WORST = "rollout/logp_drift", "rollout/logp_drift_max"


class DriftError(RedactedError, RuntimeError):
    """What draws is not what is trained; the message says what to change."""


@dataclass(frozen=True)
class Gap:
    """How far log-probabilities of sampled tokens are apart; of the worst one its id, place and both values."""

    total: float = 0.0
    tokens: int = 0
    worst: float = 0.0
    token: int = -1
    place: int = -1
    sampled: float = 0.0
    scored: float = 0.0

    @classmethod
    def of(cls, sampled_BC: Tensor, scored_BC: Tensor, ids_BC: Tensor, compared_BC: Tensor) -> "Gap":
        """Of the tokens that are to be compared; one without a number from the sampler is passed over."""
        compared_BC = compared_BC.bool() & ~sampled_BC.isnan()
        if not bool(compared_BC.any()):
            return cls()
        gap_BC = (sampled_BC.double() - scored_BC.double()).abs().nan_to_num(nan=MOST).clamp(max=MOST)
        gap_BC = torch.where(compared_BC, gap_BC, -1.0)
        row, place = divmod(int(gap_BC.argmax()), gap_BC.shape[1])
        chosen = [float(values[row, place]) for values in (gap_BC, sampled_BC, scored_BC)]
        total = float(gap_BC.clamp(min=0.0).sum())
        return cls(total, int(compared_BC.sum()), chosen[0], int(ids_BC[row, place]), place, *chosen[1:])

    @classmethod
    def over(cls, parts: Sequence["Gap"]) -> "Gap":
        """Of all ranks."""
        worst = max(parts, key=lambda part: part.worst)
        values = vars(worst) | {"total": sum(part.total for part in parts), "tokens": sum(p.tokens for p in parts)}
        return cls(**values)

    @property
    def mean(self) -> float:
        """Mean absolute difference, in nats."""
        return self.total / max(self.tokens, 1)


def judged(first: list[float], now: float, *, apart: bool = False) -> str | None:
    """What is wrong: ``foreign`` or ``apart`` (first batch only), ``grown`` (later ones only) or ``large``; or None.

    ``first`` are the means of the first batches, without those that had grown; this one joins them. ``apart``: the base
    that is trained and the one that vLLM holds come from two places.
    """
    if first and now > max(FLOOR, GROWN * statistics.median_low(first)):
        return "grown"
    begins = not first
    first += [now] * (len(first) < FIRST)
    if begins and now >= FOREIGN:
        return "foreign"
    if begins and apart and now > APART:
        return "apart"
    return "large" if now > LARGE else None


def likely(verdict: str, unlike: str) -> str:
    """The likely cause of a verdict; ``unlike`` names settings by which vLLM may mean other log-probabilities."""
    other = (
        f" With {unlike} the two may not be of the same thing: a temperature needs processed log-probabilities "
        "(--logprobs-mode processed_logprobs); penalties and masks are in vLLM's and not in the loss."
    )
    causes = {
        "grown": "It has grown since the first batches, so vLLM most likely draws from old weights: see whether it "
        "gets each update (its log, another run on the same server, a proxy in between).",
        "large": "It is there from the start: most likely vLLM holds the base in another precision or quantisation, or "
        "another version of the model.",
        "apart": "The model was handed over as an object, and vLLM has loaded the base by its name: most likely they "
        "are not the same weights. Save the object, and train and serve that folder by its name.",
        "foreign": "So large a difference on the first batch means another model or another vocabulary.",
    }
    return causes[verdict] + (other if unlike else "")


class LogpDrift(TrainerStage):
    """Compares vLLM's log-probabilities with the trainer's own; does nothing in runs without vLLM."""

    def __init__(self, shifted: Callable[[], str | None]) -> None:
        self._shifted = shifted
        self._first: list[float] = []  # means of the first batches
        self._batches = 0
        self._said: set[str] = set()
        self._fresh = False  # the next tokens to be scored have just been drawn
        self._apart = False

    def before_loading(self, setup: Setup) -> None:
        """See where the base comes from."""
        self._apart = not isinstance(setup.model, str) and bits_of(setup.model) is None

    @contextmanager
    def of_round(self) -> Iterator[None]:
        """Around a round of sampling: the first tokens to be scored are vLLM's."""
        self._fresh = bool(self.host.use_vllm)
        try:
            yield
        finally:
            self._fresh = False

    def compare(self, output: Mapping[str, Any]) -> None:
        """Compare a round of training; a first one that is not of this model ends the run on every rank."""
        if self.host.use_vllm and self.host.model.training:
            self._look(output)

    def check_ids(self, input_ids: Tensor) -> None:
        """Refuse tokens that the model has no embedding for, which would be an error without a name."""
        if self._fresh:
            self._fresh = False
            self._check_vocabulary(input_ids)

    def _check_vocabulary(self, input_ids: Tensor) -> None:
        size = int(plain_model(self.host, self.host.model).config.get_text_config().vocab_size)
        highest = max(gather_objects([int(input_ids.max())]))
        if highest >= size:
            raise DriftError(
                f"vLLM drew the token {highest}, and the model in training knows those below {size}: vLLM serves a "
                "model with another vocabulary. Start it with the model that is trained."
            )

    def _look(self, output: Mapping[str, Any]) -> None:
        turn, self._batches = self._batches, self._batches + 1
        sampled = output.get("sampling_per_token_logps")
        scored = None if has_dropout(self.host.model) else output.get("old_per_token_logps")
        if sampled is None or (scored is None and (turn % EVERY or output.get("pixel_values") is not None)):
            return
        if scored is None:
            self._check_vocabulary(output["completion_ids"])
            output = _head(output, ROWS)
            sampled, scored = output["sampling_per_token_logps"], self._scored(output)
        compared_BC = output["completion_mask"] * output.get("tool_mask", 1) * self._known(output)
        part = Gap.of(sampled, scored, output["completion_ids"], compared_BC)
        gap = Gap.over(gather_objects([part]))
        if gap.tokens:
            log_metrics(self.host, {MEAN: gap.mean, WORST: gap.worst})
            self._judge(gap)

    def _known(self, output: Mapping[str, Any]) -> Tensor:
        """(B, 1): rows whose two values are of the same thing, which truncated sampling makes of few."""
        like = output["completion_mask"]
        if not truncation(self.host.args):
            return torch.ones_like(like[:, :1])
        supports = output.get(SUPPORT)
        if supports is None or not any(map(len, supports)):
            self._say(
                "unknown",
                f"{shown(self.host.args)}: it is not known which tokens vLLM could draw, so its log-probabilities are "
                "not compared with the model's: a drift between the two goes unseen.",
            )
            return torch.zeros_like(like[:, :1])
        return torch.tensor([bool(len(row)) for row in supports], device=like.device).to(like.dtype)[:, None]

    def _scored(self, output: Mapping[str, Any]) -> Tensor:
        """By a pass of its own, without dropout; as many on every rank."""
        self.host.model.eval()
        try:
            return score_without_gradient(self.host, output)
        finally:
            self.host.model.train()

    def _judge(self, gap: Gap) -> None:
        apart = self._apart and is_adapted(unwrapped_model(self.host))
        verdict = judged(self._first, gap.mean, apart=apart)
        if verdict is None:
            return
        unlike, word = self._unlike(), decode_tokens(self.host, [gap.token])
        first = statistics.median_low(self._first)
        if verdict == "foreign" and unlike:
            verdict = "large"
        text = (
            f"{MEAN}: vLLM and the model in training give sampled tokens log-probabilities that differ by "
            f"{gap.mean:.3g} on average (first batches: {first:.3g}; {gap.tokens} tokens). The worst is token "
            f"{gap.token} ({word!r}) at place {gap.place} of a completion: vLLM {gap.sampled:.4g}, the model "
            f"{gap.scored:.4g}. {likely(verdict, unlike)}"
        )
        if verdict == "foreign":
            raise DriftError(f"{text} Start vLLM with the model that is trained.")
        self._say(verdict, text)

    def _unlike(self) -> str:
        args = self.host.args
        given = {"temperature": args.temperature, "repetition_penalty": args.repetition_penalty}
        given |= mapping("generation_kwargs", args.generation_kwargs)
        if args.vllm_structured_outputs_regex is not None:  # what it rules out has no probability in vLLM
            given["vllm_structured_outputs_regex"] = args.vllm_structured_outputs_regex
        if self.host.rollout_func is not None:  # its log-probabilities are whatever it says
            given["rollout_func"] = "your own"
        if reason := self._shifted():
            given["left padding in training"] = reason
        known = ("max_tokens", "n", "seed", "stop", "stop_token_ids")
        return ", ".join(f"{name} ({value!r})" for name, value in given.items() if value != 1 and name not in known)

    def _say(self, what: str, text: str) -> None:
        if what not in self._said and self.host.accelerator.is_main_process:
            logger.warning("%s", text)
        self._said.add(what)


def _head(output: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """The first rows of a batch."""

    def first(values: Any) -> Any:
        whole = not isinstance(values, list) and (not isinstance(values, Tensor) or values.dim() == 0)
        return values if whole else values[:rows]

    return {name: first(values) for name, values in output.items()}
