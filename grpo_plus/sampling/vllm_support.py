"""The allowed tokens of vLLM's truncated sampling, from the top log-probabilities at each sampled token.

Processed log-probabilities are those after top-k, top-p and min-p: -inf for an excluded token. If the top tokens
include an excluded one, they include all allowed tokens. Otherwise there may be more, and the set is unknown.
"""

import math
from collections.abc import Mapping
from typing import Any

LEAST, MOST = 20, 128
"""Log-probabilities requested: vLLM's default ``--max-logprobs``, and the number for top-p and min-p."""
FARTHEST = 1024
"""The most requested: each takes about 40 bytes of the response, at every token."""
NEVER = -9000.0
"""A log-probability below this means -inf, which JSON lacks: servers return -9999."""

_MARK = "token_id:"
NEUTRAL = {"top_p": (None, 1, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0, 0.0)}


def logprobs_count(sampling: Mapping[str, Any], vocabulary: int | None = None) -> int:
    """Return the number of log-probabilities to request at each token; 0 without truncation."""
    if all(sampling.get(name) in neutral for name, neutral in NEUTRAL.items()):
        return 0
    top, count = sampling.get("top_k"), MOST
    if isinstance(top, int) and top > 0:
        alone = all(sampling.get(name) in NEUTRAL[name] for name in ("top_p", "min_p"))
        count = min(top + 1, MOST) if not alone else top + 1 if top < FARTHEST else LEAST
    return min(count, vocabulary - 1) if vocabulary else count


def server_flags(count: int) -> str:
    """Return the flags of a server that can return ``count`` log-probabilities at each token."""
    return "--logprobs-mode processed_logprobs" + (f" --max-logprobs {count}" if count > LEAST else "")


def allowed_ids(logps: Mapping[int, float]) -> list[int] | None:
    """Return the allowed tokens among the top ones with their log-probabilities; None if there may be more."""
    ids = [token for token, logp in logps.items() if not math.isnan(logp) and logp > NEVER]
    return sorted(ids) if ids and len(ids) < len(logps) else None


def from_json(top: Any) -> list[list[int] | None]:
    """Return `allowed_ids` of each token of a completion, from the ``top_logprobs`` of a response."""
    return [_one(logps) for logps in top] if isinstance(top, list) else []


def _one(logps: Any) -> list[int] | None:
    if not isinstance(logps, Mapping):
        return None
    try:
        return allowed_ids({int(name.removeprefix(_MARK)): float(logp) for name, logp in logps.items()})
    except (ValueError, TypeError):
        return None
