"""Small models that are warm-started like the quickstart's, for benchmarks and tests."""

import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from grpo_plus.cli.quickstart import GUESSED, RATE, SOLUTIONS, STEPS, WORKED, base, chains, row


def warm_start(
    folder: Path,
    *,
    steps: int = STEPS,
    seed: int = 0,
    hidden: int = 128,
    singles: int = 0,
    rate: float = RATE,
    use_cpu: bool = True,
) -> None:
    """Train a model on solutions of both kinds, and save it with its tokenizer in a folder.

    ``singles`` counts the solutions of chains with one move in an optimizer step. ``seed`` is of weights and data.
    ``hidden`` is the width of the model, a multiple of 64; a wider one takes a lower ``rate``.
    """
    batch = WORKED + GUESSED + singles
    rows = _solutions(min(SOLUTIONS, steps * batch), seed, singles)
    place(folder, base(hidden=hidden, seed=seed), rows, steps, batch, rate=rate, use_cpu=use_cpu)


def _solutions(count: int, seed: int, singles: int) -> list[dict[str, Any]]:
    """So many rows; ``singles`` is the number of worked-out chains of one move in each step."""
    source, easy, rng = chains(seed + 2), chains(seed + 2, 1, 1), random.Random(seed)
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        learned = [(chain, chain.worked_out) for chain in (*islice(source, WORKED), *islice(easy, singles))]
        learned += [(chain, chain.guessed(rng)) for chain in islice(source, GUESSED)]
        rows += [{"prompt": row(chain)["prompt"], "solution": solution} for chain, solution in learned]
    return rows[:count]


def place(
    folder: Path,
    start: str,
    rows: Sequence[Mapping[str, Any]],
    steps: int,
    batch: int,
    *,
    tools: Sequence[Any] = (),
    rate: float = RATE,
    use_cpu: bool = True,
) -> None:
    """Warm-start a model into a folder, on solutions with calls of these tools; replace an older one."""
    from transformers import AutoTokenizer

    from grpo_plus.training.rollout import markers_of
    from grpo_plus.warm_start.examples import SolutionRow, encode
    from grpo_plus.warm_start.make import Base, obtain, store_of
    from grpo_plus.warm_start.store import WarmStart
    from grpo_plus.warm_start.turns import ToolChats

    tokenizer = AutoTokenizer.from_pretrained(start)
    chats = None
    if tools:
        chats = ToolChats.of(tokenizer, None, lambda reading, template: markers_of(reading, template).without)
    learned = [SolutionRow(each["prompt"], each["solution"], tools) for each in rows]
    examples, options = encode(learned, tokenizer, column="solution", chats=chats), WarmStart(steps, batch, rate)
    computing = {"use_cpu": use_cpu, "bf16": False, "gradient_checkpointing": False}
    begin = Base(start, {"dtype": "float32"}, computing=computing, micro_batch=batch)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as home:
        store = store_of(Path(home), begin, examples, options)
        trained = obtain(store, begin, examples, options, tokenizer, print)
        shutil.rmtree(folder, ignore_errors=True)
        trained.rename(folder)
