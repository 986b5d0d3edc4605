"""Lengths in tokens, which is what a run pays for; characters would reward other scripts and spacing tricks."""

from collections.abc import Sequence
from typing import TypeVar

from grpo_verifiers.errors import VerifierFailedError

_Ids = TypeVar("_Ids")


def token_ids(check: str, completion_ids: Sequence[_Ids] | None) -> Sequence[_Ids]:
    """The sampled ids, or those of a batch, or a clear error where the caller has none."""
    if completion_ids is None:
        raise VerifierFailedError(
            f"{check} counts tokens and was given no completion_ids: pass the sampled token ids, as GRPO trainers do, "
            "or leave this verifier out where there are only texts."
        )
    return completion_ids
