"""The turns of a completion in a record: texts, calls and scores, bounded in bytes."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_verifiers.redaction import redact, redact_text
from grpo_verifiers.turns import Turn

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
        text = value if isinstance(value, str) else _arguments(value)
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


def _arguments(arguments: Mapping[str, Any]) -> str:
    return json.dumps(redact(dict(arguments)), ensure_ascii=False, default=str)


def judged_turns(
    turns: Sequence[Mapping[str, Any]],
    advantage: float | Sequence[float],
    steps: Sequence[Sequence[Any]],
    rounded: Callable[[float], float],
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
                "advantage": None if mean is None else rounded(mean),
                "score": rounded(sum(scores) / len(scores)) if scores else None,
            }
        )
    return rows
