"""Chat template: end of a turn, thinking sections, and support of tools."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from grpo_plus.doctor.finding import CheckFinding, ok, problem, warning
from grpo_plus.doctor.tokens import tokens_text
from grpo_plus.trl.tools import tool_tokenizer

_USER = {"role": "user", "content": "DOCTORQUESTION"}
_ANSWER = "DOCTORANSWER"

ENDS = ok("turn-ends", "The token that the template writes after a turn ends a completion.")
NEVER = problem(
    "turn-never-ends",
    "The template ends a turn with a token that ends no completion: a model that learned the template writes it and "
    "continues, every completion is cut off at the limit, and mask_truncated_completions leaves none.",
    "Set eos_token in tokenizer_config.json to that token, or add its id to eos_token_id in generation_config.json.",
)
NO_END = warning(
    "turn-without-end",
    "The template writes nothing after a turn of the assistant, and the next turn begins with a token that ends no "
    "completion: the model has no end to learn.",
    "Add the token to the template, after the assistant's content.",
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
    "think_format needs a thinking section in the completion, and the prompt has one already, closed and empty.",
    "Set chat_template_kwargs: {enable_thinking: true}, or drop think_format.",
)
PREFILLED = warning(
    "thinking-prefilled",
    "The prompt ends with the opening tag, which no completion repeats: think_format scores all of them 0.",
    "Write {name: think_format, prefilled: true}.",
)
NO_TOOLS = problem(
    "tools-unsupported",
    "There are tools, and the chat template cannot write calls and their results: the trainer refuses it.",
    "Choose a model whose template supports tools, such as Qwen3.",
)


def template_findings(
    tokenizer: Any,
    prompt: Any,
    ends: Collection[int],
    *,
    keywords: Mapping[str, Any],
    schemas: Sequence[Mapping[str, Any]] = (),
    think_format: bool = False,
    prefilled: bool = False,
) -> Iterator[CheckFinding]:
    """Check the template on the first prompt with the schemas of its tools, and on a few conversations.

    ``ends`` are the ids that end completions. ``think_format`` requires thinking; ``prefilled`` is its option.
    """
    tools_problem = _tools_problem(tokenizer) if schemas else ""
    if tools_problem:
        yield NO_TOOLS.at("tools", tools_problem)
    if isinstance(prompt, str):
        return
    if tokenizer.chat_template is None:
        yield MISSING.at("chat template", "none")
        return
    tools = {"tools": list(schemas)} if schemas and not tools_problem else {}
    try:
        written = _written(tokenizer, prompt, **keywords, **tools)
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        yield FAILS.at("chat template", f"{type(error).__name__}: {error}")
        return
    yield from _end(tokenizer, keywords, ends)
    closed, opened = written.rstrip().endswith("</think>"), written.rstrip().endswith("<think>")
    if closed and think_format:
        yield CLOSED.at("chat template", f"the prompt ends with {written[-40:]!r}")
    if opened and think_format and not prefilled:
        yield PREFILLED.at("think_format", f"the prompt ends with {written[-20:]!r}")


def thinks_by_default(tokenizer: Any) -> bool:
    """Return True if a prompt opens the thinking section, or if enable_thinking is on by default."""
    ways: tuple[dict[str, bool], ...] = ({"enable_thinking": True}, {"enable_thinking": False}, {})
    on, off, default = (_try_writing(tokenizer, [_USER], **way) for way in ways)
    return default.rstrip().endswith("<think>") or (on != off and default == on)


def _end(tokenizer: Any, keywords: Mapping[str, Any], ends: Collection[int]) -> Iterator[CheckFinding]:
    """Check the first token after an assistant's content, spaces aside.

    If the template writes nothing there (GLM), check the first token of the next turn. No finding if the answer is not
    written at all.
    """
    answer = {"role": "assistant", "content": _ANSWER}
    for turns in ([_USER, answer], [_USER, answer, _USER]):
        text = _try_writing(tokenizer, turns, **{**keywords, "add_generation_prompt": False})
        rest = text.rpartition(_ANSWER)[2].strip() if _ANSWER in text else ""
        ids = tokenizer.encode(rest, add_special_tokens=False) if rest else []
        if not ids:
            continue
        token = tokens_text(tokenizer, ids[:1])
        if len(turns) == 3 and ids[0] not in ends:
            begins = f"nothing after the assistant's content; the next turn begins with {token}"
            yield NO_END.at("chat template", begins)
        else:
            kind = ENDS if ids[0] in ends else NEVER
            ended = f"a turn ends with {token}, completions at {tokens_text(tokenizer, sorted(ends))}"
            yield kind.at("chat template", ended)
        return


def _written(tokenizer: Any, messages: Any, **keywords: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **keywords}))


def _try_writing(tokenizer: Any, messages: Any, **keywords: Any) -> str:
    """Return a conversation as written by the template; empty if that fails."""
    try:
        return _written(tokenizer, messages, **keywords)
    except Exception:  # noqa: BLE001 - same
        return ""


def _tools_problem(tokenizer: Any) -> str:
    try:
        tool_tokenizer(tokenizer)
    except ValueError as error:
        return str(error)
    return ""
