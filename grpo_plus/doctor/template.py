"""The chat template: where a turn ends, what becomes of thinking, and whether tools can be shown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus import _trl
from grpo_plus.doctor.finding import Finding, ok, problem, warning
from grpo_plus.doctor.tokens import TokenFacts

_QUESTION, _ANSWER = "DOCTORQUESTION", "DOCTORANSWER"
ROOM_TO_THINK = 4096
"""Tokens that a thinking model commonly wants for a problem of school mathematics."""

ENDS = ok("turn-ends", "The token that the template writes behind a turn is one that ends a completion.")
NEVER = problem(
    "turn-never-ends",
    "The template ends a turn with a token that ends no completion: a model that learned the template writes it and "
    "goes on, every completion is cut off at the limit, and mask_truncated_completions leaves none.",
    "Set eos_token in tokenizer_config.json to that token, or add its id to eos_token_id in generation_config.json.",
)
NO_END = warning(
    "turn-without-end",
    "The template writes nothing behind a turn of the assistant, and the next turn begins with a token that ends no "
    "completion: the model has no end to learn.",
    "Add the token to the template, behind the assistant's content.",
)
MISSING = problem(
    "template-missing",
    "Prompts are conversations, and the tokenizer has no chat template to write them with.",
    "Take an instruct model or its tokenizer, or prompts of plain text (prompt: {chat: false}).",
)
FAILS = problem(
    "template-fails",
    "The chat template raises on a prompt of this data.",
    "Change the prompt (templates often refuse a system message, or two turns of one role), or the template.",
)
CLOSED = warning(
    "thinking-closed",
    "think_format wants a thinking section in the completion, and the prompt has one already, closed and empty.",
    "Set chat_template_kwargs: {enable_thinking: true}, or drop think_format.",
)
PREFILLED = warning(
    "thinking-prefilled",
    "The prompt ends with the opening tag, which no completion repeats: think_format scores all of them 0.",
    "Write {name: think_format, prefilled: true}.",
)
SHORT = warning(
    "thinking-cut-off",
    "The model thinks unless it is told not to, and the limit of a completion is short for that: most are cut off "
    "before their answer.",
    "Set chat_template_kwargs: {enable_thinking: false}, where the template knows it, or raise max_completion_length.",
)
NO_TOOLS = problem(
    "tools-unsupported",
    "There are tools, and the chat template cannot write calls and their results: the trainer refuses it.",
    "Choose a model whose template knows tools, such as Qwen3.",
)


@dataclass(frozen=True)
class TemplateFacts:
    """What a template does.

    Attributes:
        turn_end: token and id behind an assistant's turn; None where it could not be told.
        follows: nothing ends the turn but what the next one begins with, which is ``turn_end``.
        opening: the text that the prompt ends with, ready for a completion.
        thinks: enable_thinking switches thinking, and it is on where nothing is said.
        told: enable_thinking is set by the config.
        problem: the error of writing a first prompt.
        missing: prompts are conversations, and there is no template.
        tools_problem: why tools cannot be shown; empty where there are none or they can.
    """

    turn_end: tuple[str, int] | None = None
    follows: bool = False
    opening: str = ""
    thinks: bool = False
    told: bool = False
    problem: str = ""
    missing: bool = False
    written: bool = True
    tools_problem: str = ""


def template_findings(
    facts: TemplateFacts,
    tokens: TokenFacts,
    limit: int | None,
    *,
    think_format: bool = False,
    prefilled: bool = False,
) -> Iterator[Finding]:
    """The end of a turn, thinking and tools.

    ``limit`` is that of a completion, ``think_format`` asks for thinking, and is ``prefilled`` where it says so.
    """
    if facts.tools_problem:
        yield NO_TOOLS.at("tools", facts.tools_problem)
    if facts.missing:
        yield MISSING.at("chat template", "none")
    if facts.problem:
        yield FAILS.at("chat template", facts.problem)
    if not facts.written:
        return
    yield from _end(facts, tokens)
    opening = facts.opening.rstrip()
    closed, opened = opening.endswith("</think>"), opening.endswith("<think>")
    if closed and think_format:
        yield CLOSED.at("chat template", f"the prompt ends with {facts.opening[-40:]!r}")
    if opened and think_format and not prefilled:
        yield PREFILLED.at("think_format", f"the prompt ends with {facts.opening[-20:]!r}")
    thinks = opened or (facts.thinks and not closed)
    if thinks and not facts.told and limit is not None and limit < ROOM_TO_THINK:
        why = "the prompt opens the thinking" if opened else "enable_thinking is not set"
        yield SHORT.at("max_completion_length", f"{limit} tokens, {why}")


def _end(facts: TemplateFacts, tokens: TokenFacts) -> Iterator[Finding]:
    if facts.turn_end is None:
        return
    name, number = facts.turn_end
    if facts.follows and number not in tokens.ends:
        told = f"nothing behind the assistant's content; the next turn begins with {name} ({number})"
        yield NO_END.at("chat template", told)
        return
    kind = ENDS if number in tokens.ends else NEVER
    yield kind.at(
        "chat template", f"a turn ends with {name} ({number}), completions at {tokens.shown(sorted(tokens.ends))}"
    )


def template_facts(
    tokenizer: Any, prompt: Any, keywords: Mapping[str, Any], schemas: Sequence[Mapping[str, Any]] = ()
) -> TemplateFacts:
    """Write a few conversations, and the first prompt of the data with the schemas of its tools."""
    tools_problem = _tools_problem(tokenizer) if schemas else ""
    chat = not isinstance(prompt, str)
    if tokenizer.chat_template is None:
        return TemplateFacts(missing=chat, written=False, tools_problem=tools_problem)
    if not chat:
        return TemplateFacts(written=False, tools_problem=tools_problem)
    user = {"role": "user", "content": _QUESTION}
    more = {"tools": list(schemas)} if schemas and not tools_problem else {}
    try:
        opened = _written(tokenizer, prompt, **keywords, **more)
    except Exception as error:  # noqa: BLE001 - a template raises what it likes
        return TemplateFacts(problem=f"{type(error).__name__}: {error}", written=False, tools_problem=tools_problem)
    ways = [_tried(tokenizer, [user], **{**keywords, "enable_thinking": way}) for way in (True, False)]
    turn_end, follows = _turn_end(tokenizer, keywords)
    return TemplateFacts(
        turn_end=turn_end,
        follows=follows,
        opening=opened[-200:],
        thinks=ways[0] != ways[1] and _tried(tokenizer, [user], **keywords) == ways[0],
        told="enable_thinking" in keywords,
        tools_problem=tools_problem,
    )


def _written(tokenizer: Any, messages: Any, **keywords: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **keywords}))


def _tried(tokenizer: Any, messages: Any, **keywords: Any) -> str:
    """A conversation as the template writes it; empty where it refuses it."""
    try:
        return _written(tokenizer, messages, **keywords)
    except Exception:  # noqa: BLE001 - same
        return ""


def _turn_end(tokenizer: Any, keywords: Mapping[str, Any]) -> tuple[tuple[str, int] | None, bool]:
    """The first token behind the content of an assistant's turn that is more than space.

    Where the template writes nothing there (GLM), it is the token that the next turn begins with, and the second value
    is true. None where an answer is not written at all.
    """
    user, answer = {"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}
    for turns in ([user, answer], [user, answer, user]):
        text = _tried(tokenizer, turns, **{**keywords, "add_generation_prompt": False})
        behind = text.rpartition(_ANSWER)[2].strip() if _ANSWER in text else ""
        if ids := tokenizer.encode(behind, add_special_tokens=False) if behind else []:
            return (str(tokenizer.convert_ids_to_tokens(ids[0])), int(ids[0])), len(turns) == 3
    return None, False


def _tools_problem(tokenizer: Any) -> str:
    try:
        _trl.calling_tokenizer(tokenizer)
    except ValueError as error:
        return str(error)
    return ""
