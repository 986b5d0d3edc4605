"""A recorded group as the page and the terminal show it: weighted rewards, shades, steps, text that can be shown."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_plus.report.shades import level, scale_of, stretches
from grpo_plus.report.visible import visible

HEAD = 90
"""Characters of a prompt in lists."""


def shape_group(record: Mapping[str, Any]) -> dict[str, Any]:
    """One group, ready to be drawn.

    Returns:
        ``step, mode, group, prompt, names, weights, mean, spread, scale`` and ``completions``, each with ``rewards,
        total, advantage, shade`` (its level), ``tokens, truncated, verdicts, pieces, shades`` (tokens, level,
        advantage) and, where there are any, ``steps`` (first token, one past the last, score), ``untrained, left_off``.
    """
    names = [str(name) for name in record["rewards"]]
    weights = record.get("weights") or [1.0] * len(names)
    completions = [_completion(each, weights) for each in record["completions"]]
    totals = [each["total"] for each in completions if each["total"] is not None]
    scale = scale_of(value for each in completions for value in each.pop("values"))
    for each in completions:
        each["shades"] = stretches(each.pop("advantages"), scale)
        each["shade"] = level(each["advantage"] or 0.0, scale)
    return {
        "step": record["step"],
        "mode": record["mode"],
        "group": record["group"],
        "prompt": visible(str(record.get("prompt", ""))),
        "names": [visible(name) for name in names],
        "weights": record.get("weights"),
        "mean": sum(totals) / len(totals) if totals else None,
        "spread": [min(totals), max(totals)] if totals else None,
        "scale": scale,
        "completions": completions,
    }


def _completion(each: Mapping[str, Any], weights: Sequence[float]) -> dict[str, Any]:
    pieces = [visible(str(piece)) for piece in each["pieces"]]
    rewards = each.get("rewards") or []
    scored = [reward * weight for reward, weight in zip(rewards, weights, strict=False) if reward is not None]
    one = each.get("advantage") or 0.0
    per_token = each.get("token_advantages")
    advantages = list(per_token) if per_token and len(per_token) == len(pieces) else [one] * len(pieces)
    left_off = each.get("left_off")
    untrained = [_moved(span, left_off) for span in each.get("untrained") or []]
    for first, last in untrained:  # whatever advantage they carry, nothing is trained by it
        advantages[first:last] = [0.0] * len(advantages[first:last])
    verdicts = each.get("verdicts") or []
    steps: list[Any] = each.get("steps") or next((one["steps"] for one in verdicts if one.get("steps")), [])
    shaped: dict[str, Any] = {
        "rewards": rewards,
        "total": sum(scored) if scored else None,
        "advantage": each.get("advantage"),
        "tokens": each.get("tokens"),
        "truncated": bool(each.get("truncated")),
        "verdicts": [
            {
                "verifier": visible(str(verdict.get("verifier", "?"))),
                "status": visible(str(verdict.get("status", "?"))),
                "reason": visible(str(verdict.get("reason", ""))),
            }
            for verdict in verdicts
        ],
        "pieces": pieces,
        "advantages": advantages,
        "values": [*advantages, one],
    }
    if steps:
        shaped["steps"] = [[*_moved(step[:2], left_off), step[2]] for step in steps]
    if untrained:
        shaped["untrained"] = untrained
    if left_off:
        shaped["left_off"] = left_off
    return shaped


def _moved(span: Sequence[int], left_off: Sequence[int] | None) -> list[int]:
    """A span of tokens where the middle was left off."""
    if not left_off:
        return list(span)
    at, count = left_off
    return [place if place <= at else max(at, place - count) for place in span]


def summary(group: Mapping[str, Any]) -> dict[str, Any]:
    """What lists, search by status and the step slider need of a group, without its completions."""
    statuses: dict[str, Counter[str]] = {}
    for each in group["completions"]:
        for verdict in each["verdicts"]:
            statuses.setdefault(verdict["verifier"], Counter())[verdict["status"]] += 1
    prompt = " ".join(group["prompt"].split())
    return {
        "step": group["step"],
        "mode": group["mode"],
        "group": group["group"],
        "prompt": prompt if len(prompt) <= HEAD else "…" + prompt[-HEAD:],
        "mean": group["mean"],
        "count": len(group["completions"]),
        "live": group["scale"] > 0,
        "statuses": {verifier: dict(counts) for verifier, counts in statuses.items()},
    }
