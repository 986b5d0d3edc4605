"""A recorded group, prepared for display: weighted rewards, shades of the tokens, steps, visible text."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from grpo_plus.report.escape import escape_all, escape_controls

HEAD = 90
"""Characters of a prompt in lists."""
LEVELS = 4
"""Shades on either side of zero, which is not shaded."""


def shape_group(record: Mapping[str, Any]) -> dict[str, Any]:
    """Prepare one group.

    Returns:
        ``step, mode, group, prompt, columns, names, mean, spread, scale`` and ``completions``, each with ``rewards,
        total, advantage, shade`` (its level), ``tokens, truncated, verdicts, pieces, shades`` (tokens, level,
        advantage) and, where there are any, ``steps`` (first token, one past the last, score), ``turns, untrained,
        left_off, values`` (a critic's, one a token or None). ``range``: lowest and highest value of the group, or None.
    """
    names = [str(name) for name in record["rewards"]]
    weights = record.get("weights") or [1.0] * len(names)
    completions = [_completion(each, weights) for each in record["completions"]]
    totals = [each["total"] for each in completions if each["total"] is not None]
    sizes = [abs(one) for each in completions for one in [*each["advantages"], each["advantage"] or 0.0]]
    scale = max(sizes, default=0.0)
    values = [value for each in completions for value in each.get("values", ()) if value is not None]
    for each in completions:
        each["shades"] = stretches(each.pop("advantages"), scale)
        each["shade"] = level(each["advantage"] or 0.0, scale)
        for turn in each.get("turns", ()):
            turn["shade"] = level(turn.get("advantage") or 0.0, scale)
    return {
        "step": record["step"],
        "mode": record["mode"],
        "group": record["group"],
        "prompt": escape_controls(str(record.get("prompt", ""))),
        "columns": escape_all(record.get("columns") or {}),
        "names": [escape_controls(name) for name in names],
        "mean": sum(totals) / len(totals) if totals else None,
        "spread": [min(totals), max(totals)] if totals else None,
        "scale": scale,
        "range": [min(values), max(values)] if values else None,
        "completions": completions,
    }


_VERDICT = {"verifier": "?", "status": "?", "reason": ""}


def _completion(each: Mapping[str, Any], weights: Sequence[float]) -> dict[str, Any]:
    pieces = [escape_controls(str(piece)) for piece in each["pieces"]]
    rewards = each.get("rewards") or []
    scored = [reward * weight for reward, weight in zip(rewards, weights, strict=False) if reward is not None]
    one = each.get("advantage") or 0.0
    per_token = each.get("token_advantages")
    advantages = list(per_token) if per_token and len(per_token) == len(pieces) else [one] * len(pieces)
    left_off = each.get("left_off")
    untrained = [_moved(span, left_off) for span in each.get("untrained") or []]
    for first, last in untrained:  # their advantage trains nothing
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
            {key: escape_controls(str(one.get(key, empty))) for key, empty in _VERDICT.items()} for one in verdicts
        ],
        "pieces": pieces,
        "advantages": advantages,
    }
    values = each.get("token_values")
    if values and len(values) == len(pieces):
        shaped["values"] = values
    if steps:
        shaped["steps"] = [[*_moved(step[:2], left_off), step[2]] for step in steps]
    if each.get("turns"):
        shaped["turns"] = [
            escape_all({**turn, "tokens": _moved(turn["tokens"], left_off), "shade": 0}) for turn in each["turns"]
        ]
    if untrained:
        shaped["untrained"] = untrained
    if left_off:
        shaped["left_off"] = left_off
    return shaped


def _moved(span: Sequence[int], left_off: Sequence[int] | None) -> list[int]:
    """A span of tokens in a completion without its middle."""
    if not left_off:
        return list(span)
    at, count = left_off
    return [place if place <= at else max(at, place - count) for place in span]


def summary(group: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a group for lists, search by status and the step slider."""
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
        "valued": group["range"] is not None,
        "statuses": {verifier: dict(counts) for verifier, counts in statuses.items()},
    }


def level(advantage: float, scale: float) -> int:
    """The shade from -4 to 4; 0 means an advantage of exactly 0, so a trained token is always shaded."""
    if advantage == 0 or scale <= 0:
        return 0
    size = min(LEVELS, max(1, round(LEVELS * abs(advantage) / scale)))
    return size if advantage > 0 else -size


def stretches(advantages: Sequence[float], scale: float) -> list[tuple[int, int, float]]:
    """Neighbouring tokens of one advantage as (tokens, level, advantage)."""
    runs: list[tuple[int, int, float]] = []
    for value in advantages:
        if runs and runs[-1][2] == value:
            runs[-1] = (runs[-1][0] + 1, runs[-1][1], value)
        else:
            runs.append((1, level(value, scale), value))
    return runs
