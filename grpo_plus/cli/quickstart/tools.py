r"""Data and model of ``examples/tools.yaml``: sums of two numbers, and a model that adds without carrying.

Most solutions answer from the head, digit by digit, with a 9 where a digit would carry; some call the calculator. The
model learns both habits and is sometimes right; the reward distinguishes the habits.

    user:       47+38
    assistant:  \boxed{79}                                            from the head, or

    assistant:  <tool_call>calculator{"expression": "47+38"}</tool_call>
    tool:       85
    assistant:  \boxed{85}
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_plus.cli.quickstart import FOLDER, SOLUTIONS, is_held_out, row, splits, untrained

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


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
"""ChatML with one letter for the role and tools by name only: every character is a token."""

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
"""Grammar of tool calls for transformers' ``parse_response``."""

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
        """The sum of each pair of digits alone, limited to 9.

        >>> Sum(47, 38).without_carries, Sum(41, 38).without_carries
        ('79', '79')
        """
        pairs = zip(str(self.left), str(self.right), strict=True)
        return "".join(str(min(9, int(one) + int(other))) for one, other in pairs)

    def from_the_head(self) -> list[dict[str, Any]]:
        """Return one turn, right if no digit carries."""
        return [{"role": "assistant", "content": f"\\boxed{{{self.without_carries}}}"}]

    def with_the_calculator(self) -> list[dict[str, Any]]:
        """Return a turn with the call, the calculator's result, and a turn with the answer."""
        function = {"name": "calculator", "arguments": json.dumps({"expression": self.question})}
        return [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "name": "calculator", "content": str(self.answer)},
            {"role": "assistant", "content": f"\\boxed{{{self.answer}}}"},
        ]


def sums(seed: int, *, held_out: bool = False) -> Iterator[Sum]:
    """Generate random sums, for training or held out."""
    rng = random.Random(seed)  # noqa: S311 - sums, not secrets
    while True:
        pair = Sum(rng.randrange(10, 100), rng.randrange(10, 100))
        if is_held_out(pair.question) == held_out:
            yield pair


def dataset() -> "DatasetDict":
    """Return questions with answers: ``train``, and ``test``, which neither ``train`` nor the warm start contains."""
    return splits(sums)


def solutions() -> "Dataset":
    """Return questions with solutions for the warm start, some with calls of the calculator; none is of ``test``."""
    from datasets import Dataset

    source, rng, rows = sums(seed=2), random.Random(0), []  # noqa: S311 - sums, not secrets
    for _ in range(SOLUTIONS):
        pair = next(source)
        turns = pair.with_the_calculator() if rng.random() < CALLING else pair.from_the_head()
        rows.append({"prompt": row(pair)["prompt"], "solution": turns})
    return Dataset.from_list(rows)


def base() -> str:
    """Return the folder of an untrained model with a chat template for tools, created at the first call."""
    return untrained(FOLDER / "base-tools", RECIPE, 64, _with_tools)


def _with_tools(network: Any, tokenizer: Any) -> None:
    tokenizer.add_tokens([CALL, CALLED])
    network.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
