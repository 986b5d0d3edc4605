"""Choose the groups of a generation batch to record, and shape their completions and turns, bounded in bytes."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_plus.sampling.token_spans import Decode, token_ends, token_span
from grpo_verifiers.redaction import redact, redact_text
from grpo_verifiers.stats import evenly
from grpo_verifiers.turns import Turn

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
    chosen = evenly(live, most - dead_count)
    return sorted([*chosen, *evenly(dead, most - len(chosen))])


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


def runs(flags: Sequence[Any]) -> list[list[int]]:
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
        record["turns"] = judged_turns(row["turns"], advantages if per_token else row["advantage"], judged)
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


MOST_TURNS = 64
MOST_CALLS = 16
"""Of one turn."""
MOST_TEXT = 2000
"""Characters of a text, of arguments, and of a result."""
MOST_NAME = 120
MOST_ALL = 40_000
"""Characters of all turns of a completion together."""
CUT = "…"


def turn_rows(turns: Sequence[Turn], spans: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The turns of a completion as plain data without secrets; texts that do not fit are cut and end with ``…``.

    ``spans`` are the tokens of each turn. Turns and calls above the bounds are left out.
    """
    left = MOST_ALL

    def clipped(value: Mapping[str, Any] | str, most: int = MOST_TEXT) -> str:
        nonlocal left
        most = min(most, left)
        if not most:  # nothing is stored, so no search for secrets
            return CUT if value != "" else ""
        text = value if isinstance(value, str) else json.dumps(redact(dict(value)), ensure_ascii=False, default=str)
        safe = redact_text(text[: 4 * MOST_TEXT])  # before the cut, which could halve a key
        result = safe if len(safe) <= most else safe[: most - 1] + CUT
        left -= len(result)
        return result

    return [
        {
            "tokens": list(span),
            "text": clipped(turn.text),
            "calls": [
                {
                    "name": clipped(call.name, MOST_NAME),
                    "arguments": clipped(call.arguments),
                    "result": clipped(call.result),
                    "status": call.status,
                    "seconds": round(call.seconds, 4),
                }
                for call in turn.calls[:MOST_CALLS]
            ],
            "left_out": max(0, len(turn.calls) - MOST_CALLS),
            "state": None if turn.state is None else clipped(str(turn.state), MOST_NAME),
            "reward": turn.reward,
        }
        for turn, span in list(zip(turns, spans, strict=True))[:MOST_TURNS]
    ]


def judged_turns(
    turns: Sequence[Mapping[str, Any]],
    advantage: float | Sequence[float],
    steps: Sequence[Sequence[Any]],
) -> list[dict[str, Any]]:
    """The turns with an advantage and a score each.

    ``advantage`` is the completion's, or one for each token: then a turn's is the mean over its tokens. The score is
    the mean over the scored ``steps`` (first token, one past the last, score or None) that begin in the turn.
    """
    rows = []
    for turn in turns:
        first, last = turn["tokens"]
        mine = advantage if isinstance(advantage, int | float) else list(advantage)[first:last]
        mean = mine if isinstance(mine, int | float) else sum(mine) / len(mine) if mine else None
        scores = [step[2] for step in steps if first <= step[0] < last and step[2] is not None]
        rows.append(
            {
                **turn,
                "advantage": None if mean is None else digits(mean),
                "score": digits(sum(scores) / len(scores)) if scores else None,
            }
        )
    return rows
