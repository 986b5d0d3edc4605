r"""The ``prompt`` mapping of a config: the column, the wording and the answer format of the prompt.

- ``column``: the column with the question or the conversation (default ``prompt``).
- ``user``: text with ``{column}`` placeholders instead of one column; ``{{`` and ``}}`` are braces, and so are those
  of LaTeX commands such as ``\boxed{}``.
- ``system``: a system message.
- ``template``: the name of an answer format; its instructions follow the system message.
- ``chat``: true makes the prompt a conversation. Unset, it is one if the model has a chat template; otherwise system
  message and question become one text.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from grpo_plus.cli import UserError
from grpo_plus.recipe.values import checked_mapping
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.options import Matches

_Text = Annotated[str, Matches(r"(?s).*\S.*", "a string")]


class PromptSettings(TypedDict, total=False):
    """The keys of ``prompt``, and the values that each takes."""

    column: _Text
    system: _Text
    user: _Text
    template: _Text
    chat: bool


KEYS = tuple(PromptSettings.__annotations__)


@dataclass(frozen=True)
class AnswerFormat:
    """Instructions on the form of an answer; ``checked_by`` is the YAML entry of the verifier that checks it."""

    text: str
    checked_by: str


FORMATS = {
    "boxed": AnswerFormat("Reason step by step, then give the final answer in \\boxed{}.", "math"),
    "think": AnswerFormat(
        "First think the problem through between <think> and </think>. After </think>, answer.", "think_format"
    ),
    "think_boxed": AnswerFormat(
        "First think the problem through between <think> and </think>. After </think>, give the final answer in "
        "\\boxed{}.",
        "think_format, math",
    ),
    "think_answer": AnswerFormat(
        "First think the problem through between <think> and </think>. Then give the final answer between <answer> and "
        "</answer>, and nothing after it.",
        "{name: think_format, answer: answer}",
    ),
}

_PIECE = re.compile(r"(?P<latex>\\[A-Za-z]+\{[^{}]*\})|(?P<open>\{\{)|(?P<close>\}\})|\{(?P<column>[^{}]+)\}")


def prompt_problems(given: Any) -> list[str]:
    """The problems of the mapping."""
    prompt, problems = checked_mapping("prompt", given, PromptSettings, "{column: question, system: Think first.}")
    template = prompt.get("template")
    if isinstance(template, str) and template.strip() and template not in FORMATS:
        problems.append(
            f"prompt: {unknown('template', template, FORMATS)} Your own words go into prompt: {{system: …}}."
        )
    if "column" in prompt and "user" in prompt:
        problems.append(
            f"prompt has both column ({prompt['column']!r}) and user ({prompt['user']!r}), which both say what is "
            "asked: keep user, and write the column's name in braces where its text goes."
        )
    return problems


def placeholders(text: str) -> list[str]:
    """The columns that a ``user`` text names."""
    return list(dict.fromkeys(found["column"] for found in _PIECE.finditer(text) if found["column"]))


def filled(text: str, row: Mapping[str, Any]) -> str:
    """Fill a ``user`` text with the values of a row."""

    def piece(found: "re.Match[str]") -> str:
        if found["column"]:
            value = row[found["column"]]
            if value is None or isinstance(value, list | dict):
                raise UserError(
                    f"prompt: a row's {found['column']!r} is {value!r}, expected text for the place in user."
                )
            return str(value)
        return "{" if found["open"] else "}" if found["close"] else found[0]

    return _PIECE.sub(piece, text)


def prompt_columns(prompt: Mapping[str, Any]) -> list[str]:
    """The columns that prompts are made from."""
    return placeholders(prompt["user"]) if "user" in prompt else [prompt.get("column", "prompt")]


def check_columns(rows: Any, prompt: Mapping[str, Any], field: str) -> None:
    """Raise `UserError` if a column of the prompt does not exist."""
    columns = rows.column_names or []
    if not columns:  # a stream that does not say
        return
    for column in prompt_columns(prompt):
        if column in columns:
            continue
        if "user" in prompt:
            hint = f"The {{{column}}} in prompt: {{user: …}} names a column; a brace that is none is written twice."
        else:
            hint = "Set prompt: {column: …} to the right one."
        raise UserError(f"prompt: {unknown('column', column, columns)} ({field}) {hint}")


def with_prompts(rows: Any, prompt: Mapping[str, Any], *, chat: bool) -> Any:
    """Rows with the column ``prompt`` made from their columns; unchanged if the mapping is empty.

    ``chat`` is true if the model's tokenizer has a chat template.
    """
    if not prompt:
        return rows
    make = maker(prompt, chat=chat)
    drop = [name for name in ("prompt",) if name in (rows.column_names or ())]  # its type may become that of turns
    return rows.map(lambda row: {"prompt": make(row)}, remove_columns=drop)


def maker(prompt: Mapping[str, Any], *, chat: bool) -> Callable[[Mapping[str, Any]], Any]:
    """The function from a row to its prompt."""
    chat = prompt.get("chat", chat)
    template = prompt.get("template")
    instructions = [prompt.get("system"), FORMATS[template].text if template else None]
    system = "\n\n".join(text for text in instructions if text)

    def make(row: Mapping[str, Any]) -> Any:
        asked = filled(prompt["user"], row) if "user" in prompt else row[prompt.get("column", "prompt")]
        if isinstance(asked, list):
            if system and asked and asked[0].get("role") == "system":
                raise UserError(
                    "prompt: a system message is set (by system or template), but the dataset's conversations begin "
                    f"with one already ({asked[0].get('content')!r:.80}): keep one of the two."
                )
            return [{"role": "system", "content": system}, *asked] if system else asked
        if not isinstance(asked, str):
            name = prompt.get("column", "prompt")
            raise UserError(f"prompt: a row of the column {name!r} holds {asked!r}, expected text or a conversation.")
        if not chat:
            return f"{system}\n\n{asked}" if system else asked
        return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": asked}]

    return make


def sample(prompt: Any, tokenizer: Any, keywords: Mapping[str, Any] | None = None, limit: int = 1200) -> str:
    """A prompt as the model reads it; a long one loses its middle."""
    text = prompt
    if not isinstance(prompt, str):
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **(keywords or {}))
    if len(text) > limit:
        text = f"{text[: limit // 2]}\n[… {len(text) - limit} characters …]\n{text[-limit // 2 :]}"
    return "\n".join(f"  {line}" for line in str(text).splitlines())
