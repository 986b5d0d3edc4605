"""What each rank tells the first one of a generation batch that is sampled."""

from collections.abc import Sequence
from typing import Any

import torch

from grpo_plus import _trl
from grpo_plus.record.sample import PROMPT_KEPT, as_text, runs
from grpo_plus.training.reward_table import is_truncated

DETAIL_SENT = 1000


def rank_rows(
    trainer: Any, prompts: Any, completion_ids: Any, output: Any, *, groups: Sequence[int], size: int
) -> dict[str, Any]:
    """This rank's part of the chosen groups, and the advantages of all of its rows.

    Args:
        trainer: the trainer.
        prompts: this rank's.
        completion_ids: this rank's, as sampled.
        output: what is about to be trained on.
        groups: numbers of the groups that are kept.
        size: completions of a group.
    """
    advantages, first = output["advantages"].detach(), trainer.accelerator.process_index * len(prompts)
    mask_BT = output["completion_mask"] * output.get("tool_mask", 1)
    per_token = advantages.dim() == 2
    means = advantages
    if per_token:
        trained_BT = mask_BT.to("cpu", torch.float64)
        means = (advantages.to(trained_BT) * trained_BT).sum(1) / trained_BT.sum(1).clamp(min=1)
    means_B = means.tolist()
    truncated = is_truncated(completion_ids, _trl.stop_ids(trainer))
    judges = trainer.verification.at_work(training=trainer.model.training)
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
                "untrained": runs([not flag for flag in trained]),
                "truncated": truncated[at],
                "verdicts": [_verdict(live, at) for live in judges if at < len(live.verdicts)],
            }
        )
    return {"rows": rows, "advantages": means_B}


def _verdict(live: Any, at: int) -> dict[str, Any]:
    verdict = live.verdicts[at]
    steps = [(step.start, step.end, step.score) for step in verdict.steps]
    return {
        "verifier": live.verifier.label,
        "status": verdict.status.value,
        "reason": verdict.detail[:DETAIL_SENT],
        "steps": steps,
    }
