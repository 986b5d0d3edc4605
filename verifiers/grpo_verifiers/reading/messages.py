"""The text of a chat message, and of a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any


def content_text(content: Any, between: str = "") -> str:
    """The text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        texts = (part.get("text") if isinstance(part, Mapping) else part for part in content)
        return between.join(text if isinstance(text, str) else "" for text in texts)
    return ""


def prompt_text(prompt: Any) -> str:
    """The prompt, or the messages of a chat, as one text."""
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    return "\n".join(content_text(message.get("content")) for message in prompt)


def question_text(prompt: Any, between: str = "") -> str:
    """The prompt, or the last message of a chat's user."""
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    users = (message for message in reversed(prompt) if isinstance(message, Mapping) and message.get("role") == "user")
    return content_text(next(users, {}).get("content"), between)
