"""Rows of a sampled generation batch that each rank sends to the first one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpo_plus import _trl
from grpo_plus.record.sample import PROMPT_KEPT, as_text, runs
from grpo_plus.record.turns import turn_rows
from grpo_plus.training.hooks import Completions
from grpo_plus.training.live_verifier import LiveVerifier
from grpo_plus.training.reward_table import CRITIC_VALUES, is_truncated
from grpo_plus.training.run import Run

DETAIL_SENT = 1000


def rank_rows(
    run: Run, completions: Completions, output: Mapping[str, Any], *, groups: Sequence[int], size: int
) -> dict[str, Any]:
    """This rank's part of the chosen groups, and the advantages of all of its rows.

    ``completions`` are this rank's; ``output`` is the batch that is about to be trained on. ``groups`` are the numbers
    of the groups that are kept, each of ``size`` completions. A critic's values stand where tokens are trained.
    """
    prompts, completion_ids = completions.prompts, completions.ids
    advantages, first = output["advantages"].detach(), run.accelerator.process_index * len(prompts)
    mask_BT = output["completion_mask"] * output.get("tool_mask", 1)
    values_BT = output.get(CRITIC_VALUES)
    per_token = advantages.dim() == 2
    means = advantages
    if per_token:
        trained_BT = mask_BT.to("cpu", torch.float64)
        means = (advantages.to(trained_BT) * trained_BT).sum(1) / trained_BT.sum(1).clamp(min=1)
    means_B = means.tolist()
    truncated = is_truncated(completion_ids, _trl.stop_ids(run))
    judges = run.verification.at_work(training=run.model.training)
    chosen, rows = set(groups), []
    for at, ids in enumerate(completion_ids):
        if (first + at) // size not in chosen:
            continue
        trained = mask_BT[at, : len(ids)].tolist()
        rows.append(
            {
                "row": first + at,
                "prompt": as_text(prompts[at])[:PROMPT_KEPT],
                "ids": list(ids),
                "advantage": means_B[at],
                "advantages": advantages[at, : len(ids)].tolist() if per_token else None,
                "values": None if values_BT is None else _where(trained, values_BT[at, : len(ids)].tolist()),
                "untrained": runs([not flag for flag in trained]),
                "truncated": truncated[at],
                "turns": _turns(completions, at),
                "verdicts": [_verdict(live, at) for live in judges if at < len(live.verdicts)],
            }
        )
    return {"rows": rows, "advantages": means_B}


def _turns(completions: Completions, at: int) -> list[dict[str, Any]] | None:
    if completions.turns is None or completions.turn_tokens is None:
        return None
    return turn_rows(completions.turns[at], completions.turn_tokens[at])


def _where(flags: Sequence[Any], values: Sequence[float]) -> list[float | None]:
    """The values where flags are true, otherwise None."""
    return [value if flag else None for flag, value in zip(flags, values, strict=True)]


def _verdict(live: LiveVerifier, at: int) -> dict[str, Any]:
    verdict = live.verdicts[at]
    steps = [(step.start, step.end, step.score) for step in verdict.steps]
    return {
        "verifier": live.verifier.label,
        "status": verdict.status.value,
        "reason": verdict.detail[:DETAIL_SENT],
        "steps": steps,
    }
