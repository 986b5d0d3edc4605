"""What a chat template does, seen from conversations that it writes."""

from collections.abc import Mapping, Sequence
from typing import Any

from grpo_plus import _trl
from grpo_plus.doctor.checks.template import TemplateFacts

_QUESTION, _ANSWER, _THOUGHT = "DOCTORQUESTION", "DOCTORANSWER", "DOCTORTHOUGHT"


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
    thinking = f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}"
    earlier = _tried(tokenizer, [user, {"role": "assistant", "content": thinking}, user], **keywords)
    ways = [_tried(tokenizer, [user], **{**keywords, "enable_thinking": way}) for way in (True, False)]
    turn_end, follows = _turn_end(tokenizer, keywords)
    return TemplateFacts(
        turn_end=turn_end,
        follows=follows,
        opening=opened[-200:],
        strips=bool(earlier) and _ANSWER in earlier and _THOUGHT not in earlier,
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
