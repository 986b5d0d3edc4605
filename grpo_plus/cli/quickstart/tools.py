r"""The data and the model of ``examples/tools.yaml``: sums of two numbers, and a model that adds without carrying.

Most solutions answer from the head, digit by digit, with a 9 where a digit would carry; some call the calculator. The
model learns both habits and is right some of the time; the reward tells the habits apart.

    user:       47+38
    assistant:  \boxed{79}                                            from the head, or

    assistant:  <tool_call>calculator{"expression": "47+38"}</tool_call>
    tool:       85
    assistant:  \boxed{85}
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli.quickstart import FOLDER, distinct, is_held_out, place, untrained

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from grpo_plus.warm_start.turns import Schemas

RECIPE = 1
"""Version of the untrained model's recipe; a stored model of another version is replaced."""

CALL, CALLED = "<tool_call>", "</tool_call>"

CHAT_TEMPLATE = (
    "{% for tool in tools or [] %}<|im_start|>s{{ tool['function']['name'] }}<|im_end|>{% endfor %}"
    "{% for message in messages %}<|im_start|>{{ message['role'][0] }}{{ message['content'] or '' }}"
    "{% for call in message['tool_calls'] or [] %}"
    "<tool_call>{{ call['function']['name'] }}{{ call['function']['arguments'] | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)
"""ChatML with one letter for the role, where tools are shown by their names: every character is a token."""

RESPONSE_TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>a",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<tool_call>(?P<name>\w+)",
            "close": CALLED,
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"<\|im_end\|>", "content": "text"},
    },
}
"""How calls are read back, for transformers' ``parse_response``."""

ROWS = {"train": 4096, "test": 256}
SOLUTIONS = 16_000
CALLING = 0.2
"""Share of the solutions that call the calculator."""


@dataclass(frozen=True)
class Sum:
    """A sum of two numbers of two digits."""

    left: int
    right: int

    @property
    def question(self) -> str:
        """The sum as text: ``47+38``."""
        return f"{self.left}+{self.right}"

    @property
    def answer(self) -> int:
        """The result."""
        return self.left + self.right

    @property
    def without_carries(self) -> str:
        """What comes out where each digit is added on its own, and 9 stands where one would carry.

        >>> Sum(47, 38).without_carries, Sum(41, 38).without_carries
        ('79', '79')
        """
        pairs = zip(str(self.left), str(self.right), strict=True)
        return "".join(str(min(9, int(one) + int(other))) for one, other in pairs)

    def from_the_head(self) -> list[dict[str, Any]]:
        """One turn, right where no digit carries."""
        return [{"role": "assistant", "content": f"\\boxed{{{self.without_carries}}}"}]

    def with_the_calculator(self) -> list[dict[str, Any]]:
        """A turn that calls, what the calculator says, and a turn that says it."""
        function = {"name": "calculator", "arguments": json.dumps({"expression": self.question})}
        return [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "name": "calculator", "content": str(self.answer)},
            {"role": "assistant", "content": f"\\boxed{{{self.answer}}}"},
        ]


def sums(seed: int, *, held_out: bool = False) -> Iterator[Sum]:
    """Random sums, for training or held out from it."""
    rng = random.Random(seed)  # noqa: S311 - sums, not secrets
    while True:
        made = Sum(rng.randrange(10, 100), rng.randrange(10, 100))
        if is_held_out(made.question) == held_out:
            yield made


def dataset() -> "DatasetDict":
    """Questions with answers: ``train``, and ``test``, held out from ``train`` and from the warm start."""
    from datasets import Dataset, DatasetDict

    splits = {name: distinct(sums(seed=1, held_out=name == "test"), count) for name, count in ROWS.items()}
    rows = {
        name: [{**asked(one.question), "answer": str(one.answer)} for one in found] for name, found in splits.items()
    }
    return DatasetDict({name: Dataset.from_list(found) for name, found in rows.items()})


def asked(question: str) -> dict[str, Any]:
    """A question as the columns of a row."""
    return {"prompt": [{"role": "user", "content": question}]}


def solutions() -> "Dataset":
    """Questions with solutions for the warm start: most from the head, some by the calculator; none is of ``test``."""
    from datasets import Dataset

    source, rng, rows = sums(seed=2), random.Random(0), []  # noqa: S311 - sums, not secrets
    for _ in range(SOLUTIONS):
        made = next(source)
        turns = made.with_the_calculator() if rng.random() < CALLING else made.from_the_head()
        rows.append({**asked(made.question), "solution": turns})
    return Dataset.from_list(rows)


def base() -> str:
    """The folder of a model that has learned nothing yet, with a chat template for tools; the first call makes it."""
    return untrained(FOLDER / "base-tools", RECIPE, 64, _with_tools)


def warm_start(folder: Path, rows: Sequence[Mapping[str, Any]], tools: "Schemas", *, steps: int, batch: int) -> None:
    """Put the model, trained on solutions with calls of these tools, into a folder, and remove an older one."""
    place(folder, base(), rows, steps, batch, tools=tools)


def _with_tools(network: Any, tokenizer: Any) -> None:
    tokenizer.add_tokens([CALL, CALLED])
    network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
