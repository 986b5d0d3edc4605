r"""The data and the model of the quickstart, made at the first start: chains of sums, and a model that half knows them.

``examples/quickstart.yaml`` names the two functions; both work from any config. Most solutions of the warm start guess
a number near the result, and some work the result out line by line. The model learns both habits and is right some of
the time; the reward tells the habits apart.

    user:       7+5-9+4
    assistant:  \boxed{9}                        guessed, or

    assistant:  7+5=12
                12-9=3
                3+4=7
                \boxed{7}                        worked out
"""

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from grpo_plus.checkpoints.folder import read_json

if TYPE_CHECKING:
    from datasets import DatasetDict

FOLDER = Path(os.environ.get("GRPO_PLUS_QUICKSTART", "runs/quickstart"))
"""Folder of the warm-started model."""

RECIPE = 8
"""Version of the model's recipe; a stored model of another version is replaced."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'][0] }}{{ message['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)
"""ChatML with one letter for the role: every character is a token."""

MOST = 9
"""Largest value in a chain."""

OFF = 3
"""Largest distance of a guess from the result."""

RATE = 5e-3
"""Peak learning rate of the warm start."""

ROWS = {"train": 4096, "test": 256}


@dataclass(frozen=True)
class Chain:
    """A chain of additions and subtractions, and the value after each."""

    start: int
    moves: tuple[tuple[str, int], ...]

    @property
    def question(self) -> str:
        """The chain as text: ``3+4-2``."""
        return str(self.start) + "".join(f"{sign}{number}" for sign, number in self.moves)

    @property
    def answer(self) -> int:
        """The result."""
        return self.start + sum(number if sign == "+" else -number for sign, number in self.moves)

    def guessed(self, rng: random.Random) -> str:
        """Only a boxed number near the result."""
        return f"\\boxed{{{max(0, self.answer + rng.randint(-OFF, OFF))}}}"

    @property
    def worked_out(self) -> str:
        """A line for each move, then the boxed result."""
        value, lines = self.start, []
        for sign, number in self.moves:
            result = value + number if sign == "+" else value - number
            lines.append(f"{value}{sign}{number}={result}")
            value = result
        return "\n".join([*lines, f"\\boxed{{{self.answer}}}"])


def is_held_out(question: str) -> bool:
    """True for one question in eight, by its checksum: these are for measuring only."""
    return crc32(question.encode()) % 8 == 0


def chains(seed: int, low: int = 2, high: int = 4, *, held_out: bool = False) -> Iterator[Chain]:
    """Random chains of ``low`` to ``high`` moves with one-digit values, for training or held out from it."""
    rng = random.Random(seed)  # noqa: S311 - sums, not secrets
    while True:
        value = start = rng.randrange(1, 10)
        moves = []
        for _ in range(rng.randint(low, high)):
            number = rng.randrange(1, 10)
            sign = "+" if value < number else "-" if value + number > MOST else rng.choice("+-")
            value += number if sign == "+" else -number
            moves.append((sign, number))
        chain = Chain(start, tuple(moves))
        if is_held_out(chain.question) == held_out:
            yield chain


def distinct(source: Iterator[Chain], count: int) -> list[Chain]:
    """The first ``count`` chains with different questions."""
    found: dict[str, Chain] = {}
    while len(found) < count:
        chain = next(source)
        found.setdefault(chain.question, chain)
    return list(found.values())


def row(chain: Chain) -> dict[str, Any]:
    """A chain as a row of a dataset."""
    return {"prompt": [{"role": "user", "content": chain.question}], "answer": str(chain.answer)}


def dataset() -> "DatasetDict":
    """Questions with answers: ``train``, and ``test``, held out from ``train`` and from the warm start."""
    from datasets import Dataset, DatasetDict

    drawn = {name: chains(seed=1, held_out=name == "test") for name in ROWS}
    return DatasetDict(
        {name: Dataset.from_list([row(chain) for chain in distinct(drawn[name], ROWS[name])]) for name in ROWS}
    )


def model() -> str:
    """The folder of the warm-started model, which the first call makes."""
    folder = FOLDER / "warm"
    if _recipe_of(folder) != RECIPE:
        warm_start(folder)
    return str(folder)


def _recipe_of(folder: Path) -> int | None:
    found = read_json(folder / "recipe.json").get("recipe")
    return found if isinstance(found, int) else None


def warm_start(
    folder: Path,
    *,
    steps: int = 550,
    worked: int = 36,
    guessed: int = 44,
    seed: int = 0,
    hidden: int = 128,
    singles: int = 0,
) -> None:
    """Train a small model on solutions of both kinds, and save it with its tokenizer in one go.

    ``worked`` and ``guessed`` count the solutions of each kind in an optimizer step, ``singles`` those of chains with
    one move, which are all worked out. ``seed`` is of weights and data. ``hidden`` is the width of the model, a
    multiple of 64.
    """
    import torch

    from grpo_plus.testing import make_tiny_model

    network, tokenizer = make_tiny_model(
        layers=2,
        hidden=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        initializer_range=0.03,
        seed=seed,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    size = sum(parameter.numel() for parameter in network.parameters())
    print(f"warm start: supervised training of a model of {size / 1e6:.1f} million parameters, {steps} steps")
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, betas=(0.9, 0.95))
    source, easy, rng = chains(seed + 2), chains(seed + 2, 1, 1), random.Random(seed)  # noqa: S311 - sums, not secrets
    network.train()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps, pct_start=0.1)
    for step in range(1, steps + 1):
        long = [(chain.question, chain.worked_out) for chain in (*islice(source, worked), *islice(easy, singles))]
        short = [(chain.question, chain.guessed(rng)) for chain in islice(source, guessed)]
        (lost, tokens), (lost_short, tokens_short) = (_loss(network, tokenizer, pairs) for pairs in (long, short))
        loss = (lost + lost_short) / (tokens + tokens_short)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            print(f"  step {step}: loss of worked solutions {lost.item() / tokens:.3f}", flush=True)
    _save(network.eval(), tokenizer, folder)


def _loss(network: Any, tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Any, int]:
    """The loss summed over all tokens of the solutions, and the number of these tokens."""
    import torch

    ids, labels = _padded(tokenizer, pairs)
    logits = network(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long()).logits
    wanted = labels[:, 1:].flatten()
    total = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted, reduction="sum")
    return total, int((wanted != -100).sum())


def _padded(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> tuple[Any, Any]:
    """Right-padded ids and labels of questions and solutions; only the solutions have labels."""
    import torch

    rows = []
    for question, solution in pairs:
        asked = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        rows.append((tokenizer(asked)["input_ids"], [*tokenizer(solution)["input_ids"], tokenizer.eos_token_id]))
    width = max((len(prompt) + len(solution) for prompt, solution in rows), default=1)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    labels = torch.full((len(rows), width), -100)
    for row, (prompt, learned) in enumerate(rows):
        end = len(prompt) + len(learned)
        ids[row, :end] = torch.tensor([*prompt, *learned])
        labels[row, len(prompt) : end] = torch.tensor(learned)
    return ids, labels


def _save(network: Any, tokenizer: Any, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        network.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        (draft / "recipe.json").write_text(json.dumps({"recipe": RECIPE}) + "\n", encoding="utf-8")
        draft.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
