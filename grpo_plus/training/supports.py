"""Truncated sampling in a trainer: what tokens were drawn from goes with their rows, and is what they are scored in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from grpo_plus import _trl
from grpo_plus._trl import SUPPORT, Host
from grpo_plus.recipe.truncation import UNSCORED, reshaping, shown, truncation
from grpo_plus.recipe.values import mapping
from grpo_plus.sampling.support import Support, fitting, unknown
from grpo_plus.training.hooks import Compute, Draw, Hook
from grpo_plus.training.rollouts import Rollouts
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)


class Supports(Hook):
    """Has log-probabilities computed within the supports of completions that were drawn here, or by a vLLM of ours.

    TRL scores a generation batch before there is a batch: the rows of such a call are those drawn last. ``served``
    gives the vLLM, with its ``supports`` and how many tokens it was ``asked`` about; None where another one draws, or
    none.
    """

    def __init__(self, rollouts: Rollouts, served: Callable[[], Any] = lambda: None) -> None:
        self._rollouts = rollouts
        self._served = served
        self._rows: Sequence[Tensor] | None = None  # of what is being worked on
        self._turns = 0
        self._said = False

    def after_loading(self, host: Host) -> None:
        """Name settings of the model's own generation config that change what is drawn."""
        super().after_loading(host)
        stored = getattr(_trl.plain_model(host, host.model), "generation_config", None)
        if stored is None or host.args.use_vllm or not host.accelerator.is_main_process:
            return
        explicit = {**vars(host.args), **mapping("generation_kwargs", host.args.generation_kwargs)}
        silent = {
            name: one for name, one in stored.to_dict().items() if name != "do_sample" and explicit.get(name) is None
        }
        if changing := reshaping(silent):
            logger.warning("generation_config of the model, %s: %s.", changing, UNSCORED)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Keep what was drawn from."""
        yield
        self._turns += 1
        served = self._served()
        drawing = self._rollouts.rollout if served is None else served
        self._rows = drawing.supports if drawing is not None and self._turns == 1 else None

    def _unknown(self) -> str | None:
        """Why it is not known what completions were drawn from; None where that was everything."""
        if self._turns != 1:
            return "completions were made of several turns" if self._turns else "the completions were drawn elsewhere"
        if (served := self._served()) is not None:
            return (
                f"vLLM tells of {served.asked} tokens beside each sampled one, and more could be drawn (or it does not "
                "return processed log-probabilities; a server takes a larger --max-logprobs)"
            )
        rollout = self._rollouts.rollout
        if rollout is None:
            return None
        if rollout.stock is not None:
            return f"generate drew the completions ({rollout.stock})"
        return None if rollout.supports is None else "completions are not as they were drawn"

    def _say(self, why: str) -> None:
        if not self._said and self.host.accelerator.is_main_process:
            logger.warning(
                "%s: %s, so it is not known which tokens could be drawn. The loss scores them over the whole "
                "vocabulary: log-probabilities and ratios are not those of what was drawn. To be without it: top_p "
                "1.0, top_k 0 and min_p 0.",
                shown(self.host.args),
                why,
            )
        self._said = True

    def _found(self, lengths: Sequence[int]) -> list[Tensor]:
        """The supports of completions of these lengths; all are empty where none are known."""
        found = [unknown() for _ in lengths]
        if self._rows is not None and len(self._rows) == len(lengths):
            found = fitting(self._rows, lengths)
        if not any(map(len, found)) and (why := self._unknown()) is not None:
            self._say(why)
        return found

    def draw(self, draw: Draw, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Put the supports into the batch; rows of which nothing is known have empty ones."""
        self._rows, self._turns = None, 0
        try:
            output = draw(rows)
            draws = self._rollouts.rollout is not None or self._served() is not None
            if self._rows is not None or (draws and truncation(self.host.args)):
                output[SUPPORT] = self._found(output["completion_mask"].sum(1).tolist())
        finally:
            self._rows = None
        return output

    def loss(self, compute: Compute, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Work on the rows of a micro-batch."""
        self._rows = inputs.get(SUPPORT)
        try:
            return compute(model, inputs)
        finally:
            self._rows = None

    def logps(
        self,
        score: Callable[..., Any],
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        *further: Any,
        support: Sequence[Tensor] | None = None,
        **keywords: Any,
    ) -> Any:
        """Score within the supports: those given, or of the rows that are being worked on."""
        rows = self._rows if support is None else support
        if rows is not None and len(rows) == len(input_ids):
            rows = fitting(rows, attention_mask[:, -logits_to_keep:].sum(1).tolist())
            if any(map(len, rows)):
                keywords["support"] = Support(rows, logits_to_keep, input_ids.device)
        return score(model, input_ids, attention_mask, logits_to_keep, *further, **keywords)
