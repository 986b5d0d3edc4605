"""Choose the groups of a generation batch to record, and shape their completions."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.record.turns import judged_turns
from grpo_plus.sampling.token_spans import Decode, token_ends, token_span
from grpo_verifiers.redaction import redact_text

if TYPE_CHECKING:
    from grpo_plus.advantages import StepScores

GROUPS_PER_BATCH = 4
TOKENS_KEPT = 2048
"""Of one completion; a longer one loses its middle, since the answer is at the end."""
PROMPT_KEPT = 8000
REASON_KEPT = 500
SINGLE = 9  # significant digits that give a float32 back exactly
SHOWN = 4  # significant digits of values for display


def choose(totals: Sequence[float | None], size: int, most: int = GROUPS_PER_BATCH) -> list[int]:
    """Numbers of the groups to keep: some with different rewards, evenly spread, and one with equal rewards.

    ``totals`` has the weighted reward of every completion, None where none applies. Each ``size`` consecutive ones are
    a group.
    """
    live: list[int] = []
    dead: list[int] = []
    for group in range(len(totals) // size):
        scored = [value for value in totals[group * size : (group + 1) * size] if value is not None]
        contrast = bool(scored) and max(scored) - min(scored) > 1e-6 * max(1.0, *map(abs, scored))
        (live if contrast else dead).append(group)
    dead_count = min(len(dead), max(1, most - len(live))) if most > 1 else 0
    chosen = _spread(live, most - dead_count)
    return sorted([*chosen, *_spread(dead, most - len(chosen))])


def _spread(items: Sequence[int], count: int) -> list[int]:
    if len(items) <= count:
        return list(items)
    return [items[position * len(items) // count] for position in range(count)]


def as_text(message: Any) -> str:
    """A prompt or completion as text; a conversation message by message."""
    if isinstance(message, str):
        return message
    if isinstance(message, Mapping):
        content = message.get("content")
        if isinstance(content, Sequence) and not isinstance(content, str):
            content = "".join(
                str(part.get("text", f"[{part.get('type', 'part')}]")) if isinstance(part, Mapping) else str(part)
                for part in content
            )
        calls = f"\n{message['tool_calls']}" if message.get("tool_calls") else ""
        return f"{message.get('role', '?')}: {'' if content is None else content}{calls}"
    if isinstance(message, Sequence):
        return "\n".join(as_text(part) for part in message)
    return str(message)


def pieces(ids: Sequence[int], decode: Decode) -> tuple[list[str], list[int]]:
    """The text of each sampled token, and the number of characters up to its end."""
    ends = token_ends(ids, decode)
    text = decode(ids)
    starts = [0, *ends][: len(ends)]
    shown = [text[start:end] for start, end in zip(starts, ends, strict=True)]
    if shown:
        shown[-1] += text[ends[-1] :]
    return shown, ends


def runs(flags: Sequence[bool]) -> list[list[int]]:
    """The stretches of true flags as (first, one past the last)."""
    spans: list[list[int]] = []
    for at, flag in enumerate(flags):
        if flag and spans and spans[-1][1] == at:
            spans[-1][1] = at + 1
        elif flag:
            spans.append([at, at + 1])
    return spans


def steps_by_row(steps: "StepScores | None") -> dict[int, list[list[Any]]]:
    """The steps of each completion as [first token, one past the last, score or None]."""
    rows: dict[int, list[list[Any]]] = {}
    if steps is not None:
        spans, scores = steps.spans.tolist(), steps.scores.tolist()
        for row, span, score in zip(steps.rows.tolist(), spans, scores, strict=True):
            rows.setdefault(row, []).append([*span, None if score != score else digits(score)])  # noqa: PLR0124 - NaN
    return rows


def completion_record(
    row: Mapping[str, Any],
    rewards: Sequence[float | None],
    decode: Decode,
    steps: Sequence[Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """One completion of a record.

    ``row`` is from its rank: ids, advantages, values, untrained, truncated, verdicts. ``rewards`` has one for each
    reward function. ``decode`` keeps special tokens. ``steps`` are those that the estimator read.
    """
    ids = row["ids"]
    shown, ends = pieces(ids, decode)
    advantages, values = row["advantages"], row["values"]
    per_token = isinstance(advantages, list)
    record: dict[str, Any] = {
        "tokens": len(ids),
        "truncated": row["truncated"],
        "rewards": list(rewards),
        "advantage": digits(row["advantage"]),
        "verdicts": [_verdict(verdict, ends) for verdict in row["verdicts"]],
    }
    if row.get("turns") is not None:
        judged = steps or next((one["steps"] for one in record["verdicts"] if one.get("steps")), [])
        record["turns"] = judged_turns(row["turns"], advantages if per_token else row["advantage"], judged, digits)
    if len(ids) > TOKENS_KEPT:
        head = TOKENS_KEPT // 2
        record["left_off"] = [head, len(ids) - TOKENS_KEPT]
        shown, advantages, values = (
            [*each[:head], *each[len(ids) - head :]] if isinstance(each, list) else each
            for each in (shown, advantages, values)
        )
    record["pieces"] = shown
    if per_token:
        record["token_advantages"] = [digits(value) for value in advantages]
    if values is not None:
        record["token_values"] = [None if value is None else digits(value, SHOWN) for value in values]
    if steps:
        record["steps"] = list(steps)
    if row["untrained"]:
        record["untrained"] = row["untrained"]
    return record


def _verdict(verdict: Mapping[str, Any], ends: Sequence[int]) -> dict[str, Any]:
    record = {
        "verifier": verdict["verifier"],
        "status": verdict["status"],
        "reason": redact_text(verdict["reason"])[:REASON_KEPT],
    }
    if verdict["steps"]:
        record["steps"] = [[*token_span(start, end, ends), score] for start, end, score in verdict["steps"]]
    return record


def digits(value: float, most: int = SINGLE) -> float:
    """Round a number to so many digits; by default the fewest that restore a float32."""
    return float(f"{value:.{most}g}")


QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
