"""The turns of a completion, each with its tool calls and their results.

A turn is text that the model writes without interruption: up to its end, or up to calls of tools and their results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

from grpo_verifiers.reading.messages import content_text

CallStatus = Literal["ok", "error", "late", "died", "unknown", "bad_arguments", "cut"]
"""End of a call: ``error`` the tool raised, ``late`` it was killed at its deadline, ``died`` its process ended,
``cut`` the completion ended before its result."""


@dataclass(frozen=True)
class Call:
    """One call of a tool.

    Attributes:
        name: the tool's, as the model wrote it.
        arguments: by name; the text itself where it is no JSON object.
        result: the text for the model: a result or an error.
        status: how the call ended.
        seconds: how long it took.
    """

    name: str
    arguments: Mapping[str, Any] | str
    result: str
    status: CallStatus = "ok"
    seconds: float = 0.0


@dataclass(frozen=True)
class Turn:
    """One turn of a completion.

    >>> Turn(0, 9, "2 + 2 = ?").span
    (0, 9)

    Attributes:
        start: offset of its first character in the completion as sampled, as a ``Step`` counts.
        end: one past its last character.
        text: the text of the model, without the calls.
        calls: those at its end, in order.
        state: the key of the environment's state before the turn; None where it gives none.
        reward: the environment's own for this turn; None where it gives none.
    """

    start: int
    end: int
    text: str
    calls: tuple[Call, ...] = ()
    state: str | None = None
    reward: float | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Start and end: ``Step(*turn.span, score)`` scores the turn."""
        return self.start, self.end


_TRL_ERROR = "{'error': "
"""Start of TRL's result of a failed call."""


def turns_of_messages(completion: Any) -> tuple[Turn, ...]:
    """The turns of a text or of a chat's messages; offsets count in the contents of all messages, put together.

    >>> chat = [{"role": "assistant", "content": "2+2?"}, {"role": "tool", "content": "4"}]
    >>> turns_of_messages([*chat, {"role": "assistant", "content": "4"}])[1]
    Turn(start=5, end=6, text='4', calls=(), state=None, reward=None)
    """
    if isinstance(completion, str):
        return (Turn(0, len(completion), completion),) if completion else ()
    turns: list[Turn] = []
    at = 0
    for place, message in enumerate(completion):
        text = content_text(message.get("content"))
        if message.get("role") == "assistant":
            tools = takewhile(lambda following: following.get("role") == "tool", completion[place + 1 :])
            results = [content_text(following.get("content")) for following in tools]
            turns.append(Turn(at, at + len(text), text, calls_of(message.get("tool_calls") or (), results)))
        at += len(text)
    return tuple(turns)


def calls_of(calls: Sequence[Mapping[str, Any]], results: Sequence[str]) -> tuple[Call, ...]:
    """The calls of a message with their results, in order; one without a result was cut off."""
    paired = []
    for place, call in enumerate(calls):
        function = call.get("function") or {}
        arguments = function.get("arguments", {})
        text = results[place] if place < len(results) else None
        fits = isinstance(arguments, Mapping)
        status = "bad_arguments" if not fits else "cut" if text is None else "ok"
        if status == "ok" and text is not None and text.startswith(_TRL_ERROR):
            status = "error"
        name = function.get("name") or call.get("name") or "unknown"
        paired.append(Call(str(name), arguments if fits else str(arguments), text or "", status))  # type: ignore[arg-type]  # literals above
    return tuple(paired)
