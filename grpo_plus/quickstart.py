"""The data and the model of the quickstart, made on the spot: chains of sums, and a small model that half knows them.

``examples/quickstart.yaml`` names the two functions; both work from any config. The model is warm-started on worked
solutions of which some contain slips, so that it is right some of the time and reinforcement has something to prefer.
"""

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets import DatasetDict

FOLDER = Path(os.environ.get("GRPO_PLUS_QUICKSTART", "runs/quickstart"))
"""Where the warm-started model is kept for the next run."""

SLIPS = 0.15
"""Share of the warm start's lines with a wrong result."""

ROWS = {"train": 4096, "test": 256}


@dataclass(frozen=True)
class Chain:
    """A chain of additions and subtractions, and the value after each."""

    start: int
    moves: tuple[tuple[str, int], ...]

    @property
    def question(self) -> str:
        """The chain as written: ``3+4-2``."""
        return str(self.start) + "".join(f"{sign}{number}" for sign, number in self.moves)

    @property
    def answer(self) -> int:
        """What it comes to."""
        return self.start + sum(number if sign == "+" else -number for sign, number in self.moves)

    def solution(self, rng: random.Random | None = None, slips: float = 0.0) -> str:
        """A line for each move and the boxed result; some lines may be wrong, and the rest follows."""
        value, lines = self.start, []
        for sign, number in self.moves:
            result = value + number if sign == "+" else value - number
            if rng is not None and rng.random() < slips:
                result = max(0, result + rng.choice((-2, -1, 1, 2)))
            lines.append(f"{value}{sign}{number}={result}")
            value = result
        return "\n".join([*lines, f"\\boxed{{{value}}}"])


def chains(seed: int, low: int = 2, high: int = 4) -> Iterator[Chain]:
    """Random chains of ``low`` to ``high`` moves that never go below zero."""
    rng = random.Random(seed)  # noqa: S311 - sums, not secrets
    while True:
        value = start = rng.randrange(1, 10)
        moves = []
        for _ in range(rng.randint(low, high)):
            number = rng.randrange(1, 10)
            sign = rng.choice("+-") if value >= number else "+"
            value += number if sign == "+" else -number
            moves.append((sign, number))
        yield Chain(start, tuple(moves))


def prompt_of(question: str) -> str:
    """The prompt of a question."""
    return f"{question}=\n"


def dataset() -> "DatasetDict":
    """Questions with their answers: ``train``, and ``test`` with none of the questions of ``train``."""
    from datasets import Dataset, DatasetDict

    seen: set[str] = set()
    splits: dict[str, Any] = {}
    source = chains(seed=1)
    for name in ("test", "train"):
        rows: list[dict[str, str]] = []
        while len(rows) < ROWS[name]:
            chain = next(source)
            if chain.question not in seen:
                seen.add(chain.question)
                rows.append({"prompt": prompt_of(chain.question), "answer": str(chain.answer)})
        splits[name] = Dataset.from_list(rows)
    return DatasetDict(splits)


def model() -> str:
    """The folder of the warm-started model; made on the first call, kept for the next."""
    folder = FOLDER / "warm"
    if not (folder / "config.json").is_file():
        warm_start(folder)
    return str(folder)


def warm_start(folder: Path, *, steps: int = 400, rows: int = 96, seed: int = 0) -> None:
    """Train a small model on worked solutions with slips, and save it with its tokenizer.

    Args:
        folder: where to save.
        steps: optimizer steps.
        rows: solutions a step.
        seed: of weights and data.
    """
    import torch

    from grpo_plus.testing import make_tiny_model

    network, tokenizer = make_tiny_model(
        layers=4, hidden=128, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.02, seed=seed
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps, pct_start=0.1)
    source, rng = chains(seed=seed + 2), random.Random(seed)  # noqa: S311 - sums, not secrets
    print(f"warm start: {steps} steps of supervised training on worked solutions with slips")
    network.train()
    for step in range(1, steps + 1):
        texts = [(prompt_of(c.question), c.solution(rng, SLIPS)) for c, _ in zip(source, range(rows), strict=False)]
        ids, labels = _padded(tokenizer, texts)
        loss = network(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps:
            print(f"  step {step}: loss {loss.item():.3f}", flush=True)
    network.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _padded(tokenizer: Any, texts: list[tuple[str, str]]) -> tuple[Any, Any]:
    """Ids and labels of prompts and solutions: right-padded, and only the solutions are learned."""
    import torch

    pairs = [(tokenizer(p)["input_ids"], [*tokenizer(s)["input_ids"], tokenizer.eos_token_id]) for p, s in texts]
    width = max(len(prompt) + len(solution) for prompt, solution in pairs)
    ids = torch.full((len(pairs), width), tokenizer.pad_token_id)
    labels = torch.full((len(pairs), width), -100)
    for row, (prompt, solution) in enumerate(pairs):
        end = len(prompt) + len(solution)
        ids[row, :end] = torch.tensor([*prompt, *solution])
        labels[row, len(prompt) : end] = torch.tensor(solution)
    return ids, labels
