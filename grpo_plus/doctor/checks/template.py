"""The chat template: where a turn ends, what becomes of thinking, and whether tools can be shown."""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_plus.doctor.checks.tokens import TokenFacts
from grpo_plus.doctor.finding import Finding, info, ok, problem, warning

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
STRIPS = info(
    "thinking-stripped",
    "The template leaves the thinking of earlier turns out: with several turns the model is trained on texts that it "
    "will not see again. A completion of one turn keeps its thinking.",
    "Nothing for one turn; for several choose a template that keeps it.",
)
EMPTY_BLOCK = info(
    "thinking-empty-block",
    "The template puts an empty thinking section before each completion: the model is asked not to think.",
    "Set chat_template_kwargs: {enable_thinking: true} if it should.",
)
CLOSED = warning(
    "thinking-closed",
    "think_format wants a thinking section in the completion, and the prompt has one already, closed and empty.",
    "Set chat_template_kwargs: {enable_thinking: true}, or drop think_format.",
)
PREFILLED = warning(
    "thinking-prefilled",
    "The prompt ends with the opening tag, which no completion repeats: think_format scores all of them 0.",
    "Give think_format kwargs: {prefilled: true}.",
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
        strips: earlier thinking is left out.
        thinks: enable_thinking switches thinking, and it is on where nothing is said.
        told: enable_thinking is set by the config.
        problem: the error of writing a first prompt.
        missing: prompts are conversations, and there is no template.
        tools_problem: why tools cannot be shown; empty where there are none or they can.
    """

    turn_end: tuple[str, int] | None = None
    follows: bool = False
    opening: str = ""
    strips: bool = False
    thinks: bool = False
    told: bool = False
    problem: str = ""
    missing: bool = False
    written: bool = True
    tools_problem: str = ""


@dataclass(frozen=True)
class Asked:
    """What a config wants of completions: their limit, a format of thinking, and whether that is told of the prefix."""

    limit: int | None
    think_format: bool = False
    prefilled: bool = False


def template_findings(facts: TemplateFacts, tokens: TokenFacts, asked: Asked) -> Iterator[Finding]:
    """The end of a turn, thinking and tools."""
    if facts.tools_problem:
        yield NO_TOOLS.at("tools", facts.tools_problem)
    if facts.missing:
        yield MISSING.at("chat template", "none")
    if facts.problem:
        yield FAILS.at("chat template", facts.problem)
    if not facts.written:
        return
    yield from _end(facts, tokens)
    yield from _thinking(facts, asked)


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


def _thinking(facts: TemplateFacts, asked: Asked) -> Iterator[Finding]:
    opening = facts.opening.rstrip()
    closed, opened = opening.endswith("</think>"), opening.endswith("<think>")
    if facts.strips:
        yield STRIPS.at("chat template", "<think> of an earlier turn is gone from the next prompt")
    if closed:
        kind = CLOSED if asked.think_format else EMPTY_BLOCK
        yield kind.at("chat template", f"the prompt ends with {facts.opening[-40:]!r}")
    if opened and asked.think_format and not asked.prefilled:
        yield PREFILLED.at("think_format", f"the prompt ends with {facts.opening[-20:]!r}")
    thinks = opened or (facts.thinks and not closed)
    if thinks and not facts.told and asked.limit is not None and asked.limit < ROOM_TO_THINK:
        why = "the prompt opens the thinking" if opened else "enable_thinking is not set"
        yield SHORT.at("max_completion_length", f"{asked.limit} tokens, {why}")
