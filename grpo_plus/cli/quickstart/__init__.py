r"""Data and model of the quickstart, generated at the first start: chains of sums, and a half-trained model.

``examples/quickstart.yaml`` names `base`, `solutions` and `dataset`, functions that work from any config. `model` is
the base after the warm start of that file. Most solutions guess a number near the result, and some work the result out
line by line. The model learns both habits and is sometimes right; the reward distinguishes the habits.

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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from grpo_plus.checkpoints.folder import read_json
from grpo_verifiers.files import folder_lock, replaced_folder

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

FOLDER = Path(os.environ.get("GRPO_PLUS_QUICKSTART", "runs/quickstart"))
"""Folder of the untrained model, and of the warm-started one in ``warm``."""

RECIPE = 9
"""Version of the untrained model's recipe; a stored model of another version is replaced."""

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

STEPS = 550
"""Optimizer steps of the warm start."""

WORKED, GUESSED = 36, 44
"""Solutions of each kind in a step."""

SOLUTIONS = 16_000

ROWS = {"train": 4096, "test": 256}


@dataclass(frozen=True)
class SumChain:
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
        """Return only a boxed number near the result."""
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
    """Return True for one question in eight, by its checksum: these are for evaluation only."""
    return crc32(question.encode()) % 8 == 0


def chains(seed: int, low: int = 2, high: int = 4, *, held_out: bool = False) -> Iterator[SumChain]:
    """Generate random chains of ``low`` to ``high`` moves with one-digit values, for training or held out."""
    rng = random.Random(seed)  # noqa: S311 - sums, not secrets
    while True:
        value = start = rng.randrange(1, 10)
        moves = []
        for _ in range(rng.randint(low, high)):
            number = rng.randrange(1, 10)
            sign = "+" if value < number else "-" if value + number > MOST else rng.choice("+-")
            value += number if sign == "+" else -number
            moves.append((sign, number))
        chain = SumChain(start, tuple(moves))
        if is_held_out(chain.question) == held_out:
            yield chain


def distinct(source: Iterator[Any], count: int) -> list[Any]:
    """Return the first ``count`` chains, or sums, with different questions."""
    chains_by_question: dict[str, Any] = {}
    while len(chains_by_question) < count:
        chain = next(source)
        chains_by_question.setdefault(chain.question, chain)
    return list(chains_by_question.values())


def row(chain: Any) -> dict[str, Any]:
    """Return a chain, or a sum, as a row of a dataset."""
    return {"prompt": [{"role": "user", "content": chain.question}], "answer": str(chain.answer)}


def dataset() -> "DatasetDict":
    """Return questions with answers: ``train``, and ``test``, which neither ``train`` nor the warm start contains."""
    return splits(chains)


def splits(generate: Callable[..., Iterator[Any]]) -> "DatasetDict":
    """Return the splits of generated chains or sums."""
    from datasets import Dataset, DatasetDict

    lists = {name: distinct(generate(seed=1, held_out=name == "test"), count) for name, count in ROWS.items()}
    return DatasetDict({name: Dataset.from_list([row(each) for each in some]) for name, some in lists.items()})


def solutions() -> "Dataset":
    """Return questions with solutions for the warm start, guessed or worked out; none is of ``test``."""
    from datasets import Dataset

    return Dataset.from_list(_solutions(SOLUTIONS))


def _solutions(count: int) -> list[dict[str, Any]]:
    source, rng = chains(2), random.Random(0)  # noqa: S311 - sums, not secrets
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        learned = [(chain, chain.worked_out) for chain in islice(source, WORKED)]
        learned += [(chain, chain.guessed(rng)) for chain in islice(source, GUESSED)]
        rows += [{"prompt": row(chain)["prompt"], "solution": solution} for chain, solution in learned]
    return rows[:count]


def base(*, hidden: int = 128, seed: int = 0) -> str:
    """Return the folder of an untrained model, created at the first call.

    ``hidden`` is its width, a multiple of 64; ``seed`` is of its weights.
    """
    folder = FOLDER / ("base" if (hidden, seed) == (128, 0) else f"base-{hidden}-{seed}")
    return untrained(folder, RECIPE, hidden, _with_template, seed)


def untrained(folder: Path, recipe: int, hidden: int, adapt: Callable[[Any, Any], None], seed: int = 0) -> str:
    """Return the folder of an untrained model, created if missing or of another recipe version.

    ``adapt`` changes the model and its tokenizer before they are saved.
    """
    if read_json(folder / "recipe.json").get("recipe") == recipe:
        return str(folder)
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
    adapt(network, tokenizer)
    with folder_lock(folder), replaced_folder(folder) as draft:
        network.save_pretrained(draft)
        tokenizer.save_pretrained(draft)
        (draft / "recipe.json").write_text(json.dumps({"recipe": recipe}) + "\n", encoding="utf-8")
    return str(folder)


def _with_template(_network: Any, tokenizer: Any) -> None:
    tokenizer.chat_template = CHAT_TEMPLATE


def model() -> str:
    """Return the folder of the warm-started model, the same as with ``examples/quickstart.yaml``."""
    from transformers import AutoTokenizer

    from grpo_plus.warm_start.examples import SolutionRow, encode
    from grpo_plus.warm_start.make import Base, obtain, store_of
    from grpo_plus.warm_start.store import WarmStart

    folder, batch = base(), WORKED + GUESSED
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [SolutionRow(each["prompt"], each["solution"], ()) for each in _solutions(SOLUTIONS)]
    examples, options = encode(rows, tokenizer, column="solution"), WarmStart(STEPS, batch, RATE)
    computing = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    start = Base(folder, {"dtype": "float32"}, computing=computing, micro_batch=batch)
    store = store_of(FOLDER / "warm", start, examples, options)
    return str(obtain(store, start, examples, options, tokenizer, print))
