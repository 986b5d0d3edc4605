"""The engine: the same log-probabilities and the same gradient as TRL's own path, from fewer tokens."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grpo_plus.engine.arrange import arrange, families, fill_entropy, idle_rows, is_row_aligned, reorder, unscored_logps
from grpo_plus.engine.cost import PassPlan, choose
from grpo_plus.engine.facts import REPLICATED, SINGLE, Facts
from grpo_plus.engine.forward import Autocast, Head
from grpo_plus.engine.models import Models
from grpo_plus.engine.notes import EngineError, Notes
from grpo_plus.engine.rows import read_rows
from grpo_plus.engine.run import Job, LogProbs, PassScores, dummy, run, run_stock
from grpo_plus.engine.truncated_logps import AllowedMask, ExcludedMass, truncated_rows
from grpo_plus.objectives.batch import SHARE

_ALONE = "This rank ends; its launcher ends all other ranks, or they wait until their collective times out"
_UNKNOWN_HEAD = "rows are scored in an unsupported way (use_liger_kernel)"


class Engine:
    """Runs the log-probability passes of a trainer.

    `score` replaces one method of TRL's trainer, `arrange` reorders its buffer, and `loss_on` sets the batch of a loss.
    Cases that are not exact run in TRL's own method, and the reason is logged once.

    Args:
        layout: ``auto`` chooses by a cost model per micro-batch, ``packed`` and ``trimmed`` force a layout if it is
            exact, ``stock`` switches the engine off.
        tokens_per_pass: most tokens of one forward and backward pass, or None.
        facts: returns the run's settings, called before each use.
        autocast: returns the context of TRL's passes.
        unwrap: returns the plain transformers model inside a trainer's wrappers.

    Attributes:
        tokens_per_pass: the argument; may be changed at any time.
        metrics: of the latest pass of a loss: the share of TRL's tokens that did not run, the share of skipped rows,
            and the layout of the rest (0 stock, 1 trimmed, 2 packed).
        unbounded: the reason why `tokens_per_pass` does not bound the latest pass; None if it does.
        last_entropy: the value logged for a pass without any rows, if other ranks need a number.
    """

    def __init__(
        self,
        layout: str,
        tokens_per_pass: int | None,
        *,
        facts: Callable[[], Facts],
        autocast: Autocast,
        unwrap: Callable[[Any], Any],
    ) -> None:
        self.layout = layout
        self.tokens_per_pass = tokens_per_pass
        self.metrics: dict[str, float] = {}
        self.unbounded: str | None = None
        self._facts = facts
        self._autocast = autocast
        self._notes = Notes()
        self._models = Models(unwrap, autocast, self._notes)
        self._inputs: Mapping[str, Any] | None = None
        self._arranged: Any = None
        self.last_entropy = 0.0

    def check(self, model: Any) -> None:
        """Refuse settings that are impossible for the model to train.

        Raises:
            EngineError: the message has the setting, the reason and the fix.
        """
        facts = self._facts()
        self._check_single(facts)
        if self.layout in {"auto", "stock"} and self.tokens_per_pass is None:
            return
        treatments = self._models.of(model).treatments
        reason = facts.refusal() or treatments.refusal
        if reason is None and self.layout == "packed" and facts.head is None:
            reason = _UNKNOWN_HEAD
        if reason is None and self.layout == "packed" and not treatments.packing:
            reason = treatments.note
        if reason is not None:
            setting = "tokens_per_pass" if self.layout == "auto" else f"engine={self.layout!r}"
            raise EngineError(f"{setting} is not possible here: {reason}. Leave it unset.")

    def try_out(self, model: Any, device: torch.device) -> None:
        """Test a model before the first pass; the result is valid for all wrappers of the same model."""
        facts = self._facts()
        if facts.refusal() is None and self._models.of(model).treatments.refusal is None:
            self._models.try_out(model, device, head=facts.head, layout=self.layout)

    def shifted(self, model: Any, device: torch.device) -> str | None:
        """Return the reason why rows need their padding when scored; None for relative positions."""
        return self._models.shifted(model, device, head=self._facts().head)

    def split_refusal(self, model: Any) -> str | None:
        """Return the reason why `tokens_per_pass` cannot bound the passes of an update; None if it can."""
        facts = self._facts()
        if self.layout == "stock":
            return "only the engine splits a pass, and engine is 'stock': set engine: auto"
        if facts.kind == REPLICATED:
            return f"the ranks add up their gradients during the pass that failed here. {_ALONE}"
        if facts.kind != SINGLE:
            return f"every rank must make the same number of passes over sharded parameters. {_ALONE}"
        return facts.refusal() or self._models.of(model).treatments.refusal or self.unbounded

    def rows_refusal(self) -> str | None:
        """Return the reason why a pass without gradient cannot be split into fewer rows; None if it can."""
        if self._facts().kind in {SINGLE, REPLICATED}:
            return None
        return f"every rank must make the same number of passes over sharded parameters. {_ALONE}"

    def _check_single(self, facts: Facts) -> None:
        if self.tokens_per_pass is not None and facts.kind != SINGLE:
            raise EngineError(
                f"tokens_per_pass is {self.tokens_per_pass}, but it works on a single device only: its backward "
                "passes run inside one another, which distributed wrappers do not follow. Leave it unset."
            )

    def arrange(self, buffer: Any) -> None:
        """Reorder TRL's buffer of micro-batches in place, once for each generation batch."""
        if self.layout == "stock" or not isinstance(buffer, list) or buffer is self._arranged:
            return
        self._arranged = buffer
        facts = self._facts()
        if facts.refusal() is not None or facts.block < 2:
            return
        reason = facts.fixed_rows()
        count = buffer[0]["completion_ids"].shape[0]
        if reason is None and not all(is_row_aligned(batch, count) for batch in buffer):
            reason = "the batch holds values that are not per row"
        if reason is not None:
            self._notes.say(f"rows stay in TRL's micro-batches: {reason}")
            return
        for start in range(0, len(buffer), facts.block):
            part = buffer[start : start + facts.block]
            keys = [key for batch in part for key in _prompt_keys(batch)]
            sizes = [size for batch in part for size in batch["completion_mask"].sum(1).tolist()]
            live = [not idle for batch in part for idle in self._idle(batch, facts).tolist()]
            family, ranks = families(*_sequences(part))
            order = arrange(keys, sizes, live, count, family=family, ranks=ranks)
            buffer[start : start + facts.block] = reorder(part, order)

    @contextmanager
    def loss_on(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Set the batch of a loss inside the block: rows that cannot change its gradient are skipped."""
        self._inputs = inputs
        self.metrics = {}
        try:
            yield
        finally:
            self._inputs = None

    def score(  # noqa: PLR0917 - TRL calls it so
        self,
        stock: Callable[..., LogProbs],
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        *,
        support: AllowedMask | None = None,
        **further: Any,
    ) -> LogProbs:
        """Return the result of TRL's ``_get_per_token_logps_and_entropies`` (``stock``) from fewer tokens.

        Rows are (B, S), prompts padded left and completions padded right, the completions in the last
        ``logits_to_keep`` columns. A pass takes ``batch_size`` rows; None takes all. With any ``further`` argument,
        multimodal inputs or the router's loss, TRL's method runs unchanged. With ``support``, the allowed tokens,
        log-probabilities are those of truncated sampling.
        """
        arguments = (model, input_ids, attention_mask, logits_to_keep)
        options = {"batch_size": batch_size, "compute_entropy": compute_entropy, **further}
        if self.layout == "stock" and support is None:
            return stock(*arguments, **options)
        facts = self._facts()
        if support is not None and facts.head is None:
            self._notes.say(
                f"tokens are scored over the full vocabulary, not the allowed tokens of sampling: {_UNKNOWN_HEAD}"
            )
            support = None
        if self.layout == "stock":
            return self._stock(stock, arguments, options, support, facts)
        self._check_single(facts)
        traits = self._models.of(model)
        reason = facts.refusal() or traits.treatments.refusal or _beyond_text(further)
        inputs = self._present(input_ids, logits_to_keep)
        scored = None if inputs is None else _trainable(inputs)
        rows = None if reason else read_rows(input_ids, attention_mask, logits_to_keep, scored)
        if rows is None or min(rows.prompts) == 0:
            reason = reason or "a row has no prompt, or padding inside its prompt or completion"
            unbounded = "" if self.tokens_per_pass is None else ", and tokens_per_pass does not bind it"
            self._notes.say(f"TRL's own path runs{unbounded}: {reason}")
            self.unbounded = reason
            return self._stock(stock, arguments, options, support, facts)
        self.unbounded = None
        self._models.try_out(model, input_ids.device, head=facts.head, layout=self.layout)
        if facts.head is None:
            self._notes.say(f"rows are not packed: {_UNKNOWN_HEAD}")
        head, most = facts.head or Head(entropy_gradient=facts.entropy_bonus), self.tokens_per_pass
        rest = (batch_size, compute_entropy, traits, self._autocast, most, head, support)
        job = Job(stock, model, input_ids, attention_mask, rows, *rest)
        scores = self._score(job, facts, inputs)
        self._note_excluded(job.mass)
        return scores

    def _stock(
        self,
        stock: Callable[..., LogProbs],
        arguments: tuple[Any, Tensor, Tensor, int],
        options: Mapping[str, Any],
        support: AllowedMask | None,
        facts: Facts,
    ) -> LogProbs:
        """Run TRL's method, restricted to the allowed tokens if there are any."""
        if support is None or facts.head is None:
            return stock(*arguments, **options)
        model, input_ids, _, width = arguments
        mass, rows = ExcludedMass(), range(len(input_ids))
        truncated = truncated_rows(model, support, rows, width, width=width, head=facts.head, mass=mass)
        scores = stock(truncated, *arguments[1:], **options)
        self._note_excluded(mass)
        return scores

    def _note_excluded(self, mass: ExcludedMass) -> None:
        if self._inputs is not None and torch.is_grad_enabled() and (mean := mass.mean) is not None:
            self.metrics["rollout/outside_support"] = mean

    def _score(self, job: Job, facts: Facts, inputs: Mapping[str, Any] | None) -> LogProbs:
        count, device = len(job.rows.prompts), job.input_ids.device
        shape = torch.Size((count, job.completion_width))
        idle_B = torch.zeros(count, dtype=torch.bool, device=device)
        logps_BC = torch.zeros(shape, dtype=torch.float32, device=device)
        if inputs is not None:
            idle_B = self._idle(inputs, facts)
            scored_BC = _trainable(inputs).bool() & ~idle_B[:, None]
            logps_BC = unscored_logps(inputs.get("old_per_token_logps"), scored_BC)
        idle = idle_B.tolist()
        # A row without a token to score has nothing to run for.
        live = [row for row in range(count) if not idle[row] and job.rows.completions[row] > 0]
        scored: list[PassScores] = []
        layout, tokens = None, 0
        for block in _blocks(job, facts):
            chosen = [row for row in live if row in block]
            if chosen:
                plan = self._plan(job, facts, chosen, len(block))
                layout = layout or plan.layout
                if plan.layout == "stock" and len(block) == count and self.tokens_per_pass is None:
                    self._measure(inputs, "stock", job, count * job.rows.width, 0)
                    return run_stock(job)
                scored += run(job, plan, block if plan.layout == "stock" else chosen)
            elif facts.kind != SINGLE or inputs is not None:
                # Other ranks run a pass here, and the optimizer must see the zeros that TRL's gradient would be.
                logps_BC = logps_BC + dummy(job)
                tokens += 1
        tokens += sum(part.tokens for part in scored)
        self._measure(inputs, layout, job, tokens, sum(idle))
        logps_BC = _place(logps_BC, [(part.target, part.logps) for part in scored])
        if not job.compute_entropy:
            return logps_BC, None, None
        entropies = [(part.target, part.entropies) for part in scored if part.entropies is not None]
        entropies_BC = _place(torch.zeros(shape, device=device), entropies)
        if inputs is not None and any(idle):
            entropies_BC = self._fill_entropy(entropies_BC, idle_B, inputs, facts)
        return logps_BC, entropies_BC, None

    def _present(self, input_ids: Tensor, width: int) -> Mapping[str, Any] | None:
        """Return the batch of the current loss if these rows are scored for it."""
        if self._inputs is None or not torch.is_grad_enabled():
            return None
        ids, tail = self._inputs["completion_ids"], input_ids[:, input_ids.shape[1] - width :]
        return self._inputs if ids.shape == tail.shape and torch.equal(ids, tail) else None

    def _plan(self, job: Job, facts: Facts, rows: Sequence[int], stock_rows: int) -> PassPlan:
        treatments = job.traits.treatments
        longest = max(job.rows.prompts[row] + job.rows.completions[row] for row in rows)
        bound = self.tokens_per_pass
        if bound is not None and longest > bound:
            self._notes.say(
                f"a row of {longest} tokens runs in one pass although tokens_per_pass is {bound}: a row is the "
                "least that can run"
            )
        if job.batch_size is not None:
            most = job.batch_size * job.rows.width
            bound = most if bound is None else min(bound, most)
        return choose(
            job.rows,
            rows,
            job.traits.shape,
            stock_rows=stock_rows,
            packing=treatments.packing and job.traits.tried and facts.head is not None,
            sharing=treatments.sharing and (treatments.window is None or longest <= treatments.window),
            branching=treatments.branching,
            # Allowed tokens may differ between rows with the same tokens.
            deep=job.allowed is None,
            joining=treatments.joining,
            trimming=treatments.trimming,
            single_pass=facts.kind != SINGLE,
            forced=self.layout,
            most_tokens=bound,
        )

    def _idle(self, inputs: Mapping[str, Any], facts: Facts) -> Tensor:
        reason = facts.zero_matters()
        if reason is not None:
            self._notes.say(f"rows with {facts.driver} of zero run like any other: {reason}")
        return idle_rows(inputs[facts.driver], _trainable(inputs), zero_is_idle=reason is None)

    def _fill_entropy(self, entropies_BC: Tensor, idle_B: Tensor, inputs: Mapping[str, Any], facts: Facts) -> Tensor:
        # TRL does not log a NaN, but the NaN of one rank would spread to all.
        nothing = float("nan") if facts.kind == SINGLE else self.last_entropy
        filled_BC = fill_entropy(entropies_BC, idle_B, _trainable(inputs), nothing=nothing)
        if facts.kind != SINGLE:
            self.last_entropy = float(filled_BC[idle_B][0, 0])
        return filled_BC

    def _measure(self, inputs: Any, layout: str | None, job: Job, tokens: int, idle: int) -> None:
        if inputs is None:
            return
        count = len(job.rows.prompts)
        self.metrics = {
            "engine/tokens_saved": 1.0 - tokens / (count * job.rows.width),
            "engine/rows_skipped": idle / count,
        }
        if layout is not None:
            self.metrics["engine/layout"] = float(("stock", "trimmed", "packed").index(layout))


def _blocks(job: Job, facts: Facts) -> list[range]:
    """Return the rows of each plan: all of them, or those of each of TRL's passes if ranks must agree."""
    count = len(job.rows.prompts)
    if facts.kind == SINGLE or job.batch_size is None:
        return [range(count)]
    return [range(start, min(start + job.batch_size, count)) for start in range(0, count, job.batch_size)]


def _place(base_BC: Tensor, parts: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the float32 base with values at flat targets; mixed-precision wrappers return values in half precision."""
    if not parts:
        return base_BC
    target = torch.cat([target for target, _ in parts])
    values = torch.cat([values.to(base_BC.dtype) for _, values in parts])
    return base_BC.reshape(-1).index_copy(0, target, values).view_as(base_BC)


def _trainable(inputs: Mapping[str, Any]) -> Tensor:
    mask_BC: Tensor = inputs["completion_mask"]
    if inputs.get("tool_mask") is not None:
        mask_BC = mask_BC * inputs["tool_mask"]
    return mask_BC if inputs.get(SHARE) is None else mask_BC * (inputs[SHARE] != 0).unsqueeze(1)


def _prompt_keys(batch: Mapping[str, Any]) -> list[bytes]:
    ids = torch.where(batch["prompt_mask"].bool(), batch["prompt_ids"], -1).cpu().contiguous().numpy()
    return [row.tobytes() for row in ids]


def _sequences(batches: Sequence[Mapping[str, Any]]) -> tuple[list[np.ndarray], list[int]]:
    sequences, prompts = [], []
    for batch in batches:
        ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1).cpu().numpy()
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1).bool().cpu().numpy()
        sequences += [tokens[here] for tokens, here in zip(ids, mask, strict=True)]
        prompts += batch["prompt_mask"].sum(1).tolist()
    return sequences, prompts


def _beyond_text(further: Mapping[str, Any]) -> str | None:
    if further.get("compute_aux_loss"):
        return "the router's load-balancing loss is computed over all tokens of a micro-batch"
    names = sorted(name for name, value in further.items() if value is not None and value is not False)
    return f"inputs beyond text ({', '.join(names)}) belong to complete rows" if names else None
