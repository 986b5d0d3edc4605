"""Solutions of several turns: texts and calls of the assistant and results of tools, as in TRL's tool loop.

Only the assistant's own turns are learned. Results of tools have the ids that TRL's loop gives them, and a turn that
calls has to be read back as these calls, or no completion of the model could be this solution.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.trl.tools import encode_tool_results, parse_message, tool_tokenizer
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import counted, unknown
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.tools.arguments import argument_problem
from grpo_verifiers.tools.part import Method

Message = Mapping[str, Any]
Schemas = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ToolChats:
    """Writing and reading of the chats of a run with tools.

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
        """Create it for a tokenizer; ``clean`` makes the attribute from a tokenizer and a template.

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
        """The ids of the results after a turn with calls."""
        return encode_tool_results(self.tokenizer, self.template, self.keywords, messages)

    def read(self, ids: Sequence[int], prefix: Sequence[int], tools: Schemas) -> list[tuple[str, Any]]:
        """The calls that TRL's loop finds in a turn: names and arguments."""
        message = parse_message(self.tokenizer, ids, prefix, tools)
        return [called(call) for call in message.get("tool_calls") or ()]


def called(call: Mapping[str, Any]) -> tuple[str, Any]:
    """Name and arguments of a call, as chats and as older data write it."""
    function = call.get("function") or call
    return function.get("name") or "", function.get("arguments")


def turns(messages: Sequence[Message], tools: Schemas, where: str) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """The assistant's messages, each with the results of its calls.

    Arguments may be objects or JSON in a text. Tables fill missing keys with None; these keys are dropped.
    """
    methods = {schema["function"]["name"]: Method(schema["function"]["name"], schema) for schema in tools}
    pairs: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for message in messages:
        if message.get("role") == "tool":
            content = message.get("content")
            if not isinstance(content, str | list):
                raise ConfigError([f"{where}: the content of a tool's message is {content!r:.120}, expected text."])
            pairs[-1][1].append({"role": "tool", "name": message.get("name"), "content": content_text(content)})
            continue
        calls = [_call(call, methods, where) for call in message.get("tool_calls") or ()]
        rest = {key: value for key, value in message.items() if value is not None and key != "tool_calls"}
        pairs.append(({"content": "", **rest, **({"tool_calls": calls} if calls else {})}, []))
    for place, (message, results) in enumerate(pairs):
        names = [called(call)[0] for call in message.get("tool_calls", ())]
        last = place == len(pairs) - 1
        if len(results) != len(names) and not (last and not results):
            counts = f"{counted(len(names), 'call')} and {counted(len(results), 'result')} after it"
            raise ConfigError(
                [f"{where}: turn {place + 1} has {counts}: write a message of role tool for each call, in order."]
            )
        for name, result in zip(names, results, strict=False):
            result["name"] = name
    return pairs


def _call(call: Mapping[str, Any], methods: Mapping[str, Method], where: str) -> dict[str, Any]:
    name, arguments = called(call)
    if not methods:
        raise ConfigError(
            [f"{where}: it calls {name!r}, and the run has no tools: set tools or environment, or remove the calls."]
        )
    if name not in methods:
        raise ConfigError([f"{where}: it calls {name!r}. {unknown('tool', name, list(methods))}"])
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ConfigError([f"{where}: arguments of {name} are {arguments!r:.200}, no JSON: {error}."]) from error
    if isinstance(arguments, Mapping):
        needed = methods[name].schema["function"]["parameters"].get("required", ())
        arguments = {key: value for key, value in arguments.items() if value is not None or key in needed}
    problem = argument_problem(methods[name], arguments)
    if problem is not None:
        raise ConfigError([f"{where}: a call does not fit its tool. {problem}"])
    return {"type": "function", "function": {"name": name, "arguments": arguments}}
