"""The tokens that vLLM could draw from, out of the log-probabilities that it tells beside each sampled token.

Processed log-probabilities are those after top-k, top-p and min-p: of a token that was left out it is -inf. So the most
probable ones are asked for, and where one of them was left out, all that were not are among them. Otherwise more could
be drawn than were told, and the support is unknown.
"""

import math
from collections.abc import Mapping
from typing import Any

LEAST, MOST = 20, 128
"""Tokens asked about: what vLLM tells without another ``--max-logprobs``, and where shares decide."""
FARTHEST = 1024
"""More is not asked about: an answer takes some 40 bytes for each, at every token."""
NEVER = -9000.0
"""Below this a log-probability stands for -inf; JSON has none, so a server says -9999."""

_MARK = "token_id:"
NEUTRAL = {"top_p": (None, 1, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0, 0.0)}


def asked_about(sampling: Mapping[str, Any], vocabulary: int | None = None) -> int:
    """How many tokens to ask about beside each sampled one; 0 where nothing is left out when drawing."""
    if all(sampling.get(name) in neutral for name, neutral in NEUTRAL.items()):
        return 0
    top, asked = sampling.get("top_k"), MOST
    if isinstance(top, int) and top > 0:
        alone = all(sampling.get(name) in NEUTRAL[name] for name in ("top_p", "min_p"))
        asked = min(top + 1, MOST) if not alone else top + 1 if top < FARTHEST else LEAST
    return min(asked, vocabulary - 1) if vocabulary else asked


def server_flags(asked: int) -> str:
    """What a server is started with to tell the log-probabilities of so many tokens beside each sampled one."""
    return "--logprobs-mode processed_logprobs" + (f" --max-logprobs {asked}" if asked > LEAST else "")


def kept_ids(told: Mapping[int, float]) -> list[int] | None:
    """The tokens that could be drawn, from those told with their log-probabilities; None: there may be more."""
    kept = [token for token, logp in told.items() if not math.isnan(logp) and logp > NEVER]
    return sorted(kept) if kept and len(kept) < len(told) else None


def from_json(top: Any) -> list[list[int] | None]:
    """The same for each token of a completion, from the ``top_logprobs`` of a server's answer."""
    return [_one(told) for told in top] if isinstance(top, list) else []


def _one(told: Any) -> list[int] | None:
    if not isinstance(told, Mapping):
        return None
    try:
        return kept_ids({int(name.removeprefix(_MARK)): float(logp) for name, logp in told.items()})
    except (ValueError, TypeError):
        return None
