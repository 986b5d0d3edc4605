"""The groups of a page, packed: one compressed block for each step, unpacked when the reader opens it."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from grpo_plus.record.files import plain
from grpo_plus.report.shape import shape_group, summary

BUDGET = 8 * 2**20
"""Most characters of all blocks together."""


def pack(groups: Iterable[Mapping[str, Any]], budget: int = BUDGET) -> dict[str, Any]:
    """Pack the groups of a record into blocks, and summarise each group.

    ``budget`` is the most characters of all blocks; above it every other step is left out, repeatedly.

    Returns:
        ``blocks`` (base64 of deflated JSON: a list of groups), ``index`` (summaries with ``block`` and ``at``), and
        ``recorded``, the number of groups before any was left out.
    """
    steps: dict[tuple[str, int], list[dict[str, Any]]] = {}
    blocks: dict[tuple[str, int], str] = {}
    waiting: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in groups:
        shaped = shape_group(record)
        key = shaped["mode"], shaped["step"]
        steps.setdefault(key, []).append(summary(shaped))
        waiting.setdefault(key, []).append(shaped)
        if len(waiting) > 1:  # groups of a step are neighbours: pack a step as soon as the next one begins
            done = next(iter(waiting))
            blocks[done] = blocks.get(done, "") + _block(waiting.pop(done)) + " "
    for key, shaped_groups in waiting.items():
        blocks[key] = blocks.get(key, "") + _block(shaped_groups) + " "
    recorded = sum(map(len, steps.values()))
    kept = sorted(steps, key=lambda key: (key[1], key[0]))
    while len(kept) > 1 and sum(len(blocks[key]) for key in kept) > budget:
        kept = kept[::2]
    index = [
        {**each, "block": number, "at": at} for number, key in enumerate(kept) for at, each in enumerate(steps[key])
    ]
    return {"blocks": [blocks[key].strip() for key in kept], "index": index, "recorded": recorded}


def _block(groups: list[dict[str, Any]]) -> str:
    text = json.dumps(plain(groups), ensure_ascii=True, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode("ascii")
