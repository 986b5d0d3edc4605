"""The turns of a completion in a record: said, called, scored, bounded in bytes."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grpo_verifiers.redaction import redact, redact_text
from grpo_verifiers.turns import Turn

TURNS_KEPT = 64
CALLS_KEPT = 16
"""Of one turn."""
TEXT_KEPT = 2000
"""Characters of what was said, of arguments, and of a result."""
NAME_KEPT = 120
ALL_KEPT = 40_000
"""Characters of all turns of a completion together."""
CUT = "…"


def turn_rows(turns: Sequence[Turn], spans: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """The turns of a completion as plain data without secrets; texts that do not fit are cut and end with ``…``.

    ``spans`` are the tokens of each turn. Later turns and calls than are kept are left out.
    """
    left = ALL_KEPT

    def kept(said: Mapping[str, Any] | str, most: int = TEXT_KEPT) -> str:
        nonlocal left
        most = min(most, left)
        if not most:  # nothing of it is kept, so nothing is searched for secrets
            return CUT if said != "" else ""
        text = said if isinstance(said, str) else _arguments(said)
        whole = redact_text(text[: 4 * TEXT_KEPT])  # before the cut, which could halve a key
        found = whole if len(whole) <= most else whole[: most - 1] + CUT
        left -= len(found)
        return found

    return [
        {
            "tokens": list(span),
            "text": kept(turn.text),
            "calls": [
                {
                    "name": kept(call.name, NAME_KEPT),
                    "arguments": kept(call.arguments),
                    "result": kept(call.result),
                    "status": call.status,
                    "seconds": round(call.seconds, 4),
                }
                for call in turn.calls[:CALLS_KEPT]
            ],
            "left_out": max(0, len(turn.calls) - CALLS_KEPT),
            "state": None if turn.state is None else kept(str(turn.state), NAME_KEPT),
            "reward": turn.reward,
        }
        for turn, span in list(zip(turns, spans, strict=True))[:TURNS_KEPT]
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
    the mean over the scored ``steps`` (first token, one past the last, score or None) that begin within the turn.
    """
    found = []
    for turn in turns:
        first, last = turn["tokens"]
        mine = advantage if isinstance(advantage, int | float) else list(advantage)[first:last]
        mean = mine if isinstance(mine, int | float) else sum(mine) / len(mine) if mine else None
        scores = [step[2] for step in steps if first <= step[0] < last and step[2] is not None]
        found.append(
            {
                **turn,
                "advantage": None if mean is None else rounded(mean),
                "score": rounded(sum(scores) / len(scores)) if scores else None,
            }
        )
    return found
