"""Solutions of several turns: what the assistant says and calls, and what tools answer, as GRPO's loop would have it.

Only the assistant's own turns are learned. Results of tools have the ids that TRL's loop gives them, and a turn that
calls has to be read back as these calls, or no completion of the model could be this solution.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.trl.tools import encode_tool_results, parse_message, tool_tokenizer
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.tools.arguments import argument_problem
from grpo_verifiers.tools.part import Method

Message = Mapping[str, Any]
Schemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ToolChats:
    """How the chats of a run with tools are written and read.

    Attributes:
        tokenizer: reads calls.
        template: the chat template that TRL's loop renders with; None: the tokenizer's own.
        keywords: further arguments of the chat template.
        clean: from a tool's result to the text that the model gets.
        most: turns that may call; None: any number.
    """

    tokenizer: Any
    template: str | None
    keywords: Mapping[str, Any]
    clean: Callable[[str], str]
    most: int | None = None

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        keywords: Mapping[str, Any] | None,
        clean: Callable[[Any, str | None], Callable[[str], str]],
        most: int | None = None,
    ) -> "ToolChats":
        """Those of a tokenizer; ``clean`` makes the attribute from a tokenizer and a template.

        Raises:
            ConfigError: the model's chat template has no calls, or TRL cannot read them.
        """
        try:
            reading, template = tool_tokenizer(tokenizer)
        except ValueError as error:
            raise ConfigError(
                [f"warm_start: the model is to call tools, and {error}: name a model whose template has calls."]
            ) from error
        return cls(reading, template, dict(keywords or {}), clean(reading, template), most)

    def results(self, messages: Sequence[Message]) -> list[int]:
        """The ids behind a turn that called."""
        return encode_tool_results(self.tokenizer, self.template, self.keywords, messages)

    def read(self, ids: Sequence[int], behind: Sequence[int], tools: Schemas) -> list[tuple[str, Any]]:
        """The calls that TRL's loop finds in a turn: names and arguments."""
        message = parse_message(self.tokenizer, ids, behind, tools)
        return [called(call) for call in message.get("tool_calls") or ()]


def called(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Name and arguments of a call, as chats and as older data write it."""
    function = call.get("function") or call
    return function.get("name") or "", function.get("arguments")


def turns(messages: Sequence[Message], tools: Schemas, said: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The assistant's messages, each with the results of its calls.

    Arguments may be objects or JSON in a text. Tables write None for what a message does not have; such keys go.
    """
    methods = {schema["function"]["name"]: Method(schema["function"]["name"], schema) for schema in tools}
    found: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for message in messages:
        if message.get("role") == "tool":
            found[-1][1].append({"role": "tool", "name": message.get("name"), "content": _text(message, said)})
            continue
        calls = [_call(call, methods, said) for call in message.get("tool_calls") or ()]
        kept = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
        found.append(({"content": "", **kept, **({"tool_calls": calls} if calls else {})}, []))
    for place, (message, results) in enumerate(found):
        names = [called(call)[0] for call in message.get("tool_calls", ())]
        last = place == len(found) - 1
        if len(results) != len(names) and not (last and not results):
            counts = f"{len(names)} calls and {len(results)} results behind it"
            raise ConfigError(
                [f"{said}: turn {place + 1} has {counts}: write a message of role tool for each call, in order."]
            )
        for name, result in zip(names, results, strict=False):
            result["name"] = name
    return found


def _call(call: Mapping[str, Any], methods: Mapping[str, Method], said: str) -> dict[str, Any]:
    name, arguments = called(call)
    if not methods:
        raise ConfigError(
            [f"{said}: it calls {name!r}, and the run has no tools: set tools or environment, or remove the calls."]
        )
    if name not in methods:
        raise ConfigError([f"{said}: it calls {name!r}. {unknown('tool', name, list(methods))}"])
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ConfigError([f"{said}: the arguments of {name} are {arguments!r:.200}, no JSON: {error}."]) from error
    if isinstance(arguments, Mapping):
        needed = methods[name].schema["function"]["parameters"].get("required", ())
        arguments = {key: value for key, value in arguments.items() if value is not None or key in needed}
    problem = argument_problem(methods[name], arguments)
    if problem is not None:
        raise ConfigError([f"{said}: a call does not fit its tool. {problem}"])
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def _text(message: Message, said: str) -> str:
    content = message.get("content")
    if not isinstance(content, str | list):
        raise ConfigError([f"{said}: the content of a tool's message is {content!r:.120}, expected text."])
    return content_text(content)
