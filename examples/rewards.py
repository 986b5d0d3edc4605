"""Plain TRL reward functions for the examples: a list of scores, one for each completion."""

from typing import Any


def share_of_digits(completions: list[Any], **_: Any) -> list[float]:
    """Share of digits in the completion's text: a task that even a tiny model can climb."""
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [sum(character.isdigit() for character in text) / max(len(text), 1) for text in texts]
