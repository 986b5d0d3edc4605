"""The update of completions in turns, of which some begin alike: stock TRL, prompts shared, and turns shared, too.

    python benchmarks/turn_trees.py                      # every case, about three minutes on one core
    python benchmarks/turn_trees.py --case game --rounds 7 --json turns.json
    python benchmarks/turn_trees.py --device cuda --hidden 2048 --layers 16 --dtype bfloat16

All three update on the same batches, in turn, in one process. Tokens are those that the layers run over, with padding;
what is printed is the median of the times, of their ratios round by round, and how far apart the gradients are.
"""

import argparse
import json
import logging
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from update_phase import GENERATIONS, distance, make_trainer, timed, update

GROUPS = 2


@dataclass(frozen=True)
class Case:
    """A kind of generation batch in turns.

    Attributes:
        text: for the table.
        prompt: tokens of a prompt.
        turns: turns of a completion, the last without a call.
        own: tokens that the model writes in a turn.
        result: tokens of a result.
        ways: different turns that completions with the same past go on with; 0: each has its own.
        alike: turns that have so few ways; those after them are each completion's own.
    """

    text: str
    prompt: int
    turns: int
    own: int
    result: int
    ways: int
    alike: int


CASES = {
    "one call": Case("the first of two turns is one of 2", 150, 2, 60, 60, 2, 1),
    "search": Case("long results: the first two of four turns, one of 2 each", 150, 4, 30, 200, 2, 2),
    "game": Case("eight short turns, one of 2 each", 100, 8, 12, 40, 2, 8),
    "apart": Case("nothing but the prompt is alike", 150, 3, 60, 60, 0, 0),
}
NAMES = ("TRL", "prompts shared", "turns shared")


@dataclass
class Result:
    """Of one case: tokens, seconds and distances for each of `NAMES`, and ratios of times round by round."""

    case: str
    tokens: list[int]
    seconds: list[float]
    faster_than_stock: float
    faster_than_prompts: float
    distances: list[float]


def generation_batch(case: Case, vocabulary: int, device: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch as TRL makes it of completions in turns: results are masked out, lengths differ by a few tokens."""
    random = torch.Generator().manual_seed(seed)

    def words(count: int) -> list[int]:
        return torch.randint(5, vocabulary, (count,), generator=random).tolist()

    def some(count: int) -> list[int]:
        return words(max(2, count + int(torch.randint(-count // 5, count // 5 + 1, (1,), generator=random))))

    rows, masks, prompts = [], [], []
    for _ in range(GROUPS):
        prompt, known = words(case.prompt), {}
        for _ in range(GENERATIONS):
            past: tuple[int, ...] = ()
            tokens, mask = [], []
            for turn in range(case.turns):
                way = int(torch.randint(case.ways, (1,), generator=random)) if turn < case.alike else len(rows)
                past = (*past, way)
                said = known.setdefault((*past, "said"), some(case.own))
                told = known.setdefault((*past, "told"), some(case.result)) if turn < case.turns - 1 else []
                tokens += said + told
                mask += [1] * len(said) + [0] * len(told)
            prompts.append(prompt)
            rows.append(tokens)
            masks.append(mask)
    width = max(map(len, rows))
    padded = [torch.tensor([row + [0] * (width - len(row)) for row in part]) for part in (rows, masks)]
    completion_mask = torch.arange(width) < torch.tensor([len(row) for row in rows])[:, None]
    batch = {
        "prompt_ids": torch.tensor(prompts),
        "prompt_mask": torch.ones(len(rows), case.prompt, dtype=torch.long),
        "completion_ids": padded[0],
        "completion_mask": completion_mask.long(),
        "tool_mask": padded[1],
        "advantages": torch.randn(len(rows), generator=random),
        "num_items_in_batch": padded[1].sum(),
    }
    return {name: value.to(device) for name, value in batch.items()}


def tokens_in(trainer: Any, batch: dict[str, torch.Tensor]) -> int:
    """The tokens that the first layer runs over in one update."""
    seen: list[int] = []
    layer = trainer.model.model.layers[0]
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[:2].numel()))
    update(trainer, batch)
    hook.remove()
    return sum(seen)


def measure(options: argparse.Namespace) -> list[Result]:
    """Every case."""
    trainers = [make_trainer(options, ours=name != NAMES[0]) for name in NAMES]
    trainers[1].engine.deep = False
    results = []
    for name in options.case:
        batch = generation_batch(CASES[name], options.vocabulary, options.device)
        tokens = [tokens_in(trainer, batch) for trainer in trainers]
        distances = [distance(trainer, trainers[0]) for trainer in trainers]
        rounds = [[timed(trainer, batch) for trainer in trainers] for _ in range(options.rounds)]
        results.append(
            Result(
                case=name,
                tokens=tokens,
                seconds=[statistics.median(times) for times in zip(*rounds, strict=True)],
                faster_than_stock=statistics.median(one[0] / one[2] for one in rounds),
                faster_than_prompts=statistics.median(one[1] / one[2] for one in rounds),
                distances=distances,
            )
        )
        show(results[-1])
    return results


def show(result: Result) -> None:
    """One row of the table."""
    print(
        f"| {result.case}: {CASES[result.case].text} | {' → '.join(f'{count:,}' for count in result.tokens)} | "
        f"{' → '.join(f'{time:.2f}' for time in result.seconds)} | {result.faster_than_stock:.2f} | "
        f"{result.faster_than_prompts:.2f} | {max(result.distances):.0e} |",
        flush=True,
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5, help="updates of each a case")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.hidden % 64 or GENERATIONS * GROUPS % options.rows:
        parser.error("--rounds must be positive, --hidden a multiple of 64, and --rows a divisor of 16")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    options = parse(arguments)
    logging.getLogger("grpo_plus.engine").setLevel(logging.ERROR)
    if options.device == "cpu":
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    print(f"| case | tokens: {' → '.join(NAMES)} | seconds | over TRL | over prompts shared | gradient off by |")
    print("|---|---|---|---|---|---|")
    results = measure(options)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
